"""Which of an episode's contexts RL trains on, and what that does to its advantage.

TRL trains on one token sequence per episode; an episode of several contexts has several. One is
drawn. First the agent: once for all episodes of a group, so that what is compared are returns of
the same agent. Then one of that agent's K contexts, each as likely as the others; the number behind
it is the group's too, since contexts of the same place begin alike and are cheaper together. The
gradient of the agent's expected return is a sum over its contexts, of which the drawn one is on
average the K-th part, and agents are drawn from R: the *advantage* is multiplied by R K. (Were it
the return, the weights of the others would come into the baseline, and not cancel: K depends on the
episode.) With a loss that divides by nothing that the draw decides (`dr_grpo`, `scale_rewards:
none`) the estimate is then unbiased up to the group's own baseline (tested). The default, `dapo`,
divides by the tokens of the drawn contexts of the whole step: a bias towards steps whose drawn
contexts are short, the same for all episodes of a step.
"""

from __future__ import annotations

import hashlib
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
    agent = agents[_place(f"agent/{key}", len(agents))]
    own = [context for context in trajectory.contexts if context.agent == agent]
    value = trajectory.returns.get(agent, 0.0)
    if not own:
        return Drawn(trajectory.contexts[0], value, 0.0)
    chosen = own[_place(f"context/{key}", len(own))]
    return Drawn(chosen, value, float(len(agents) * len(own)))


def _place(key: str, n: int) -> int:
    """A number from 0 to n - 1, each as likely for a key drawn at random."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) * n >> 64
