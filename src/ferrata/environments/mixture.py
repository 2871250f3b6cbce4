"""Several capabilities as one environment: what trains and is evaluated together."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

from ferrata.environments.base import (
    Demonstration,
    Environment,
    Fixture,
    Split,
    Task,
    Tool,
    World,
)
from ferrata.errors import FerrataError


class Mixture:
    """Hands every task to the environment that it belongs to.

    Args:
        environments: by name, as it stands in `Task.environment`.
        weights: share of the tasks of each; any positive numbers.
    """

    name = "mixture"
    agents = ("agent",)

    def __init__(
        self, environments: Mapping[str, Environment], weights: Mapping[str, float]
    ) -> None:
        self.environments = dict(environments)
        self._shares = {name: weights[name] / sum(weights.values()) for name in environments}
        self.reward_ranges = {
            part: ends for e in self.environments.values() for part, ends in e.reward_ranges.items()
        }

    def variant(self, name: str) -> Mixture:
        """The environments that have a variant of this name, as that. Raises FerrataError if none
        has."""
        own = {key: getattr(e, "variants", {}) for key, e in self.environments.items()}
        chosen = {key: variants[name] for key, variants in own.items() if name in variants}
        if not chosen:
            known = sorted({variant for variants in own.values() for variant in variants})
            raise FerrataError(
                "params.yaml: arms: variant",
                found=repr(name),
                expected=f"one of {', '.join(known)}"
                if known
                else "none: no environment of prepare.mixture has one",
                hint="correct the arm, or give memory a weight in prepare.mixture",
            )
        return Mixture(chosen, {key: self._shares[key] for key in chosen})

    def sizes(self, n: int) -> dict[str, int]:
        """How many of `n` tasks each capability gets: its share, the remainders to the largest.

        Raises:
            FerrataError: one would get none, and so be left out of a split unnoticed.
        """
        exact = {name: share * n for name, share in self._shares.items()}
        sizes = {name: int(value) for name, value in exact.items()}
        by_remainder = sorted(exact, key=lambda name: sizes[name] - exact[name])
        for name in by_remainder[: n - sum(sizes.values())]:
            sizes[name] += 1
        if empty := [name for name, size in sizes.items() if not size]:
            raise FerrataError(
                f"params.yaml: prepare: {n} tasks of a split",
                found=f"none of them for {', '.join(empty)}",
                expected="at least one for each environment of prepare.mixture",
                hint="ask for more tasks, or raise the weight (0 leaves an environment out)",
            )
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
