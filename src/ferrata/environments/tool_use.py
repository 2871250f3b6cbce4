"""Tool use: questions about a shop that the model cannot see, and sums that it cannot do in its
head.

Difficulty is the number of calls an expert makes: band 1 needs one (or none: some questions contain
their answer), band 4 needs four and is never trained on. Arguments are built from the question and
from earlier results; two of the tools are never of use.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import ClassVar

from ferrata.environments import toolbox
from ferrata.environments.base import Demonstration, Fixture, Split, Task, Tool, ToolWorld
from ferrata.environments.numbers import claimed_number
from ferrata.environments.splits import HELD_OUT, draw_tasks
from ferrata.environments.tool_use_forms import CITIES, FORMS, ITEMS, ITEMS_HELD_OUT, SKIES
from ferrata.environments.tool_use_kinds import KINDS, expert_results


class ToolUse:
    """The environment; stateless, see the module's docstring."""

    name: ClassVar[str] = "tool_use"
    agents: ClassVar[tuple[str, ...]] = ("agent",)
    reward_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {"answer": (0.0, 1.0)}

    def tasks(self, split: Split, n: int, seed: int) -> Iterator[Task]:
        return draw_tasks(self.name, split, n, seed, partial(self._draw, seed=seed))

    def _draw(self, split: Split, band: int, index: int, rng: random.Random, seed: int) -> Task:
        kind = rng.choice([name for name, k in KINDS.items() if k.band == band])
        pool = ITEMS_HELD_OUT if split in HELD_OUT else ITEMS
        names = rng.sample(pool, 5)
        table = {
            name: {
                "price": rng.randint(3, 97),
                "stock": rng.randint(2, 250),
                "weight": rng.randint(3, 95) / 10,
            }
            for name in sorted(names)
        }
        values = KINDS[kind].draw(rng)
        values |= dict(zip("xyz", names[: KINDS[kind].items], strict=False))
        forms = FORMS[kind][1 if split == "forms" else 0]
        form = rng.randrange(len(forms))
        results = expert_results(kind, values, table)
        asked = [
            f"{key}={value}" for key, value in sorted(values.items()) if f"{{{key}}}" in forms[form]
        ]
        found = [toolbox.number_text(r) for r in results]
        return Task(
            id=f"{self.name}-{split}-{index:05d}",
            environment=self.name,
            split=split,
            band=band,
            form=f"{kind}-{'held-out-' if split == 'forms' else ''}{form}",
            seed=seed,
            signature=f"{kind}: {' '.join(asked)} -> {' '.join(found)}",
            payload={
                "question": forms[form].format(**values),
                "kind": kind,
                "values": values,
                "table": table,
                "weather": {city: rng.choice(SKIES) for city in CITIES},
            },
            answer=found[-1] if found else str(values["b"]),
        )

    def tools(self, task: Task) -> Sequence[Tool]:
        lookup = toolbox.make_lookup(task.payload["table"])
        weather = toolbox.make_weather(task.payload["weather"])
        return [
            Tool(f) for f in (toolbox.calculator, lookup, toolbox.convert, weather, toolbox.weekday)
        ]

    def start(self, task: Task) -> ToolWorld:
        return ToolWorld(task.payload["question"], self.tools(task), lambda text: grade(task, text))

    def demonstrate(self, task: Task, skill: float, rng: random.Random) -> Demonstration:
        from ferrata.environments.tool_use_demonstrator import demonstrate

        return demonstrate(self, task, skill, rng)

    def fixtures(self) -> list[Fixture]:
        from ferrata.environments.tool_use_fixtures import fixtures

        return fixtures(self)


def grade(task: Task, content: str) -> tuple[dict[str, float], str | None]:
    """Grade a final message: `answer` is 1 if the claimed number is right (to 1e-6), else 0.

    Returns the reward parts, and the number that was read (None where none was claimed). Never
    raises.
    """
    unit = KINDS[task.payload["kind"]].unit
    unit = task.payload["values"]["v"] if unit == "v" else unit
    claimed = claimed_number(content, (unit,) if unit else ())
    if claimed is None:
        return {"answer": 0.0}, None
    right = abs(claimed - Decimal(task.answer)) <= Decimal("1e-6")
    return {"answer": float(right)}, str(claimed)
