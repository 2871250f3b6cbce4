"""The head that scores labelled positions only agrees with TRL's own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from ferrata.training.head import score_labels_only


def run(model: Any, labels_BT: torch.Tensor, ids_BT: torch.Tensor) -> tuple[Any, dict[str, Any]]:
    model.zero_grad()
    output = model(
        input_ids=ids_BT,
        attention_mask=torch.ones_like(ids_BT),
        labels=labels_BT,
        fused_lm_head=True,
    )
    (output.loss + 0.1 * output.log_probs.square().sum()).backward()
    return output, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


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
    assert our_gradients.keys() == their_gradients.keys()
    for name, gradient in their_gradients.items():
        torch.testing.assert_close(our_gradients[name], gradient, rtol=1e-5, atol=1e-5)


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
