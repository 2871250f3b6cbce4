"""Section `arms`: what evaluate compares, one entry per run of the stage."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from ferrata.config.section import Section, Text

SPLITS = ("test", "forms", "ood")  # the held-out tasks, in the order of every table

# metrics/summary.json has these beside the arms of a split, so an arm of that name would overwrite
# them.
RESERVED = ("sampled", "rl_minus_sft", "rl_minus_demonstrator")
NAME_PATTERN = r"[a-z][a-z0-9_]*"


class Arm(Section):
    """One contestant.

    `shots` (demonstrations in the prompt) is a key of model arms only; it reads as 0 for a
    demonstrator. `splits` is for arms whose result elsewhere would say nothing: to a model that was
    not trained, held-out forms are forms like any other. `variant` is for arms that play the tasks
    of a capability under other conditions (memory: `together`, `no_notes`), and no other tasks.
    """

    policy: Literal["demonstrator", "model"] = Field(description="who acts")
    model: Text = Field(description="folder of the model, or of the tasks for a demonstrator")
    shots: int = Field(default=None, ge=0, description="demonstrations in the prompt")  # type: ignore[assignment]

    splits: tuple[str, ...] = Field(default=SPLITS, description="which held-out tasks it plays")
    variant: Text | None = Field(
        default=None, description="conditions under which a capability is played"
    )

    @field_validator("variant")
    @classmethod
    def _variant(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("policy") == "demonstrator":
            raise ValueError(
                "inactive: a demonstrator knows what it did under any conditions; remove it"
            )
        return value

    # "plain" because YAML has lists, and so that the error names the one wrong entry.
    @field_validator("splits", mode="plain")
    @classmethod
    def _splits(cls, value: Any) -> tuple[str, ...]:
        if value is None:
            return SPLITS
        chosen = list(value) if isinstance(value, list | tuple) else [value]
        if unknown := [split for split in chosen if split not in SPLITS]:
            raise ValueError(f"{unknown[0]!r} is none of {', '.join(SPLITS)}")
        if "test" not in chosen:
            raise ValueError("`test` is missing among them: arms are compared on it")
        return tuple(split for split in SPLITS if split in chosen)

    # One class with a switch instead of a tagged union, so that readers need no case distinction.
    @field_validator("shots", mode="before")
    @classmethod
    def _shots(cls, value: Any, info: ValidationInfo) -> Any:
        policy = info.data.get("policy")
        if policy == "model" and value is None:
            raise ValueError("missing; expected an integer >= 0 (demonstrations in the prompt)")
        if policy == "demonstrator" and value is not None:
            raise ValueError(
                "inactive: a demonstrator reads no demonstrations; remove it or set it to null"
            )
        return 0 if value is None else value
