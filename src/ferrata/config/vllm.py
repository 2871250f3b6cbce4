"""Section `rl.vllm`: where vLLM generates when RL plays its episodes with it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from ferrata.config.section import Count, Section, Text


class VllmParams(Section):
    """Parameters of TRL's vLLM integration, read only with `rl.generation: vllm`."""

    mode: Literal["server", "colocate"] = Field(
        description="a server on devices of its own, or inside the training processes"
    )
    base_url: Text | None = Field(default=None, description="of the server, http://HOST:PORT")
    gpu_memory_utilization: float | None = Field(
        default=None, gt=0, le=1, description="share of each GPU's memory that vLLM may take"
    )
    tensor_parallel_size: Count | None = Field(
        default=None, description="GPUs that one copy of the weights is spread over"
    )
    correction: Literal[
        "none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"
    ] = Field(description="of the loss, for what vLLM computes differently from the trained model")

    @field_validator("base_url", mode="before")
    @classmethod
    def _server(cls, value: Any, info: ValidationInfo) -> Any:
        return _only_with("server", value, info)

    @field_validator("gpu_memory_utilization", "tensor_parallel_size", mode="before")
    @classmethod
    def _colocate(cls, value: Any, info: ValidationInfo) -> Any:
        return _only_with("colocate", value, info)

    @field_validator("base_url")
    @classmethod
    def _url(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("expected http://HOST:PORT or https://HOST:PORT")
        return value


def _only_with(mode: str, value: Any, info: ValidationInfo) -> Any:
    """What `check_active` is for subsections: the key is needed in one mode, refused in others."""
    chosen = info.data.get("mode")
    if chosen == mode and value is None:
        raise ValueError(f"missing: rl.vllm.mode is {chosen}, so this parameter is needed")
    if chosen not in (mode, None) and value is not None:
        raise ValueError(
            f"inactive: read only with rl.vllm.mode: {mode}, and that is {chosen}; "
            "remove this parameter or set it to null"
        )
    return value
