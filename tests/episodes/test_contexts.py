"""Episodes of several contexts and agents: what each context holds, id by id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ferrata.chat import CLOSE, Assembler
from ferrata.config.episodes import EpisodesParams
from ferrata.environments.base import Task, contexts
from ferrata.environments.memory import Memory
from ferrata.environments.multi_agent import MultiAgent
from ferrata.episodes.engine import Engine
from ferrata.episodes.policies import OnTurn, Prompt, Sampled, TransformersPolicy
from ferrata.episodes.trajectory import StopReason, Trajectory

Limits = Callable[..., EpisodesParams]


class Script:
    """Says given texts, and notes the keys of the random numbers that it was given."""

    def __init__(self, tokenizer: Any, texts: Sequence[str]) -> None:
        self._tokenizer, self._texts = tokenizer, texts
        self.seeds: list[tuple[int, ...]] = []

    def run(self, prompts: Sequence[Prompt], temperature: float, on_turn: OnTurn) -> None:
        (prompt,) = prompts
        self.seeds.append(tuple(prompt.seed))
        for text in self._texts:
            ids = self._tokenizer(text + CLOSE, add_special_tokens=False)["input_ids"]
            going_on = on_turn(0, Sampled(ids, [-0.5] * len(ids), closed=True))
            if going_on is None:
                return
            if isinstance(going_on, Prompt):
                self.seeds.append(tuple(going_on.seed))


def play(
    tiny: Any, environment: Any, task: Task, texts: Sequence[str], limits: EpisodesParams
) -> tuple[Trajectory, Script]:
    script = Script(tiny[1], texts)
    engine = Engine(environment, Assembler(tiny[1], "Do it."), script, limits)
    (played,) = engine.play([task], temperature=1.0, seed=1)
    return played, script


def check_ids(tiny: Any, environment: Any, played: Trajectory) -> None:
    """Each context is what its own messages give, with the mask on what its agent said."""
    assembler, tools = Assembler(tiny[1], "Do it."), environment.tools(played.task)
    for context, messages in zip(played.contexts, contexts(played.messages), strict=True):
        encoded = assembler.encode(messages, tools)
        assert (context.ids, context.mask) == (encoded.ids, encoded.mask)
        first = encoded.mask.index(1)
        assert context.prompt_length == first
        assert [p != 0 for p in context.logprobs] == [m == 1 for m in context.mask]


def test_a_page_that_is_turned_is_a_context_that_ends(tiny: Any, limits: Limits) -> None:
    task = next(task for task in Memory().tasks("train", 9, 3) if task.band == 2)
    note = f'[write_note(name="it", text="{task.answer}")]'
    texts = [note, "Next.", "Next.", "[read_notes()]", f"Answer: {task.answer}"]
    played, script = play(tiny, Memory(), task, texts, limits(max_turns=5))
    assert (played.success, played.stop) == (True, StopReason.ANSWERED)
    assert [sum(c.mask) > 0 for c in played.contexts] == [True] * 3
    check_ids(tiny, Memory(), played)
    last = "".join(m["content"] for m in contexts(played.messages)[-1] if m["role"] == "user")
    assert last == task.payload["question"]
    assert len(set(script.seeds)) == 3, "a context repeats the random numbers of another"
    cut, _ = play(tiny, Memory(), task, texts, limits(max_turns=3))
    assert (cut.stop, cut.turns, len(cut.contexts)) == (StopReason.OUT_OF_TURNS, 3, 3)


def test_players_come_back_to_their_own_contexts(tiny: Any, limits: Limits) -> None:
    heaps = (t for t in MultiAgent().tasks("train", 60, 3) if t.payload["game"] == "stones")
    heap = next(task for task in heaps if task.payload["stones"] == 5)
    texts = [f"Answer: {n}" for n in (1, 1, 1, 2)]  # 5 4 3 2 0: the second takes the last
    played, script = play(tiny, MultiAgent(), heap, texts, limits(max_turns=9))
    assert [context.agent for context in played.contexts] == ["first", "second"]
    assert played.returns == {"first": 0.0, "second": 1.0}
    assert (played.episode_return, played.success) == (0.0, False)
    check_ids(tiny, MultiAgent(), played)
    assert [len(part) for part in contexts(played.messages)] == [4, 4]
    assert len(set(script.seeds)) == 4


@pytest.mark.parametrize("environment", [Memory(), MultiAgent()])
def test_the_rest_of_the_batch_does_not_matter(tiny: Any, limits: Limits, environment: Any) -> None:
    tasks = [task for task in environment.tasks("train", 12, 3) for _ in range(2)]
    samples = [k for _ in range(12) for k in range(2)]
    assembler = Assembler(tiny[1], "Do it.")
    budgets = limits(max_turns=6, max_turn_tokens=12)

    def episodes(batch: int) -> list[Trajectory]:
        policy = TransformersPolicy(tiny[0], assembler.close_id, batch)
        engine = Engine(environment, assembler, policy, budgets)
        return engine.play(tasks, temperature=1.0, seed=1, samples=samples)

    together, alone = episodes(24), episodes(1)
    assert [t.contexts[0].ids for t in together] == [t.contexts[0].ids for t in alone]
    assert [t.messages for t in together] == [t.messages for t in alone]
