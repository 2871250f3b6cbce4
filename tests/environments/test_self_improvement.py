"""Self-improvement: the checker's words, and what is measured of attempts."""

from __future__ import annotations

import random

import pytest

from ferrata.environments.base import Reply, Step, Task, fixture_task
from ferrata.environments.conditions import NUMBERS, Condition, draw_conditions, meets
from ferrata.environments.self_improvement import ATTEMPTS, HOLDS, SelfImprovement

EVEN = Condition("even")
SMALL = Condition("between", 10, 30)
PAYLOAD = {"question": "?", "conditions": [["even", 0, 0], ["between", 10, 30]], "wording": 0}
TASK: Task = fixture_task("self_improvement", "x", 12, PAYLOAD)


def say(*texts: str) -> list[Step]:
    world = SelfImprovement().start(TASK)
    world.reset()
    return [world.step("agent", Reply(text)) for text in texts]


def feedback(step: Step) -> str:
    return str(step.observations["agent"].messages[0]["content"])


def test_the_checker_names_the_first_condition_that_fails_and_no_answer() -> None:
    steps = say("Answer: 41", "Answer: 42", "Answer: 12")
    assert [feedback(step) for step in steps[:2]] == [
        "Wrong. It is even.",
        "Wrong. It is between 10 and 30.",
    ]
    assert steps[2].done and steps[2].success
    assert feedback(say("Answer: 100")[0]) == "Wrong. It is between 10 and 30."
    assert feedback(say("Answer: 12")[0]) == HOLDS
    assert feedback(say("Answer: 1.5")[0]).startswith("Wrong.")


@pytest.mark.parametrize(
    ("texts", "success", "measures"),
    [
        (("Answer: 12", "Done."), True, {"right_at_first": 1, "harmed": 0}),
        (("Answer: 12", "Answer: 41", ""), False, {"right_at_first": 1, "harmed": 1}),
        (
            ("Answer: 41", "Answer: 12", "Done."),
            True,
            {"right_at_first": 0, "recovered": 1, "harmed": 0},
        ),
        (("Answer: 41", "Answer: 43", "Done."), False, {"right_at_first": 0, "recovered": 0}),
        (("I give up.",), False, {"right_at_first": 0, "recovered": 0}),
    ],
)
def test_success_recovery_and_harm(
    texts: tuple[str, ...], success: bool, measures: dict[str, float]
) -> None:
    last = say(*texts)[-1]
    assert (last.done, last.success, last.measures) == (True, success, measures)


def test_the_third_attempt_is_the_last() -> None:
    steps = say(*["Answer: 41"] * ATTEMPTS)
    assert [step.done for step in steps] == [False, False, True]


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_every_condition_is_needed_and_a_number_meets_them(count: int) -> None:
    for seed in range(40):
        number, conditions = draw_conditions(count, random.Random(seed))
        assert len(conditions) == count and meets(number, conditions)
        fitting = [n for n in NUMBERS if meets(n, conditions)]
        for one in conditions:
            others = [condition for condition in conditions if condition is not one]
            assert len([n for n in NUMBERS if meets(n, others)]) > len(fitting)


def test_an_unskilled_demonstrator_spoils_what_is_right() -> None:
    environment = SelfImprovement()
    shown = [
        environment.demonstrate(task, 0.0, random.Random(2))
        for task in environment.tasks("train", 120, 3)
    ]
    spoilt = [s for s in shown if any(m["content"] == HOLDS for m in s.messages) and not s.success]
    assert len(spoilt) > len(shown) / 4
