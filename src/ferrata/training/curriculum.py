"""A curriculum over bands: harder tasks come once the validation tasks of a band are mostly solved.

Each capability has a level of its own and begins with its lowest band. TRL fixes beforehand which
task each group plays, so a task above its capability's level is replaced when it is played.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ferrata.environments.base import Task


@dataclass(frozen=True)
class Played:
    """What an episode says: of which capability and band it was, and whether it was solved."""

    environment: str
    band: int
    success: bool


class Curriculum:
    """The level of each capability, and what is played instead of a task above it.

    Args:
        tasks: those that training may draw from.
        threshold: success on the validation tasks of a level's band from which the next band is
            played, 0 to 1.
        seed: with step and task it keys what is played instead.
    """

    def __init__(self, tasks: Sequence[Task], threshold: float, seed: int) -> None:
        self._threshold = threshold
        self._seed = seed
        self._bands: dict[str, dict[int, list[Task]]] = {}
        for task in tasks:
            self._bands.setdefault(task.environment, {}).setdefault(task.band, []).append(task)
        self.levels = {name: min(bands) for name, bands in self._bands.items()}

    def choose(self, task: Task, step: int) -> Task:
        """The task itself, or one of the level's band where it is too hard yet."""
        level = self.levels[task.environment]
        if task.band <= level:
            return task
        rng = random.Random(f"{self._seed}/{step}/{task.id}")
        return rng.choice(self._bands[task.environment][level])

    def update(self, validation: Sequence[Played]) -> None:
        """Move each capability up by one band whose level's validation tasks are mostly solved."""
        for name, level in self.levels.items():
            own = [p.success for p in validation if (p.environment, p.band) == (name, level)]
            harder = [band for band in self._bands[name] if band > level]
            if own and harder and sum(own) / len(own) >= self._threshold:
                self.levels[name] = min(harder)

    def restore(self, levels: Mapping[str, int]) -> None:
        """Go on with the levels of a checkpoint."""
        self.levels = dict(levels)
