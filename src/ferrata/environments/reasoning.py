"""Reasoning: stories about quantities, worked out line by line in text; there are no tools.

Difficulty is the number of steps: band 1 has two, band 3 four, and band 4, never trained on, five.
A step changes one person's number, compares a further person with the one before, or, last of all,
adds the last two people up. Every number stays between 1 and 99, so that a small model can do each
step; what is hard is to do all of them, in order, with the right operation. The demonstrator has
three habits and gives in to each with probability 1 - skill, for a whole episode: it reads `fewer`
as `more`, forgets the ten that is carried in a sum, and leaves the last addition out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any, ClassVar

from ferrata.environments.base import Demonstration, Fixture, Split, Task, Tool, ToolWorld
from ferrata.environments.numbers import claimed_number
from ferrata.environments.reasoning_forms import (
    ASK,
    NAMES,
    NAMES_HELD_OUT,
    START,
    STEPS,
    THINGS,
    TOGETHER,
)
from ferrata.environments.splits import HELD_OUT, draw_tasks

LARGEST = 99
START_RANGE = (3, 20)
CHANGE_RANGE = (2, 12)
SIGNS = {"gain": "+", "lose": "-", "more": "+", "fewer": "-", "times": "*", "together": "+"}
COMPARES = ("more", "fewer", "times")  # these bring a further person in


@dataclass(frozen=True)
class Step:
    """One line of the working: `left sign right`, for `person` (a position in the story)."""

    kind: str
    left: int
    right: int
    person: int

    @property
    def result(self) -> int:
        if self.kind == "times":
            return self.left * self.right
        return self.left + self.right * (1 if SIGNS[self.kind] == "+" else -1)

    def line(self, result: int) -> str:
        """As the demonstrator writes it."""
        return f"{self.left}{SIGNS[self.kind]}{self.right}={result}"


class Reasoning:
    """The environment; stateless, see the module's docstring."""

    name: ClassVar[str] = "reasoning"
    agents: ClassVar[tuple[str, ...]] = ("agent",)
    reward_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {"answer": (0.0, 1.0)}

    def tasks(self, split: Split, n: int, seed: int) -> Iterator[Task]:
        return draw_tasks(self.name, split, n, seed, partial(self._draw, seed=seed))

    def _draw(self, split: Split, band: int, index: int, rng: random.Random, seed: int) -> Task:
        start, steps = draw_story(band + 1, rng)
        pool = NAMES_HELD_OUT if split in HELD_OUT else NAMES
        people = rng.sample(pool, 1 + max(step.person for step in steps))
        form = 1 if split == "forms" else 0
        signature = " ".join(
            [str(start), *(f"{step.kind}{step.right}" for step in steps if step.kind != "together")]
        )
        if steps[-1].kind == "together":
            signature += " together"
        return Task(
            id=f"{self.name}-{split}-{index:05d}",
            environment=self.name,
            split=split,
            band=band,
            form="held-out" if form else "trained",
            seed=seed,
            signature=signature,
            payload={
                "question": tell(start, steps, people, rng.choice(THINGS), form, rng),
                "kind": f"{len(steps)} steps",
                "steps": [[s.kind, s.left, s.right, s.person] for s in steps],
            },
            answer=str(steps[-1].result),
        )

    def tools(self, task: Task) -> Sequence[Tool]:
        return ()

    def start(self, task: Task) -> ToolWorld:
        return ToolWorld(task.payload["question"], (), lambda text: grade(task, text))

    def demonstrate(self, task: Task, skill: float, rng: random.Random) -> Demonstration:
        misreads, forgets_ten, stops_early = (rng.random() > skill for _ in range(3))
        numbers: dict[int, int] = {}  # of each person, as the demonstrator believes
        lines: list[str] = []
        value = 0
        for position, row in enumerate(task.payload["steps"]):
            step = Step(*row)
            if step.kind == "together":
                if stops_early:
                    break
                step = Step("together", numbers[step.person - 1], value, step.person)
            elif position:
                step = Step(step.kind, value, step.right, step.person)
            if step.kind in COMPARES:
                numbers[step.person - 1] = step.left
            if step.kind == "fewer" and misreads:
                step = Step("more", step.left, step.right, step.person)
            value = step.result
            carries = step.left > 0 and step.left % 10 + step.right % 10 >= 10
            if forgets_ten and SIGNS[step.kind] == "+" and carries:
                value -= 10
            lines.append(step.line(value))
        lines.append(f"Answer: {value}")
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": task.payload["question"]},
            {"role": "assistant", "content": "\n".join(lines)},
        ]
        reward, _ = grade(task, messages[-1]["content"])
        return Demonstration(task, messages, success=reward["answer"] == 1.0)

    def fixtures(self) -> list[Fixture]:
        from ferrata.environments.reasoning_fixtures import fixtures

        return fixtures()


def draw_story(length: int, rng: random.Random) -> tuple[int, list[Step]]:
    """A first number, and `length` steps whose results are all within 1 and 99."""
    start = value = rng.randint(*START_RANGE)
    before = 0  # the number of the person before the present one
    person = 0
    steps: list[Step] = []
    while len(steps) < length:
        last = len(steps) == length - 1
        kinds = ["together"] if last and person and rng.random() < 0.5 else list(SIGNS)[:-1]
        kind = rng.choice(kinds)
        right = rng.randint(2, 3) if kind == "times" else rng.randint(*CHANGE_RANGE)
        step = Step(kind, value, right, person + (kind in COMPARES))
        if kind == "together":
            step = Step(kind, before, value, person)
        if not 1 <= step.result <= LARGEST:
            continue
        if kind in COMPARES:
            before, person = value, person + 1
        value = step.result
        steps.append(step)
    return start, steps


def tell(
    start: int,
    steps: Sequence[Step],
    people: Sequence[str],
    thing: str,
    form: int,
    rng: random.Random,
) -> str:
    """The story in words; `form` is 0 for the words that are trained on, 1 for the others."""
    said = [rng.choice(START[form]).format(a=people[0], n=start, thing=thing)]
    for step in steps:
        if step.kind == "together":
            continue
        b = people[step.person]
        a = people[step.person - 1] if step.kind in COMPARES else b
        said.append(rng.choice(STEPS[step.kind][form]).format(a=a, b=b, k=step.right, thing=thing))
    last = steps[-1].person
    ask = TOGETHER if steps[-1].kind == "together" else ASK
    said.append(rng.choice(ask[form]).format(a=people[last - 1], b=people[last], thing=thing))
    return " ".join(said)


def grade(task: Task, content: str) -> tuple[dict[str, float], str | None]:
    """`answer` is 1 if the claimed number is right, else 0; and the number that was read. Never
    raises."""
    claimed = claimed_number(content)
    if claimed is None:
        return {"answer": 0.0}, None
    return {"answer": float(claimed == Decimal(task.answer))}, str(claimed)
