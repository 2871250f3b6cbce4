"""Making tasks and demonstrations of an environment."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ferrata.config.prepare import PrepareParams
from ferrata.environments.base import Demonstration, Environment, Split, Task
from ferrata.errors import FerrataError


def make_tasks(
    environment: Environment, params: PrepareParams, seed: int
) -> dict[Split, list[Task]]:
    """All splits, as large as the section `prepare` says. Raises FerrataError for an empty one."""
    sizes: dict[Split, int] = {
        "sft": params.demonstrations,
        "train": params.train_tasks,
        "validation": params.validation_tasks,
        "test": params.test_tasks,
        "forms": params.forms_tasks,
        "ood": params.ood_tasks,
    }
    splits = {split: list(environment.tasks(split, n, seed)) for split, n in sizes.items()}
    empty = [split for split, tasks in splits.items() if not tasks]
    if empty:
        raise FerrataError(
            f"environment {environment.name}",
            found=f"no task for {', '.join(empty)}",
            expected="at least one task in every split",
            hint="raise the numbers in the section prepare of params.yaml",
        )
    return splits


def demonstrate(
    environment: Environment, tasks: Sequence[Task], skill: float, seed: int, sample: int = 0
) -> list[Demonstration]:
    """One demonstration per task; the same arguments give the same mistakes."""
    return [
        environment.demonstrate(task, skill, random.Random(f"{seed}/{task.id}/{sample}"))
        for task in tasks
    ]


def success_by_band(demonstrations: Sequence[Demonstration]) -> dict[str, float]:
    """Share of demonstrations whose answer is right, per band and of all, to 4 digits."""
    groups: dict[str, list[bool]] = {}
    for demonstration in sorted(demonstrations, key=lambda d: d.task.band):
        groups.setdefault(f"band_{demonstration.task.band}", []).append(demonstration.success)
    groups["all"] = [d.success for d in demonstrations]
    return {name: round(sum(values) / len(values), 4) for name, values in groups.items()}
