"""Contexts of different lengths in one forward pass, without padding.

The tokens of all contexts (one sampled token here, a whole tool result there, a new prompt
somewhere else) go through the model as one row of N tokens; only attention knows which context a
token belongs to. Each context owns a slot of the key-value cache. Built on transformers' public
`Cache.update` and `AttentionInterface`; tests compare with plain forward passes and `generate`.

Sizes in names: N tokens of a pass, R slots, S columns, H query heads, K key-value heads, G = H / K,
L cached positions, D head size.
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
GROWTH = 64  # buffers have a multiple of this many positions, and a pass looks at as many
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
    tokens_N, rows_N, columns_N: where each token of the part stands among the N, and in the grid.
    mask_RSL: what is added to the scores, 0 or -inf.
    """

    slots_R: Tensor | None
    grid_RS: Tensor
    tokens_N: Tensor
    rows_N: Tensor
    columns_N: Tensor
    mask_RSL: Tensor


@dataclass(frozen=True)
class Plan:
    """Where the N tokens of a pass belong."""

    slots_N: Tensor
    positions_N: Tensor
    last: Tensor
    width: int
    parts: list[Part]


def plan(pieces: Sequence[Piece], slots: int, device: torch.device) -> Plan:
    """Lay out a pass.

    Args:
        pieces: at most one per slot, none empty.
        slots: number of slots of the cache.
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
    # Rounded up, so that attention reads whole buffers: a part of one would be copied each time.
    width = -(-(max(position_of) + 1) // GROWTH) * GROWTH
    parts = []
    if singles:
        parts.append(_part(singles, list(range(slots)), width, device, whole=True))
    if longer:
        own = [piece.slot for piece, _ in longer]
        parts.append(_part(longer, own, width, device, whole=own == list(range(slots))))
    index = [torch.tensor(values, device=device) for values in (slot_of, position_of, last)]
    return Plan(index[0], index[1], index[2], width, parts)


def _part(
    pieces: Sequence[tuple[Piece, int]],
    rows: list[int],
    width: int,
    device: torch.device,
    whole: bool,
) -> Part:
    import torch

    row_of = {slot: row for row, slot in enumerate(rows)}
    columns = max(len(piece.ids) for piece, _ in pieces)
    grid = torch.zeros(len(rows), columns, dtype=torch.long)
    ends = torch.zeros(len(rows), columns, dtype=torch.long)  # last position a cell may look at
    tokens: list[int] = []
    token_rows: list[int] = []
    token_columns: list[int] = []
    for piece, first in pieces:
        row, n = row_of[piece.slot], len(piece.ids)
        grid[row, :n] = torch.arange(first, first + n)
        ends[row, :n] = torch.arange(piece.start, piece.start + n)
        tokens += range(first, first + n)
        token_rows += [row] * n
        token_columns += range(n)
    hidden = torch.arange(width) > ends[..., None]
    mask = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
    return Part(
        None if whole else torch.tensor(rows, device=device),
        grid.to(device),
        torch.tensor(tokens, device=device),
        torch.tensor(token_rows, device=device),
        torch.tensor(token_columns, device=device),
        mask.to(device),
    )


class SlotCache:
    """Keys and values of R contexts; transformers' models call `update` once per layer and pass."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._keys: list[Tensor] = []  # per layer (R, K, L, D)
        self._values: list[Tensor] = []

    def update(
        self, keys: Tensor, values: Tensor, layer: int, *_: Any, kwargs: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Store keys and values (1, K, N, D) of a pass; returns all of the layer's, up to the
        plan's width."""
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
            buffer[where.slots_N, :, where.positions_N] = new[0].transpose(0, 1)
        return self._keys[layer][:, :, : where.width], self._values[layer][:, :, : where.width]

    def copy(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Give each target slot the first `length` positions of its source; no slot is both."""
        for buffer in (*self._keys, *self._values):
            buffer[list(targets), :, :length] = buffer[list(sources), :, :length]

    def grow(self, more: int, prefix: int) -> None:
        """Add slots; they begin with the first `prefix` positions of slot 0."""
        self.slots += more
        for buffers in (self._keys, self._values):
            for layer, buffer in enumerate(buffers):
                grown = buffer.new_empty(self.slots, *buffer.shape[1:])
                grown[:-more] = buffer
                grown[-more:, :, :prefix] = buffer[:1, :, :prefix]
                grown[-more:, :, prefix:] = 0
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
    heads, size = query.shape[1], query.shape[3]
    kv_heads = key.shape[1]
    out_NHD = query.new_empty(query.shape[2], heads, size)
    for part in slots.parts:
        keys, values = key, value
        if part.slots_R is not None:
            keys, values = key[part.slots_R], value[part.slots_R]
        rows, columns = part.grid_RS.shape
        if columns > 1:
            o = torch.nn.functional.scaled_dot_product_attention(
                query[0][:, part.grid_RS].transpose(0, 1),
                keys,
                values,
                attn_mask=part.mask_RSL[:, None].to(query.dtype),
                scale=scaling,
                enable_gqa=True,
            )
            out_NHD[part.tokens_N] = o.transpose(1, 2)[part.rows_N, part.columns_N]
            continue
        # Query heads that share a key-value head stand together: one matrix product for all.
        q = query[0][:, part.grid_RS].view(kv_heads, -1, rows, columns, size)
        q = q.permute(2, 0, 1, 3, 4).reshape(rows, kv_heads, -1, size)
        # Keys on the left: the cache, which is large, is read as it lies; transposing it copies it.
        scores = torch.matmul(keys, q.transpose(2, 3)).transpose(2, 3).float() * scaling
        scores = scores.view(rows, kv_heads, -1, columns, scores.shape[-1])
        scores = scores + part.mask_RSL[:, None, None]
        weights = torch.softmax(scores, -1).to(values.dtype).flatten(2, 3)
        o = torch.matmul(weights, values).view(rows, heads, columns, size)
        out_NHD[part.tokens_N] = o.transpose(1, 2)[part.rows_N, part.columns_N]
    return out_NHD[None], None


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
    where = plan(pieces, cache.slots, device)
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
    )
    logits: Tensor = output.logits[0]
    return logits
