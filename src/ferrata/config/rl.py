"""Section `rl`: reinforcement learning by acting."""

from __future__ import annotations

from typing import Any, Literal

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
from ferrata.config.vllm import VllmParams


class CurriculumParams(Section):
    """Harder bands come later, by capability."""

    threshold: Share = Field(
        description="success on the validation tasks of a band from which the next one is played"
    )


class RlParams(Section):
    """Parameters of TRL's GRPOTrainer over the episode engine."""

    tuning: Tuning = Field(description="all weights, or adapters (section rl.lora)")
    lora: Lora | None = None
    generation: Literal["transformers", "vllm"] = Field(
        description="what plays the episodes: this process, or vLLM (section rl.vllm)"
    )
    vllm: VllmParams | None = None
    steps: Count = Field(description="optimizer steps")
    tasks_per_step: Count = Field(description="groups per step")
    # A group of one has no one to be compared with: every advantage would be 0.
    group_size: int = Field(ge=2, description="episodes of one task that are compared")
    micro_batch_size: Count = Field(description="sequences per forward pass")
    learning_rate: LearningRate = Field(description="peak learning rate")
    warmup_steps: int = Field(ge=0, description="optimizer steps")
    lr_scheduler: Literal["constant", "linear", "cosine"] = Field(description="after the warm-up")
    weight_decay: Share = Field(description="decoupled weight decay")
    max_grad_norm: Positive = Field(description="gradients are clipped to this norm")
    temperature: Positive = Field(description="of sampling")
    loss_type: Literal["grpo", "dr_grpo", "bnpo", "dapo"] = Field(description="normalisation")
    scale_rewards: Literal["group", "batch", "none"] = Field(
        description="what advantages are divided by"
    )
    epsilon: float = Field(gt=0, lt=1, description="clip range of the importance ratio")
    epsilon_high: Positive = Field(description="upper clip range")
    beta: float = Field(ge=0, description="weight of the KL term; 0 loads no reference model")
    curriculum: CurriculumParams | None = Field(
        description="begin with the lowest band; null: all bands from the start"
    )
    updates_per_batch: Count = Field(description="optimizer passes over the same episodes")
    eval_every: Count = Field(description="optimizer steps between validation runs")
    checkpoint_every: int = Field(ge=0, description="optimizer steps between checkpoints; 0: none")
    precision: Precision = Field(description="of the forward pass")

    @field_validator("lora", mode="before")
    @classmethod
    def _lora(cls, value: Any, info: ValidationInfo) -> Any:
        return check_active(value, info, section="rl", switch="tuning", on="lora")

    @field_validator("vllm", mode="before")
    @classmethod
    def _vllm(cls, value: Any, info: ValidationInfo) -> Any:
        return check_active(value, info, section="rl", switch="generation", on="vllm")

    @field_validator("micro_batch_size")
    @classmethod
    def _micro(cls, value: int, info: ValidationInfo) -> int:
        tasks, group = info.data.get("tasks_per_step"), info.data.get("group_size")
        if tasks is not None and group is not None and (tasks * group) % value:
            raise ValueError(f"expected a divisor of tasks_per_step * group_size ({tasks * group})")
        return value

    @field_validator("warmup_steps")
    @classmethod
    def _warmup(cls, value: int, info: ValidationInfo) -> int:
        steps = info.data.get("steps")
        if steps is not None and value > steps:
            raise ValueError(f"expected at most rl.steps ({steps})")
        return value

    @field_validator("checkpoint_every")
    @classmethod
    def _checkpoint(cls, value: int, info: ValidationInfo) -> int:
        # In the middle of a batch's updates its episodes would have to be saved too.
        updates = info.data.get("updates_per_batch")
        if updates is not None and value % updates:
            raise ValueError(f"expected a multiple of rl.updates_per_batch ({updates})")
        return value

    @field_validator("epsilon_high")
    @classmethod
    def _epsilon_high(cls, value: float, info: ValidationInfo) -> float:
        epsilon = info.data.get("epsilon")
        if epsilon is not None and value < epsilon:
            raise ValueError(f"expected at least rl.epsilon ({epsilon})")
        return value
