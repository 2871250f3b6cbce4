"""Scoring in pieces gives the values and gradients of the plain formula."""

from __future__ import annotations

import pytest
import torch

from ferrata.training.scores import ROWS, score


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("states", [3, ROWS, 2 * ROWS + 17])
def test_values_and_gradients_equal_the_plain_formula(states: int, bias: bool) -> None:
    generator = torch.Generator().manual_seed(4)
    head = torch.nn.Linear(8, 50, bias=bias)
    hidden = torch.randn(states, 8, generator=generator)
    labels = 2 * states  # some states are scored several times, some never
    of = torch.randint(0, states, (labels,), generator=generator)
    targets = torch.randint(0, 50, (labels,), generator=generator)
    targets[0] = head(hidden)[of[0]].argmax()
    weights = torch.randn(labels, generator=generator)
    found = []
    for plain in (True, False):
        own = hidden.clone().requires_grad_()
        head.zero_grad()
        if plain:
            logits = head(own) / 0.7
            log_probs = torch.log_softmax(logits, -1)
            values = log_probs[of, targets]
            entropy = -(log_probs.exp() * log_probs).sum(-1)[of]
            top = logits.argmax(-1)[of] == targets
        else:
            values, entropy, top = score(own, head, of, targets, 0.7)
        (values * weights).sum().backward()
        assert own.grad is not None and head.weight.grad is not None
        found.append((values.detach(), entropy.detach(), own.grad, head.weight.grad.clone(), top))
    for expected, got in zip(*(f[:-1] for f in found), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(found[0][-1], found[1][-1])
    assert found[0][-1][0] and not found[0][-1].all()
