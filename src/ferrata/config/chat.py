"""Section `chat`: how messages become tokens."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ferrata.config.section import Section


class ChatParams(Section):
    """The same template and system message for SFT, RL, evaluation and chat."""

    template: Literal["ferrata", "model"] = Field(
        description="ferrata: the compact template; model: the base model's own"
    )
    system: str = Field(description="system message, before the tool list; may be empty")
