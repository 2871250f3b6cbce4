"""Planning: the world's rules, the search, and progress that pays no detour."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product

import pytest

from ferrata.environments.base import Reply, ToolCall
from ferrata.environments.planning import Planning, PlanningWorld
from ferrata.environments.planning_fixtures import PAYLOAD
from ferrata.environments.workshop import Workshop, shortest

TASKS = list(Planning().tasks("train", 60, 3))
(FIXTURE, *_) = Planning().fixtures()


def world(progress: float = 0.0) -> PlanningWorld:
    made = PlanningWorld(FIXTURE.task, progress)
    made.reset()
    return made


def craft(item: str) -> Reply:
    return Reply("", (ToolCall("craft", {"item": item}),))


UNDO = Reply("", (ToolCall("undo", {}),))


def test_a_step_uses_parts_up_and_undo_gives_them_back() -> None:
    workshop = Workshop(PAYLOAD)
    assert workshop.craft("box") == "not possible: 2 plank missing"
    assert workshop.craft("plank") == "you have 1 log, 1 nail, 1 plank"
    assert workshop.craft("box") == "not possible: 1 plank missing"
    assert workshop.undo() == "you have 2 log, 1 nail"
    assert workshop.undo() == "not possible: nothing was made yet"
    for item in ("plank", "plank", "box"):
        workshop.craft(item)
    assert workshop.done and workshop.taken == ["plank", "plank", "box"]
    assert workshop.have == Counter({"box": 1})


def test_the_search_finds_the_shortest_plan() -> None:
    """Against trying every sequence of crafts up to that length."""
    for task in TASKS[:12]:
        plan = shortest(Workshop(task.payload))
        assert plan is not None and len(plan) == task.answer == task.band
        things = list(task.payload["recipes"])
        for length in range(1, min(task.answer, 3)):
            for tries in product(things, repeat=length):
                workshop = Workshop(task.payload)
                for item in tries:
                    workshop.craft(item)
                assert not workshop.done


def test_there_are_dead_ends_and_undo_leads_out_of_them() -> None:
    dead = 0
    for task in TASKS:
        workshop = Workshop(task.payload)
        plan = shortest(workshop)
        assert plan is not None
        for item in task.payload["recipes"]:
            if item not in plan and workshop.craft(item).startswith("you have"):
                dead += shortest(workshop) is None
                workshop.undo()
                assert len(shortest(workshop) or ()) == len(plan)
    assert dead > len(TASKS) / 2


def test_an_impossible_step_is_answered_and_costs_nothing() -> None:
    episode = world()
    step = episode.step("agent", craft("box"))
    assert not step.done and not step.rewards
    assert [r.outcome for r in step.results] == ["ok"]
    (message,) = step.observations["agent"].messages
    assert message["content"] == "not possible: 2 plank missing"


def test_the_goal_ends_the_episode_in_the_middle_of_a_turn() -> None:
    episode = world()
    calls = tuple(ToolCall("craft", {"item": i}) for i in ("plank", "plank", "box", "plank"))
    step = episode.step("agent", Reply("", calls))
    assert step.done and step.success and step.rewards == {"agent": {"goal": 1.0}}
    assert len(step.results) == 3 and step.answer == "plank, plank, box"
    assert step.measures == {"calls_over_shortest": 1.0}


def test_detours_are_measured() -> None:
    episode = world()
    for turn in (craft("box"), craft("plank"), UNDO, craft("plank"), craft("plank")):
        assert not episode.step("agent", turn).measures
    assert episode.step("agent", craft("box")).measures == {"calls_over_shortest": 2.0}


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ([craft("plank")], [0.1]),
        ([craft("plank"), UNDO, craft("plank")], [0.1, -0.1, 0.1]),
        ([craft("pin")], [0.0]),  # a dead end is as far as the beginning
        ([craft("plank"), craft("pin"), UNDO], [0.1, -0.1, 0.1]),
        ([craft("plank"), craft("plank"), craft("box")], [0.1, 0.1, 0.1 + 0.7]),
    ],
)
def test_progress_is_paid_and_taken_back(turns: list[Reply], expected: list[float]) -> None:
    episode = world(progress=0.3)
    paid = [sum(episode.step("agent", turn).rewards["agent"].values()) for turn in turns]
    assert paid == pytest.approx(expected)


def test_no_walk_earns_more_than_the_goal() -> None:
    rng = random.Random(0)
    for task in TASKS:
        episode = Planning(progress=0.5).start(task)
        total, done = 0.0, False
        for _ in range(12):
            turn = UNDO if rng.random() < 0.3 else craft(rng.choice(list(task.payload["recipes"])))
            if not done:
                step = episode.step("agent", turn)
                total += sum(step.rewards["agent"].values())
                done = step.done
            assert -1e-9 <= total <= 1 + 1e-9
        assert (total > 0.999) == done
