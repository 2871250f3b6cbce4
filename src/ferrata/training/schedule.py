"""The learning rate of every optimizer step, for SFT and RL alike.

transformers' schedules warm up from 0, so that the first step changes nothing, and their
`constant` has no warm-up at all. A step of RL costs a minute of playing: none may be for nothing,
and a warm-up that was asked for takes place. So the shape is stated here, once.
"""

from __future__ import annotations

import math
from typing import Any


def factor(step: int, *, shape: str, warmup: int, steps: int) -> float:
    """What the peak learning rate is multiplied by in one optimizer step, in (0, 1].

    The warm-up rises evenly: with 3 steps 1/4, 2/4, 3/4. What follows begins at 1; `linear` and
    `cosine` would reach 0 in the step after the last.

    Args:
        step: from 0.
        shape: constant, linear or cosine.
        warmup: steps below the peak.
        steps: in all, warm-up included.

    Raises:
        ValueError: an unknown shape.
    """
    if step < warmup:
        return (step + 1) / (warmup + 1)
    gone = (step - warmup) / max(1, steps - warmup)
    if shape == "constant":
        return 1.0
    if shape == "linear":
        return max(0.0, 1.0 - gone)
    if shape == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * min(1.0, gone)))
    raise ValueError(f"unknown schedule {shape!r}: expected constant, linear or cosine")


def scheduled(trainer_class: type) -> type:
    """A transformers (or TRL) trainer class whose learning rate follows `factor`, with the
    arguments `lr_scheduler_type` and `warmup_steps`."""

    class Scheduled(trainer_class):  # type: ignore[misc]
        lr_scheduler: Any

        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            from torch.optim.lr_scheduler import LambdaLR

            if self.lr_scheduler is None:
                shape = str(getattr(self.args.lr_scheduler_type, "value", None))
                warmup = self.args.get_warmup_steps(num_training_steps)
                self.lr_scheduler = LambdaLR(
                    optimizer or self.optimizer,
                    lambda step: factor(step, shape=shape, warmup=warmup, steps=num_training_steps),
                )
                self._created_lr_scheduler = True
            return self.lr_scheduler

    return Scheduled
