"""What test_launch.py runs in each process: a few steps of RL on the model in a folder; gradients
of every step, and the turns that this process played, go to files."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from ferrata.config.loader import load
from ferrata.config.rl import RlParams
from ferrata.environments.base import Task, ToolWorld, World
from ferrata.environments.tool_use import ToolUse
from ferrata.training import curves
from ferrata.training.checkpoint import checkpoints
from ferrata.training.launch import rank
from ferrata.training.rl import train_rl

STEPS = 2


class Uneven(ToolUse):
    """Pays for different characters, so that a random model earns something now and then; ends
    after a number of turns that depends on the task, so that processes are busy unequally long."""

    def start(self, task: Task) -> World:
        turns = 1 + int(task.id[-1]) % 3
        world = ToolWorld("Say something.", self.tools(task), lambda text: ({}, None))
        played = 0

        def step(agent: str, reply: Any) -> Any:
            from ferrata.environments.base import Observation, Step

            nonlocal played
            played += 1
            part = {agent: {"success": float(len(set(reply.content)) % 2) / turns}}
            if played == turns:
                return Step(rewards=part, done=True)
            again = Observation([{"role": "user", "content": "Go on."}])
            return Step(observations={agent: again}, rewards=part)

        world.step = step  # type: ignore[method-assign]
        return world


class Gradients(TrainerCallback):
    """Keeps the gradients before each optimizer step."""

    def __init__(self) -> None:
        self.steps: dict[int, dict[str, torch.Tensor]] = defaultdict(dict)

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, **_: Any
    ) -> None:
        for name, weight in getattr(model, "module", model).named_parameters():
            assert weight.grad is not None
            self.steps[state.global_step][name] = weight.grad.clone()


def main(project: Path, start: Path, out: Path) -> None:
    few = {
        "steps": STEPS,
        "tasks_per_step": 4,
        "group_size": 4,
        "micro_batch_size": 4,
        "learning_rate": 1e-3,
        "warmup_steps": 0,
        "eval_every": 1,
        "checkpoint_every": 1,
        "precision": "float32",
        "max_grad_norm": 1e9,
    }
    params = load(project)
    budgets = {"max_turns": 4, "max_turn_tokens": 8, "max_context_tokens": 1024}
    world, gradients = Uneven(), Gradients()
    with checkpoints(out, "rl", "key") as folder:
        done = train_rl(
            start,
            out / "model",
            world,
            list(world.tasks("train", 8, 3)),
            list(world.tasks("validation", 3, 3)),
            RlParams(**{**params.rl.model_dump(), **few}),
            params.episodes.model_copy(update=budgets),
            system="Use tools.",
            seed=5,
            folder=folder,
            callbacks=[gradients],
        )
    torch.save(dict(gradients.steps), out / f"gradients-{rank()}.pt")
    (out / f"rows-{rank()}.json").write_text(json.dumps(curves.curve(done[1])))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*(Path(name) for name in sys.argv[1:]))
