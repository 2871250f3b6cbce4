"""What the pages of memory say: (trained on, never trained on)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from ferrata.environments.notepad import NOTES

SHELVES = range(10, 100)
PRICES = range(2, 100)

HEAD = ("Page {n} of {of}.\n{text}", "Report {n}/{of}\n{text}")
ASK = (
    ["On which shelf is the {item}?", "Which shelf has the {item}?"],
    ["Someone wants the {item}. Which shelf must I go to?"],
)
SAID = {
    "put": ("The {item} is on shelf {n}.", "We keep the {item} on shelf {n}."),
    "moved": ("The {item} is now on shelf {n}.", "We took the {item} to shelf {n}."),
    "sold": ("The {item} was sold.", "There is no {item} any more."),
    "price": ("The {item} costs {n}.", "You pay {n} for the {item}."),
}


@dataclass(frozen=True)
class Page:
    """events: (what, item, number) in the order in which the page tells them."""

    text: str
    events: list[tuple[str, str, int]]

    @property
    def said(self) -> str:
        """The same for every wording."""
        return " ".join(f"{what} {item} {n}" for what, item, n in self.events)


def draw_pages(
    pages: int, items: Sequence[str], form: int, rng: random.Random
) -> tuple[list[Page], dict[str, int]]:
    """Pages, and on which shelf each thing is in the end. The first tells of two things; each
    further one of a new thing, and that one has moved or, where the notepad would be too small, was
    sold. All name a price that nobody asks for."""
    names = iter(rng.sample(items, pages + 1))
    where: dict[str, int] = {}
    drawn = []
    for number in range(pages):
        events: list[tuple[str, str, int]] = []
        if number:
            known = rng.choice(sorted(where))
            if len(where) == NOTES:
                events.append(("sold", known, 0))
                del where[known]
            else:
                events.append(("moved", known, rng.choice(SHELVES)))
                where[known] = events[-1][2]
        for _ in range(1 if number else 2):
            item = next(names)
            events.append(("put", item, rng.choice(SHELVES)))
            where[item] = events[-1][2]
        priced = rng.choice(sorted(where))
        events.insert(rng.randrange(len(events) + 1), ("price", priced, rng.choice(PRICES)))
        text = " ".join(SAID[what][form].format(item=item, n=n) for what, item, n in events)
        drawn.append(Page(text, events))
    return drawn, where
