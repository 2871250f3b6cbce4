"""Playing single episodes with a loaded model: for chat, and for the check of a registered
model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ferrata.chat import Assembler
from ferrata.data.store import read_tasks
from ferrata.environments import get_mixture
from ferrata.environments.base import Message, Task
from ferrata.episodes.engine import Engine
from ferrata.episodes.policies import TransformersPolicy
from ferrata.episodes.trajectory import Trajectory, render

if TYPE_CHECKING:
    from ferrata.config.params import Params


def play_one(
    model: Any,
    tokenizer: Any,
    params: Params,
    task: Task,
    *,
    temperature: float = 0.0,
    sample: int = 0,
    observer: Callable[[int, Message], None] | None = None,
) -> Trajectory:
    """One episode of a task, with the tools and budgets of training."""
    assembler = Assembler(tokenizer, params.chat.system)
    policy = TransformersPolicy(model, assembler.close_id, 1)
    engine = Engine(
        get_mixture(params.prepare.weights), assembler, policy, params.episodes, observer=observer
    )
    return engine.play([task], temperature=temperature, seed=params.seed, samples=[sample])[0]


def ask_one(model: Any, tokenizer: Any, params: Params, root: Path) -> str:
    """Play the first validation task greedily and return the conversation as text."""
    task = read_tasks(root / "data" / "tasks", "validation")[0]
    played = play_one(model, tokenizer, params, task)
    verdict = "right" if played.success else f"expected {task.answer}"
    return f"{render(played.messages)}\n({verdict}; stop reason: {played.stop})"


def own_question(task: Task, question: str) -> Task:
    """A task's world (its shop, its tools) with a question of the user's; there is no right answer
    to compare with."""
    return dataclasses.replace(task, payload={**task.payload, "question": question})
