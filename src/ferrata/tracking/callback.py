"""The bridge from a transformers (or TRL) trainer to a stage's run."""

from __future__ import annotations

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
        numbers = {
            key: float(value)
            for key, value in (logs or {}).items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }
        self.run.metrics(numbers, step=state.global_step)
