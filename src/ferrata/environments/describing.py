"""A game for two that share the reward: one sees which thing is meant, the other has to find it.

Both see the same things, in different orders, so that a place in the list says nothing. What the
describer may say is cut to a few words without digits.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from ferrata.environments.base import Observation, Reply, Step, Task
from ferrata.environments.numbers import claimed_number

DESCRIBER, GUESSER = "describer", "guesser"
WORDS = 2
SIZES = ("big", "small")
COLOURS = ("red", "blue", "green", "black", "white", "yellow")
SEEN = (
    "{things}\nSay in {words} words, without a number, which is meant: {meant}.",
    "{things}\nYour partner must find this one: {meant}. You have {words} words, none a number.",
)
ASKED = (
    '{things}\nThe other one says "{said}". Which number is meant?',
    '{things}\nYou are told "{said}". Say the number of that thing.',
)


def draw_things(count: int, names: Sequence[str], rng: random.Random) -> dict[str, Any]:
    """Things among which two words tell the one that is meant apart, and one seldom does: of the
    three that differ from it in one point there are two at most, so that one pair of its words is
    its own."""
    size, colour = rng.choice(SIZES), rng.choice(COLOURS)
    name, other_name = rng.sample(list(names), 2)
    other_size = SIZES[1 - SIZES.index(size)]
    other_colour = rng.choice([c for c in COLOURS if c != colour])
    meant = (size, colour, name)
    near = [(other_size, colour, name), (size, other_colour, name), (size, colour, other_name)]
    far = [
        (other_size, other_colour, name),
        (other_size, colour, other_name),
        (size, other_colour, other_name),
    ]
    rng.shuffle(near)
    rng.shuffle(far)
    others = [*near[:2], *far][: count - 1]
    orders = [[list(thing) for thing in rng.sample([meant, *others], count)] for _ in range(2)]
    return {"meant": list(meant), "seen": orders[0], "shown": orders[1]}


def listed(things: Sequence[Sequence[str]]) -> str:
    """Things with their numbers, one per line."""
    return "\n".join(f"{n}: {' '.join(thing)}" for n, thing in enumerate(things, start=1))


def allowed(text: str) -> str:
    """What of a message reaches the guesser."""
    words = re.findall(r"[A-Za-z]+", text)
    return " ".join(words[:WORDS])


class DescribingWorld:
    """The describer speaks once, then the guesser names a number; both get 1 for the right one."""

    def __init__(self, task: Task) -> None:
        self._payload = task.payload
        self._form = task.payload["wording"]
        self._answer = task.answer

    def reset(self) -> dict[str, Observation]:
        text = self._payload["question"]
        return {DESCRIBER: Observation([{"role": "user", "content": text}], new_context=True)}

    def step(self, agent: str, reply: Reply) -> Step:
        if agent == DESCRIBER:
            said = allowed("" if reply.calls else reply.content)
            text = ASKED[self._form].format(things=listed(self._payload["shown"]), said=said)
            message = {"role": "user", "content": text}
            return Step({GUESSER: Observation([message], new_context=True)})
        claimed = None if reply.calls else claimed_number(reply.content)
        right = claimed is not None and claimed == self._answer
        return Step(
            rewards={name: {"answer": float(right)} for name in (DESCRIBER, GUESSER)},
            done=True,
            answer=None if claimed is None else str(claimed),
            success=right,
        )


def act(payload: dict[str, Any], agent: str, said: str, hasty: bool, rng: random.Random) -> Reply:
    """A turn of the demonstrator. A hasty describer names size and colour, whatever tells the thing
    apart; a hasty guesser takes the first thing that has the first word."""
    if agent == DESCRIBER:
        meant, others = payload["meant"], [t for t in payload["seen"] if t != payload["meant"]]
        if hasty:
            return Reply(" ".join(meant[:2]))
        pairs = [(0, 1), (1, 2), (0, 2)]
        left = {
            pair: sum(all(other[i] == meant[i] for i in pair) for other in others) for pair in pairs
        }
        best = min(pairs, key=lambda pair: left[pair])
        return Reply(" ".join(meant[i] for i in best))
    words = said.split()[:1] if hasty else said.split()
    fits = [n for n, t in enumerate(payload["shown"], start=1) if all(w in t for w in words)]
    return Reply(f"Answer: {(fits or [1])[0] if hasty else rng.choice(fits or [1])}")
