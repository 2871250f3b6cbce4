"""The bridge from a transformers (or TRL) trainer to a stage's run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ferrata.tracking.runs import StageRun


class RunCallback(TrainerCallback):
    """Forwards what a trainer logs to `run`, at the global step; the trainer's own `report_to` is
    none.

    Text and other non-numbers are left out; NaN and infinity are dropped by the run, which says so
    once per name.
    """

    def __init__(self, run: StageRun) -> None:
        self.run = run

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """A stage that goes on from a checkpoint opens a new run: it gets the steps before too."""
        if state.is_world_process_zero:
            for entry in state.log_history:
                self.run.metrics(_numbers(entry), step=int(entry["step"]))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not state.is_world_process_zero:
            return
        self.run.metrics(_numbers(logs or {}), step=state.global_step)


def _numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    return {
        key: float(value)
        for key, value in logs.items()
        if key != "step" and isinstance(value, (int, float)) and not isinstance(value, bool)
    }
