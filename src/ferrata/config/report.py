"""Section `report`: how intervals are computed."""

from __future__ import annotations

from pydantic import Field

from ferrata.config.section import Count, Section


class ReportParams(Section):
    """Intervals come from resampling the tasks."""

    bootstrap: Count = Field(description="resamples of the tasks")
    confidence: float = Field(gt=0, lt=1, description="of every interval")
