"""Contexts of different lengths in one forward pass, without padding.

The tokens of all contexts (one sampled token here, a whole tool result there, a new prompt
somewhere else) go through the model as one row of N tokens; only attention knows which context a
token belongs to. What many contexts begin with (system message, a capability's tool list and
examples) is kept once, and all that begin so look at it in one product; behind it each context owns
a slot of the key-value cache. Built on transformers' public `Cache.update` and
`AttentionInterface`; tests compare with plain forward passes and `generate`.

Sizes in names: N tokens of a pass, R slots, S columns, M queries of a slot and key-value head, H
query heads, K key-value heads, G = H / K, P positions of a beginning, L positions of a slot behind
it, D head size.
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
    """Tokens that a pass appends to one context.

    start: position of the first, counted from the beginning of the context.
    beginning: which of the cache's beginnings the context has; None: it stands wholly in its slot.
    """

    slot: int
    start: int
    ids: Sequence[int]
    beginning: int | None = None


@dataclass(frozen=True)
class Part:
    """Tokens whose attention is computed together, laid out as a grid (R, S).

    slots: the cache's rows that they read; a slice is read without a copy.
    grid_RS: position among the N tokens; unused cells repeat token 0.
    tokens_N, cells_N: where each token of the part stands among the N, and in the flattened grid.
    hidden_RSL: what a cell must not look at in its slot.
    beginnings: (which of the cache's beginnings, rows of the grid that have it).
    """

    slots: slice | Tensor
    grid_RS: Tensor
    tokens_N: Tensor
    cells_N: Tensor
    hidden_RSL: Tensor
    beginnings: list[tuple[int, slice | Tensor]]


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


def plan(pieces: Sequence[Piece], cache: SlotCache, heads: int, device: torch.device) -> Plan:
    """Lay out a pass.

    Args:
        pieces: at most one per slot, none empty.
        cache: what they are appended to.
        heads: of the queries (H).
    """
    import torch

    slot_of: list[int] = []
    position_of: list[int] = []
    column_of: list[int] = []
    last: list[int] = []
    singles: list[tuple[Piece, int]] = []
    longer: list[tuple[Piece, int]] = []
    for piece in pieces:
        first, n = len(slot_of), len(piece.ids)
        column = piece.start - cache.length(piece.beginning)
        slot_of += [piece.slot] * n
        position_of += range(piece.start, piece.start + n)
        column_of += range(column, column + n)
        last.append(len(slot_of) - 1)
        (longer if n > 1 else singles).append((piece, first))
    # Whole buffers are read: a part of one would be copied in every layer.
    width = max(-(-(max(column_of) + 1) // GROWTH) * GROWTH, cache.width)
    seen = width + max(cache.length(piece.beginning) for piece in pieces)
    parts = []
    if singles:
        step = max(1, SCORES // (heads * seen))
        for start in range(0, cache.slots, step):
            rows = range(start, min(start + step, cache.slots))
            here = [entry for entry in singles if entry[0].slot in rows]
            if here:
                parts.append(_part(here, rows, width, cache, device))
    # Equally long ones together; a grid is as wide as its longest.
    longer.sort(key=lambda entry: len(entry[0].ids))
    while longer:
        step = max(1, SCORES // (heads * len(longer[-1][0].ids) * seen))
        here, longer = longer[-step:], longer[:-step]
        parts.append(_part(here, [piece.slot for piece, _ in here], width, cache, device))
    numbers = (slot_of, position_of, column_of, last)
    slots_N, positions_N, columns_N, last_ = (torch.tensor(v, device=device) for v in numbers)
    return Plan(slots_N, positions_N, columns_N, last_, width, parts)


def _part(
    pieces: Sequence[tuple[Piece, int]],
    slots: Sequence[int],
    width: int,
    cache: SlotCache,
    device: torch.device,
) -> Part:
    import torch

    row_of = {slot: row for row, slot in enumerate(slots)}
    columns = max(len(piece.ids) for piece, _ in pieces)
    grid = torch.zeros(len(slots), columns, dtype=torch.long)
    ends = torch.zeros(len(slots), columns, dtype=torch.long)  # last column a cell may look at
    tokens: list[int] = []
    cells: list[int] = []
    rows_of: dict[int, list[int]] = {}
    for piece, first in pieces:
        row, n = row_of[piece.slot], len(piece.ids)
        column = piece.start - cache.length(piece.beginning)
        grid[row, :n] = torch.arange(first, first + n)
        ends[row, :n] = torch.arange(column, column + n)
        tokens += range(first, first + n)
        cells += range(row * columns, row * columns + n)
        if piece.beginning is not None:
            rows_of.setdefault(piece.beginning, []).append(row)
    beginnings: list[tuple[int, slice | Tensor]] = [
        (which, torch.tensor(rows, device=device)) for which, rows in rows_of.items()
    ]
    if len(rows_of) == 1 and all(piece.beginning is not None for piece, _ in pieces):
        beginnings = [(next(iter(rows_of)), slice(None))]  # rows without a piece do no harm
    return Part(
        slice(slots.start, slots.stop)
        if isinstance(slots, range)
        else torch.tensor(slots, device=device),
        grid.to(device),
        torch.tensor(tokens, device=device),
        torch.tensor(cells, device=device),
        (torch.arange(width) > ends[..., None]).to(device),
        beginnings,
    )


class SlotCache:
    """Keys and values of R contexts; transformers' models call `update` once per layer and pass.

    Beginnings that many contexts share stand in no slot.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._beginnings: list[list[tuple[Tensor, Tensor]]] = []  # of each, per layer (K, P, D)
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

    def beginning(self, which: int, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values (K, P, D) of a beginning."""
        return self._beginnings[which][layer]

    def length(self, which: int | None) -> int:
        """Positions of a beginning (P); 0 for None."""
        return 0 if which is None else self._beginnings[which][0][0].shape[1]

    def share(self, length: int) -> int:
        """Make the first `length` positions of slot 0 a beginning; returns its number. Empties the
        slots: to be called before any context stands in one."""
        self._beginnings.append(
            [
                (keys[0, :, :length].clone(), values[0, :, :length].clone())
                for keys, values in zip(self._keys, self._values, strict=True)
            ]
        )
        self._keys, self._values = [], []
        return len(self._beginnings) - 1

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
    # Query heads that share a key-value head stand together: one matrix product for all.
    q_NKGD = query[0].transpose(0, 1).view(n, kv_heads, -1, size)
    out_NHD = query.new_empty(n, heads, size)
    for part in slots.parts:
        rows, columns = part.grid_RS.shape
        q_RKMD = q_NKGD[part.grid_RS].permute(0, 2, 3, 1, 4).flatten(2, 3)
        before = []
        for which, having in part.beginnings:
            assert slot_cache is not None
            before.append((having, *slot_cache.beginning(which, module.layer_idx)))
        o = _look(q_RKMD, key[part.slots], value[part.slots], part.hidden_RSL, before, scaling)
        o = o.reshape(rows, heads, columns, size).transpose(1, 2).reshape(-1, heads, size)
        out_NHD[part.tokens_N] = o[part.cells_N]
    return out_NHD[None], None


def _look(
    q_RKMD: Tensor,
    keys_RKLD: Tensor,
    values_RKLD: Tensor,
    hidden_RSL: Tensor,
    before: Sequence[tuple[slice | Tensor, Tensor, Tensor]],
    scaling: float,
) -> Tensor:
    """Attention of every row's queries over its slot and over its beginning.

    before: (rows that have it, keys (K, P, D), values (K, P, D)) of each beginning.
    """
    import torch

    rows, kv_heads, m, _ = q_RKMD.shape
    # Keys on the left: the cache, which is large, is read as it lies; transposing it copies it.
    own = torch.matmul(keys_RKLD, q_RKMD.transpose(2, 3)).transpose(2, 3).float()
    by_column = own.view(rows, kv_heads, -1, *hidden_RSL.shape[1:])
    by_column.masked_fill_(hidden_RSL[:, None, None], float("-inf"))
    if not before:
        weights = torch.softmax(own * scaling, -1).to(values_RKLD.dtype)
        return torch.matmul(weights, values_RKLD)
    longest = max(keys_KPD.shape[1] for _, keys_KPD, _ in before)
    if len(before) == 1 and isinstance(before[0][0], slice):
        first = _together(q_RKMD, before[0][1].transpose(1, 2)).float()
    else:
        first = own.new_full((rows, kv_heads, m, longest), float("-inf"))
        for having, keys_KPD, _ in before:
            p = keys_KPD.shape[1]
            first[having, :, :, :p] = _together(q_RKMD[having], keys_KPD.transpose(1, 2)).float()
    weights = torch.softmax(torch.cat([first, own], -1) * scaling, -1).to(values_RKLD.dtype)
    out = torch.matmul(weights[..., longest:], values_RKLD)
    for having, _, values_KPD in before:
        out[having] += _together(weights[having, :, :, : values_KPD.shape[1]], values_KPD)
    return out


def _together(left_RKMX: Tensor, right_KXY: Tensor) -> Tensor:
    """(R, K, M, Y): the rows' products with one matrix per head, as one product."""
    import torch

    rows, kv_heads, m, x = left_RKMX.shape
    flat = left_RKMX.transpose(0, 1).reshape(kv_heads, rows * m, x)
    return torch.matmul(flat, right_KXY).view(kv_heads, rows, m, -1).transpose(0, 1)


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
    where = plan(pieces, cache, model.config.get_text_config().num_attention_heads, device)
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
