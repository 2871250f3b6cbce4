"""Spending forward and backward passes only where there is a gradient.

Two exact savings inside TRL's GRPO loss. Columns that are padding in every row of a micro-batch are
cut: TRL pads to the longest episode of the whole generation. And rows whose advantage is 0 (groups
with equal returns) are left out where nothing else gives them a gradient and the loss divides by a
number that they do not change: loss `dapo`, no KL term, one process. Metrics that TRL averages
inside the loss (entropy, clip shares) are then of the remaining rows. This relies on the private
`GRPOTrainer._compute_loss` of TRL 1.16; tests compare gradients with the plain trainer's.
"""

from __future__ import annotations

from typing import Any

ROWS_OF_COMPLETION = (
    "completion_ids",
    "completion_mask",
    "tool_mask",
    "old_per_token_logps",
    "ref_per_token_logps",
    "sampling_per_token_logps",
    "importance_sampling_ratio",  # of vLLM's log-probabilities; one column if it is per sequence
)
ROWS_OF_PROMPT = ("prompt_ids", "prompt_mask")


def compact(inputs: dict[str, Any], *, drop_rows: bool) -> dict[str, Any]:
    """A micro-batch without needless rows and columns; the input is left as it is.

    Args:
        inputs: TRL's micro-batch: prompts (B, P) padded on the left, completions (B, C) on the
            right, advantages (B,).
        drop_rows: leave out rows with advantage 0; one row is kept if all are, so that there is a
            (zero) gradient.
    """
    keep = inputs["advantages"] != 0
    if not drop_rows:
        keep = keep | True
    elif not keep.any():
        keep[0] = True
    out = dict(inputs)
    prompt_mask = inputs["prompt_mask"][keep]
    completion_mask = inputs["completion_mask"][keep]
    left = int(prompt_mask.any(0).int().argmax())  # first column that some prompt uses
    right = int(completion_mask.sum(1).max())  # completions are padded on the right
    for name in ROWS_OF_PROMPT:
        out[name] = inputs[name][keep][:, left:]
    for name in ROWS_OF_COMPLETION:
        if name in inputs:
            out[name] = inputs[name][keep][:, :right]
    out["advantages"] = inputs["advantages"][keep]
    return out


def make_trainer_class() -> type:
    """GRPOTrainer with compact micro-batches (made on demand: importing TRL takes seconds)."""
    from trl import GRPOTrainer

    class CompactGRPOTrainer(GRPOTrainer):
        """TRL's trainer; same loss, same gradients, less work."""

        def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
            exact = (
                self.loss_type == "dapo"
                and self.beta == 0.0
                and not self._entropy_bonus_enabled
                and self.accelerator.num_processes == 1
            )
            return super()._compute_loss(model, compact(inputs, drop_rows=exact))

    return CompactGRPOTrainer
