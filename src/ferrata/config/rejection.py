"""Section `rejection`: rounds of SFT on a policy's own successes."""

from __future__ import annotations

from pydantic import Field, field_validator

from ferrata.config.arms import NAME_PATTERN
from ferrata.config.section import Count, LearningRate, Positive, Section, Text

TAKEN = ("base", "sft", "rl")  # models of other stages


class RejectionParams(Section):
    """What is played, what is kept of it, and how it is trained on; what is not here is as in the
    section `sft`."""

    rounds: dict[Text, Text] = Field(
        description="a new model's name, and the folder of the model that plays and goes on"
    )
    tasks: Count = Field(description="training tasks that are played")
    samples: Count = Field(description="episodes of each task")
    temperature: Positive = Field(description="of the sampled episodes")
    per_task: Count = Field(description="different successes kept of one task, at most")
    learning_rate: LearningRate = Field(description="peak learning rate")

    @field_validator("rounds")
    @classmethod
    def _rounds(cls, value: dict[str, str]) -> dict[str, str]:
        import re

        for name in value:
            if name in TAKEN:
                raise ValueError(f"{name!r} is the model of another stage; choose another name")
            if not re.fullmatch(NAME_PATTERN, name):
                raise ValueError(f"{name!r}: a name is of a-z, 0-9 and _, a letter first")
        return value
