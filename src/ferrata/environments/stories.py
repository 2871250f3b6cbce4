"""The stories of reasoning: steps that change, compare and add numbers, and their words."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from ferrata.environments.reasoning_forms import ASK, START, STEPS, TOGETHER

LARGEST = 40
START_RANGE = (3, 20)
CHANGE_RANGE = (2, 6)
SIGNS = {"gain": "+", "lose": "-", "more": "+", "fewer": "-", "times": "*", "together": "+"}
COMPARES = ("more", "fewer", "times")  # these bring a further person in


@dataclass(frozen=True)
class Step:
    """One line of the working: `left sign right`, for `person` (a position in the story)."""

    kind: str
    left: int
    right: int
    person: int

    @property
    def result(self) -> int:
        if self.kind == "times":
            return self.left * self.right
        return self.left + self.right * (1 if SIGNS[self.kind] == "+" else -1)

    def line(self) -> str:
        """As the demonstrator writes it."""
        return f"{self.left} {SIGNS[self.kind]} {self.right} = {self.result}"


def draw_story(length: int, rng: random.Random) -> tuple[int, list[Step]]:
    """A first number, and `length` steps whose results are all within 1 and 40."""
    start = value = rng.randint(*START_RANGE)
    before = 0  # the number of the person before the present one
    person = 0
    steps: list[Step] = []
    while len(steps) < length:
        last = len(steps) == length - 1
        kinds = ["together"] if last and person and rng.random() < 0.5 else list(SIGNS)[:-1]
        kind = rng.choice(kinds)
        right = rng.randint(2, 3) if kind == "times" else rng.randint(*CHANGE_RANGE)
        step = Step(kind, value, right, person + (kind in COMPARES))
        if kind == "together":
            step = Step(kind, before, value, person)
        if not 1 <= step.result <= LARGEST:
            continue
        if kind in COMPARES:
            before, person = value, person + 1
        value = step.result
        steps.append(step)
    return start, steps


def tell(
    start: int,
    steps: Sequence[Step],
    people: Sequence[str],
    thing: str,
    form: int,
    rng: random.Random,
) -> str:
    """The story in words; `form` is 0 for the words that are trained on, 1 for the others."""
    said = [rng.choice(START[form]).format(a=people[0], n=start, thing=thing)]
    for step in steps:
        if step.kind == "together":
            continue
        b = people[step.person]
        a = people[step.person - 1] if step.kind in COMPARES else b
        said.append(rng.choice(STEPS[step.kind][form]).format(a=a, b=b, k=step.right, thing=thing))
    last = steps[-1].person
    ask = TOGETHER if steps[-1].kind == "together" else ASK
    said.append(rng.choice(ask[form]).format(a=people[last - 1], b=people[last], thing=thing))
    return " ".join(said)
