"""The head that scores labelled positions only agrees with TRL's own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from ferrata.training.head import score_labels_only
from ferrata.training.tree import Forest, make_forest


def run(
    model: Any, labels_BT: torch.Tensor, ids_BT: torch.Tensor, mask_BT: torch.Tensor | None = None
) -> tuple[Any, dict[str, Any]]:
    model.zero_grad()
    output = model(
        input_ids=ids_BT,
        attention_mask=torch.ones_like(ids_BT) if mask_BT is None else mask_BT,
        labels=labels_BT,
        use_cache=False,
        fused_lm_head=True,
    )
    (output.loss + 0.1 * output.log_probs.square().sum()).backward()
    return output, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_same_gradients(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    """Equal up to float32 rounding of the largest entry: sums are taken in another order."""
    assert ours.keys() == theirs.keys()
    largest = max(float(gradient.abs().max()) for gradient in theirs.values())
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, rtol=0, atol=5e-6 * largest)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients_equal_trls_head(tiny: tuple[Any, Any], temperature: float) -> None:
    from trl.trainer.utils import add_fused_lm_head

    outputs = ("log_probs", "entropy", "is_top1")
    theirs, ours = copy.deepcopy(tiny[0]), copy.deepcopy(tiny[0])
    add_fused_lm_head(theirs, temperature, outputs=outputs)
    add_fused_lm_head(ours, temperature, outputs=outputs)
    score_labels_only(ours, temperature)
    generator = torch.Generator().manual_seed(5)
    ids_BT = torch.randint(0, tiny[0].config.vocab_size, (3, 20), generator=generator)
    labels_BT = ids_BT.masked_fill(torch.rand(3, 20, generator=generator) < 0.5, -100)
    labels_BT[2] = -100  # a row without any label
    expected, their_gradients = run(theirs, labels_BT, ids_BT)
    got, our_gradients = run(ours, labels_BT, ids_BT)
    for name in ("loss", "log_probs", "entropy"):
        torch.testing.assert_close(getattr(got, name), getattr(expected, name), rtol=0, atol=1e-5)
    mask_BT = labels_BT[:, 1:] != -100
    assert torch.equal(got.label_mask, mask_BT)
    assert torch.equal(got.is_top1.bool(), expected.is_top1.bool())
    assert 0 < mask_BT.sum() < mask_BT.numel()
    assert not got.log_probs[~mask_BT].any() and got.log_probs[mask_BT].lt(0).all()
    assert_same_gradients(our_gradients, their_gradients)


def test_log_probs_are_those_of_a_full_forward(tiny: tuple[Any, Any]) -> None:
    from trl.trainer.utils import add_fused_lm_head

    model = copy.deepcopy(tiny[0])
    ids_BT = torch.arange(24).view(2, 12) + 40
    with torch.no_grad():
        plain = torch.log_softmax(model(input_ids=ids_BT).logits / 0.7, -1)[:, :-1]
        add_fused_lm_head(model, 0.7)
        score_labels_only(model, 0.7)
        got = model(input_ids=ids_BT, labels=ids_BT, fused_lm_head=True)
        still = model(input_ids=ids_BT).logits
    expected = plain.gather(2, ids_BT[:, 1:, None])[..., 0]
    torch.testing.assert_close(got.log_probs, expected, rtol=0, atol=1e-5)
    assert still.shape == (2, 12, model.config.vocab_size)


def test_no_label_at_all_gives_zero_gradients(tiny: tuple[Any, Any]) -> None:
    from trl.trainer.utils import add_fused_lm_head

    model = copy.deepcopy(tiny[0])
    add_fused_lm_head(model)
    score_labels_only(model)
    ids_BT = torch.full((2, 6), 50)
    output, gradients = run(model, torch.full_like(ids_BT, -100), ids_BT)
    assert output.loss.item() == 0
    assert all(not gradient.any() for gradient in gradients.values())


def forked() -> tuple[torch.Tensor, torch.Tensor]:
    """Episodes of two tasks, in turn: alike for a while, one of them twice, one cut short."""
    generator = torch.Generator().manual_seed(9)

    def draw(n: int) -> list[int]:
        return torch.randint(10, 300, (n,), generator=generator).tolist()

    system, questions = draw(18), [draw(17), draw(20)]
    turns = [draw(5), draw(6)]
    first = system + questions[0]
    second = system + questions[1]
    rows = [
        first + turns[0] + draw(4),
        second + turns[1] + draw(8),
        first + turns[0] + draw(2),
        second + draw(3),
        first + draw(6),
        second + turns[1],
        first + draw(6),
    ]
    rows.append(list(rows[0]))
    ids = torch.zeros(len(rows), 60, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, index : index + len(row)] = torch.tensor(row)
        mask[index, index : index + len(row)] = 1
    return ids, mask


def two_kinds() -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of two capabilities, each with a tool list of its own, behind one system message; and
    one row that begins like no other."""
    generator = torch.Generator().manual_seed(6)

    def draw(n: int) -> list[int]:
        return torch.randint(10, 300, (n,), generator=generator).tolist()

    system = draw(10)
    first, second = system + draw(40), system + draw(60)
    rows = [first + draw(8), second + draw(5), draw(30), first + draw(12), second + draw(9)]
    rows += [first + draw(3), second + draw(7)]
    ids = torch.zeros(len(rows), 90, dtype=torch.long)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row)
    return ids, (ids > 0).long()


def test_rows_share_what_they_have_in_common_beyond_the_trunk() -> None:
    ids, mask = forked()
    forest = make_forest(ids, mask)
    rows = [tuple(row[kept].tolist()) for row, kept in zip(ids, mask.bool(), strict=True)]
    alike = {row[: end + 1] for row in rows for end in range(len(row))}
    assert len(forest.ids_N) == len(alike) < mask.sum() / 2
    (tree,) = forest.trees
    assert (tree.prefix, len(tree.grid_CS)) == (18, 2)
    check_places(forest, ids, mask)


def test_each_capability_has_a_trunk_of_its_own() -> None:
    ids, mask = two_kinds()
    forest = make_forest(ids, mask)
    assert sorted(tree.prefix for tree in forest.trees) == [0, 50, 70]
    assert len(forest.ids_N) == 30 + (50 + 8 + 12 + 3) + (70 + 5 + 9 + 7)
    assert sum(tree.size for tree in forest.trees) == len(forest.ids_N)
    check_places(forest, ids, mask)


def check_places(forest: Forest, ids: torch.Tensor, mask: torch.Tensor) -> None:
    """The packed row, read at a row's places, is that row."""
    for row, kept in enumerate(mask.bool()):
        places = forest.place_BT[row][kept]
        assert forest.ids_N[places].tolist() == ids[row][kept].tolist()
        assert forest.positions_N[places].tolist() == list(range(len(places)))


def batch(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask of rows with a common beginning, padded in one of the ways that trainers pad."""
    if name == "forked":
        return forked()
    if name == "two kinds":
        return two_kinds()
    generator = torch.Generator().manual_seed(8)
    shared, lengths, left = {
        "left and right": (40, (51, 43, 46, 41), (3, 1, 4, 0)),
        "right": (40, (51, 43, 46, 41), (0, 0, 0, 0)),
        "one row": (0, (14,), (2,)),
        "equal rows": (20, (20, 20, 20), (0, 1, 2)),
        "one row is the beginning of all": (45, (45, 53, 46), (0, 0, 0)),
        "nothing shared": (0, (7, 13), (1, 0)),
    }[name]
    ids = torch.zeros(len(lengths), 56, dtype=torch.long)
    mask = torch.zeros_like(ids)
    beginning = torch.randint(10, 300, (shared,), generator=generator)
    for row, (length, pad) in enumerate(zip(lengths, left, strict=True)):
        own = torch.randint(10, 300, (length - shared,), generator=generator)
        ids[row, pad : pad + length] = torch.cat([beginning, own])
        mask[row, pad : pad + length] = 1
    return ids, mask


BATCHES = (
    "left and right",
    "right",
    "one row",
    "equal rows",
    "one row is the beginning of all",
    "nothing shared",
    "forked",
    "two kinds",
)


@pytest.mark.parametrize("everything", [True, False])
@pytest.mark.parametrize("name", BATCHES)
def test_a_tree_has_the_values_and_gradients_of_the_padded_batch(
    tiny: tuple[Any, Any], name: str, everything: bool
) -> None:
    from trl.trainer.utils import add_fused_lm_head

    outputs = ("log_probs", "entropy", "is_top1")
    theirs, ours = copy.deepcopy(tiny[0]), copy.deepcopy(tiny[0])
    theirs.set_attn_implementation("eager")
    add_fused_lm_head(theirs, 1.0, outputs=outputs)
    add_fused_lm_head(ours, 1.0, outputs=outputs)
    score_labels_only(ours)
    ids, mask = batch(name)
    labels = ids.masked_fill(mask == 0, -100)
    labels[torch.arange(len(ids)), mask.argmax(1)] = -100  # nothing comes before the first token
    if not everything:
        labels[:, :11] = -100
        labels[:, 15] = -100
    seen: list[int] = []
    ours.base_model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    expected, their_gradients = run(theirs, labels, ids, mask)
    got, our_gradients = run(ours, labels, ids, mask)
    for value in ("loss", "log_probs", "entropy"):
        torch.testing.assert_close(getattr(got, value), getattr(expected, value), rtol=0, atol=1e-5)
    assert_same_gradients(our_gradients, their_gradients)
    assert seen == [make_forest(ids, mask).ids_N.numel()]
    assert seen[0] < mask.sum() or name in ("one row", "nothing shared")


def test_a_mask_with_a_hole_is_refused() -> None:
    ids = torch.arange(8).view(2, 4)
    for mask in ([[1, 0, 1, 1], [1, 1, 1, 1]], [[0, 0, 0, 0], [1, 1, 1, 1]]):
        with pytest.raises(ValueError, match="attention mask"):
            make_forest(ids, torch.tensor(mask))
