"""The demonstrator of memory and its habits.

It has three and gives in to each with probability 1 - skill, for a whole episode: what it has noted
it does not correct; it never deletes a note, so that what comes when the notepad is full is lost;
and it notes the last number that a page says of a thing, be it the price.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from ferrata.environments.base import (
    Demonstration,
    Message,
    Reply,
    Task,
    ToolCall,
    World,
    play_out,
)
from ferrata.environments.notepad import NOTES


def demonstrate(task: Task, world: World, skill: float, rng: random.Random) -> Demonstration:
    """Play a task, with the habits that this skill leaves."""
    keeps, hoards, mixes = (rng.random() > skill for _ in range(3))
    pages = iter(task.payload["events"])
    noted: dict[str, int] = {}

    def calls(events: Sequence[tuple[str, str, int]]) -> list[ToolCall]:
        made = []
        said = {
            item: n for what, item, n in events if what != "sold" and (mixes or what != "price")
        }
        for what, item, _ in events:
            if what == "sold" and item in noted and not hoards:
                made.append(ToolCall("delete_note", {"name": item}))
                del noted[item]
            new = what == "put" or (what == "moved" and not keeps)
            if new and (item in noted or len(noted) < NOTES):
                noted[item] = said[item]
                made.append(ToolCall("write_note", {"name": item, "text": str(said[item])}))
        return made

    def act(agent: str, messages: Sequence[Message]) -> Reply:
        last = messages[-1]
        if last["role"] == "user":
            events = next(pages, None)
            made = [ToolCall("read_notes", {})] if events is None else calls(events)
            return Reply("", tuple(made)) if made else Reply("Next.")
        if last["name"] == "read_notes":
            shelf = noted.get(task.payload["item"])
            return Reply("Answer: unknown" if shelf is None else f"Answer: {shelf}")
        return Reply("Next.")

    messages, last = play_out(world, act)
    return Demonstration(task, messages, last.success)
