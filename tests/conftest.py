"""What several tests share: a tiny random model with a tokenizer of its own, budgets, and tasks."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ferrata.chat import Assembler
from ferrata.config.chat import ChatParams
from ferrata.config.episodes import EpisodesParams
from ferrata.config.prepare import PrepareParams
from ferrata.environments.base import Task
from ferrata.environments.tool_use import ToolUse

SYSTEM = 'Use tools. End with "Answer:" and the result.'


def budgets(**changes: float) -> EpisodesParams:
    values = {
        "max_turns": 5,
        "max_turn_tokens": 120,
        "max_context_tokens": 2048,
        "max_invalid_calls": 3,
        "invalid_call_cost": 0.0,
        "call_cost": 0.0,
        "token_cost": 0.0,
        "max_result_chars": 200,
    }
    return EpisodesParams.model_validate(values | changes)


def draw(split: Any = "train", n: int = 6, seed: int = 3) -> list[Task]:
    return list(ToolUse().tasks(split, n, seed))


@pytest.fixture(scope="session")
def tiny() -> tuple[Any, Any]:
    """(model, tokenizer): byte-level BPE, and a random two-layer Llama in float32."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from ferrata.chat import prepare_tokenizer
    from ferrata.training.base import _ChatMl, train_tokenizer

    environment = ToolUse()
    plain = _ChatMl(ChatParams(template="ferrata", system=SYSTEM))
    played = [environment.demonstrate(t, 1.0, random.Random(1)) for t in draw(n=30, seed=1)]
    texts = [plain.render(d.messages, environment.tools(d.task)) for d in played]
    tokenizer = prepare_tokenizer(train_tokenizer(texts, 400, 2048), "ferrata")
    torch.set_num_threads(1)  # tensors are tiny, and waiting for a busy core costs seconds
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.3,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config).eval(), tokenizer


@pytest.fixture
def server(tiny: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A stand-in for a vLLM server, which answers from the tiny model."""
    from vllm_stand_in import running

    with running(tiny[0], monkeypatch) as stand_in:
        yield stand_in


@pytest.fixture
def limits() -> Callable[..., EpisodesParams]:
    """Makes the section `episodes`; what is not given is wide."""
    return budgets


@pytest.fixture
def prepare_params() -> PrepareParams:
    """A small section `prepare`."""
    return PrepareParams.model_validate(
        {
            "mixture": {"tool_use": 1.0},
            "train_tasks": 40,
            "demonstrations": 40,
            "validation_tasks": 12,
            "test_tasks": 24,
            "forms_tasks": 12,
            "ood_tasks": 12,
            "skill": 0.4,
        }
    )


@pytest.fixture
def tasks() -> list[Task]:
    """Six tasks of the bands 1 to 3."""
    return draw()


@pytest.fixture
def assembler(tiny: tuple[Any, Any]) -> Assembler:
    return Assembler(tiny[1], SYSTEM)
