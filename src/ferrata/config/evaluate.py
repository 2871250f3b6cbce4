"""Section `evaluate`: how much is played and how."""

from __future__ import annotations

from pydantic import Field

from ferrata.config.section import Count, Positive, Precision, Section


class EvaluateParams(Section):
    """Every task is played greedily; some are sampled several times."""

    samples: Count = Field(description="sampled episodes per task")
    sampled_tasks: Count = Field(description="tasks of each split that are sampled")
    temperature: Positive = Field(description="of the sampled episodes")
    batch_size: Count = Field(description="episodes played together")
    precision: Precision = Field(description="of the forward pass")
