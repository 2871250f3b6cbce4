"""Fewer rows and columns, the same loss and gradients."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from ferrata.training.compact import compact, in_group_order, make_trainer_class


def batch(advantages: list[float]) -> dict[str, Any]:
    """Four episodes; prompts padded on the left, completions on the right, one column too many."""
    generator = torch.Generator().manual_seed(5)
    prompts, completions = [3, 5, 4, 2], [4, 6, 2, 5]
    width_p, width_c = 6, 8
    prompt_mask = torch.tensor([[0] * (width_p - n) + [1] * n for n in prompts])
    completion_mask = torch.tensor([[1] * n + [0] * (width_c - n) for n in completions])
    tool_mask = torch.ones_like(completion_mask)
    tool_mask[:, 1] = 0  # the environment wrote the second token
    return {
        "prompt_ids": torch.randint(5, 100, (4, width_p), generator=generator) * prompt_mask,
        "prompt_mask": prompt_mask,
        "completion_ids": torch.randint(5, 100, (4, width_c), generator=generator)
        * completion_mask,
        "completion_mask": completion_mask,
        "tool_mask": tool_mask,
        "advantages": torch.tensor(advantages),
        "num_items_in_batch": (completion_mask * tool_mask).sum(),
    }


def test_compact_cuts_padding_and_rows_without_advantage() -> None:
    inputs = batch([0.0, 1.0, 0.0, -1.0])
    small = compact(inputs, drop_rows=True)
    assert small["prompt_ids"].shape == (2, 5)
    assert small["completion_ids"].shape == (2, 6)
    assert torch.equal(small["advantages"], torch.tensor([1.0, -1.0]))
    assert torch.equal(small["completion_ids"][1, :5], inputs["completion_ids"][3, :5])
    assert inputs["prompt_ids"].shape == (4, 6)


def test_compact_keeps_one_row_where_no_row_has_an_advantage() -> None:
    assert compact(batch([0.0] * 4), drop_rows=True)["prompt_ids"].shape[0] == 1


def test_compact_keeps_every_row_where_dropping_is_not_exact() -> None:
    assert compact(batch([0.0, 1.0, 0.0, 0.0]), drop_rows=False)["prompt_ids"].shape == (4, 5)


@pytest.mark.parametrize("per_token", [False, True])
def test_compact_keeps_vllms_importance_ratios_with_their_rows(per_token: bool) -> None:
    inputs = batch([0.0, 1.0, 0.0, -1.0])
    ratio = torch.arange(1.0, 33.0).view(4, 8) if per_token else torch.arange(1.0, 5.0)[:, None]
    inputs["importance_sampling_ratio"] = ratio
    small = compact(inputs, drop_rows=True)["importance_sampling_ratio"]
    assert torch.equal(small, ratio[[1, 3]][:, :6])


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "bnpo", "dr_grpo"])
@pytest.mark.parametrize("advantages", [[0.0, 1.5, 0.0, -0.5], [0.0, 0.0, 0.0, 0.0]])
def test_gradients_equal_the_plain_trainers(
    tiny: Any, tmp_path: Path, loss_type: str, advantages: list[float]
) -> None:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    gradients, losses, seen = [], [], []
    for trainer_class in (GRPOTrainer, make_trainer_class()):
        model = copy.deepcopy(tiny[0]).train()
        trainer = trainer_class(
            model=model,
            reward_funcs=[lambda prompts, **_: [0.0] * len(prompts)],
            args=GRPOConfig(
                output_dir=str(tmp_path),
                per_device_train_batch_size=4,
                num_generations=4,
                loss_type=loss_type,
                report_to="none",
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
            ),
            train_dataset=Dataset.from_dict({"prompt": ["a", "b"]}),
            processing_class=tiny[1],
        )
        trainer.current_gradient_accumulation_steps = 1
        model.zero_grad()
        hook = model.register_forward_pre_hook(
            lambda _, args, kwargs: seen.append(len(kwargs["input_ids"])), with_kwargs=True
        )
        loss = trainer._compute_loss(model, batch(advantages))
        loss.backward()
        hook.remove()
        losses.append(loss.detach())
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(losses[1], losses[0])
    assert seen == [4, max(1, sum(a != 0 for a in advantages))]
    assert len(gradients[0]) == len(gradients[1]) > 0
    for plain, small in zip(*gradients, strict=True):
        torch.testing.assert_close(small, plain, atol=1e-6, rtol=1e-4)
    if any(advantages):
        assert any(g.abs().max() > 1e-6 for g in gradients[0])


def test_the_episodes_of_a_task_stand_side_by_side_with_all_that_belongs_to_them() -> None:
    inputs = batch([0.0, 1.0, 2.0, 3.0])
    inputs["names"] = ["a", "b", "c", "d"]
    for name in ("prompt_ids", "prompt_mask"):  # rows 0 and 2 are of one task, 1 and 3 of another
        inputs[name][2], inputs[name][3] = inputs[name][0], inputs[name][1]
    halves = [
        {n: v if n == "num_items_in_batch" else v[part] for n, v in inputs.items()}
        for part in (slice(0, 2), slice(2, 4))
    ]
    sorted_halves = in_group_order(halves)
    together = {frozenset(half["names"]) for half in sorted_halves}
    assert together == {frozenset("ac"), frozenset("bd")}
    for half in sorted_halves:
        assert half["num_items_in_batch"] == inputs["num_items_in_batch"]
        for row, name in enumerate(half["names"]):
            index = "abcd".index(name)
            assert half["advantages"][row] == index
            for field in ("prompt_ids", "completion_ids", "completion_mask", "tool_mask"):
                assert torch.equal(half[field][row], inputs[field][index])
