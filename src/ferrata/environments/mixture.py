"""Several capabilities as one environment: what trains and is evaluated together."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ferrata.environments.base import (
    Demonstration,
    Environment,
    Fixture,
    Split,
    Task,
    Tool,
    World,
)


class Mixture:
    """Hands every task to the environment that it belongs to.

    Args:
        environments: by name, as it stands in `Task.environment`.
        weights: share of the tasks of each; any positive numbers. Equal if not given.
    """

    name = "mixture"
    agents = ("agent",)

    def __init__(
        self,
        environments: Mapping[str, Environment],
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self.environments = dict(environments)
        weights = weights or dict.fromkeys(environments, 1.0)
        self._shares = {name: weights[name] / sum(weights.values()) for name in environments}
        self.reward_ranges = {
            part: ends for e in self.environments.values() for part, ends in e.reward_ranges.items()
        }

    def sizes(self, n: int) -> dict[str, int]:
        """How many of `n` tasks each capability gets: its share, the remainders to the largest."""
        exact = {name: share * n for name, share in self._shares.items()}
        sizes = {name: int(value) for name, value in exact.items()}
        by_remainder = sorted(exact, key=lambda name: sizes[name] - exact[name])
        for name in by_remainder[: n - sum(sizes.values())]:
            sizes[name] += 1
        return sizes

    def tasks(self, split: Split, n: int, seed: int) -> Iterator[Task]:
        """Tasks of all capabilities, evenly mixed, so that any beginning has their shares."""
        made = [
            ((index + 0.5) / size, task)
            for name, size in self.sizes(n).items()
            for index, task in enumerate(self.environments[name].tasks(split, size, seed))
        ]
        yield from (task for _, task in sorted(made, key=lambda entry: entry[0]))

    def demonstrate(self, task: Task, skill: float, rng: random.Random) -> Demonstration:
        return self.environments[task.environment].demonstrate(task, skill, rng)

    def tools(self, task: Task) -> Sequence[Tool]:
        return self.environments[task.environment].tools(task)

    def start(self, task: Task) -> World:
        return self.environments[task.environment].start(task)

    def fixtures(self) -> list[Fixture]:
        return [fixture for e in self.environments.values() for fixture in e.fixtures()]


def names_of(tasks: Iterable[Task]) -> list[str]:
    """The capabilities that occur in some tasks, in order of appearance."""
    return list(dict.fromkeys(task.environment for task in tasks))
