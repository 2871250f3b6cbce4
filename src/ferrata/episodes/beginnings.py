"""Which token sequences begin alike, so that what they share is computed once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

LEAST = 16  # tokens that sequences must share beyond what a larger group shares
WORTH = 64  # tokens that a group of its own must save, its beginning once more being paid for


def beginnings(sequences: Sequence[Sequence[int]]) -> list[tuple[int, list[int]]]:
    """Groups of sequences that begin alike, e.g. with the same system message and tool list.

    A group is divided where parts of it share so much more that a beginning of their own saves
    tokens. At least one token of every sequence is left behind its beginning.

    Args:
        sequences: none empty.

    Returns:
        (length of the beginning, 0 or more; positions of the sequences that have it), every
        sequence in exactly one; sequences that begin alike stand next to each other.
    """
    order = sorted(range(len(sequences)), key=lambda index: list(sequences[index]))
    return list(_divide(sequences, order, 0)) if order else []


def _divide(
    sequences: Sequence[Sequence[int]], order: Sequence[int], base: int
) -> Iterator[tuple[int, list[int]]]:
    """The groups of some sequences, in order, of which the first `base` tokens are known to be
    computed once."""
    # What the first and the last in order share, all share.
    most = min(len(sequences[index]) for index in order) - 1
    same = min(shared(sequences[order[0]], sequences[order[-1]]), most)
    different = 1 + sum(sequences[a] != sequences[b] for a, b in pairwise(order))
    more = same - base
    if more >= LEAST and (different - 1) * more - base >= WORTH:
        base = same
    rest: list[int] = []
    for _, part in groupby(order, key=lambda index: sequences[index][same]):
        part_ = list(part)
        if len(part_) < 2 or len(part_) == len(order):
            rest += part_
            continue
        for length, group in _divide(sequences, part_, base):
            if length > base:
                yield length, group
            else:
                rest += group
    if rest:
        yield base, rest


def shared(a: Sequence[int], b: Sequence[int]) -> int:
    """How many elements two sequences begin with together."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
