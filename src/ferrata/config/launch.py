"""Section `launch`: how many processes train."""

from __future__ import annotations

from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from ferrata.config.section import Count, Section


class LaunchParams(Section):
    """With more than one process, the stages sft and rl start themselves through
    `accelerate launch`."""

    processes: Count = Field(description="processes of sft and rl, one per GPU where there are any")
    config: str | None = Field(description="accelerate's configuration file, or null")

    @field_validator("config")
    @classmethod
    def _config(cls, value: Any, info: ValidationInfo) -> Any:
        processes = info.data.get("processes")
        if value is not None and processes == 1:
            raise ValueError("inactive: read only with launch.processes > 1; set it to null")
        if value == "":
            raise ValueError("expected the path of a file, or null")
        return value
