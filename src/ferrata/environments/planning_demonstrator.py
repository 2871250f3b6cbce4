"""The demonstrator of planning and its habits.

It has three and gives in to each with probability 1 - skill, for a whole episode: it grabs a thing
that leads nowhere, it forgets that two of a part are needed, and where it is stuck it gives up
instead of going back.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from ferrata.environments.base import Demonstration, Message, Task
from ferrata.environments.workshop import Workshop, shortest

GIVE_UP = "Answer: not possible"


def demonstrate(task: Task, skill: float, rng: random.Random) -> Demonstration:
    """Play a task, with the habits that this skill leaves."""
    grabs, miscounts, gives_up = (rng.random() > skill for _ in range(3))
    workshop = Workshop(task.payload)
    messages: list[Message] = [{"role": "user", "content": task.payload["question"]}]

    def call(name: str, **arguments: str) -> str:
        said = getattr(workshop, name)(**arguments)
        messages.append(
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"name": name, "arguments": arguments}],
            }
        )
        messages.append({"role": "tool", "name": name, "content": said})
        return str(said)

    plan = shortest(workshop)
    assert plan is not None
    if grabs:
        useless = [
            item
            for item, parts in workshop.recipes.items()
            if item not in plan and not Counter(parts) - workshop.have
        ]
        if useless:
            call("craft", item=rng.choice(useless))
            if not gives_up:
                call("undo")
    if miscounts:
        plan = [item for n, item in enumerate(plan) if item not in plan[:n]]
    for item in plan:
        stuck = call("craft", item=item).startswith("not possible")
        while stuck and not gives_up and not workshop.done:
            stuck = _recover(workshop, call)
        if stuck or workshop.done:
            break
    if workshop.done:
        messages.pop()  # the episode ends with the call
    else:
        messages.append({"role": "assistant", "content": GIVE_UP})
    return Demonstration(task, messages, success=workshop.done)


def _recover(workshop: Workshop, call: Any) -> bool:
    """Go back until there is a way, then go it; returns whether it is stuck still."""
    way = shortest(workshop)
    if way is None:
        call("undo")
        return True
    for item in way:
        call("craft", item=item)
    return not workshop.done
