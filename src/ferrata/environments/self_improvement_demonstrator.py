"""The demonstrator of self-improvement and its habits.

It has three and gives in to each with probability 1 - skill, for a whole episode: it overlooks the
last condition at first; when it is told what fails it looks at that and forgets the others; and
when it is told that all holds it changes its mind.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from ferrata.environments.base import Demonstration, Message, Reply, Task, World, play_out
from ferrata.environments.conditions import NUMBERS, Condition, meets
from ferrata.environments.self_improvement import HOLDS


def demonstrate(task: Task, world: World, skill: float, rng: random.Random) -> Demonstration:
    """Play a task, with the habits that this skill leaves."""
    overlooks, forgets, doubts = (rng.random() > skill for _ in range(3))
    conditions = [Condition(*row) for row in task.payload["conditions"]]
    tried: list[int] = []

    def attempt(kept: Sequence[Condition]) -> Reply:
        fit = [n for n in NUMBERS if meets(n, list(kept)) and n not in tried]
        tried.append(rng.choice(fit or list(NUMBERS)))
        return Reply(f"Answer: {tried[-1]}")

    def act(agent: str, messages: Sequence[Message]) -> Reply:
        said = messages[-1]["content"]
        if not tried:
            return attempt(conditions[:-1] if overlooks else conditions)
        if said == HOLDS:
            if not doubts:
                return Reply("Done.")
            return attempt(conditions[:-1])
        failed = [c for c in conditions if not c.holds(tried[-1])]
        return attempt(failed[:1] if forgets else conditions)

    messages, last = play_out(world, act)
    return Demonstration(task, messages, last.success)
