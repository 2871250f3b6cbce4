"""Planning: make a thing from parts, where a wrong step uses up what the right one needs.

The question lists what there is, the recipes, and the goal. `craft` uses parts up and gives the
thing; `undo` takes the last step back. There is exactly as much raw material as a shortest plan
needs, and some recipes lead nowhere, so that a hasty step ends in a dead end and backtracking pays.
A step that is not possible is answered, not punished. Difficulty is the length of the shortest plan
(found by search): band 1 has one step, band 3 three, and band 4, never trained on, four.
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
from ferrata.environments.planning_forms import ASK, FORMS, THINGS, THINGS_HELD_OUT
from ferrata.environments.splits import HELD_OUT, draw_tasks
from ferrata.environments.workshop import Workshop, draw_workshop, listed, shortest


class PlanningWorld(ToolWorld):
    """Ends as soon as the goal is made; a message without a call gives up.

    Args:
        progress: of the return for what a step brings nearer (0: only the goal pays); taken back
            where a step leads away, so that no detour pays.
    """

    def __init__(self, task: Task, progress: float = 0.0) -> None:
        self.workshop = Workshop(task.payload)
        tools = [Tool(self.workshop.craft), Tool(self.workshop.undo)]
        super().__init__(task.payload["question"], tools, lambda text: ({"goal": 0.0}, None))
        self._optimum = task.payload["optimum"]
        self._progress = progress
        self._left = self._optimum
        self._calls = 0

    def step(self, agent: str, reply: Reply) -> Step:
        if not reply.calls:
            return super().step(agent, reply)
        results = []
        for call in reply.calls:
            results.append(self._run(call))
            self._calls += 1
            if self.workshop.done:
                break
        parts: dict[str, float] = {}
        if self._progress:
            way = shortest(self.workshop)  # a dead end is as far as the beginning
            left = self._optimum if way is None else min(len(way), self._optimum)
            parts["progress"] = self._progress * (self._left - left) / self._optimum
            self._left = left
        if self.workshop.done:
            parts["goal"] = 1.0 - self._progress
            plan = ", ".join(self.workshop.taken)
            return Step(
                rewards={agent: parts},
                results=results,
                done=True,
                answer=plan,
                success=True,
                measures={"calls_over_shortest": self._calls / self._optimum},
            )
        messages = [{"role": "tool", "name": r.name, "content": r.content} for r in results]
        rewards = {agent: parts} if parts else {}
        return Step({agent: Observation(messages)}, rewards, results)


class Planning:
    """The environment; stateless, see the module's docstring. `progress` as for its world."""

    name: ClassVar[str] = "planning"
    agents: ClassVar[tuple[str, ...]] = ("agent",)
    reward_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {
        "goal": (0.0, 1.0),
        "progress": (0.0, 1.0),
    }

    def __init__(self, progress: float = 0.0) -> None:
        self._progress = progress

    def tasks(self, split: Split, n: int, seed: int) -> Iterator[Task]:
        return draw_tasks(self.name, split, n, seed, partial(self._draw, seed=seed))

    def _draw(self, split: Split, band: int, index: int, rng: random.Random, seed: int) -> Task:
        names = rng.sample(THINGS_HELD_OUT if split in HELD_OUT else THINGS, 12)
        payload = draw_workshop(band, names, rng)
        form = 1 if split == "forms" else 0
        parts = listed(payload["have"])
        recipes = [
            FORMS[form].format(item=i, parts=" + ".join(p)) for i, p in payload["recipes"].items()
        ]
        question = rng.choice(ASK[form]).format(
            have=parts, recipes="\n".join(recipes), goal=payload["goal"]
        )
        place = {name: f"#{n}" for n, name in enumerate(names)}
        return Task(
            id=f"{self.name}-{split}-{index:05d}",
            environment=self.name,
            split=split,
            band=band,
            form="held-out" if form else "trained",
            seed=seed,
            # Whatever the things are called and in which order: equal recipes are one problem.
            signature="; ".join(
                sorted(
                    f"{place[item]}={'+'.join(place[part] for part in parts)}"
                    for item, parts in payload["recipes"].items()
                )
            ),
            payload={"question": question, "kind": f"{payload['optimum']} steps", **payload},
            answer=payload["optimum"],
        )

    def tools(self, task: Task) -> Sequence[Tool]:
        workshop = Workshop(task.payload)
        return [Tool(workshop.craft), Tool(workshop.undo)]

    def start(self, task: Task) -> PlanningWorld:
        return PlanningWorld(task, self._progress)

    def demonstrate(self, task: Task, skill: float, rng: random.Random) -> Demonstration:
        from ferrata.environments.planning_demonstrator import demonstrate

        return demonstrate(task, skill, rng)

    def fixtures(self) -> list[Fixture]:
        from ferrata.environments.planning_fixtures import fixtures

        return fixtures()
