"""What is kept of a policy's own episodes."""

from __future__ import annotations

from typing import Any

import pytest

from ferrata.chat import Assembler
from ferrata.config.episodes import EpisodesParams
from ferrata.environments import get_mixture
from ferrata.environments.base import Task
from ferrata.episodes.engine import Engine
from ferrata.episodes.policies import Continuation, Prompt, Sampled
from ferrata.episodes.trajectory import Trajectory
from ferrata.errors import FerrataError
from ferrata.training.rejection import keep

BUDGETS = EpisodesParams(
    max_turns=10,
    max_turn_tokens=200,
    max_context_tokens=2000,
    max_invalid_calls=2,
    invalid_call_cost=0.0,
    call_cost=0.0,
    token_cost=0.0,
    max_result_chars=200,
)
ENVIRONMENT = get_mixture({"reasoning": 1.0, "multi_agent": 1.0})


class Says:
    """A policy that says a text per task and sample, in every turn."""

    def __init__(self, assembler: Assembler, texts: list[str]) -> None:
        self._assembler, self._texts = assembler, texts

    def run(self, prompts: list[Prompt], temperature: float, on_turn: Any) -> None:
        for index, text in enumerate(self._texts):
            ids = [*self._assembler._tokenize(text), self._assembler.close_id]
            going_on: Continuation | Prompt | None = prompts[index]
            while going_on is not None:
                going_on = on_turn(index, Sampled(ids, [0.0] * len(ids), closed=True))


def play(tiny: Any, tasks: list[Task], texts: list[str]) -> tuple[list[Trajectory], Assembler]:
    assembler = Assembler(tiny[1], "Do the task.")
    engine = Engine(ENVIRONMENT, assembler, Says(assembler, texts), BUDGETS)
    return engine.play(tasks, temperature=1.0, seed=1, samples=list(range(len(tasks)))), assembler


def drawn(name: str, n: int, band: int) -> list[Task]:
    tasks = ENVIRONMENT.environments[name].tasks("train", 9 * n, 3)
    return [task for task in tasks if task.band == band][:n]


def test_successes_are_kept_once_and_at_most_so_many_of_a_task(tiny: Any) -> None:
    (task,) = drawn("reasoning", 1, 1)
    right = f"Answer: {task.answer}"
    texts = [right, right, "Answer: -5", f"Well.\n{right}", f"So.\n{right}"]
    played, assembler = play(tiny, [task] * 5, texts)
    kept = keep(played, ENVIRONMENT, assembler, per_task=2, seed=1)
    assert kept.metrics() == {
        "episodes": 5,
        "kept": 2,
        "failures": 1,
        "repeated": 1,
        "rewritten": 0,
        "crowded": 1,
    }
    said = [shown.messages[-1]["content"] for shown in kept.demonstrations]
    assert len(set(said)) == 2 and set(said) <= {right, texts[3], texts[4]}
    assert keep(played, ENVIRONMENT, assembler, per_task=2, seed=1) == kept


def test_easy_bands_do_not_crowd_out_the_others(tiny: Any) -> None:
    tasks = [*drawn("reasoning", 10, 1), *drawn("reasoning", 2, 3)]
    played, assembler = play(tiny, tasks, [f"Answer: {task.answer}" for task in tasks])
    kept = keep(played, ENVIRONMENT, assembler, per_task=2, seed=1)
    bands = [shown.task.band for shown in kept.demonstrations]
    assert (bands.count(1), bands.count(3)) == (6, 2)


def test_what_would_be_read_as_other_tokens_is_left_out(tiny: Any) -> None:
    (task,) = drawn("reasoning", 1, 1)
    played, assembler = play(tiny, [task] * 2, [f"Answer: {task.answer}"] * 2)
    ids = played[1].contexts[0].ids
    ids.insert(-1, ids[-2])
    played[1].messages[-1]["content"] += " "
    kept = keep(played, ENVIRONMENT, assembler, per_task=2, seed=1)
    assert (kept.rewritten, len(kept.demonstrations)) == (1, 1)


def test_of_two_players_the_winner_is_imitated(tiny: Any) -> None:
    heaps = [t for t in drawn("multi_agent", 40, 1) if t.payload["game"] == "stones"]
    heap = next(t for t in heaps if t.payload["stones"] == 5)
    played, assembler = play(tiny, [heap], ["Answer: 1"])  # 5 4 3 2 1: who begins takes the last
    assert [context.agent for context in played[0].contexts] == ["first", "second"]
    (shown,) = keep(played, ENVIRONMENT, assembler, per_task=2, seed=1).demonstrations
    assert len(shown.contexts()) == 1 and shown.messages[0]["content"] == heap.payload["question"]


def test_no_success_is_said(tiny: Any) -> None:
    (task,) = drawn("reasoning", 1, 1)
    played, assembler = play(tiny, [task], ["Answer: -5"])
    with pytest.raises(FerrataError, match="no success in 1 episodes"):
        keep(played, ENVIRONMENT, assembler, per_task=2, seed=1)
