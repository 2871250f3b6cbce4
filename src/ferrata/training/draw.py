"""Which of an episode's contexts RL trains on, and what that does to its advantage.

TRL trains on one token sequence per episode; an episode of several contexts has several. One is
drawn. First the agent: once for all episodes of a group, so that what is compared are returns of
the same agent. Then one of that agent's K contexts. The gradient of the agent's expected return is
a sum over its contexts, of which the drawn one is on average the K-th part, and agents are drawn
from R: the *advantage* is multiplied by R K. (The return must not be: K depends on the episode, and
the group's mean would then compare lengths.) With a loss that divides by nothing that the draw
decides (`dr_grpo`, `scale_rewards: none`) the estimate is then unbiased up to the group's own
baseline (tested). The default, `dapo`, divides by the tokens of the drawn contexts of the whole
step: a bias towards steps whose drawn contexts are short, the same for all episodes of a step.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from ferrata.episodes.trajectory import Context, Trajectory

AGENT = "agent"


@dataclass(frozen=True)
class Drawn:
    """One row for TRL.

    value: the return of the agent whose context it is.
    weight: what the advantage is multiplied by; 0 where the agent never had its turn, so that the
        episode counts in its group's mean alone.
    """

    context: Context
    value: float
    weight: float


def draw(played: Sequence[Trajectory], *, seed: int, step: int) -> list[Drawn]:
    """One context of each episode. The same arguments draw the same, in every process."""
    return [_draw(trajectory, f"{seed}/{step}/{trajectory.task.id}") for trajectory in played]


def _draw(trajectory: Trajectory, key: str) -> Drawn:
    agents = trajectory.task.payload.get("agents", (AGENT,))
    agent = agents[zlib.crc32(f"agent/{key}".encode()) % len(agents)]
    own = [context for context in trajectory.contexts if context.agent == agent]
    value = trajectory.returns.get(agent, 0.0)
    if not own:
        return Drawn(trajectory.contexts[0], value, 0.0)
    chosen = zlib.crc32(f"context/{key}/{trajectory.sample}".encode()) % len(own)
    return Drawn(own[chosen], value, float(len(agents) * len(own)))
