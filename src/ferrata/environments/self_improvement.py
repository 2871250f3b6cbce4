"""Self-improvement: an attempt, what a checker finds wrong with it, and a better one.

A number of two digits is wanted that meets several conditions. Each attempt is answered with the
first condition that it fails, never with a solution. Three attempts at most; a message that claims
no number keeps the last one. So a policy may recover, and it may spoil what was right. Difficulty
is the number of conditions: two to four, and five in band 4, which is never trained on.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import ClassVar

from ferrata.environments.base import (
    Demonstration,
    Fixture,
    Observation,
    Reply,
    Split,
    Step,
    Task,
    Tool,
    ToolWorld,
)
from ferrata.environments.conditions import Condition, draw_conditions, meets
from ferrata.environments.numbers import claimed_number
from ferrata.environments.splits import draw_tasks

ATTEMPTS = 3
ASK = (
    ["Give a number of two digits. {said}", "Which number of two digits fits? {said}"],
    ["I think of something between 10 and 99. {said} Tell me a number that could be meant."],
)
HOLDS = "All conditions hold."
FAILS = "Wrong. {condition}"


class CheckedWorld(ToolWorld):
    """Ends with the third attempt, or with a message that claims nothing."""

    def __init__(self, task: Task) -> None:
        super().__init__(task.payload["question"], (), lambda text: ({"answer": 0.0}, None))
        self._conditions = [Condition(*row) for row in task.payload["conditions"]]
        self._form = task.payload["wording"]
        self._tried: list[tuple[str, bool]] = []

    def step(self, agent: str, reply: Reply) -> Step:
        if reply.calls:
            return super().step(agent, reply)
        claimed = claimed_number(reply.content)
        if claimed is not None:
            whole = int(claimed) if claimed == claimed.to_integral_value() else -1
            self._tried.append((str(claimed), meets(whole, self._conditions)))
            if len(self._tried) < ATTEMPTS:
                seen = {agent: Observation([self._feedback(whole)])}
                return Step(seen, measures=self._measures())
        answer, right = self._tried[-1] if self._tried else (None, False)
        return Step(
            rewards={agent: {"answer": float(right)}},
            done=True,
            answer=answer,
            success=right,
            measures=self._measures(),
        )

    def _feedback(self, number: int) -> dict[str, str]:
        failed = next((c for c in self._conditions if not c.holds(number)), None)
        if failed is not None:
            said = FAILS.format(condition=failed.words(self._form))
        else:
            said = HOLDS if meets(number, self._conditions) else "Wrong. It has two digits."
        return {"role": "user", "content": said}

    def _measures(self) -> dict[str, float]:
        """right_at_first; recovered: right at the second attempt, where the first was wrong;
        harmed: wrong in the end, where an attempt was right. As things stand, after each turn."""
        right = [ok for _, ok in self._tried] or [False]
        measures = {"right_at_first": float(right[0])}
        if not right[0]:
            measures["recovered"] = float(len(right) > 1 and right[1])
        if any(right):
            measures["harmed"] = float(not right[-1])
        return measures


class SelfImprovement:
    """The environment; stateless, see the module's docstring."""

    name: ClassVar[str] = "self_improvement"
    agents: ClassVar[tuple[str, ...]] = ("agent",)
    reward_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {"answer": (0.0, 1.0)}

    def tasks(self, split: Split, n: int, seed: int) -> Iterator[Task]:
        return draw_tasks(self.name, split, n, seed, partial(self._draw, seed=seed))

    def _draw(self, split: Split, band: int, index: int, rng: random.Random, seed: int) -> Task:
        form = 1 if split == "forms" else 0
        number, conditions = draw_conditions(band + 1, rng)
        said = " ".join(condition.words(form) for condition in conditions)
        return Task(
            id=f"{self.name}-{split}-{index:05d}",
            environment=self.name,
            split=split,
            band=band,
            form="held-out" if form else "trained",
            seed=seed,
            signature="; ".join(sorted(f"{c.kind} {c.a} {c.b}" for c in conditions)),
            payload={
                "question": rng.choice(ASK[form]).format(said=said),
                "kind": f"{len(conditions)} conditions",
                "conditions": [[c.kind, c.a, c.b] for c in conditions],
                "wording": form,
                "goal": f"{number}, or another number that fits",
            },
            answer=number,
        )

    def tools(self, task: Task) -> Sequence[Tool]:
        return ()

    def start(self, task: Task) -> CheckedWorld:
        return CheckedWorld(task)

    def demonstrate(self, task: Task, skill: float, rng: random.Random) -> Demonstration:
        from ferrata.environments.self_improvement_demonstrator import demonstrate

        return demonstrate(task, self.start(task), skill, rng)

    def fixtures(self) -> list[Fixture]:
        from ferrata.environments.self_improvement_fixtures import fixtures

        return fixtures()
