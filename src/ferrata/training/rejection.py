"""Learning from one's own successes: rejection sampling, then SFT on what was kept.

A policy plays training tasks several times; episodes that the environment called solved become
demonstrations for another round of SFT of the same model. (Rejection sampling fine-tuning, Yuan et
al. 2023; with several rounds, expert iteration, Anthony et al. 2017.)
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ferrata.chat import Assembler
from ferrata.environments.base import Demonstration, Environment, Message, Task
from ferrata.episodes.trajectory import Trajectory
from ferrata.errors import FerrataError

if TYPE_CHECKING:
    from ferrata.config.params import Params

BATCH = 128  # episodes played together


@dataclass(frozen=True)
class Kept:
    """Own successes that are trained on, and what became of the other episodes.

    repeated: successes like another of the same task; rewritten: those whose messages, written down
    again, are other tokens than the policy sampled; crowded: left out for balance.
    """

    demonstrations: list[Demonstration]
    episodes: int
    failures: int
    repeated: int
    rewritten: int
    crowded: int

    def metrics(self) -> dict[str, float]:
        """The counts by name."""
        return {
            "episodes": self.episodes,
            "kept": len(self.demonstrations),
            "failures": self.failures,
            "repeated": self.repeated,
            "rewritten": self.rewritten,
            "crowded": self.crowded,
        }


def keep(
    played: Sequence[Trajectory],
    environment: Environment,
    assembler: Assembler,
    per_task: int,
    seed: int,
) -> Kept:
    """Successes, de-duplicated and balanced.

    Of a task at most `per_task` different ones stay. Of each band of each capability at most so
    many as all of them have on average: what the policy can do already would else crowd out what it
    can do seldom. Which ones is drawn with `seed`.

    Raises:
        FerrataError: there was no success to learn from.
    """
    different: dict[str, list[Trajectory]] = defaultdict(list)
    repeated = rewritten = 0
    solved = [trajectory for trajectory in played if trajectory.success]
    for trajectory in solved:
        if any(trajectory.messages == other.messages for other in different[trajectory.task.id]):
            repeated += 1
        elif not _as_sampled(trajectory, environment, assembler):
            rewritten += 1
        else:
            different[trajectory.task.id].append(trajectory)
    rng = random.Random(f"{seed}/rejection")
    cells: dict[tuple[str, int], list[Trajectory]] = defaultdict(list)
    for some in different.values():
        for trajectory in rng.sample(some, min(per_task, len(some))):
            cells[trajectory.task.environment, trajectory.task.band].append(trajectory)
    left = sum(map(len, cells.values()))
    if not left:
        raise FerrataError(
            "rejection",
            found=f"no success in {len(played)} episodes",
            expected="some: a policy cannot learn from what it never does",
            hint="more rejection.tasks or samples, or a policy that has learnt more",
        )
    share = -(-left // len(cells))
    chosen = [t for cell in cells.values() for t in rng.sample(cell, min(share, len(cell)))]
    rng.shuffle(chosen)
    return Kept(
        [Demonstration(t.task, _of_winners(t), success=True) for t in chosen],
        episodes=len(played),
        failures=len(played) - len(solved),
        repeated=repeated,
        rewritten=rewritten,
        crowded=len(solved) - repeated - rewritten - len(chosen),
    )


def _of_winners(trajectory: Trajectory) -> list[Message]:
    """The messages of the agents that got the most: of two players, one has lost."""
    most = max(trajectory.returns.values())
    won = {
        number
        for number, context in enumerate(trajectory.contexts)
        if trajectory.returns.get(context.agent, 0.0) == most
    }
    return [message for message in trajectory.messages if message.get("context", 0) in won]


def _as_sampled(trajectory: Trajectory, environment: Environment, assembler: Assembler) -> bool:
    """Whether the messages give the tokens that were sampled: SFT reads messages."""
    tools = environment.tools(trajectory.task)
    shown = Demonstration(trajectory.task, trajectory.messages, success=True).contexts()
    encoded = [assembler.encode(messages, tools) for messages in shown]
    return [(e.ids, e.mask) for e in encoded] == [(c.ids, c.mask) for c in trajectory.contexts]


def sample(
    folder: Path, environment: Environment, tasks: Sequence[Task], params: Params
) -> list[Trajectory]:
    """Episodes of a model folder on `tasks`, `rejection.samples` of each, with a progress bar."""
    from tqdm import tqdm

    from ferrata.episodes.engine import Engine
    from ferrata.episodes.policies import TransformersPolicy, resolve_dtype
    from ferrata.training.models import load_model, load_tokenizer

    chosen = params.rejection
    assembler = Assembler(load_tokenizer(folder), params.chat.system)
    model = load_model(folder, resolve_dtype(params.sft.precision))
    policy = TransformersPolicy(model, assembler.close_id, BATCH)
    engine = Engine(environment, assembler, policy, params.episodes)
    with tqdm(total=len(tasks) * chosen.samples, desc="own episodes", unit="episode") as bar:
        return engine.play(
            [task for task in tasks for _ in range(chosen.samples)],
            temperature=chosen.temperature,
            seed=params.seed,
            samples=[k for _ in tasks for k in range(chosen.samples)],
            progress=bar.update,
        )
