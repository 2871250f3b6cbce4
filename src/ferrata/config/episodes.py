"""Section `episodes`: budgets and costs of one episode, the same for RL, evaluation and chat."""

from __future__ import annotations

from pydantic import Field, ValidationInfo, field_validator

from ferrata.config.section import Count, Section


class EpisodesParams(Section):
    """Budgets; each end that one of them causes has its own stop reason."""

    max_turns: Count = Field(description="assistant turns")
    max_turn_tokens: Count = Field(description="sampled tokens per turn, closing token included")
    max_context_tokens: Count = Field(description="tokens of a whole context, prompt included")
    max_invalid_calls: int = Field(ge=0, description="malformed calls that are answered")
    # More than 1 would let a single slip outweigh the answer.
    invalid_call_cost: float = Field(
        ge=0, le=1, description="subtracted from the return for each call that could not be run"
    )
    call_cost: float = Field(ge=0, le=1, description="subtracted from the return for each call")
    token_cost: float = Field(
        ge=0, le=0.1, description="subtracted from the return for each sampled token"
    )
    max_result_chars: Count = Field(description="characters kept of a tool result")

    @field_validator("max_context_tokens")
    @classmethod
    def _context(cls, value: int, info: ValidationInfo) -> int:
        turn = info.data.get("max_turn_tokens")
        if turn is not None and value < turn:
            raise ValueError(f"expected at least episodes.max_turn_tokens ({turn})")
        return value
