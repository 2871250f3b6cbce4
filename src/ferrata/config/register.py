"""Section `register`: what enters MLflow's registry."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from ferrata.config.section import Section, Text


class RegisterParams(Section):
    """Name and alias of the registered model, and the arm whose model it is."""

    name: Text = Field(description="registered model in MLflow")
    arm: Text = Field(description="one of the arms with policy model")
    alias: Text = Field(description="alias that the new version gets")

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        if re.search(r"[/:]", value):
            raise ValueError("expected a name without / and : (MLflow refuses them)")
        return value

    @field_validator("alias")
    @classmethod
    def _alias(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", value) or re.fullmatch(r"latest|v\d+", value):
            raise ValueError(
                "expected letters, digits, _ and -, but not latest or v<number> (MLflow's own)"
            )
        return value
