"""Conditions on a number of two digits, in words: (trained on, never trained on)."""

from __future__ import annotations

import random
from dataclasses import dataclass

NUMBERS = range(10, 100)
TRIES = 10_000
SAID = {
    "between": ("It is between {a} and {b}.", "It is {a} at least and {b} at most."),
    "even": ("It is even.", "Two divides it."),
    "odd": ("It is odd.", "Two does not divide it."),
    "multiple": ("It is a multiple of {a}.", "It can be divided by {a}."),
    "without": ("It has no {a}.", "The digit {a} is not in it."),
    "rising": ("Its first digit is the smaller one.", "Its last digit is larger than the other."),
    "falling": ("Its first digit is the larger one.", "Its last digit is smaller than the other."),
    "more": ("Its digits add up to more than {a}.", "The sum of its digits is above {a}."),
    "less": ("Its digits add up to less than {a}.", "The sum of its digits is below {a}."),
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
            "without": self.a not in (tens, ones),
            "rising": tens < ones,
            "falling": tens > ones,
            "more": tens + ones > self.a,
            "less": tens + ones < self.a,
        }[self.kind]

    def words(self, form: int) -> str:
        """As a sentence."""
        return SAID[self.kind][form].format(a=self.a, b=self.b)


def meets(number: int, conditions: list[Condition]) -> bool:
    """Whether a number has two digits and meets all conditions."""
    return number in NUMBERS and all(condition.holds(number) for condition in conditions)


def draw_conditions(count: int, rng: random.Random) -> tuple[int, list[Condition]]:
    """A number, and `count` conditions of different kinds that it meets, each of which excludes
    something that the others leave.

    Raises:
        ValueError: there are not that many conditions that differ so (5 are found, 7 cannot be).
    """
    for _ in range(TRIES):
        number = rng.choice([n for n in NUMBERS if n // 10 != n % 10])
        tens, ones = divmod(number, 10)
        low = max(10, number - rng.randint(4, 20))
        factors = [k for k in range(3, 8) if number % k == 0]
        absent = [digit for digit in range(10) if digit not in (tens, ones)]
        sums = [
            Condition("more", tens + ones - rng.randint(1, 3)),
            Condition("less", tens + ones + rng.randint(1, 3)),
        ]
        possible = [
            Condition("between", low, min(99, low + rng.randint(18, 40))),
            Condition("even" if number % 2 == 0 else "odd"),
            Condition("rising" if tens < ones else "falling"),
            Condition("without", rng.choice(absent)),
            rng.choice(sums),
            *([Condition("multiple", rng.choice(factors))] if factors else []),
        ]
        chosen = rng.sample(possible, min(count, len(possible)))
        if len(chosen) == count and all(_needed(one, chosen) for one in chosen):
            return number, chosen
    raise ValueError(f"no {count} conditions of which each is needed, in {TRIES} draws")


def _needed(one: Condition, chosen: list[Condition]) -> bool:
    """Whether a number fails this condition alone."""
    others = [condition for condition in chosen if condition is not one]
    return any(meets(n, others) and not one.holds(n) for n in NUMBERS)
