"""Reasoning: stories whose working is right, and a demonstrator with three habits."""

from __future__ import annotations

import random
import re
from dataclasses import replace

from ferrata.environments.reasoning import Reasoning
from ferrata.environments.reasoning_forms import NAMES, NAMES_HELD_OUT
from ferrata.environments.stories import Step, draw_story, tell

ENVIRONMENT = Reasoning()
TASKS = [*ENVIRONMENT.tasks("train", 300, 3), *ENVIRONMENT.tasks("ood", 60, 3)]


def test_the_working_of_an_expert_is_arithmetic() -> None:
    for task in TASKS:
        *lines, last = (
            ENVIRONMENT.demonstrate(task, 1.0, random.Random(0))
            .messages[-1]["content"]
            .splitlines()
        )
        assert len(lines) == task.band
        for line in lines:
            left, sign, right, result = re.fullmatch(r"(\d+) ([-+*]) (\d+) = (\d+)", line).groups()  # type: ignore[union-attr]
            value = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[sign](
                int(left), int(right)
            )
            assert value == int(result) and 1 <= value <= 40
        assert last == f"Answer: {task.answer}"


def test_a_story_says_what_its_steps_do() -> None:
    steps = [
        Step("gain", 5, 4, 0),
        Step("fewer", 9, 2, 1),
        Step("times", 7, 2, 2),
        Step("together", 7, 14, 2),
    ]
    said = tell(5, steps, ["Ann", "Ben", "Cy"], "pens", 0, random.Random(0))
    assert re.search(r"\b5\b.*\b4\b.*Ben has 2 .*fewer than Ann.*Cy has 2 times.*Ben and Cy", said)
    assert [step.result for step in steps] == [9, 7, 14, 21]


def test_together_adds_the_last_two_people() -> None:
    rng = random.Random(1)
    seen = 0
    for _ in range(400):
        _, steps = draw_story(4, rng)
        if steps[-1].kind == "together":
            seen += 1
            compare = max(
                n for n, step in enumerate(steps) if step.kind in ("more", "fewer", "times")
            )
            assert steps[-1].left == steps[compare].left
            assert steps[-1].right == steps[-2].result
    assert seen > 50


def test_the_habits_of_the_demonstrator() -> None:
    """At skill 0 each habit shows wherever it can."""
    steps = [
        Step("more", 5, 4, 1),
        Step("gain", 9, 2, 1),
        Step("fewer", 11, 3, 2),
        Step("together", 11, 8, 2),
    ]
    task = TASKS[0]
    payload = task.payload | {"steps": [[s.kind, s.left, s.right, s.person] for s in steps]}
    story = replace(task, payload=payload, answer="19")

    def played(skill: float) -> str:
        return ENVIRONMENT.demonstrate(story, skill, random.Random(0)).messages[-1]["content"]

    assert played(1.0) == "5 + 4 = 9\n9 + 2 = 11\n11 - 3 = 8\n11 + 8 = 19\nAnswer: 19"
    # It compares with the 9 of before the gain, adds where `fewer` is said, and stops there.
    assert played(0.0) == "5 + 4 = 9\n9 + 2 = 11\n9 + 3 = 12\nAnswer: 12"


def test_each_habit_alone_can_spoil_an_answer() -> None:
    """With one of the three given in to, some answers of each band with room for it are wrong."""
    wrong = [0, 0, 0]
    for task in TASKS:
        for habit in range(3):
            draws = [0.0, 0.0, 0.0]
            draws[habit] = 0.9

            class Fixed(random.Random):
                def random(self, left: list[float] = draws) -> float:
                    return left.pop(0)

            wrong[habit] += not ENVIRONMENT.demonstrate(task, 0.5, Fixed()).success
    assert all(count > len(TASKS) / 20 for count in wrong), wrong


def test_names_of_test_people_are_held_out() -> None:
    assert not set(NAMES) & set(NAMES_HELD_OUT)
    for split in ("test", "forms", "ood"):
        for task in ENVIRONMENT.tasks(split, 60, 3):
            assert not set(re.findall(r"[A-Z][a-z]+", task.payload["question"])) & set(NAMES)
