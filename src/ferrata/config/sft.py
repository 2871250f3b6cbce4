"""Section `sft`: supervised fine-tuning on the demonstrations."""

from __future__ import annotations

from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from ferrata.config.section import (
    Count,
    LearningRate,
    Lora,
    Positive,
    Precision,
    Section,
    Share,
    Tuning,
    check_active,
)


class SftParams(Section):
    """Parameters of TRL's SFTTrainer."""

    tuning: Tuning = Field(description="all weights, or adapters (section sft.lora)")
    lora: Lora | None = None
    epochs: Positive = Field(description="passes over the demonstrations")
    batch_size: Count = Field(description="sequences per optimizer step")
    micro_batch_size: Count = Field(description="sequences per forward pass")
    learning_rate: LearningRate = Field(description="peak learning rate")
    warmup_ratio: Share = Field(description="share of the steps")
    weight_decay: Share = Field(description="decoupled weight decay")
    max_grad_norm: Positive = Field(description="gradients are clipped to this norm")
    eval_every: Count = Field(description="optimizer steps between validation losses")
    checkpoint_every: int = Field(ge=0, description="optimizer steps between checkpoints; 0: none")
    validation_demonstrations: Count = Field(description="episodes behind the validation loss")
    precision: Precision = Field(description="of the forward pass")

    @field_validator("lora", mode="before")
    @classmethod
    def _lora(cls, value: Any, info: ValidationInfo) -> Any:
        return check_active(value, info, section="sft", switch="tuning", on="lora")

    @field_validator("micro_batch_size")
    @classmethod
    def _micro(cls, value: int, info: ValidationInfo) -> int:
        batch = info.data.get("batch_size")
        if batch is not None and batch % value:
            raise ValueError(f"expected a divisor of sft.batch_size ({batch})")
        return value
