"""A training batch as a tree: what all rows begin with is computed once, and nothing is padded.

The rows of a batch share the system message and the tool list, which are most of a short episode.
Their hidden states are the same in every row, so one copy serves all, and its gradient is the sum
over the rows: the same numbers as in the padded batch, from about half of the tokens. Built on
transformers' public `AttentionInterface`; tests compare values and gradients with the padded batch.

Sizes in names: B rows of T columns, P shared tokens, S columns of the longest rest, N = P + all
rests, H query heads, K key-value heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

ATTENTION = "ferrata_tree"


@dataclass(frozen=True)
class Tree:
    """Where the tokens of a batch stand in the packed row of N tokens.

    prefix: P, >= 0.
    ids_N, positions_N: token, and its position in its own row.
    grid_BS: place among the N of each row's rest, filled up with place 0.
    used_BS: cells of the grid that are tokens.
    place_BT: place among the N of each token of the padded batch (0 where it is padding).
    """

    prefix: int
    ids_N: Tensor
    positions_N: Tensor
    grid_BS: Tensor
    used_BS: Tensor
    place_BT: Tensor


def make_tree(ids_BT: Tensor, mask_BT: Tensor | None) -> Tree:
    """Pack a batch whose rows are padded on the left, on the right, or on both sides.

    Raises:
        ValueError: a row is empty, or its mask has a hole.
    """
    import torch

    if mask_BT is None:
        mask_BT = torch.ones_like(ids_BT)
    kept_BT = mask_BT.bool()
    lengths_B = kept_BT.sum(1)
    starts_B = kept_BT.int().argmax(1)
    steps_BT = torch.arange(ids_BT.shape[1], device=ids_BT.device) - starts_B[:, None]
    if not torch.equal(kept_BT, (steps_BT >= 0) & (steps_BT < lengths_B[:, None])):
        raise ValueError("a row of the attention mask has a hole")
    if not lengths_B.all():
        raise ValueError("a row of the attention mask is empty")
    rows = [row[kept] for row, kept in zip(ids_BT, kept_BT, strict=True)]
    most = int(lengths_B.min()) - 1  # at least one token of each row is its own
    heads_BP = torch.stack([row[:most] for row in rows])
    differs_P = (heads_BP != heads_BP[0]).any(0)
    prefix = int(differs_P.int().argmax()) if differs_P.any() else most
    rests_B = lengths_B - prefix
    offsets_B = prefix + rests_B.cumsum(0) - rests_B
    columns_S = torch.arange(int(rests_B.max()), device=ids_BT.device)
    used_BS = columns_S < rests_B[:, None]
    return Tree(
        prefix,
        torch.cat([rows[0][:prefix], *(row[prefix:] for row in rows)]),
        torch.cat([torch.arange(prefix, device=ids_BT.device)]
                  + [torch.arange(prefix, len(row), device=ids_BT.device) for row in rows]),
        torch.where(used_BS, offsets_B[:, None] + columns_S, 0),
        used_BS,
        torch.where(
            steps_BT < prefix, steps_BT, offsets_B[:, None] + steps_BT - prefix
        ).masked_fill(~kept_BT, 0),
    )  # fmt: skip


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    tree: Tree | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention function for transformers: query (1, H, N, D), key and value (1, K, N, D), result
    (1, N, H, D). Without a tree it is `sdpa`."""
    import torch

    if tree is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
    heads, size = query.shape[1], query.shape[3]
    kv_heads, p = key.shape[1], tree.prefix
    groups = heads // kv_heads
    rows, columns = tree.grid_BS.shape

    def rest(x: Tensor) -> Tensor:
        """(1, H, N, D) to (B, S, H, D)."""
        flat_NE = x[0].transpose(0, 1).reshape(x.shape[2], -1)
        return flat_NE.index_select(0, tree.grid_BS.flatten()).view(rows, columns, x.shape[1], size)

    def causal(scores: Tensor) -> Tensor:
        n = scores.shape[-1]
        later = torch.ones(n, n, dtype=torch.bool, device=scores.device).triu(1)
        return scores.masked_fill(later, float("-inf"))

    keys_KPD, values_KPD = key[0, :, :p], value[0, :, :p]
    # Query heads that share a key-value head stand together: one product serves all of them.
    q_KGPD = query[0, :, :p].reshape(kv_heads, groups, p, size)
    scores = torch.matmul(q_KGPD, keys_KPD[:, None].transpose(2, 3)).float() * scaling
    weights = torch.softmax(causal(scores), -1).to(value.dtype)
    shared_PHD = torch.matmul(weights, values_KPD[:, None]).flatten(0, 1).transpose(0, 1)

    q_BKGSD = rest(query).view(rows, columns, kv_heads, groups, size).permute(0, 2, 3, 1, 4)
    keys_BKSD, values_BKSD = rest(key).transpose(1, 2), rest(value).transpose(1, 2)
    q_KMD = q_BKGSD.transpose(0, 1).reshape(kv_heads, groups * rows * columns, size)
    before = torch.matmul(q_KMD, keys_KPD.transpose(1, 2))
    before = before.view(kv_heads, rows, groups, columns, p).transpose(0, 1)
    own = torch.matmul(q_BKGSD, keys_BKSD[:, :, None].transpose(3, 4))
    scores = torch.cat([before.float(), causal(own.float())], -1) * scaling
    weights = torch.softmax(scores, -1).to(value.dtype)
    out = torch.matmul(weights[..., p:], values_BKSD[:, :, None])
    of_prefix = weights[..., :p].transpose(0, 1).reshape(kv_heads, groups * rows * columns, p)
    out = out + torch.matmul(of_prefix, values_KPD).view(
        kv_heads, rows, groups, columns, size
    ).transpose(0, 1)
    rest_BSHD = out.permute(0, 3, 1, 2, 4).reshape(rows, columns, heads, size)
    return torch.cat([shared_PHD, rest_BSHD[tree.used_BS]])[None], None


def fits(model: PreTrainedModel) -> bool:
    """Whether the model may be trained on trees: full attention in every layer, no dropout (rows
    would share it), on a processor (elsewhere padding is cheaper than the detour)."""
    config = model.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    return (
        model.device.type == "cpu"
        and kinds == {"full_attention"}
        and getattr(config, "sliding_window", None) is None
        and not getattr(config, "attention_dropout", 0.0)
        and not any(getattr(config, n, None) for n in ("attn_logit_softcapping", "sinks"))
    )


def use_trees(model: PreTrainedModel) -> None:
    """Make `attend` the model's attention function; calls without a tree stay what they were."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(ATTENTION, attend)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    model.set_attn_implementation(ATTENTION)


def hidden(model: Any, tree: Tree) -> Tensor:
    """Last hidden states (N, C) of the packed tokens; `model` is a transformers base model."""
    import torch

    device = tree.ids_N.device
    output = model(
        input_ids=tree.ids_N[None],
        # A mask of four dimensions is passed on as it is, so none is built: the tree is the mask.
        attention_mask=torch.zeros(1, 1, 1, 1, device=device),
        position_ids=tree.positions_N[None],
        use_cache=False,
        tree=tree,
    )
    states: Tensor = output.last_hidden_state[0]
    return states
