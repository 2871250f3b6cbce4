"""Section `prepare`: tasks of every split and the demonstrations."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from ferrata.config.section import Count, Section, Share, Text

Weight = Annotated[float, Field(ge=0)]


class PrepareParams(Section):
    """Sizes of the splits (numbers of tasks) and the quality of the demonstrations."""

    mixture: dict[Text, Weight] = Field(
        description="weight of each environment among the tasks; 0 leaves it out"
    )
    train_tasks: Count = Field(description="tasks that RL may draw from")
    demonstrations: Count = Field(description="episodes shown to SFT, on tasks of their own")
    validation_tasks: Count = Field(description="tasks that steer; never reported")
    test_tasks: Count = Field(description="training bands, new numbers and names")
    forms_tasks: Count = Field(description="surface forms never trained on")
    ood_tasks: Count = Field(description="harder than any trained task")
    skill: Share = Field(description="of the demonstrator; 1 is an expert")

    @field_validator("mixture")
    @classmethod
    def _mixture(cls, value: dict[str, float]) -> dict[str, float]:
        if not any(value.values()):
            raise ValueError("expected at least one environment with a weight above 0")
        return value

    @property
    def weights(self) -> dict[str, float]:
        """The environments that are played."""
        return {name: weight for name, weight in self.mixture.items() if weight}
