"""Section `prepare`: tasks of every split and the demonstrations."""

from __future__ import annotations

from pydantic import Field

from ferrata.config.section import Count, Section, Share, Text


class PrepareParams(Section):
    """Sizes of the splits (numbers of tasks) and the quality of the demonstrations."""

    environment: Text = Field(description="name of an environment")
    train_tasks: Count = Field(description="tasks that RL may draw from")
    demonstrations: Count = Field(description="episodes shown to SFT, on tasks of their own")
    validation_tasks: Count = Field(description="tasks that steer; never reported")
    test_tasks: Count = Field(description="training bands, new numbers and names")
    forms_tasks: Count = Field(description="surface forms never trained on")
    ood_tasks: Count = Field(description="harder than any trained task")
    skill: Share = Field(description="of the demonstrator; 1 is an expert")
