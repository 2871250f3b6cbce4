"""Several agents: who sees what, who earns what, and the known optimum."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ferrata.environments import describing, stones
from ferrata.environments.base import Reply, Task
from ferrata.environments.multi_agent import MultiAgent


def tasks(split: str, game: str, n: int = 300) -> list[Task]:
    drawn = MultiAgent().tasks(split, n, 5)  # type: ignore[arg-type]
    return [task for task in drawn if task.payload["game"] == game]


def wins(left: int) -> bool:
    """Whether who moves can win, by search."""
    return any(took == left or not wins(left - took) for took in range(1, min(3, left) + 1))


def test_the_stated_optimum_is_what_search_finds() -> None:
    for left in range(1, 20):
        if wins(left):
            took = stones.best(left)
            assert left == took or not wins(left - took)
        else:
            assert left % 4 == 0


@pytest.mark.parametrize("split", ["train", "validation", "test", "forms", "ood"])
def test_who_begins_can_always_win_and_the_measured_games_are_played_alone(split: str) -> None:
    for task in tasks(split, "stones"):
        assert wins(task.payload["stones"])
        assert task.payload["alone"] == (split != "train")
        assert task.payload["agents"] == (["first"] if split != "train" else ["first", "second"])


def play(task: Task, moves: list[str]) -> list[Any]:
    world = MultiAgent().start(task)
    (agent,) = world.reset()
    steps = []
    for text in moves:
        step = world.step(agent, Reply(text))
        steps.append(step)
        (agent,) = step.observations or (agent,)
    return steps


def test_one_wins_what_the_other_loses() -> None:
    heap = next(t for t in tasks("train", "stones") if t.payload["stones"] == 5)
    steps = play(heap, ["Answer: 2", "Answer: 3"])  # 5 3 0: the second takes the last
    assert steps[-1].rewards == {"first": {"win": 0.0}, "second": {"win": 1.0}}
    assert not steps[-1].success
    assert steps[-1].measures == {"stones_short_of_optimum": 1.0, "stones_perfect_moves": 0.5}
    (seen,) = steps[0].observations.values()
    assert seen.new_context and "3 of" in seen.messages[0]["content"]
    assert play(heap, ["Answer: 4"])[-1].rewards == {"first": {"win": 0.0}, "second": {"win": 1.0}}


def test_the_perfect_opponent_punishes_every_mistake() -> None:
    heap = next(t for t in tasks("test", "stones") if t.payload["stones"] == 7)
    right = play(heap, ["Answer: 3", "Answer: 3"])
    assert right[-1].success
    assert right[-1].measures == {"stones_short_of_optimum": 0.0, "stones_perfect_moves": 1.0}
    assert "3 are left" in play(heap, ["Answer: 3"])[0].observations["first"].messages[0]["content"]
    (wrong,) = play(heap, ["Answer: 1"])  # 7 6, and it leaves 4
    assert "4 are left" in wrong.observations["first"].messages[0]["content"]
    for last in ("Answer: 1", "Answer: 2", "Answer: 3"):
        lost = play(heap, ["Answer: 1", last])[-1]
        assert lost.done and not lost.success


def test_the_guesser_sees_two_words_and_another_order() -> None:
    thing = next(t for t in tasks("train", "describing") if t.band == 3)
    (step,) = play(thing, ["the 3 big, red comb"])
    (seen,) = step.observations.values()
    text = str(seen.messages[0]["content"])
    assert seen.new_context and '"the big"' in text
    assert "meant: " in thing.payload["question"] and "meant: " not in text
    other = next(t for t in thing.payload["shown"] if t != thing.payload["meant"])
    for answer in (thing.answer, " ".join(other)):
        last = play(thing, ["x", f"Answer: {answer}"])[-1]
        value = float(answer == thing.answer)
        assert last.rewards == {name: {"answer": value} for name in ("describer", "guesser")}
        assert last.measures == {"describing_found": value}


def test_two_words_tell_the_thing_apart_and_the_hasty_ones_often_do_not() -> None:
    missed = 0
    things = [t for band in ("train", "ood") for t in tasks(band, "describing")]
    for task in things:
        payload = task.payload
        reply = describing.act(payload, describing.DESCRIBER, "", False, random.Random(1))
        words = reply.content.split()
        fitting = [" ".join(t) for t in payload["shown"] if all(w in t for w in words)]
        assert fitting == [task.answer]
        hasty = describing.act(payload, describing.DESCRIBER, "", True, random.Random(1))
        two = hasty.content.split()
        missed += sum(all(w in t for w in two) for t in payload["shown"]) > 1
    assert len(things) / 4 < missed < 0.9 * len(things)
