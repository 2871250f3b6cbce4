"""Which split a problem belongs to: its signature alone decides, so that no problem is in two."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping

from ferrata.environments.base import Split, Task
from ferrata.errors import FerrataError

BUCKETS: Mapping[str, range] = {  # share (%) of all problems of the trained bands
    "sft": range(30),
    "train": range(30, 65),
    "validation": range(65, 75),
    "test": range(75, 90),
    "forms": range(90, 100),
    "ood": range(100),  # its bands have no problem in common with the others
}
HELD_OUT = ("test", "forms", "ood")  # splits with names that are never trained on
BANDS = (1, 2, 3)  # trained; `ood` is the band above
TRIES = 1000

Draw = Callable[[Split, int, int, random.Random], Task]
"""Makes a task from (split, band, index, random numbers)."""


def draw_tasks(name: str, split: Split, n: int, seed: int, draw: Draw) -> Iterator[Task]:
    """`n` tasks whose signatures belong to the split, bands in turn; a split whose results are
    reported has no problem twice.

    Raises:
        FerrataError: a band has too few problems for the split.
    """
    seen: set[str] = set()
    for index in range(n):
        rng = random.Random(f"{name}/{split}/{seed}/{index}")
        band = BANDS[-1] + 1 if split == "ood" else BANDS[index % len(BANDS)]
        for _ in range(TRIES):
            task = draw(split, band, index, rng)
            if bucket(task.signature) in BUCKETS[split] and task.signature not in seen:
                if split in HELD_OUT:
                    seen.add(task.signature)
                yield task
                break
        else:
            raise FerrataError(
                f"{name}: {n} tasks for {split}",
                found=f"no further problem of band {band} in {TRIES} draws, behind {index} tasks",
                expected="a band with that many different problems",
                hint=f"lower prepare.{split}_tasks in params.yaml",
            )


def bucket(signature: str) -> int:
    """0 to 99, from the signature's hash."""
    return int.from_bytes(hashlib.sha256(signature.encode()).digest()[:4], "big") % 100
