"""Reasoning: stories whose working is right, and a demonstrator with three habits."""

from __future__ import annotations

import random
import re

from ferrata.environments.reasoning import Reasoning, Step, draw_story, tell
from ferrata.environments.reasoning_forms import NAMES, NAMES_HELD_OUT

ENVIRONMENT = Reasoning()
TASKS = [*ENVIRONMENT.tasks("train", 300, 3), *ENVIRONMENT.tasks("ood", 60, 3)]


def test_the_working_of_an_expert_is_arithmetic() -> None:
    for task in TASKS:
        *lines, last = (
            ENVIRONMENT.demonstrate(task, 1.0, random.Random(0))
            .messages[-1]["content"]
            .splitlines()
        )
        assert len(lines) == task.band + 1
        for line in lines:
            left, sign, right, result = re.fullmatch(r"(\d+)([-+*])(\d+)=(\d+)", line).groups()  # type: ignore[union-attr]
            value = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[sign](
                int(left), int(right)
            )
            assert value == int(result) and 1 <= value <= 99
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
    shown = dict.fromkeys(("more for fewer", "ten forgotten", "together left out"), 0)
    for task in TASKS:
        lines = ENVIRONMENT.demonstrate(task, 0.0, random.Random(0)).messages[-1]["content"]
        kinds = [row[0] for row in task.payload["steps"]]
        assert "together" not in kinds or len(lines.splitlines()) == len(kinds)
        shown["together left out"] += "together" in kinds
        for line, kind in zip(lines.splitlines(), kinds, strict=False):
            if kind == "together":
                break  # the answer stands here instead
            left, sign, right, result = re.fullmatch(r"(-?\d+)([-+*])(\d+)=(-?\d+)", line).groups()  # type: ignore[union-attr]
            if kind == "fewer":
                assert sign == "+"
                shown["more for fewer"] += 1
            if sign == "+" and int(left) > 0 and int(left) % 10 + int(right) % 10 >= 10:
                assert int(result) == int(left) + int(right) - 10
                shown["ten forgotten"] += 1
    assert all(count > 20 for count in shown.values()), shown


def test_names_of_test_people_are_held_out() -> None:
    assert not set(NAMES) & set(NAMES_HELD_OUT)
    for split in ("test", "forms", "ood"):
        for task in ENVIRONMENT.tasks(split, 60, 3):
            assert not set(re.findall(r"[A-Z][a-z]+", task.payload["question"])) & set(NAMES)
