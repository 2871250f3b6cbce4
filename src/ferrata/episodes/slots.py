"""Contexts of different lengths in one forward pass, without padding.

The tokens of all contexts (one sampled token here, a whole tool result there, a new prompt
somewhere else) go through the model as one row of N tokens; only attention knows which context a
token belongs to. What all contexts begin with (system message, tool list, examples) is kept once,
and all tokens of a pass look at it in one product; behind it each context owns a slot of the
key-value cache. Built on transformers' public `Cache.update` and `AttentionInterface`; tests
compare with plain forward passes and `generate`.

Sizes in names: N tokens of a pass, R slots, S columns, H query heads, K key-value heads, G = H / K,
P positions of the common beginning, L positions of a slot behind it, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

ATTENTION = "ferrata_slots"
GROWTH = 64  # buffers have a multiple of this many positions, and a pass looks at all of them
SCORES = 1 << 22  # attention scores made at a time: 16 MB, so that they stay in the caches
UNSUPPORTED = ("softcap", "s_aux", "sliding_window")  # of an attention layer; None where unused


@dataclass(frozen=True)
class Piece:
    """Tokens that a pass appends to one context: `start` is the position of the first."""

    slot: int
    start: int
    ids: Sequence[int]


@dataclass(frozen=True)
class Part:
    """Tokens whose attention is computed together, laid out as a grid (rows, S).

    slots_R: the cache's rows they read; None is all slots in order, without a copy.
    grid_RS: position among the N tokens; unused cells repeat token 0.
    tokens_N, cells_N: where each token of the part stands among the N, and in the flattened grid.
    hidden_RSL: what a cell must not look at in its slot.
    """

    slots_R: Tensor | None
    grid_RS: Tensor
    tokens_N: Tensor
    cells_N: Tensor
    hidden_RSL: Tensor


@dataclass(frozen=True)
class Plan:
    """Where the N tokens of a pass belong.

    positions_N count from the beginning of a context, columns_N from that of its slot; `last` are
    the pieces' last tokens.
    """

    slots_N: Tensor
    positions_N: Tensor
    columns_N: Tensor
    last: Tensor
    width: int
    parts: list[Part]


def plan(pieces: Sequence[Piece], cache: SlotCache, device: torch.device) -> Plan:
    """Lay out a pass.

    Args:
        pieces: at most one per slot, none empty.
        cache: what they are appended to.
    """
    import torch

    slot_of: list[int] = []
    position_of: list[int] = []
    last: list[int] = []
    singles: list[tuple[Piece, int]] = []
    longer: list[tuple[Piece, int]] = []
    for piece in pieces:
        first = len(slot_of)
        slot_of += [piece.slot] * len(piece.ids)
        position_of += range(piece.start, piece.start + len(piece.ids))
        last.append(len(slot_of) - 1)
        (longer if len(piece.ids) > 1 else singles).append((piece, first))
    # Whole buffers are read: a part of one would be copied in every layer.
    needed = -(-(max(position_of) + 1 - cache.prefix) // GROWTH) * GROWTH
    width = max(needed, cache.width)
    parts = []
    if singles:
        parts.append(_part(singles, list(range(cache.slots)), width, cache, device))
    if longer:
        parts.append(_part(longer, [piece.slot for piece, _ in longer], width, cache, device))
    slots_N, positions_N, last_ = (
        torch.tensor(values, device=device) for values in (slot_of, position_of, last)
    )
    return Plan(slots_N, positions_N, positions_N - cache.prefix, last_, width, parts)


def _part(
    pieces: Sequence[tuple[Piece, int]],
    rows: list[int],
    width: int,
    cache: SlotCache,
    device: torch.device,
) -> Part:
    import torch

    row_of = {slot: row for row, slot in enumerate(rows)}
    columns = max(len(piece.ids) for piece, _ in pieces)
    grid = torch.zeros(len(rows), columns, dtype=torch.long)
    ends = torch.zeros(len(rows), columns, dtype=torch.long)  # last column a cell may look at
    tokens: list[int] = []
    cells: list[int] = []
    for piece, first in pieces:
        row, n = row_of[piece.slot], len(piece.ids)
        column = piece.start - cache.prefix
        grid[row, :n] = torch.arange(first, first + n)
        ends[row, :n] = torch.arange(column, column + n)
        tokens += range(first, first + n)
        cells += range(row * columns, row * columns + n)
    whole = rows == list(range(cache.slots))
    return Part(
        None if whole else torch.tensor(rows, device=device),
        grid.to(device),
        torch.tensor(tokens, device=device),
        torch.tensor(cells, device=device),
        (torch.arange(width) > ends[..., None]).to(device),
    )


class SlotCache:
    """Keys and values of R contexts; transformers' models call `update` once per layer and pass.

    prefix: length of the common beginning, which stands in no slot.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.prefix = 0
        self._common: list[tuple[Tensor, Tensor]] = []  # per layer, each (K, P, D)
        self._keys: list[Tensor] = []  # per layer (R, K, L, D)
        self._values: list[Tensor] = []

    @property
    def width(self) -> int:
        """Positions that every slot has room for (L)."""
        return self._keys[0].shape[2] if self._keys else 0

    def update(
        self, keys: Tensor, values: Tensor, layer: int, *_: Any, kwargs: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Store keys and values (1, K, N, D) of a pass; returns all that the layer's slots hold."""
        where: Plan = kwargs["slots"]
        for buffers, new in ((self._keys, keys), (self._values, values)):
            if layer == len(buffers):
                buffers.append(new.new_zeros(self.slots, new.shape[1], 0, new.shape[3]))
            buffer = buffers[layer]
            if buffer.shape[2] < where.width:
                grown = new.new_empty(*buffer.shape[:2], where.width, buffer.shape[3])
                grown[:, :, : buffer.shape[2]] = buffer
                grown[:, :, buffer.shape[2] :] = 0  # looked at with weight 0, so it must be finite
                buffers[layer] = buffer = grown
            buffer[where.slots_N, :, where.columns_N] = new[0].transpose(0, 1)
        return self._keys[layer], self._values[layer]

    def common(self, layer: int) -> tuple[Tensor, Tensor] | None:
        """Keys and values (K, P, D) of the common beginning."""
        return self._common[layer] if self._common else None

    def share(self, length: int) -> None:
        """Make the first `length` positions of slot 0 the beginning of all contexts; empties the
        slots. Once, after the first pass, which has filled slot 0 alone."""
        self._common = [
            (keys[0, :, :length].clone(), values[0, :, :length].clone())
            for keys, values in zip(self._keys, self._values, strict=True)
        ]
        self._keys, self._values = [], []
        self.prefix = length

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Make each target slot equal to its source; no slot is both."""
        for buffer in (*self._keys, *self._values):
            buffer[list(targets)] = buffer[list(sources)]

    def grow(self, more: int) -> None:
        """Add empty slots."""
        self.slots += more
        for buffers in (self._keys, self._values):
            for layer, buffer in enumerate(buffers):
                grown = buffer.new_zeros(self.slots, *buffer.shape[1:])
                grown[:-more] = buffer
                buffers[layer] = grown

    def keep(self, slots: Sequence[int]) -> None:
        """Drop all slots but these, which become slots 0, 1, ..."""
        self.slots = len(slots)
        for buffers in (self._keys, self._values):
            buffers[:] = [buffer[list(slots)] for buffer in buffers]


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    slots: Plan | None = None,
    slot_cache: SlotCache | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention function for transformers. With a plan, query is (1, H, N, D) and key and value are
    a layer's cache (R, K, L, D); the result is (1, N, H, D). Without one it is `sdpa`."""
    import torch

    if slots is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
    for name in UNSUPPORTED:
        if options.get(name) is not None:
            from ferrata.errors import FerrataError

            raise FerrataError(
                "base model",
                found=f"attention with `{name}`",
                expected="plain full attention in every layer",
                hint="use a model with full attention",
            )
    heads, n, size = query.shape[1:]
    kv_heads = key.shape[1]
    common = slot_cache.common(module.layer_idx) if slot_cache else None
    # Query heads that share a key-value head stand together: one matrix product for all.
    q_NKGD = query[0].transpose(0, 1).view(n, kv_heads, -1, size)
    out_NHD = query.new_empty(n, heads, size)
    for part in slots.parts:
        rows, columns = part.grid_RS.shape
        seen = key.shape[2] + (common[0].shape[1] if common else 0)
        step = max(1, SCORES // (heads * columns * seen))
        outs = []
        for first in range(0, rows, step):
            these = slice(first, first + step)
            which = these if part.slots_R is None else part.slots_R[these]
            q_RKMD = q_NKGD[part.grid_RS[these]].permute(0, 2, 3, 1, 4).flatten(2, 3)
            outs.append(
                _look(q_RKMD, key[which], value[which], part.hidden_RSL[these], common, scaling)
            )
        o = torch.cat(outs) if len(outs) > 1 else outs[0]
        o = o.reshape(rows, heads, columns, size).transpose(1, 2).reshape(-1, heads, size)
        out_NHD[part.tokens_N] = o[part.cells_N]
    return out_NHD[None], None


def _look(
    q_RKMD: Tensor,
    keys_RKLD: Tensor,
    values_RKLD: Tensor,
    hidden_RSL: Tensor,
    common: tuple[Tensor, Tensor] | None,
    scaling: float,
) -> Tensor:
    """Attention of M queries a row and key-value head over its slot, and over what is common."""
    import torch

    rows, kv_heads, m, size = q_RKMD.shape
    # Keys on the left: the cache, which is large, is read as it lies; transposing it copies it.
    own = torch.matmul(keys_RKLD, q_RKMD.transpose(2, 3)).transpose(2, 3).float()
    by_column = own.view(rows, kv_heads, -1, *hidden_RSL.shape[1:])
    by_column.masked_fill_(hidden_RSL[:, None, None], float("-inf"))
    if common is None:
        weights = torch.softmax(own * scaling, -1).to(values_RKLD.dtype)
        return torch.matmul(weights, values_RKLD)
    keys_KPD, values_KPD = common
    q_KED = q_RKMD.transpose(0, 1).reshape(kv_heads, rows * m, size)
    before = torch.matmul(q_KED, keys_KPD.transpose(1, 2)).float()
    before = before.view(kv_heads, rows, m, -1).transpose(0, 1)
    weights = torch.softmax(torch.cat([before, own], -1) * scaling, -1).to(values_RKLD.dtype)
    p = keys_KPD.shape[1]
    of_common = weights[..., :p].transpose(0, 1).reshape(kv_heads, rows * m, p)
    out = torch.matmul(of_common, values_KPD).view(kv_heads, rows, m, size).transpose(0, 1)
    return out + torch.matmul(weights[..., p:], values_RKLD)


def use_slots(model: PreTrainedModel) -> None:
    """Make `attend` the model's attention function; calls without a plan stay what they were."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(ATTENTION, attend)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    model.set_attn_implementation(ATTENTION)


def forward(model: PreTrainedModel, pieces: Sequence[Piece], cache: SlotCache) -> Tensor:
    """Append the pieces to their contexts; returns the logits (pieces, V) behind the last token of
    each."""
    import torch

    device = model.device
    where = plan(pieces, cache, device)
    ids = torch.tensor([[token for piece in pieces for token in piece.ids]], device=device)
    # A mask of four dimensions is passed on as it is, so none is built: the plan holds the masks.
    no_mask = torch.zeros(1, 1, 1, 1, device=device)
    output = model(
        input_ids=ids,
        attention_mask=no_mask,
        position_ids=where.positions_N[None],
        cache=cache,
        use_cache=True,
        logits_to_keep=where.last,
        slots=where,
        slot_cache=cache,
    )
    logits: Tensor = output.logits[0]
    return logits
