"""vLLM as policy: what it plays, against a stand-in (tests/support/vllm_stand_in.py)."""

from __future__ import annotations

import copy
import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm_stand_in import LocalEngine, StandIn, policy_of, trainer_of

from ferrata.chat import Assembler
from ferrata.config.episodes import EpisodesParams
from ferrata.environments.base import Observation, Reply, Step, Task
from ferrata.environments.tool_use import ToolUse
from ferrata.episodes.engine import Engine
from ferrata.episodes.policies import Continuation, Policy, Prompt, Sampled, TransformersPolicy
from ferrata.episodes.trajectory import Trajectory
from ferrata.episodes.vllm import VllmPolicy
from ferrata.errors import FerrataError

Limits = Callable[..., EpisodesParams]


class Patient(ToolUse):
    """Its world answers whatever is said, and never ends an episode."""

    def start(self, task: Task) -> Any:
        world = super().start(task)

        def step(agent: str, reply: Reply) -> Step:
            return Step({agent: Observation([{"role": "tool", "name": "echo", "content": "on"}])})

        world.step = step  # type: ignore[method-assign]
        return world


@pytest.fixture
def close_id(tiny: tuple[Any, Any], assembler: Assembler, tasks: list[Task]) -> int:
    """A token that the random model says now and then, so that turns end at different times."""
    environment = ToolUse()
    prompts = [
        Prompt(
            assembler.prompt(
                environment.start(task).reset()["agent"].messages, environment.tools(task)
            ),
            40,
        )
        for task in tasks
    ]
    said: list[list[int]] = []
    TransformersPolicy(tiny[0], 10**9).run(prompts, 0, lambda _, turn: said.append(turn.ids))
    tokens = Counter(token for ids in said for token in set(ids))
    places = {t: {ids.index(t) for ids in said if t in ids} for t in tokens}
    return max(tokens, key=lambda token: (len(places[token]), tokens[token], -token))


def play(
    policy: Policy, assembler: Assembler, tasks: Sequence[Task], budgets: EpisodesParams
) -> list[Trajectory]:
    return Engine(Patient(), assembler, policy, budgets).play(tasks, temperature=0, seed=3)


def assert_equal(ours: Sequence[Trajectory], theirs: Sequence[Trajectory]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert one.stop == other.stop and one.messages == other.messages
        a, b = one.contexts[0], other.contexts[0]
        assert (a.ids, a.mask, a.prompt_length) == (b.ids, b.mask, b.prompt_length)
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


def test_plays_greedily_as_transformers_does(
    server: StandIn,
    tiny: tuple[Any, Any],
    assembler: Assembler,
    tasks: list[Task],
    close_id: int,
    limits: Limits,
) -> None:
    budgets = limits(max_turns=2, max_turn_tokens=30, max_invalid_calls=9)
    expected = play(TransformersPolicy(tiny[0], close_id), assembler, tasks, budgets)
    # turns of many lengths, some closed and some cut, and contexts that end in different rounds
    assert len({record.tokens for record in expected}) > 2
    assert len({record.turns for record in expected}) > 1
    assert len({record.stop for record in expected}) > 1
    policy = policy_of(server, tiny, close_id)
    played = play(policy, assembler, tasks, budgets)
    assert_equal(played, expected)
    # one request a round with all live contexts: as many rounds as the longest episode has turns
    sizes = [len(ask["prompt"]) for ask in server.completions]
    assert len(sizes) == max(record.turns for record in expected)
    assert sizes == [sum(r.turns > n for r in expected) for n in range(len(sizes))]
    assert all(ask["temperature"] == 0 for ask in server.completions)
    assert all(ask["stop_token_ids"] == [close_id] for ask in server.completions)
    generation: Any = policy._attached().vllm_generation  # settings of training are put back
    assert (generation.temperature, generation.generation_kwargs) == (0.9, {})
    assert generation.max_completion_length == 16


def test_budgets_hold_where_the_server_is_tight(
    server: StandIn,
    tiny: tuple[Any, Any],
    assembler: Assembler,
    tasks: list[Task],
    close_id: int,
    limits: Limits,
) -> None:
    """A server that takes not one token more than the budget: the shortest contexts' turns come
    in pieces, and nothing changes in them."""
    environment = ToolUse()
    longest = max(
        len(
            assembler.prompt(
                environment.start(task).reset()["agent"].messages, environment.tools(task)
            )
        )
        for task in tasks
    )
    budgets = limits(max_turns=4, max_turn_tokens=60, max_context_tokens=longest + 25)
    expected = play(TransformersPolicy(tiny[0], close_id), assembler, tasks, budgets)
    server.longest = budgets.max_context_tokens
    assert_equal(play(policy_of(server, tiny, close_id), assembler, tasks, budgets), expected)
    assert len(server.completions) > max(record.turns for record in expected)


def test_limits_and_closing_token(server: StandIn, tiny: tuple[Any, Any]) -> None:
    policy = policy_of(server, tiny, 10**6)  # a token that is never said
    ids = list(range(40, 60))
    turns: dict[int, list[Sampled]] = {}

    def on_turn(index: int, turn: Sampled) -> Continuation | None:
        turns.setdefault(index, []).append(turn)
        return Continuation([7, 8], 4) if len(turns[index]) <= index else None

    policy.run([Prompt(ids, 1), Prompt(ids, 9), Prompt(ids, 3)], 0, on_turn)
    assert {i: [len(t.ids) for t in said] for i, said in turns.items()} == {
        0: [1],
        1: [9, 4],
        2: [3, 4, 4],
    }
    assert all(len(t.ids) == len(t.logprobs) and not t.closed for s in turns.values() for t in s)
    whole = turns[1][0].ids
    assert turns[0][0].ids == whole[:1] and turns[2][0].ids == whole[:3]
    # the environment's tokens are part of what is sent next
    assert server.completions[1]["prompt"] == [[*ids, *whole, 7, 8], [*ids, *whole[:3], 7, 8]]

    closing = policy_of(server, tiny, whole[4])
    first = whole.index(whole[4])
    said: list[Sampled] = []
    closing.run([Prompt(ids, 9)], 0, lambda _, turn: said.append(turn))
    assert said[0].closed and said[0].ids == whole[: first + 1]
    said.clear()
    closing.run([Prompt(ids, first + 1)], 0, lambda _, turn: said.append(turn))
    assert said[0].closed and len(said[0].ids) == first + 1  # the last token that it may have
    if first:
        said.clear()
        closing.run([Prompt(ids, first)], 0, lambda _, turn: said.append(turn))
        assert not said[0].closed and len(said[0].ids) == first


def test_logprobs_are_those_at_the_sampling_temperature(
    server: StandIn, tiny: tuple[Any, Any]
) -> None:
    import torch

    ids = list(range(40, 60))
    said: list[Sampled] = []
    policy = policy_of(server, tiny, 10**6)
    policy.run([Prompt(ids, 12)] * 4, 0.5, lambda _, turn: said.append(turn))
    assert len({tuple(turn.ids) for turn in said}) > 1  # equal prompts are sampled apart
    for turn in said:
        with torch.inference_mode():
            logits_TV = tiny[0](torch.tensor([ids + turn.ids])).logits[0, len(ids) - 1 : -1]
        expected = (logits_TV / 0.5).log_softmax(-1).gather(1, torch.tensor(turn.ids)[:, None])
        assert turn.logprobs == pytest.approx(expected[:, 0].tolist(), abs=1e-4)
    assert {ask["temperature"] for ask in server.completions} == {0.5}


def test_unknown_logprobs_are_nan(server: StandIn, tiny: tuple[Any, Any]) -> None:
    server.nan = True
    said: list[Sampled] = []
    policy_of(server, tiny, 10**6).run([Prompt([40, 41], 3)], 1.0, lambda _, t: said.append(t))
    assert [math.isnan(value) for value in said[0].logprobs] == [True, False, False]


def test_no_prompt_asks_nothing(server: StandIn, tiny: tuple[Any, Any]) -> None:
    def never(index: int, turn: Sampled) -> None:
        raise AssertionError

    policy_of(server, tiny, 5).run([], 0, never)
    assert not server.completions


def test_an_answer_without_a_token_is_an_error() -> None:
    generation = SimpleNamespace(
        mode="colocate",
        tensor_parallel_size=1,
        temperature=1.0,
        max_completion_length=1,
        generation_kwargs={},
        generate=lambda contexts, images, n: (contexts, [[]], [[]], None),
    )
    policy = VllmPolicy(5)
    with pytest.raises(RuntimeError, match="attach"):
        policy.run([], 0, lambda _, turn: None)
    policy.attach(SimpleNamespace(vllm_generation=generation, _last_loaded_step=0))  # type: ignore[arg-type]
    with pytest.raises(FerrataError, match=r"rl\.generation: vllm"):
        policy.run([Prompt([1, 2], 3)], 0, lambda _, turn: None)
    assert (generation.temperature, generation.generation_kwargs) == (1.0, {})


def test_colocated_engine_plays_the_same_and_gets_the_weights(
    tiny: tuple[Any, Any],
    assembler: Assembler,
    tasks: list[Task],
    close_id: int,
    limits: Limits,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch
    from trl.generation import vllm_generation

    made: dict[str, Any] = {}

    def engine(**given: Any) -> LocalEngine:
        made.update(given)
        return LocalEngine(tiny[0])

    monkeypatch.setattr(vllm_generation, "is_vllm_available", lambda *_: True)
    monkeypatch.setattr(vllm_generation, "LLM", engine, raising=False)
    monkeypatch.setattr(vllm_generation, "SamplingParams", SimpleNamespace, raising=False)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        # TRL sets them for vLLM; this notes what they were, so that they are put back
        monkeypatch.setenv(name, "0")
        monkeypatch.delenv(name)
    trained = copy.deepcopy(tiny[0])
    trainer = trainer_of(trained, tiny[1], mode="colocate")
    assert made["logprobs_mode"] == "processed_logprobs"
    policy = VllmPolicy(close_id)
    policy.attach(trainer)
    budgets = limits(max_turns=2, max_turn_tokens=20)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.02)
    policy.sync(0)
    policy.sync(0)
    assert trainer.vllm_generation.llm.resets == 1
    expected = play(TransformersPolicy(trained, close_id), assembler, tasks[:3], budgets)
    assert_equal(play(policy, assembler, tasks[:3], budgets), expected)


@pytest.mark.slow  # two processes that import TRL
def test_ranks_go_on_until_none_has_a_live_context(
    server: StandIn, tiny: tuple[Any, Any], tmp_path: Path
) -> None:
    """Two processes with different numbers of contexts, turns and limits; TRL's gather and slices
    between them."""
    tiny[0].save_pretrained(tmp_path)
    environment = {
        **os.environ,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
        "OMP_NUM_THREADS": "1",
    }
    script = Path(__file__).parents[1] / "support" / "vllm_rank.py"
    meeting = tmp_path / "meeting"
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), server.url, str(meeting), str(tmp_path / f"{rank}.json")],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    try:
        assert [rank.wait(timeout=300) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
    ids = list(range(40, 60))
    expected: list[list[int]] = []
    policy_of(server, tiny, 10**6).run([Prompt(ids, 9)], 0, lambda _, t: expected.append(t.ids))
    (whole,) = expected
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert {k: [len(t) for t in v] for k, v in first.items()} == {"0": [2], "1": [9], "2": [5, 3]}
    assert {k: [len(t) for t in v] for k, v in second.items()} == {"0": [4, 3, 3, 3]}
    assert first["0"][0] == whole[:2] and first["1"][0] == whole
    assert first["2"][0] == whole[:5] and second["0"][0] == whole[:4]
