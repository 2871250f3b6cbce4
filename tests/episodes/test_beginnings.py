"""Groups of sequences that begin alike."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ferrata.episodes.beginnings import LEAST, WORTH, beginnings

SYSTEM, TOOLS, OTHER = list(range(30)), list(range(100, 160)), list(range(200, 270))


def test_a_group_of_its_own_pays_for_its_beginning() -> None:
    a = [SYSTEM + TOOLS + [1000 + i] for i in range(3)]
    b = [SYSTEM + OTHER + [2000 + i] for i in range(3)]
    assert beginnings([a[0], b[0], a[1], b[1], a[2], b[2]]) == [(90, [0, 2, 4]), (100, [1, 3, 5])]
    # Two of b save 70 tokens and would cost the system message once more: 40 are not worth it.
    assert beginnings([*a, *b[:2]]) == [(90, [0, 1, 2]), (30, [3, 4])]


def test_little_in_common_is_no_beginning() -> None:
    assert beginnings([]) == []
    assert beginnings([[1, 2, 3]]) == [(0, [0])]
    assert beginnings([[*range(LEAST - 1), i] for i in (99, 98)]) == [(0, [1, 0])]
    assert beginnings([SYSTEM + TOOLS] * 3) == [(0, [0, 1, 2])]  # equal prompts are one row anyway


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=30))
def test_every_sequence_is_in_one_group_and_keeps_a_token(short: list[list[int]]) -> None:
    sequences = [[x for x in row for _ in range(20)] for row in short]
    groups = beginnings(sequences)
    assert sorted(index for _, group in groups for index in group) == list(range(len(sequences)))
    for length, group in groups:
        assert len({tuple(sequences[index][:length]) for index in group}) == 1
        assert all(length < len(sequences[index]) for index in group)
        different = {tuple(sequences[index]) for index in group}
        assert length == 0 or length >= LEAST
        assert length == 0 or len(different) > 1 or WORTH == 0
