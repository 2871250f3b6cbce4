"""Several agents, each with contexts of its own, all played by one policy.

Two games by turns. In `describing` one sees which thing is meant and may say two words, the other
has to name it; both get the reward. In `stones` two take one to three stones in turn, and
who takes the last one wins what the other loses. Every heap that is dealt can be won by who begins.
Stones is trained by self-play; what measures is played alone against a perfect opponent, so that
the optimum is to win always. Difficulty: things to tell apart (two to four; five in band 4), stones
(5 to 7, 9 to 11, 13 to 15; 17 to 19). The demonstrator's agents are hasty in an episode with
probability 1 - skill, each on its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

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

ALONE = ("validation", *HELD_OUT)  # splits whose stones are played against the perfect opponent


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

    def _draw(self, split: Split, band: int, index: int, rng: random.Random, seed: int) -> Task:
        form = 1 if split == "forms" else 0
        names = ITEMS_HELD_OUT if split in HELD_OUT else ITEMS
        make: Callable[..., tuple[dict[str, Any], str, str | int]]
        make = self._heap if index // 3 % 2 else self._things
        payload, signature, answer = make(split, band, form, names, rng)
        return Task(
            id=f"{self.name}-{split}-{index:05d}",
            environment=self.name,
            split=split,
            band=band,
            form="held-out" if form else "trained",
            seed=seed,
            signature=signature,
            payload={"wording": form, **payload},
            answer=answer,
        )

    @staticmethod
    def _things(
        split: Split, band: int, form: int, names: Sequence[str], rng: random.Random
    ) -> tuple[dict[str, Any], str, str]:
        drawn = describing.draw_things(band + 1, names, rng)
        meant = " ".join(drawn["meant"])
        listed = describing.listed(drawn["seen"])
        question = describing.SEEN[form].format(things=listed, words=describing.WORDS, meant=meant)
        payload = {
            "game": "describing",
            "kind": f"{band + 1} things",
            "question": question,
            "agents": [describing.DESCRIBER, describing.GUESSER],
        }
        signature = f"{meant} of {sorted(' '.join(thing) for thing in drawn['shown'])}"
        return {**payload, **drawn}, signature, meant

    @staticmethod
    def _heap(
        split: Split, band: int, form: int, names: Sequence[str], rng: random.Random
    ) -> tuple[dict[str, Any], str, int]:
        alone = split in ALONE
        left = 4 * band + rng.randint(1, 3)  # a multiple of four is lost from the start
        thing = f"{rng.choice(describing.COLOURS)} {rng.choice(names)}"
        payload = {
            "game": "stones",
            "kind": f"{4 * band + 1} to {4 * band + 3} stones",
            "question": stones.RULES[form].format(n=left, thing=thing),
            "stones": left,
            "thing": thing,
            "alone": alone,
            "goal": f"the last stone; who takes {stones.best(left)} first can win",
            "agents": list(stones.PLAYERS[:1] if alone else stones.PLAYERS),
        }
        # A game passes through all smaller heaps: what can be held out are names and larger heaps.
        return payload, f"{left} {thing}", stones.best(left)

    def tools(self, task: Task) -> Sequence[Tool]:
        return ()

    def start(self, task: Task) -> World:
        if task.payload["game"] == "stones":
            return stones.StonesWorld(task)
        return describing.DescribingWorld(task)

    def demonstrate(self, task: Task, skill: float, rng: random.Random) -> Demonstration:
        hasty = {agent: rng.random() > skill for agent in self.agents}
        world = self.start(task)
        said = ""

        def act(agent: str, messages: Sequence[Message]) -> Reply:
            nonlocal said
            if isinstance(world, stones.StonesWorld):
                return stones.act(world.left, hasty[agent], rng)
            reply = describing.act(task.payload, agent, said, hasty[agent], rng)
            said = describing.allowed(reply.content)
            return reply

        messages, last = play_out(world, act)
        return Demonstration(task, messages, last.success)

    def fixtures(self) -> list[Fixture]:
        from ferrata.environments.multi_agent_fixtures import fixtures

        return fixtures()
