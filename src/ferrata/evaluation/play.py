"""Playing the held-out tasks with one arm."""

from __future__ import annotations

import json
import random
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ferrata.data.store import task_set_digest
from ferrata.environments import get_mixture
from ferrata.environments.base import Demonstration, Environment, Message, Task
from ferrata.episodes.trajectory import StopReason, Trajectory

if TYPE_CHECKING:
    import pandas as pd

    from ferrata.config.evaluate import EvaluateParams
    from ferrata.config.params import Params

Played = tuple[str, Trajectory]  # mode (greedy or sampled), episode


def schedule(
    splits: Mapping[str, Sequence[Task]], params: EvaluateParams, capabilities: Container[str]
) -> Iterator[tuple[str, list[Task], list[int]]]:
    """What is played: (mode, tasks, which sample of its task each is), every task greedily and some
    of each split sampled.

    An arm that plays fewer `capabilities` has those tasks of the others' that it can play, sampled
    ones too: the two are compared task by task.
    """
    whole = [task for task in chain(*splits.values()) if task.environment in capabilities]
    yield "greedy", whole, [0] * len(whole)
    first = chain(*(tasks[: params.sampled_tasks] for tasks in splits.values()))
    some = [task for task in first if task.environment in capabilities]
    numbers = [k for _ in some for k in range(params.samples)]
    yield "sampled", [task for task in some for _ in range(params.samples)], numbers


def few_shot(
    environment: Environment, tasks: Sequence[Task], shots: int
) -> dict[str, list[Message]]:
    """Per capability, expert episodes of its first tasks as messages that open a context."""
    shown: dict[str, list[Demonstration]] = {}
    for task in tasks:
        of_its_own = shown.setdefault(task.environment, [])
        if len(of_its_own) < shots:
            of_its_own.append(environment.demonstrate(task, 1.0, random.Random(task.id)))
    return {
        name: [message for demonstration in some for message in demonstration.messages]
        for name, some in shown.items()
    }


def model_rows(
    folder: Path,
    splits: Mapping[str, Sequence[Task]],
    examples: Sequence[Task],
    params: Params,
    arm: str,
) -> list[Played]:
    """Play with a model folder, behind as many `examples` of each capability as the arm has shots.
    Episodes depend on the seed, the task and the sample alone.

    Raises:
        FerrataError: no environment has the arm's variant.
    """
    from tqdm import tqdm

    from ferrata.chat import Assembler
    from ferrata.episodes.engine import Engine
    from ferrata.episodes.policies import TransformersPolicy, resolve_dtype
    from ferrata.training.models import load_model, load_tokenizer

    chosen = params.evaluate
    environment = get_mixture(params.prepare.weights)
    if (variant := params.arms[arm].variant) is not None:
        environment = environment.variant(variant)
        examples = [task for task in examples if task.environment in environment.environments]
    assembler = Assembler(load_tokenizer(folder), params.chat.system)
    model = load_model(folder, resolve_dtype(chosen.precision))
    policy = TransformersPolicy(model, assembler.close_id, chosen.batch_size)
    engine = Engine(
        environment,
        assembler,
        policy,
        params.episodes,
        shots=few_shot(environment, examples, params.arms[arm].shots),
    )
    played: list[Played] = []
    work = list(schedule(splits, chosen, environment.environments))
    with tqdm(total=sum(len(tasks) for _, tasks, _ in work), desc=arm, unit="episode") as bar:
        for mode, tasks, samples in work:
            episodes = engine.play(
                tasks,
                temperature=chosen.temperature if mode == "sampled" else 0.0,
                seed=params.seed,
                samples=samples,
                progress=bar.update,
            )
            played += [(mode, episode) for episode in episodes]
    return played


def demonstrator_rows(
    folder: Path, splits: Mapping[str, Sequence[Task]], params: Params
) -> list[Played]:
    """Play with the demonstrator that made the SFT data. It has no greedy mode: its one draw stands
    there."""
    about = json.loads((folder / "demonstrator.json").read_text(encoding="utf-8"))
    environment = get_mixture(params.prepare.weights)
    played = []
    for mode, tasks, samples in schedule(splits, params.evaluate, environment.environments):
        for task, sample in zip(tasks, samples, strict=True):
            rng = random.Random(f"{params.seed}/{task.id}/{mode}/{sample}")
            shown = environment.demonstrate(task, about["skill"], rng)
            played.append((mode, _as_trajectory(environment, shown, sample)))
    return played


def _as_trajectory(environment: Environment, shown: Demonstration, sample: int) -> Trajectory:
    """A demonstration as its world grades it."""
    steps = shown.play(environment.start(shown.task))
    results = [result for step in steps for result in step.results]
    last = steps[-1]
    played = Trajectory(
        shown.task,
        sample,
        messages=shown.messages,
        success=last.success,
        stop=StopReason.ENDED if last.results else StopReason.ANSWERED,
        turns=len(steps),
        calls=len(results),
        invalid_calls=sum(result.outcome in ("invalid", "refused") for result in results),
        failed_calls=sum(result.outcome == "failed" for result in results),
        answer=last.answer,
        measures={name: value for step in steps for name, value in step.measures.items()},
    )
    for step in steps:
        for agent, parts in step.rewards.items():
            played.earn(agent, parts)
    return played


def to_frame(
    played: Sequence[Played], arm: str, splits: Mapping[str, Sequence[Task]]
) -> pd.DataFrame:
    """One row per episode, with the digest of its split's task set."""
    import pandas as pd

    digests = {split: task_set_digest(tasks) for split, tasks in splits.items()}
    rows: list[dict[str, Any]] = [
        {"arm": arm, "mode": mode, "task_set": digests[episode.task.split], **episode.to_row()}
        for mode, episode in played
    ]
    return pd.DataFrame(rows)
