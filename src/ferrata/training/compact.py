"""Spending forward and backward passes only where there is a gradient.

Exact savings inside TRL's GRPO loss. Columns that are padding in every row of a micro-batch are
cut: TRL pads to the longest episode of the whole generation. Rows whose advantage is 0 (groups with
equal returns) are left out where nothing else gives them a gradient: no KL term, no entropy bonus,
one process. Where the loss is a mean over what there is, it is scaled back to what there was.
Metrics that TRL averages inside the loss (entropy, clip shares) are then of the remaining rows. On
processors the episodes of a task also stand side by side, so that they share what they have in
common. This relies on `_compute_loss` and `_prepare_inputs`, private to the GRPOTrainer of TRL
1.16; tests compare loss and gradients with the plain trainer's, per loss type.
"""

from __future__ import annotations

from collections.abc import Sequence
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
LOSSES = ("dapo", "bnpo", "grpo", "dr_grpo")
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


def share(loss_type: str, small: dict[str, Any], inputs: dict[str, Any]) -> Any:
    """What the loss of the remaining rows is to be multiplied by: the part of its denominator that
    they are. `dapo` divides by the tokens of the whole step, `bnpo` by those of the micro-batch,
    `grpo` and `dr_grpo` by its rows."""
    if loss_type == "dapo":
        return 1.0
    if loss_type == "bnpo":
        left, all_ = (
            (batch["completion_mask"] * batch.get("tool_mask", 1)).sum().clamp(min=1)
            for batch in (small, inputs)
        )
        return left / all_
    return len(small["advantages"]) / len(inputs["advantages"])


def in_group_order(batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The micro-batches of one step with the episodes of a task side by side, so that they share a
    branch of the tree (`ferrata.training.tree`). TRL shuffles them, which matters only where a
    generation serves several optimizer steps at once; here each step takes all of it.

    Args:
        batches: dictionaries of tensors and lists with one entry per episode; tensors without
            dimensions hold for all.
    """
    import torch

    sizes = [len(batch["prompt_ids"]) for batch in batches]
    keys = []
    for batch in batches:
        for row in range(len(batch["prompt_ids"])):
            used = [
                batch[f"{part}_ids"][row][batch[f"{part}_mask"][row].bool()].tolist()
                for part in ("prompt", "completion")
            ]
            keys.append(used)
    order = sorted(range(len(keys)), key=keys.__getitem__)
    out: list[dict[str, Any]] = [{} for _ in batches]
    for name, first in batches[0].items():
        parts = [batch[name] for batch in batches]
        if isinstance(first, torch.Tensor) and first.dim() > 0:
            pieces: Any = torch.cat(parts)[order].split(sizes)
        elif isinstance(first, list):
            flat = [entry for part in parts for entry in part]
            entries = iter([flat[index] for index in order])
            pieces = [[next(entries) for _ in range(size)] for size in sizes]
        else:
            pieces = parts
        for batch, piece in zip(out, pieces, strict=True):
            batch[name] = piece
    return out


def make_trainer_class() -> type:
    """GRPOTrainer with compact micro-batches (made on demand: importing TRL takes seconds)."""
    from trl import GRPOTrainer

    class CompactGRPOTrainer(GRPOTrainer):
        """TRL's trainer; same loss, same gradients, less work."""

        row_weights: Sequence[float] | None = None  # of the episodes just played, if not 1

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            scored = super()._generate_and_score_completions(inputs)
            if self.row_weights is not None:
                advantages = scored["advantages"]
                scored["advantages"] = advantages * advantages.new_tensor(self.row_weights)
            return scored

        def _prepare_inputs(self, generation_batch: Any) -> Any:
            before = self._buffered_inputs
            inputs = super()._prepare_inputs(generation_batch)
            if self._buffered_inputs is before or self.accelerator.device.type != "cpu":
                return inputs
            self._buffered_inputs = in_group_order(self._buffered_inputs)
            return self._buffered_inputs[self._step % self.args.steps_per_generation]

        def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
            exact = (
                self.loss_type in LOSSES
                and self.beta == 0.0
                and not self._entropy_bonus_enabled
                and self.accelerator.num_processes == 1
            )
            small = compact(inputs, drop_rows=exact)
            loss = super()._compute_loss(model, small)
            return loss * share(self.loss_type, small, inputs) if exact else loss

    return CompactGRPOTrainer
