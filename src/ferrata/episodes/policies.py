"""Policies: what produces the next assistant turn from token ids."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Prompt:
    """A context to be continued.

    ids: the context so far, ending in an opened assistant turn.
    limit: most tokens that the next turn may have, closing token included; >= 1.
    seed: words that key the random numbers of this context, whatever else is in the batch.
    """

    ids: Sequence[int]
    limit: int
    seed: tuple[int, ...] = ()


@dataclass(frozen=True)
class Sampled:
    """One turn: ids and log-probabilities of equal length; closed if the last id is the closing
    token."""

    ids: list[int]
    logprobs: list[float]
    closed: bool


@dataclass(frozen=True)
class Continuation:
    """What the environment appends behind a turn (ending in an opened turn), and the limit of the
    turn to come."""

    ids: Sequence[int]
    limit: int


OnTurn = Callable[[int, Sampled], Continuation | None]
"""Called with a prompt's position and its finished turn; returns how the context goes on, or None
at its end."""


class Policy(Protocol):
    """Plays contexts to their ends. Turns of one context come in order; contexts advance
    independently."""

    def run(self, prompts: Sequence[Prompt], temperature: float, on_turn: OnTurn) -> None:
        """Play all prompts. temperature 0 is greedy."""
        ...


def uniforms(seed: tuple[int, ...]) -> np.random.Generator:
    """The random numbers of one context: counter-based, keyed by (seed, step, task, sample), never
    by what ran before."""
    import numpy as np

    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))


def resolve_dtype(precision: str) -> torch.dtype:
    """`float32`, `bfloat16`, or `auto`: bfloat16 where the processor or GPU multiplies it fast."""
    import torch

    if precision != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[precision]
    if torch.cuda.is_available():
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    flags = cpu_flags()
    fast = "avx512_bf16" in flags or "amx_bf16" in flags
    return torch.bfloat16 if fast else torch.float32


def cpu_flags() -> frozenset[str]:
    """Features of the processor as Linux names them; empty where it does not say."""
    if not os.path.exists("/proc/cpuinfo"):
        return frozenset()
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("flags"):
                return frozenset(line.split(":", 1)[1].split())
    return frozenset()


@dataclass
class _Row:
    index: int
    limit: int
    random: np.random.Generator | None
    forced: deque[int] = field(default_factory=deque)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class TransformersPolicy:
    """A transformers model in this process.

    All live contexts of a batch advance by one token per forward pass: the next token is sampled,
        or it is the next of
    those that the environment wrote (they are fed through the same pass, so contexts never wait for
    each other). The key-value cache lives as long as the context; finished contexts leave the
    batch. The prompts' common beginning is computed once, and equal prompts (a group) are computed
    once.

    Args:
        model: on its device and in its dtype; put in eval mode here. Full attention only (no
            sliding windows).
        close_id: token that closes a turn.
        pad_id: fills the left of shorter prompts; masked.
        batch_size: contexts played together.
    """

    def __init__(
        self, model: PreTrainedModel, close_id: int, pad_id: int, batch_size: int = 64
    ) -> None:
        window = getattr(model.config, "sliding_window", None)
        if window is not None and getattr(model.config, "use_sliding_window", True):
            from ferrata.errors import FerrataError

            raise FerrataError(
                "base model",
                found=f"attention with a sliding window of {window} tokens",
                expected="full attention: contexts share one padded cache",
                hint="use a model with full attention",
            )
        self.model = model.eval()
        self._close_id = close_id
        self._pad_id = pad_id
        self._batch_size = batch_size

    def run(self, prompts: Sequence[Prompt], temperature: float, on_turn: OnTurn) -> None:
        import torch

        for start in range(0, len(prompts), self._batch_size):
            part = prompts[start : start + self._batch_size]
            rows = [
                _Row(start + i, p.limit, uniforms(p.seed) if temperature > 0 else None)
                for i, p in enumerate(part)
            ]
            with torch.inference_mode():
                self._play(part, rows, temperature, on_turn)

    def _play(
        self, prompts: Sequence[Prompt], rows: list[_Row], temperature: float, on_turn: OnTurn
    ) -> None:
        import torch

        cache, mask_BL, logits_BV = self._prefill(prompts)
        positions = [len(p.ids) for p in prompts]
        while rows:
            chosen = self._choose(logits_BV, rows, temperature)
            keep: list[int] = []
            feed: list[int] = []
            for place, row in enumerate(rows):
                token = self._advance(row, chosen.get(place), on_turn)
                if token is not None:
                    keep.append(place)
                    feed.append(token)
            if not keep:
                return
            if len(keep) < len(rows):
                rows = [rows[i] for i in keep]
                positions = [positions[i] for i in keep]
                index = torch.tensor(keep, device=mask_BL.device)
                mask_BL = mask_BL[index]
                cache.batch_select_indices(index)
            mask_BL = torch.cat([mask_BL, mask_BL.new_ones(len(rows), 1)], dim=1)
            logits_BV = self._forward(
                torch.tensor([[token] for token in feed]),
                mask_BL,
                torch.tensor(positions)[:, None],
                cache,
            )
            positions = [position + 1 for position in positions]

    def _advance(self, row: _Row, token: tuple[int, float] | None, on_turn: OnTurn) -> int | None:
        """The next token to feed for a row, or None where its context has ended."""
        if row.forced:
            return row.forced.popleft()
        assert token is not None
        row.ids.append(token[0])
        row.logprobs.append(token[1])
        closed = token[0] == self._close_id
        if closed or len(row.ids) >= row.limit:
            going_on = on_turn(row.index, Sampled(row.ids, row.logprobs, closed))
            if going_on is None:
                return None
            row.forced, row.limit = deque(going_on.ids), going_on.limit
            row.ids, row.logprobs = [], []
        return token[0]

    def _choose(
        self, logits_BV: Tensor, rows: list[_Row], temperature: float
    ) -> dict[int, tuple[int, float]]:
        """Token and log-probability for each row that samples; by inversion of the cumulative
        distribution."""
        import torch

        places = [place for place, row in enumerate(rows) if not row.forced]
        if not places:
            return {}
        logits_SV = logits_BV[places].float()
        if temperature == 0:
            ids_S = logits_SV.argmax(-1)
        else:
            logits_SV = logits_SV / temperature
            draws = [rows[p].random.random() for p in places]  # type: ignore[union-attr]
            cumulative_SV = torch.softmax(logits_SV, -1).cumsum(-1)
            targets_S = torch.tensor(draws, device=logits_SV.device, dtype=cumulative_SV.dtype)
            targets_S = targets_S * cumulative_SV[:, -1]
            ids_S = torch.searchsorted(cumulative_SV, targets_S[:, None], right=True)[:, 0]
            ids_S = ids_S.clamp_(max=logits_SV.shape[-1] - 1)
        norms_S = torch.logsumexp(logits_SV, -1)
        logprobs_S = logits_SV.gather(1, ids_S[:, None])[:, 0] - norms_S
        pairs = zip(ids_S.tolist(), logprobs_S.tolist(), strict=True)
        return dict(zip(places, pairs, strict=True))

    def _prefill(self, prompts: Sequence[Prompt]) -> tuple[Any, Tensor, Tensor]:
        """Cache, mask (B, L) and next-token logits (B, V) of all prompts."""
        import torch
        from transformers import DynamicCache

        unique = list(dict.fromkeys(tuple(p.ids) for p in prompts))
        row_of = {ids: i for i, ids in enumerate(unique)}
        low, high = min(unique), max(unique)  # what these two share, all share
        most = min(len(ids) for ids in unique) - 1  # at least one token of each is left to feed
        shared = next((i for i in range(most) if low[i] != high[i]), most)
        widest = max(len(ids) for ids in unique) - shared
        cache = DynamicCache()
        if shared:
            ids_1P = torch.tensor([unique[0][:shared]])
            self._forward(ids_1P, torch.ones_like(ids_1P), torch.arange(shared)[None], cache)
            cache.batch_repeat_interleave(len(unique))
        pads = [widest - (len(ids) - shared) for ids in unique]
        tail_US = [
            [self._pad_id] * pad + list(ids[shared:]) for pad, ids in zip(pads, unique, strict=True)
        ]
        mask_UL = torch.ones(len(unique), shared + widest, dtype=torch.long)
        for row, pad in enumerate(pads):
            mask_UL[row, shared : shared + pad] = 0
        positions_US = (mask_UL.cumsum(-1) - 1)[:, shared:].clamp(min=0)
        logits_UV = self._forward(torch.tensor(tail_US), mask_UL, positions_US, cache)
        index = torch.tensor([row_of[tuple(p.ids)] for p in prompts], device=logits_UV.device)
        cache.batch_select_indices(index)
        return cache, mask_UL.to(logits_UV.device)[index], logits_UV[index]

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> Tensor:
        """Feed ids (B, S) and return the logits (B, V) behind the last of them."""
        device = self.model.device
        output = self.model(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            position_ids=positions.to(device),
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]
