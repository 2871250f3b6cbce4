"""The learning rate of every step: no step at 0, and a warm-up whatever follows it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from ferrata.training.schedule import factor, scheduled


def shape(name: str, warmup: int, steps: int) -> list[float]:
    return [factor(step, shape=name, warmup=warmup, steps=steps) for step in range(steps)]


def test_the_shapes() -> None:
    assert shape("constant", 0, 3) == [1, 1, 1]
    assert shape("constant", 3, 5) == [0.25, 0.5, 0.75, 1, 1]
    assert shape("linear", 0, 4) == [1, 0.75, 0.5, 0.25]
    assert shape("linear", 1, 5) == [0.5, 1, 0.75, 0.5, 0.25]
    assert shape("cosine", 1, 3) == pytest.approx([0.5, 1, 0.5])
    assert shape("linear", 2, 2) == pytest.approx([1 / 3, 2 / 3])
    with pytest.raises(ValueError, match="unknown schedule 'step'"):
        factor(0, shape="step", warmup=0, steps=1)


@pytest.mark.parametrize("name", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 1, 2, 7])
def test_no_step_is_for_nothing(name: str, warmup: int) -> None:
    factors = shape(name, warmup, 7)
    assert all(0 < value <= 1 for value in factors)
    assert warmup == 7 or max(factors) == 1
    assert factors[: warmup + 1] == sorted(factors[: warmup + 1])


@pytest.mark.parametrize("name", ["constant", "linear", "cosine"])
def test_a_real_trainer_steps_with_these_rates(name: str, tmp_path: Path) -> None:
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": (self.weight * x).sum()}

    weights: list[float] = [1.0]

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: object, state: object, control: object, **kw: object) -> None:
            weights.append(kw["model"].weight.item())  # type: ignore[attr-defined]

    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=5,
        per_device_train_batch_size=1,
        learning_rate=0.01,
        optim="sgd",
        warmup_steps=2,
        lr_scheduler_type=name,
        max_grad_norm=0.0,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    rows = [{"x": torch.ones(1)} for _ in range(5)]
    trainer = scheduled(Trainer)(
        model=Net(), args=arguments, train_dataset=rows, callbacks=[Watch()]
    )
    trainer.train()
    moved = [before - after for before, after in itertools.pairwise(weights)]
    # The gradient is 1 in every step, so plain SGD moves by the learning rate.
    assert moved == pytest.approx([0.01 * f for f in shape(name, 2, 5)], rel=1e-3)
