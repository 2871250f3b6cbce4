"""The episode loop: exact records, every way to end, and what a model sees of its mistakes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ferrata.chat import CLOSE, Assembler
from ferrata.config.episodes import EpisodesParams
from ferrata.environments.base import Message, Observation, Reply, Step, Task, Tool
from ferrata.environments.tool_use import ToolUse
from ferrata.episodes.engine import CUT, Engine
from ferrata.episodes.policies import Continuation, OnTurn, Prompt, Sampled, TransformersPolicy
from ferrata.episodes.trajectory import StopReason, Trajectory, render
from ferrata.errors import FerrataError

Limits = Callable[..., EpisodesParams]
ENVIRONMENT = ToolUse()
BAD = "[lookup(item=)]" + CLOSE
SKY = '[weather(city="Oslo")]' + CLOSE


class Script:
    """Plays given texts as token ids, one list per prompt, within the limits."""

    def __init__(self, tokenizer: Any, *texts: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.texts = texts
        self.spoken: list[list[tuple[list[int], list[int]]]] = []  # per prompt: (turn, extension)

    def run(self, prompts: Sequence[Prompt], temperature: float, on_turn: OnTurn) -> None:
        for index, prompt in enumerate(prompts):
            self.spoken.append([])
            limit = prompt.limit
            for text in self.texts[index]:
                ids = self.tokenizer(text, add_special_tokens=False)["input_ids"][:limit]
                closed = ids[-1] == self.tokenizer.eos_token_id
                turn = Sampled(ids, [-0.5] * len(ids), closed)
                going_on = on_turn(index, turn)
                self.spoken[-1].append((list(ids), list(going_on.ids) if going_on else []))
                if going_on is None:
                    break
                assert going_on.limit >= 1
                limit = going_on.limit


class Listener:
    """Another policy, with what it was asked and what it said."""

    def __init__(self, policy: TransformersPolicy) -> None:
        self.policy = policy
        self.prompts: list[Prompt] = []
        self.spoken: dict[int, list[tuple[list[int], list[float], list[int]]]] = {}

    def run(self, prompts: Sequence[Prompt], temperature: float, on_turn: OnTurn) -> None:
        self.prompts = list(prompts)

        def listen(index: int, turn: Sampled) -> Continuation | None:
            ids, logprobs = list(turn.ids), list(turn.logprobs)
            going_on = on_turn(index, turn)
            extension = list(going_on.ids) if going_on else []
            self.spoken.setdefault(index, []).append((ids, logprobs, extension))
            return going_on

        self.policy.run(prompts, temperature, listen)


class Broken(ToolUse):
    """Its tool raises."""

    def tools(self, task: Task) -> Sequence[Tool]:
        def weather(city: str) -> str:
            """forecast"""
            raise OSError("no such host")

        return [Tool(weather)]


class Wordy(ToolUse):
    """Its tool never stops talking."""

    def tools(self, task: Task) -> Sequence[Tool]:
        def weather(city: str) -> str:
            """forecast"""
            return "rain " * 1000

        return [Tool(weather)]


class Patient(ToolUse):
    """Its world answers whatever is said, and never ends an episode."""

    def start(self, task: Task) -> Any:
        world = super().start(task)

        def step(agent: str, reply: Reply) -> Step:
            return Step({agent: Observation([{"role": "tool", "name": "echo", "content": "on"}])})

        world.step = step  # type: ignore[method-assign]
        return world


def play(
    assembler: Assembler,
    budgets: EpisodesParams,
    task: Task,
    *texts: str,
    environment: ToolUse = ENVIRONMENT,
) -> Trajectory:
    """One scripted episode; what holds for every record is checked here."""
    policy = Script(assembler.tokenizer, texts)
    (record,) = Engine(environment, assembler, policy, budgets).play([task], temperature=0, seed=1)
    (context,) = record.contexts
    assert record.stop is not None
    assert len(context.ids) == len(context.mask) == len(context.logprobs)
    ids = context.ids[: context.prompt_length]
    mask = [0] * len(ids)
    for turn, extension in policy.spoken[0]:
        ids, mask = ids + turn + extension, mask + [1] * len(turn) + [0] * len(extension)
    assert context.ids[: len(ids)] == ids and context.mask[: len(ids)] == mask
    assert not any(context.mask[len(ids) :])  # the last answer, behind which nothing was played
    assert context.logprobs == [-0.5 * m for m in context.mask]
    assert record.turns == len(policy.spoken[0]) and record.tokens == sum(mask)
    if record.stop is not StopReason.OUT_OF_TOKENS or len(context.ids) > len(ids):
        encoded = assembler.encode(record.messages, environment.tools(task))
        assert encoded.ids == context.ids and encoded.mask == context.mask
    return record


def test_demonstrations_play_as_they_are_written(
    assembler: Assembler, tasks: list[Task], limits: Limits
) -> None:
    for skill in (1.0, 0.3):
        for task in tasks:
            shown = ENVIRONMENT.demonstrate(task, skill, random.Random(task.id))
            pieces = assembler.pieces(shown.messages, ENVIRONMENT.tools(task))
            texts = [text for text, sampled in pieces if sampled]
            record = play(assembler, limits(), task, *texts)
            assert record.stop is StopReason.ANSWERED
            assert record.messages == shown.messages
            assert record.success == shown.success == (record.episode_return == 1.0)
            assert record.calls == len(texts) - 1
            assert f"Answer: {record.answer}" == shown.messages[-1]["content"]


def test_several_contexts_of_a_sampled_model(
    tiny: tuple[Any, Any], assembler: Assembler, tasks: list[Task], limits: Limits
) -> None:
    prompt = assembler.prompt(ENVIRONMENT.start(tasks[0]).reset()["agent"].messages, ())
    said: list[int] = []
    TransformersPolicy(tiny[0], 10**9).run(
        [Prompt(prompt, 60, (sample,)) for sample in range(12)],
        0.5,
        lambda index, turn: said.extend(turn.ids),
    )
    # the token that the random model says most often closes its turns
    policy = TransformersPolicy(tiny[0], Counter(said).most_common(1)[0][0])
    environment = Patient()
    budgets = limits(max_turn_tokens=100, max_turns=3, max_invalid_calls=9)
    listener = Listener(policy)
    engine = Engine(environment, assembler, listener, budgets)
    records = engine.play(
        [*tasks, *tasks], temperature=0.5, seed=4, samples=[0] * len(tasks) + [1] * len(tasks)
    )
    assert [record.task.id for record in records] == [task.id for task in [*tasks, *tasks]]
    for index, record in enumerate(records):
        context = record.contexts[0]
        ids = list(listener.prompts[index].ids)
        assert len(ids) == context.prompt_length
        mask, logprobs = [0] * len(ids), [0.0] * len(ids)
        for turn, turn_logprobs, extension in listener.spoken[index]:
            assert 1 <= len(turn) <= 100
            ids += [*turn, *extension]
            mask += [1] * len(turn) + [0] * len(extension)
            logprobs += [*turn_logprobs, *[0.0] * len(extension)]
        assert context.ids[: len(ids)] == ids and context.mask[: len(ids)] == mask
        assert context.logprobs[: len(ids)] == logprobs
        assert not any(context.mask[len(ids) :])
        assert record.stop is not None and record.turns == len(listener.spoken[index])
    assert records[0].contexts[0].ids != records[len(tasks)].contexts[0].ids
    again = Engine(environment, assembler, policy, budgets).play(tasks[:1], temperature=0.5, seed=4)
    assert again[0].contexts[0].ids == records[0].contexts[0].ids


def test_an_answer_ends_the_episode(
    assembler: Assembler, tasks: list[Task], limits: Limits
) -> None:
    right = play(assembler, limits(), tasks[0], f"Answer: {tasks[0].answer}{CLOSE}", "never said")
    assert right.stop is StopReason.ANSWERED and right.success and right.turns == 1
    wrong = play(assembler, limits(), tasks[0], f"I do not know{CLOSE}")
    assert wrong.stop is StopReason.ANSWERED and not wrong.success and wrong.answer is None
    assert wrong.rewards == [{"answer": 0.0}]


def test_turns_run_out(assembler: Assembler, tasks: list[Task], limits: Limits) -> None:
    record = play(assembler, limits(max_turns=2), tasks[0], SKY, SKY, SKY)
    assert record.stop is StopReason.OUT_OF_TURNS
    assert (record.turns, record.calls, record.rewards) == (2, 2, [])


def test_a_turn_runs_out_of_tokens(assembler: Assembler, tasks: list[Task], limits: Limits) -> None:
    record = play(assembler, limits(max_turn_tokens=9), tasks[0], f"Answer: 1{'7' * 30}{CLOSE}")
    assert record.stop is StopReason.OUT_OF_TOKENS
    assert record.tokens == 9 and not record.rewards and record.answer is None


def test_a_cut_call_is_not_run(assembler: Assembler, tasks: list[Task], limits: Limits) -> None:
    whole = len(assembler.tokenizer(SKY, add_special_tokens=False)["input_ids"])
    record = play(assembler, limits(max_turn_tokens=whole - 1), tasks[0], SKY)
    assert record.stop is StopReason.OUT_OF_TOKENS and record.calls == 0
    exact = limits(max_turn_tokens=whole, max_turns=2)
    assert play(assembler, exact, tasks[0], SKY, SKY).calls == 2


def test_the_context_runs_out_of_tokens(
    assembler: Assembler, tasks: list[Task], limits: Limits
) -> None:
    prompt = play(assembler, limits(), tasks[0], f"x{CLOSE}").contexts[0].prompt_length
    # within a turn
    record = play(assembler, limits(max_context_tokens=prompt + 121), tasks[0], "ha " * 200)
    assert record.stop is StopReason.OUT_OF_TOKENS and record.tokens == 120
    # by the environment's answer: no token is left for the next turn
    used = len(play(assembler, limits(max_turns=1), tasks[0], SKY).contexts[0].ids)
    tight = limits(max_turn_tokens=used - prompt, max_context_tokens=used)
    record = play(assembler, tight, tasks[0], SKY, SKY)
    assert record.stop is StopReason.OUT_OF_TOKENS
    assert (record.turns, record.calls, len(record.contexts[0].ids)) == (1, 1, used)
    # one token is left
    roomy = limits(max_turn_tokens=used - prompt, max_context_tokens=used + 1)
    record = play(assembler, roomy, tasks[0], SKY, SKY)
    assert record.stop is StopReason.OUT_OF_TOKENS
    assert record.turns == 2 and len(record.contexts[0].ids) == used + 1


def test_malformed_calls_are_answered_and_counted(
    assembler: Assembler, tasks: list[Task], limits: Limits
) -> None:
    answer = f"Answer: {tasks[0].answer}{CLOSE}"
    record = play(assembler, limits(), tasks[0], BAD, '[lookup(item="?")]' + CLOSE, answer)
    assert record.stop is StopReason.ANSWERED and record.success
    assert (record.calls, record.invalid_calls, record.failed_calls) == (2, 2, 0)
    roles = [message["role"] for message in record.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert record.messages[2]["content"].startswith("error: not a call (")
    assert record.messages[2]["content"].endswith("; write [name(key=value)]")
    assert record.messages[4]["content"] == "error: missing argument field; use lookup(item, field)"
    assert "error: not a call" in assembler.decode(record.contexts[0].ids)


def test_too_many_invalid_calls_end_the_episode(
    assembler: Assembler, tasks: list[Task], limits: Limits
) -> None:
    record = play(assembler, limits(max_invalid_calls=2), tasks[0], BAD, BAD, BAD, BAD)
    assert record.stop is StopReason.INVALID_CALLS and record.invalid_calls == 3
    record = play(assembler, limits(max_invalid_calls=0), tasks[0], BAD, BAD)
    assert record.stop is StopReason.INVALID_CALLS and record.turns == 1
    many = '[search(), search(), search(), calculator(expression="1/0")]' + CLOSE
    record = play(assembler, limits(), tasks[0], many, many)
    assert record.stop is StopReason.INVALID_CALLS
    assert (record.turns, record.calls, record.invalid_calls) == (1, 4, 4)


def test_calls_that_could_not_be_run_cost_what_params_say(
    assembler: Assembler, tasks: list[Task], limits: Limits
) -> None:
    right = f"Answer: {tasks[0].answer}{CLOSE}"
    two = "[search(), calculator()]" + CLOSE
    record = play(assembler, limits(invalid_call_cost=0.1), tasks[0], BAD, two, right)
    assert record.rewards == [{"invalid_calls": -0.1}, {"invalid_calls": -0.2}, {"answer": 1.0}]
    assert record.episode_return == pytest.approx(0.7) and record.success
    free = play(assembler, limits(invalid_call_cost=0.0), tasks[0], BAD, two, right)
    assert free.rewards == [{"answer": 1.0}] and free.invalid_calls == record.invalid_calls == 3


def test_calls_and_tokens_cost_what_params_say(
    assembler: Assembler, tasks: list[Task], limits: Limits
) -> None:
    right = f"Answer: {tasks[0].answer}{CLOSE}"
    charged = limits(call_cost=0.02, token_cost=0.001)
    record = play(assembler, charged, tasks[0], SKY, right)
    assert record.rewards[-1] == {"answer": 1.0}
    cost = -sum(parts.get("cost", 0.0) for parts in record.rewards)
    assert cost == pytest.approx(0.02 * record.calls + 0.001 * record.tokens)
    assert record.calls == 1 and record.success
    assert play(assembler, limits(), tasks[0], SKY, right).rewards == [{"answer": 1.0}]
    cut = play(assembler, charged, tasks[0], "no end")
    assert cut.stop is StopReason.OUT_OF_TOKENS and not cut.success
    assert cut.episode_return == pytest.approx(-0.001 * cut.tokens) and cut.tokens > 0


def test_a_tool_that_breaks_ends_the_episode(
    assembler: Assembler, tasks: list[Task], limits: Limits
) -> None:
    record = play(
        assembler, limits(max_invalid_calls=1), tasks[0], SKY, SKY, SKY, environment=Broken()
    )
    assert record.stop is StopReason.TOOL_FAILURE
    assert (record.failed_calls, record.invalid_calls) == (2, 0)
    assert record.messages[2]["content"] == "error: the tool failed (OSError)"


def test_long_results_are_cut_visibly(
    assembler: Assembler, tasks: list[Task], limits: Limits
) -> None:
    record = play(
        assembler, limits(max_result_chars=50), tasks[0], SKY, f"x{CLOSE}", environment=Wordy()
    )
    assert record.messages[2]["content"] == ("rain " * 10) + CUT
    assert CUT in assembler.decode(record.contexts[0].ids)
    exact = limits(max_result_chars=5000)
    policy = Script(assembler.tokenizer, [SKY])
    (record,) = Engine(Wordy(), assembler, policy, exact).play(tasks[:1], temperature=0, seed=1)
    assert CUT not in record.messages[2]["content"]


def test_a_too_long_prompt_names_the_task(
    assembler: Assembler, tasks: list[Task], limits: Limits
) -> None:
    tight = limits(max_turn_tokens=10, max_context_tokens=20)
    with pytest.raises(FerrataError, match=tasks[0].id):
        play(assembler, tight, tasks[0], "x")


def test_shots_and_the_observer(assembler: Assembler, tasks: list[Task], limits: Limits) -> None:
    shots: list[Message] = [
        {"role": "user", "content": "What is 1 plus 1?"},
        {"role": "assistant", "content": "Answer: 2"},
    ]
    heard: list[tuple[int, Message]] = []
    policy = Script(assembler.tokenizer, [SKY, f"Answer: 1{CLOSE}"], [f"no{CLOSE}"])
    engine = Engine(
        ENVIRONMENT,
        assembler,
        policy,
        limits(),
        shots={ENVIRONMENT.name: shots, "another": shots[:1]},
        observer=lambda index, message: heard.append((index, message)),
    )
    records = engine.play(tasks[:2], temperature=0, seed=1)
    for index, record in enumerate(records):
        assert [message for at, message in heard if at == index] == record.messages
        encoded = assembler.encode([*shots, *record.messages], ENVIRONMENT.tools(tasks[index]))
        assert encoded.ids == record.contexts[0].ids
        assert not any(record.contexts[0].mask[: record.contexts[0].prompt_length])
    text = render(records[0].messages)
    assert '[weather(city="Oslo")]' in text and len(text.splitlines()) == 4
    row = records[0].to_row()
    assert row["stop"] == "answered" and row["task_id"] == tasks[0].id and row["calls"] == 1
