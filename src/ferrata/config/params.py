"""The whole of params.yaml as one immutable object."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from ferrata.config.arms import Arm
from ferrata.config.base import BaseParams
from ferrata.config.chat import ChatParams
from ferrata.config.episodes import EpisodesParams
from ferrata.config.evaluate import EvaluateParams
from ferrata.config.launch import LaunchParams
from ferrata.config.prepare import PrepareParams
from ferrata.config.register import RegisterParams
from ferrata.config.rejection import RejectionParams
from ferrata.config.report import ReportParams
from ferrata.config.rl import RlParams
from ferrata.config.section import Section
from ferrata.config.sft import SftParams

# A dataclass and not a pydantic model: the loader validates section by section, so that an error in
# one does not hide those of another, and `register` would shadow a name that pydantic's metaclass
# has.
SECTIONS: dict[str, type[Section]] = {
    "chat": ChatParams,
    "base": BaseParams,
    "prepare": PrepareParams,
    "episodes": EpisodesParams,
    "launch": LaunchParams,
    "sft": SftParams,
    "rl": RlParams,
    "rejection": RejectionParams,
    "evaluate": EvaluateParams,
    "report": ReportParams,
    "register": RegisterParams,
}


@dataclass(frozen=True)
class Params:
    """All parameters, validated. `seed` is 0 to 2**32 - 1; `arms` keeps the order of the file."""

    seed: int
    chat: ChatParams
    base: BaseParams
    prepare: PrepareParams
    episodes: EpisodesParams
    launch: LaunchParams
    sft: SftParams
    rl: RlParams
    rejection: RejectionParams
    arms: dict[str, Arm]
    evaluate: EvaluateParams
    report: ReportParams
    register: RegisterParams

    def as_dict(self) -> dict[str, Any]:
        """Plain nested values, for logging; absent subsections are left out."""
        out: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Section):
                out[field.name] = value.model_dump(exclude_none=True)
            elif isinstance(value, dict):
                out[field.name] = {k: v.model_dump(exclude_none=True) for k, v in value.items()}
            else:
                out[field.name] = value
        return out
