"""What all sections of params.yaml share: strictness, precision and LoRA."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Precision = Literal["auto", "float32", "bfloat16"]
Tuning = Literal["full", "lora"]

# Types that several sections use. Cross checks are field validators that read `info.data`, not
# model validators: pydantic skips a model validator once any field is wrong, and the user is to see
# all errors at once.
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
LearningRate = Annotated[float, Field(gt=0, le=1)]
Text = Annotated[str, Field(min_length=1)]


class Section(BaseModel):
    """Base of all sections: immutable, no unknown keys; only an integer for a number converts."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True
    )


class Lora(Section):
    """Low-rank adaptation; the section `lora` of `sft` and `rl`, read only with `tuning: lora`."""

    rank: Count = Field(description="rank of the update matrices")
    alpha: Count = Field(description="scale of the update, divided by the rank")
    dropout: float = Field(ge=0, lt=1, description="dropout before the update")
    target_modules: tuple[str, ...] | Literal["all-linear"] = Field(
        description="a list of module names, or all-linear"
    )

    # "plain" because a union would put its branches' names into the path of the error.
    @field_validator("target_modules", mode="plain")
    @classmethod
    def _target_modules(cls, value: Any) -> tuple[str, ...] | str:
        if value == "all-linear":
            return "all-linear"
        names = isinstance(value, list | tuple) and all(isinstance(v, str) and v for v in value)
        if not names or not value:
            raise ValueError("expected a list of module names, or all-linear")
        return tuple(value)


def check_active(value: Any, info: ValidationInfo, *, section: str, switch: str, on: str) -> Any:
    """Refuse a subsection that its switch leaves unread, ask for one it needs; null is absent.

    Args:
        value: the raw subsection.
        info: the validator's context; the switch is one of the fields before this one.
        section: name of the section, for the message.
        switch: name of the key that selects the subsection.
        on: the switch's value with which the subsection is read.

    Raises:
        ValueError: it is set but inactive, or needed but absent.
    """
    chosen = info.data.get(switch)
    if chosen is None:  # the switch itself is wrong and has its own error
        return None
    if chosen == on and value is None:
        raise ValueError(f"missing: {section}.{switch} is {chosen}, so this section is needed")
    if chosen != on and value is not None:
        raise ValueError(
            f"inactive: read only with {section}.{switch}: {on}, and that is {chosen}; "
            "remove this section or set it to null"
        )
    return value
