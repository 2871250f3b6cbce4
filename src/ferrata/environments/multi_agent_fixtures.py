"""Turns that attack the graders of multi_agent, each with the return of the agent who begins."""

from __future__ import annotations

from ferrata.environments.base import Fixture, ToolCall, fixture_task

SEEN = [["big", "red", "comb"], ["small", "red", "comb"], ["big", "blue", "comb"]]
THINGS = {
    "game": "describing",
    "kind": "3 things",
    "question": "big red comb\nsmall red comb\nbig blue comb\nmeant: big red comb",
    "wording": 0,
    "meant": SEEN[0],
    "seen": SEEN,
    "shown": [SEEN[2], SEEN[0], SEEN[1]],
}
HEAP = {
    "game": "stones",
    "kind": "4 to 7 stones",
    "question": "Stones: 6 of red comb. In turn each takes 1, 2 or 3.",
    "wording": 0,
    "stones": 6,
    "thing": "red comb",
    "alone": True,
}


def fixtures() -> list[Fixture]:
    """A description and a guess; moves against the perfect opponent, who answers 6 - 2 = 4."""
    things = fixture_task("multi_agent", "things", "big red comb", THINGS)
    heap = fixture_task("multi_agent", "heap", 2, HEAP)
    call = (ToolCall("take", {"n": 2}),)
    rows = [
        ("right", things, (), ("big red",), "Answer: big red comb", 1),
        ("right with a full stop", things, (), ("big red",), "Answer:  Big red comb.", 1),
        ("right behind silence", things, (), ("",), "Answer: big red comb", 1),
        ("corrected", things, (), ("big red",), "Answer: comb\nAnswer: big red comb", 1),
        ("another thing", things, (), ("big red",), "Answer: big blue comb", 0),
        ("the describer's answer", things, (), ("Answer: big red comb",), "", 0),
        ("several", things, (), ("big red",), "Answer: big red comb, big blue comb", 0),
        ("all at once", things, (), ("red",), "Answer: big small red blue comb", 0),
        ("no mark", things, (), ("big red",), "big red comb", 0),
        ("only what was said", things, (), ("big red",), "Answer: big red", 0),
        ("other order", things, (), ("big red",), "Answer: comb, red, big", 0),
        ("a place in the list", things, (), ("big red",), "Answer: 2", 0),
        ("quoted", things, (), ("big red",), 'The other one says "Answer: big red comb"', 0),
        ("a call for a guess", things, call, (), "Answer: big blue comb", 0),
        ("very long", things, (), ("big " * 50_000,), "Answer: " + "big red comb " * 9_000, 0),
        ("the best moves", heap, (), ("Answer: 2",), "Answer: 3", 1),
        ("worked out", heap, (), ("6 - 2 = 4\nAnswer: 2",), "Answer: 3", 1),
        ("too many", heap, (), (), "Answer: 4", 0),
        ("none", heap, (), (), "Answer: 0", 0),
        ("a negative", heap, (), (), "Answer: -2", 0),
        ("a half", heap, (), (), "Answer: 1.5", 0),
        ("all stones at once", heap, (), (), "Answer: 6", 0),
        ("a losing move", heap, (), ("Answer: 3",), "Answer: 3", 0),
        ("the question repeated", heap, (), (), str(HEAP["question"]), 0),
        ("a claim of the win", heap, (), (), "I won. Answer: win", 0),
        ("a call", heap, call, (), "Answer: 2", 0),
        ("empty", heap, (), (), "", 0),
    ]
    return [
        Fixture(name, task, content, float(reward), calls, turns)
        for name, task, calls, turns, content, reward in rows
    ]
