"""Reasoning: stories about quantities, worked out line by line in text; there are no tools.

Difficulty is the number of steps: band 1 has one, band 3 three, and band 4, never trained on, four.
A step changes one person's number, compares a further person with the one before, or, last of all,
adds the last two people up. Every number stays between 1 and 40, so that a small model can do each
step; what is hard is to do all of them, in order, with the right operation. The demonstrator has
three habits and gives in to each with probability 1 - skill, for a whole episode: it reads `fewer`
as `more`, compares with what somebody had at first, and leaves the last addition out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, ClassVar

from ferrata.environments.base import Demonstration, Fixture, Split, Task, Tool, ToolWorld
from ferrata.environments.numbers import claimed_number
from ferrata.environments.reasoning_forms import NAMES, NAMES_HELD_OUT, THINGS
from ferrata.environments.splits import HELD_OUT, draw_tasks
from ferrata.environments.stories import COMPARES, Step, draw_story, tell


class Reasoning:
    """The environment; stateless, see the module's docstring."""

    name: ClassVar[str] = "reasoning"
    agents: ClassVar[tuple[str, ...]] = ("agent",)
    reward_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {"answer": (0.0, 1.0)}

    def tasks(self, split: Split, n: int, seed: int) -> Iterator[Task]:
        return draw_tasks(self.name, split, n, seed, partial(self._draw, seed=seed))

    def _draw(self, split: Split, band: int, index: int, rng: random.Random, seed: int) -> Task:
        start, steps = draw_story(band, rng)
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
        misreads, looks_back, stops_early = (rng.random() > skill for _ in range(3))
        numbers: dict[int, int] = {}  # of each person, as the demonstrator believes
        lines: list[str] = []
        value = at_first = 0
        for position, row in enumerate(task.payload["steps"]):
            step = Step(*row)
            if not position:
                value = at_first = step.left
            if step.kind == "together":
                if stops_early:
                    break
                step = Step("together", numbers[step.person - 1], value, step.person)
            elif step.kind in COMPARES:
                left = at_first if looks_back else value
                kind = "more" if step.kind == "fewer" and misreads else step.kind
                step = Step(kind, left, step.right, step.person)
                numbers[step.person - 1], at_first = left, step.result
            else:
                step = Step(step.kind, value, step.right, step.person)
            value = step.result
            lines.append(step.line())
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


def grade(task: Task, content: str) -> tuple[dict[str, float], str | None]:
    """`answer` is 1 if the claimed number is right, else 0; and the number that was read. Never
    raises."""
    claimed = claimed_number(content)
    if claimed is None:
        return {"answer": 0.0}, None
    return {"answer": float(claimed == Decimal(task.answer))}, str(claimed)
