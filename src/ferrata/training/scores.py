"""Log-probabilities of labels over a large vocabulary, in pieces that stay in memory.

The logits of a step (positions times 49 thousand words) are its largest arrays by far, several of
them alive at once where autograd keeps what it needs. Here a few rows of logits at a time are
made, reduced to what is wanted, and forgotten; the backward pass makes them again, which costs one
more product and saves the memory traffic. Tests compare values and gradients with the plain way.

Sizes in names: U hidden states, N labels (several may be scored from one state), H hidden size,
V vocabulary.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

ROWS = 128  # of logits at a time: 25 MB in float32 for SmolLM2


def score(
    hidden_UH: Tensor, head: Any, of_N: Tensor, targets_N: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Score labels with an output layer.

    Args:
        head: a linear layer (H to V); its bias, or an adapter around it, is respected.
        of_N: which state each label is scored from.
        targets_N: the labels.
        temperature: > 0; logits are divided by it.

    Returns:
        log_probs_N (nats, with gradient), entropy_N (nats, without), is_top1_N (bool).
    """
    import torch

    if type(head) is torch.nn.Linear and head.bias is None:
        values: tuple[Tensor, Tensor, Tensor] = _function().apply(
            hidden_UH, head.weight, of_N, targets_N, temperature
        )
        return values
    logits_UV = head(hidden_UH).float() / temperature
    log_z_U = logits_UV.logsumexp(-1)
    log_probs_N = logits_UV[of_N, targets_N] - log_z_U[of_N]
    with torch.no_grad():
        entropy_U = log_z_U - (torch.exp(logits_UV - log_z_U[:, None]) * logits_UV).sum(-1)
        is_top1_N = logits_UV.argmax(-1)[of_N] == targets_N
    return log_probs_N, entropy_U[of_N], is_top1_N


@functools.cache
def _function() -> Any:
    """The autograd function (made on demand: importing torch takes seconds)."""
    import torch

    class Score(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any,
            hidden_UH: Tensor,
            weight_VH: Tensor,
            of_N: Tensor,
            targets_N: Tensor,
            temperature: float,
        ) -> tuple[Tensor, Tensor, Tensor]:
            kind = hidden_UH.device.type
            dtype = (
                torch.get_autocast_dtype(kind)
                if torch.is_autocast_enabled(kind)
                else weight_VH.dtype
            )
            hidden, weight = hidden_UH.to(dtype), weight_VH.to(dtype)
            n = len(hidden)
            log_z_U, entropy_U = hidden_UH.new_empty(2, n, dtype=torch.float32)
            top_U = of_N.new_empty(n)
            logit_N = log_z_U.new_empty(len(of_N))
            with torch.autocast(kind, enabled=False):
                for first in range(0, n, ROWS):
                    rows = slice(first, first + ROWS)
                    logits_RV = torch.matmul(hidden[rows], weight.T).float().div_(temperature)
                    here_N = (of_N >= first) & (of_N < first + ROWS)
                    logit_N[here_N] = logits_RV[of_N[here_N] - first, targets_N[here_N]]
                    top_U[rows] = logits_RV.argmax(-1)
                    log_z_U[rows] = logits_RV.logsumexp(-1)
                    # entropy = log z - sum of p * logit
                    p_RV = torch.softmax(logits_RV, -1)
                    entropy_U[rows] = log_z_U[rows] - p_RV.mul_(logits_RV).sum(-1)
            ctx.save_for_backward(hidden, weight, of_N, targets_N, log_z_U)
            ctx.temperature = temperature
            ctx.dtypes = hidden_UH.dtype, weight_VH.dtype
            values = logit_N - log_z_U[of_N], entropy_U[of_N], top_U[of_N] == targets_N
            ctx.mark_non_differentiable(*values[1:])
            return values

        @staticmethod
        def backward(ctx: Any, gradient_N: Tensor, *_: Any) -> Any:
            """d log p(t) / d logit(v) = [v = t] - p(v)."""
            hidden, weight, of_N, targets_N, log_z_U = ctx.saved_tensors
            n = len(hidden)
            total_U = log_z_U.new_zeros(n).index_add_(0, of_N, gradient_N)
            slope_UV = weight.new_empty(n, len(weight))
            with torch.autocast(hidden.device.type, enabled=False):
                for first in range(0, n, ROWS):
                    rows = slice(first, first + ROWS)
                    logits_RV = torch.matmul(hidden[rows], weight.T).float().div_(ctx.temperature)
                    slope_RV = logits_RV.sub_(log_z_U[rows, None]).exp_().mul_(-total_U[rows, None])
                    here_N = (of_N >= first) & (of_N < first + ROWS)
                    where = of_N[here_N] - first, targets_N[here_N]
                    slope_RV.index_put_(where, gradient_N[here_N], accumulate=True)
                    slope_UV[rows] = slope_RV.div_(ctx.temperature)
                of_hidden = of_weight = None
                if ctx.needs_input_grad[0]:
                    of_hidden = torch.matmul(slope_UV, weight).to(ctx.dtypes[0])
                if ctx.needs_input_grad[1]:
                    of_weight = torch.matmul(slope_UV.T, hidden).to(ctx.dtypes[1])
            return of_hidden, of_weight, None, None, None

    return Score
