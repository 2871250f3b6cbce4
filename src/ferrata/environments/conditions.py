"""Conditions on a number of two digits, in words: (trained on, never trained on)."""

from __future__ import annotations

import random
from dataclasses import dataclass

NUMBERS = range(10, 100)
SAID = {
    "between": ("It is between {a} and {b}.", "It is {a} at least and {b} at most."),
    "even": ("It is even.", "Two divides it."),
    "odd": ("It is odd.", "Two does not divide it."),
    "multiple": ("It is a multiple of {a}.", "It can be divided by {a}."),
    "ends": ("It ends in {a}.", "Its last digit is {a}."),
    "begins": ("It begins with {a}.", "Its first digit is {a}."),
    "sum": ("Its digits add up to {a}.", "The sum of its digits is {a}."),
}


@dataclass(frozen=True)
class Condition:
    """kind: a key of SAID; a, b: its numbers, 0 where it has none."""

    kind: str
    a: int = 0
    b: int = 0

    def holds(self, number: int) -> bool:
        """Whether a number of two digits meets it."""
        tens, ones = divmod(number, 10)
        return {
            "between": self.a <= number <= self.b,
            "even": number % 2 == 0,
            "odd": number % 2 == 1,
            "multiple": self.a > 0 and number % self.a == 0,
            "ends": ones == self.a,
            "begins": tens == self.a,
            "sum": tens + ones == self.a,
        }[self.kind]

    def words(self, form: int) -> str:
        """As a sentence."""
        return SAID[self.kind][form].format(a=self.a, b=self.b)


def meets(number: int, conditions: list[Condition]) -> bool:
    """Whether a number has two digits and meets all conditions."""
    return number in NUMBERS and all(condition.holds(number) for condition in conditions)


def draw_conditions(count: int, rng: random.Random) -> tuple[int, list[Condition]]:
    """A number, and `count` conditions of different kinds that it meets, each of which excludes
    something that the others leave."""
    while True:
        number = rng.choice(NUMBERS)
        tens, ones = divmod(number, 10)
        low = max(10, number - rng.randint(4, 20))
        factors = [k for k in range(3, 10) if number % k == 0]
        possible = [
            Condition("between", low, min(99, low + rng.randint(18, 28))),
            Condition("even" if number % 2 == 0 else "odd"),
            Condition("ends", ones),
            Condition("begins", tens),
            Condition("sum", tens + ones),
            *([Condition("multiple", rng.choice(factors))] if factors else []),
        ]
        chosen = rng.sample(possible, count)
        fewer = [[c for c in chosen if c is not left_out] for left_out in chosen]
        if all(
            any(meets(n, others) and not meets(n, chosen) for n in NUMBERS) for others in fewer
        ):
            return number, chosen
