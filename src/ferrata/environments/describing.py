"""A game for two that share the reward: one sees which thing is meant, the other has to find it.

Both see the same things, in different orders, so that a place in the list says nothing. What the
describer may say is cut to two words, so that it has to choose those that tell the thing apart.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from ferrata.environments.base import Observation, Reply, Step, Task
from ferrata.environments.numbers import MARK, MAX_CLAIM

DESCRIBER, GUESSER = "describer", "guesser"
WORDS = 2
SIZES = ("big", "small")
COLOURS = ("red", "blue", "green", "black", "white", "yellow")
SEEN = (
    "{things}\nSay in {words} words which is meant: {meant}.",
    "{things}\nYour partner must find this one: {meant}. You have {words} words.",
)
ASKED = (
    '{things}\nThe other one says "{said}". Which is meant?',
    '{things}\nYou are told "{said}". Name that thing.',
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
    """One thing per line."""
    return "\n".join(" ".join(thing) for thing in things)


def allowed(text: str) -> str:
    """What of a message reaches the guesser."""
    words = re.findall(r"[A-Za-z]+", text)
    return " ".join(words[:WORDS])


def claimed_thing(content: str) -> str | None:
    """What the last line that starts with `Answer:` names, as it would stand in the list."""
    claims = MARK.findall(content)
    if not claims or len(claims[-1]) > MAX_CLAIM:
        return None
    return " ".join(claims[-1].removesuffix(".").lower().split()) or None


class DescribingWorld:
    """The describer speaks once, then the guesser names a thing; both get 1 for the right one."""

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
            seen = Observation([message], new_context=True)
            return Step({GUESSER: seen}, measures={"describing_found": 0.0})
        claimed = None if reply.calls else claimed_thing(reply.content)
        right = claimed == self._answer
        return Step(
            rewards={name: {"answer": float(right)} for name in (DESCRIBER, GUESSER)},
            done=True,
            answer=claimed,
            success=right,
            measures={"describing_found": float(right)},
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
    fits = [t for t in payload["shown"] if all(w in t for w in words)] or payload["shown"]
    return Reply(f"Answer: {' '.join(fits[0] if hasty else rng.choice(fits))}")
