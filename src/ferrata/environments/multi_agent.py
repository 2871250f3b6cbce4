"""Several agents, each with contexts of its own, all played by one policy.

Two games in turn: `describing`, where two share the reward, and `stones`, where one wins what the
other loses. Stones is trained by self-play; held out tasks are played alone, from positions that
can be won, against a perfect opponent. Difficulty: things to tell apart (two to four; five in band
4), stones (up to 7, 11 and 15; 19).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import ClassVar

from ferrata.environments import describing, stones
from ferrata.environments.base import (
    Demonstration,
    Fixture,
    Message,
    Reply,
    Split,
    Task,
    Tool,
    World,
    play_out,
)
from ferrata.environments.splits import HELD_OUT, draw_tasks
from ferrata.environments.tool_use_forms import ITEMS, ITEMS_HELD_OUT


class MultiAgent:
    """The environment; stateless, see the module's docstring."""

    name: ClassVar[str] = "multi_agent"
    agents: ClassVar[tuple[str, ...]] = (
        describing.DESCRIBER,
        describing.GUESSER,
        *stones.PLAYERS,
    )
    reward_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {
        "answer": (0.0, 1.0),
        "win": (0.0, 1.0),
    }

    def tasks(self, split: Split, n: int, seed: int) -> Iterator[Task]:
        return draw_tasks(self.name, split, n, seed, partial(self._draw, seed=seed))
