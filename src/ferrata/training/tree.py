"""A training batch as trees: what rows begin with together is computed once, nothing is padded.

Rows of one capability share the system message and the tool list, which are most of a short
episode: the trunk of a tree. The episodes of one task share its question, and then as many turns as
they have played alike: they are a branch, which forks where they differ. Hidden states of shared
tokens are the same in every row, so one copy serves all, and its gradient is the sum over the rows:
the same numbers as in the padded batch, from fewer tokens. Built on transformers' public
`AttentionInterface`; tests compare values and gradients with the padded batch.

Sizes in names: B rows of T columns, N tokens of all trees, P tokens of a trunk, C branches of a
tree, S tokens of its largest branch, H query heads, K key-value heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ferrata.episodes.beginnings import beginnings, shared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from transformers import PreTrainedModel

ATTENTION = "ferrata_trees"
BRANCH = 16  # tokens behind the trunk that rows must share to stand in one branch


@dataclass(frozen=True)
class Tree:
    """A trunk and its branches, which stand one behind the other.

    first: place of its first token among the N.
    prefix: P, >= 0.
    size: tokens of trunk and branches.
    grid_CS: place, counted from the tree's first token, of each branch's tokens; filled up with 0.
    used_CS: cells of the grid that are tokens.
    hidden_CSS: what a token of a branch must not look at: all but itself and those it follows.
    """

    first: int
    prefix: int
    size: int
    grid_CS: Tensor
    used_CS: Tensor
    hidden_CSS: Tensor


@dataclass(frozen=True)
class Forest:
    """Where the tokens of a batch stand in the packed row of N tokens.

    ids_N, positions_N: token, and its position in its own row.
    place_BT: place among the N of each token of the padded batch (0 where it is padding).
    """

    ids_N: Tensor
    positions_N: Tensor
    place_BT: Tensor
    trees: list[Tree]


def make_forest(ids_BT: Tensor, mask_BT: Tensor | None) -> Forest:
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
    rows = [row[kept].tolist() for row, kept in zip(ids_BT, kept_BT, strict=True)]
    ids: list[int] = []
    positions: list[int] = []
    trees = []
    place_BT = torch.zeros(ids_BT.shape, dtype=torch.long)
    for prefix, group in beginnings(rows):
        tree, paths = _grow([rows[index] for index in group], prefix, ids, positions)
        trees.append(tree)
        for index, path in zip(group, paths, strict=True):
            start = int(starts_B[index])
            place_BT[index, start : start + len(path)] = torch.tensor(path)
    device = ids_BT.device
    ids_N, positions_N = (torch.tensor(values, device=device) for values in (ids, positions))
    return Forest(ids_N, positions_N, place_BT.to(device), trees)


def _grow(
    rows: Sequence[Sequence[int]], prefix: int, ids: list[int], positions: list[int]
) -> tuple[Tree, list[list[int]]]:
    """The tree of some rows, in order, which share `prefix` tokens; appends its tokens to `ids` and
    `positions`. Returns with it the places of each row's tokens."""
    import torch

    first = len(ids)
    ids += rows[0][:prefix]
    positions += range(prefix)
    trunk = list(range(first, first + prefix))
    branches: list[int] = []  # place of each one's first token
    branch_of: list[int] = []  # of each row
    paths: list[list[int]] = []
    for nth, row in enumerate(rows):
        # A row in order shares most with the row before it.
        same = shared(rows[nth - 1], row) if nth else 0
        if same - prefix >= BRANCH:
            path = paths[-1][:same]
        else:
            path = list(trunk)
            branches.append(len(ids))
        fresh = range(len(path), len(row))
        branch_of.append(len(branches) - 1)
        paths.append(path + list(range(len(ids), len(ids) + len(fresh))))
        ids += row[fresh.start :]
        positions += fresh
    ends = [*branches[1:], len(ids)]
    sizes = torch.tensor([end - start for start, end in zip(branches, ends, strict=True)])
    columns_S = torch.arange(int(sizes.max()))
    used_CS = columns_S < sizes[:, None]
    hidden_CSS = ~torch.eye(len(columns_S), dtype=torch.bool).repeat(len(branches), 1, 1)
    for branch, path in zip(branch_of, paths, strict=True):
        own_T = torch.tensor(path[prefix:]) - branches[branch]
        hidden_CSS[branch, own_T[:, None], own_T] &= own_T[:, None] < own_T
    grid_CS = torch.where(used_CS, torch.tensor(branches)[:, None] - first + columns_S, 0)
    return Tree(first, prefix, len(ids) - first, grid_CS, used_CS, hidden_CSS), paths


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    forest: Forest | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention function for transformers: query (1, H, N, D), key and value (1, K, N, D), result
    (1, N, H, D). Without a forest it is `sdpa`."""
    import torch

    if forest is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
    outs = []
    for tree in forest.trees:
        these = slice(tree.first, tree.first + tree.size)
        outs.append(_look(query[0, :, these], key[0, :, these], value[0, :, these], tree, scaling))
    return torch.cat(outs)[None], None


def _look(query: Tensor, key: Tensor, value: Tensor, tree: Tree, scaling: float) -> Tensor:
    """Attention within one tree of N tokens: query (H, N, D), key and value (K, N, D), result
    (N, H, D)."""
    import torch

    heads, size = query.shape[0], query.shape[2]
    kv_heads, p = key.shape[0], tree.prefix
    groups = heads // kv_heads
    branches, columns = tree.grid_CS.shape

    def rest(x: Tensor) -> Tensor:
        """(H, N, D) to (C, S, H, D)."""
        flat_NE = x.transpose(0, 1).reshape(x.shape[1], -1)
        cells_NE = flat_NE.index_select(0, tree.grid_CS.flatten())
        return cells_NE.view(branches, columns, x.shape[0], size)

    keys_KPD, values_KPD = key[:, :p], value[:, :p]
    # Query heads that share a key-value head stand together: one product serves all of them.
    q_KGPD = query[:, :p].reshape(kv_heads, groups, p, size)
    scores = torch.matmul(q_KGPD, keys_KPD[:, None].transpose(2, 3)).float() * scaling
    later_PP = torch.ones(p, p, dtype=torch.bool, device=scores.device).triu(1)
    scores = scores.masked_fill(later_PP, float("-inf"))
    weights = torch.softmax(scores, -1).to(value.dtype)
    shared_PHD = torch.matmul(weights, values_KPD[:, None]).flatten(0, 1).transpose(0, 1)

    q_CKGSD = rest(query).view(branches, columns, kv_heads, groups, size).permute(0, 2, 3, 1, 4)
    keys_CKSD, values_CKSD = rest(key).transpose(1, 2), rest(value).transpose(1, 2)
    q_KMD = q_CKGSD.transpose(0, 1).reshape(kv_heads, groups * branches * columns, size)
    before = torch.matmul(q_KMD, keys_KPD.transpose(1, 2))
    before = before.view(kv_heads, branches, groups, columns, p).transpose(0, 1)
    own = torch.matmul(q_CKGSD, keys_CKSD[:, :, None].transpose(3, 4))
    own = own.float().masked_fill(tree.hidden_CSS[:, None, None], float("-inf"))
    scores = torch.cat([before.float(), own], -1) * scaling
    weights = torch.softmax(scores, -1).to(value.dtype)
    out = torch.matmul(weights[..., p:], values_CKSD[:, :, None])
    of_prefix = weights[..., :p].transpose(0, 1).reshape(kv_heads, groups * branches * columns, p)
    out = out + torch.matmul(of_prefix, values_KPD).view(
        kv_heads, branches, groups, columns, size
    ).transpose(0, 1)
    rest_CSHD = out.permute(0, 3, 1, 2, 4).reshape(branches, columns, heads, size)
    return torch.cat([shared_PHD, rest_CSHD[tree.used_CS]])


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
    """Make `attend` the model's attention function; calls without a forest stay what they were."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(ATTENTION, attend)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    model.set_attn_implementation(ATTENTION)


def hidden(model: Any, forest: Forest) -> Tensor:
    """Last hidden states (N, C) of the packed tokens; `model` is a transformers base model."""
    import torch

    device = forest.ids_N.device
    output = model(
        input_ids=forest.ids_N[None],
        # A mask of four dimensions is passed on as it is, so none is built: the forest is the mask.
        attention_mask=torch.zeros(1, 1, 1, 1, device=device),
        position_ids=forest.positions_N[None],
        use_cache=False,
        forest=forest,
    )
    states: Tensor = output.last_hidden_state[0]
    return states
