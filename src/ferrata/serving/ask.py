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
from ferrata.environments.base import Environment, Message, Task
from ferrata.episodes.engine import Engine
from ferrata.episodes.policies import TransformersPolicy, resolve_dtype
from ferrata.episodes.trajectory import Trajectory, render
from ferrata.errors import FerrataError

if TYPE_CHECKING:
    from ferrata.config.params import Params


def check_arm(arm: str, params: Params) -> str:
    """The model folder of an arm that a person can ask, relative to that of params.yaml.

    Raises:
        FerrataError: there is no such arm, it has no model, or it stands behind examples.
    """
    models = {name: a for name, a in params.arms.items() if a.policy == "model"}
    if arm not in models:
        raise FerrataError("--arm", found=repr(arm), expected=f"one of {', '.join(models)}")
    if models[arm].shots:
        raise FerrataError(
            "--arm",
            found=f"{arm}: {models[arm].model} behind {models[arm].shots} examples",
            expected="an arm that needs no examples",
            hint=f"one of {', '.join(n for n, a in models.items() if not a.shots)}",
        )
    return models[arm].model


def load_arm(folder: Path, params: Params) -> tuple[Any, Any]:
    """Model, in the precision of evaluation, and tokenizer of a folder; without progress bars."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    from ferrata.training.models import load_model, load_tokenizer

    model = load_model(folder, resolve_dtype(params.evaluate.precision))
    return model, load_tokenizer(folder)


def play_one(
    model: Any,
    tokenizer: Any,
    params: Params,
    task: Task,
    *,
    environment: Environment | None = None,
    temperature: float = 0.0,
    sample: int = 0,
    observer: Callable[[int, Message], None] | None = None,
) -> Trajectory:
    """One episode of a task, with the tools and budgets of training; `environment` is the task's,
    where `prepare.mixture` may lack it."""
    assembler = Assembler(tokenizer, params.chat.system)
    policy = TransformersPolicy(model, assembler.close_id, 1)
    world = environment or get_mixture(params.prepare.weights)
    engine = Engine(world, assembler, policy, params.episodes, observer=observer)
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
