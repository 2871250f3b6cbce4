"""The two sides of `benchmarks.episodes`: this project's trainer, and TRL's as it comes.

Both play the same worlds (`Watched` counts what happens in them), both get the same `GRPOConfig`
from `rl_config`, and on both the rollout is what `GRPOTrainer._generate` takes. Which prompts were
played is compared token by token.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import Record, Send, step_clock
from ferrata.config.episodes import EpisodesParams
from ferrata.config.rl import RlParams
from ferrata.environments.base import Observation, Reply, Step, Task, ToolCall, World
from ferrata.environments.tool_use import ToolUse

TOOLS = ("calculator", "lookup", "convert", "weather", "weekday")  # in the order of ToolUse.tools


@dataclass(frozen=True)
class Sizes:
    """What both sides play, with what."""

    model: Path
    tasks: tuple[Task, ...]
    params: RlParams
    budgets: EpisodesParams
    system: str
    seed: int

    @property
    def episodes(self) -> int:
        return self.params.tasks_per_step * self.params.group_size


@dataclass(frozen=True)
class Setup:
    """A configuration of stock TRL: attention function, dtype of the trained weights, micro-batch.

    With float32 weights the passes run under bfloat16 autocast (where the precision is bfloat16),
    as ours do in training; with bfloat16 weights generation casts nothing, but the optimizer rounds
    every update.
    """

    attention: str
    weights: str
    micro_batch: int

    @property
    def name(self) -> str:
        return f"{self.attention} {self.weights} micro {self.micro_batch}"


class WatchedWorld:
    """A world that counts.

    Attributes:
        served: calls that a tool answered without complaint.
        success: whether the final message earned the full reward.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.served = 0
        self.success = False

    def reset(self) -> dict[str, Observation]:
        return self._world.reset()

    def step(self, agent: str, reply: Reply) -> Step:
        step = self._world.step(agent, reply)
        self.served += sum(result.outcome == "ok" for result in step.results)
        if step.done:
            self.success = step.success
        return step


class Watched(ToolUse):
    """The tool-use environment; keeps the worlds that it started."""

    def __init__(self) -> None:
        self.worlds: list[WatchedWorld] = []

    def start(self, task: Task) -> WatchedWorld:  # type: ignore[override]
        world = WatchedWorld(super().start(task))
        self.worlds.append(world)
        return world


class Shop:
    """TRL's idea of an environment: `reset` and the public methods, which are the tools.

    The first paragraph of a method's docstring is what the model reads; it is that of our tool.
    """

    def __init__(self, environment: Watched, tasks: Sequence[Task]) -> None:
        self._environment = environment
        self._tasks = {task.id: task for task in tasks}
        self._world: WatchedWorld | None = None

    def reset(self, task_id: str, **_: Any) -> None:
        self._world = self._environment.start(self._tasks[task_id])
        self._world.reset()

    def calculator(self, expression: str) -> str:
        """+ - * / ( )

        Args:
            expression: what to work out
        """
        return self._call("calculator", expression=expression)

    def lookup(self, item: str, field: str) -> str:
        """price, stock or weight in kg

        Args:
            item: name of the item
            field: which of them
        """
        return self._call("lookup", item=item, field=field)

    def convert(self, value: float, from_unit: str, to_unit: str) -> str:
        """length, weight, volume, time

        Args:
            value: in from_unit
            from_unit: unit of the value
            to_unit: unit of the result
        """
        return self._call("convert", value=value, from_unit=from_unit, to_unit=to_unit)

    def weather(self, city: str) -> str:
        """forecast

        Args:
            city: name of the city
        """
        return self._call("weather", city=city)

    def weekday(self, date: str) -> str:
        """of year-month-day

        Args:
            date: the day
        """
        return self._call("weekday", date=date)

    def _call(self, name: str, **arguments: Any) -> str:
        assert self._world is not None
        step = self._world.step("agent", Reply("", (ToolCall(name, arguments),)))
        return step.results[0].content

    def _grade(self, message: dict[str, Any]) -> float:
        """The reward of an episode's last message; TRL does not show it to the environment."""
        if message["role"] != "assistant" or message.get("tool_calls"):
            return 0.0  # it ended behind a call
        assert self._world is not None
        step = self._world.step("agent", Reply(str(message.get("content") or "")))
        return float(sum(step.rewards["agent"].values()))


def grade(completions: list[Any], environments: list[Shop], **_: Any) -> list[float]:
    """TRL's reward function for the stock side: what our environment says of the last message."""
    pairs = zip(environments, completions, strict=True)
    return [shop._grade(messages[-1]) for shop, messages in pairs]


class Rollouts:
    """Times `GRPOTrainer._generate`, the rollout of either side, and describes what it played."""

    def __init__(self, environment: Watched, sizes: Sizes) -> None:
        from trl import GRPOTrainer

        from ferrata.chat import Assembler
        from ferrata.training.models import load_tokenizer

        self._environment = environment
        assembler = Assembler(load_tokenizer(sizes.model), sizes.system)
        self._prompts = {
            tuple(
                assembler.prompt(
                    [{"role": "user", "content": task.payload["question"]}],
                    environment.tools(task),
                )
            )
            for task in sizes.tasks
        }
        self._seconds = 0.0
        self._masks: list[list[int]] = []
        self._trainer: Any = None
        original = GRPOTrainer._generate

        def timed(trainer: Any, prompts: list[Any]) -> Any:
            start = time.perf_counter()
            out = original(trainer, prompts)
            self._seconds = time.perf_counter() - start
            self._masks, self._trainer = out[2], trainer
            if {tuple(ids) for ids in out[0]} != self._prompts:
                raise RuntimeError("other prompts than the tasks': the sides cannot be compared")
            return out

        GRPOTrainer._generate = timed  # type: ignore[method-assign, assignment]

    def begin(self) -> None:
        """A step begins."""
        self._environment.worlds.clear()

    def details(self) -> Record:
        """Of the step just ended: seconds of its rollout, and means over its episodes.

        A turn is an unbroken run of sampled tokens: the environment writes between two turns.
        """
        worlds, n = self._environment.worlds, len(self._masks)
        turns = [sum(b > a for a, b in zip([0, *m], m, strict=False)) for m in self._masks]
        return {
            "rollout": self._seconds,
            "turns": sum(turns) / n,
            "tokens": sum(map(sum, self._masks)) / n,
            "called": sum(world.served > 0 for world in worlds) / n,
            "right": sum(world.success for world in worlds) / n,
            "equal_groups": float(self._trainer._metrics["train"]["frac_reward_zero_std"][-1]),
        }


def ours(send: Send, sizes: Sizes, every_row: bool) -> None:
    """`train_rl` as the stage calls it, with one validation task; it lies outside the clock.

    Args:
        every_row: train also on groups with equal returns, as stock does: the same step without the
            luck of the draw.
    """
    from ferrata.training import compact
    from ferrata.training.checkpoint import CheckpointFolder
    from ferrata.training.rl import train_rl

    if every_row:
        plain = compact.compact
        compact.compact = lambda inputs, *, drop_rows: plain(inputs, drop_rows=False)
    environment = Watched()
    rollouts = Rollouts(environment, sizes)
    with tempfile.TemporaryDirectory() as folder:
        train_rl(
            sizes.model,
            Path(folder) / "model",
            environment,
            sizes.tasks,
            sizes.tasks[:1],
            sizes.params,
            sizes.budgets,
            system=sizes.system,
            seed=sizes.seed,
            folder=CheckpointFolder(Path(folder)),
            callbacks=[step_clock(send, rollouts.begin, rollouts.details)],
        )


def stock(send: Send, setup: Setup, sizes: Sizes) -> None:
    """TRL's GRPOTrainer with `environment_factory`, its own generation and its own loss."""
    import torch
    from datasets import Dataset
    from trl import GRPOTrainer

    from ferrata.training.models import load_model, load_tokenizer
    from ferrata.training.rl import rl_config

    environment = Watched()
    rollouts = Rollouts(environment, sizes)
    params = sizes.params.model_copy(update={"micro_batch_size": setup.micro_batch})
    with tempfile.TemporaryDirectory() as folder:
        args = rl_config(
            params,
            seed=sizes.seed,
            max_completion=sizes.budgets.max_context_tokens,
            scratch=Path(folder),
        )
        # TRL would give every single turn the whole completion's budget: the longest rambling of
        # the batch would be waited for. The cap of a turn is ours, and so is the number of turns.
        args.generation_kwargs = {"max_new_tokens": sizes.budgets.max_turn_tokens}
        args.max_tool_calling_iterations = sizes.budgets.max_turns - 1
        trainer = GRPOTrainer(
            model=load_model(sizes.model, getattr(torch, setup.weights), setup.attention),
            reward_funcs=[grade],  # type: ignore[list-item]
            args=args,
            train_dataset=Dataset.from_list(
                [
                    {
                        "prompt": [
                            {"role": "system", "content": sizes.system},
                            {"role": "user", "content": task.payload["question"]},
                        ],
                        "task_id": task.id,
                    }
                    for task in sizes.tasks
                ]
            ),
            processing_class=load_tokenizer(sizes.model),
            environment_factory=lambda: Shop(environment, sizes.tasks),  # type: ignore[arg-type, return-value]
            callbacks=[step_clock(send, rollouts.begin, rollouts.details)],
        )
        # TRL lists methods alphabetically; the model has learnt to read them in our order.
        trainer._env_tools[None].sort(key=lambda method: TOOLS.index(method.__name__))
        trainer.train()
