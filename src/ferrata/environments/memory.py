"""Memory: pages that are seen once, a small notepad, and a question when the pages are gone.

Each page is a context of its own: it says on which shelf things are, that one has moved or was
sold, and what nobody will ask for. A message without a call turns the page, and nothing of it stays
but the notes. The last context holds the question; the notes have to be read there, and a message
without a call is then the answer. There is room for fewer notes than there are things, so that one
that was sold must make room. Difficulty is the number of pages: one to three, and four in band 4,
which is never trained on.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import ClassVar

from ferrata.environments.base import (
    Demonstration,
    Environment,
    Fixture,
    Observation,
    Reply,
    Split,
    Step,
    Task,
    Tool,
    ToolWorld,
)
from ferrata.environments.memory_pages import ASK, HEAD, draw_pages
from ferrata.environments.notepad import LostNotepad, Notepad
from ferrata.environments.numbers import claimed_number
from ferrata.environments.splits import HELD_OUT, draw_tasks
from ferrata.environments.tool_use_forms import ITEMS, ITEMS_HELD_OUT


class MemoryWorld(ToolWorld):
    """A message without a call turns the page; behind the last page it is the answer.

    Args:
        together: all in one context.
        lost: no note is there when it is read.
    """

    def __init__(self, task: Task, together: bool = False, lost: bool = False) -> None:
        self.notepad = LostNotepad() if lost else Notepad()
        super().__init__(
            task.payload["pages"][0], self.notepad.tools(), lambda text: grade(task, text)
        )
        self._shown = [*task.payload["pages"], task.payload["question"]]
        self._at = 0
        self._together = together

    def step(self, agent: str, reply: Reply) -> Step:
        if reply.calls or self._at == len(self._shown) - 1:
            return super().step(agent, reply)
        self._at += 1
        messages = [{"role": "user", "content": self._shown[self._at]}]
        tools = tuple(self._tools.values())
        return Step({agent: Observation(messages, tools, new_context=not self._together)})


class Memory:
    """The environment; stateless, see the module's docstring.

    `together` and `lost` as for its world. The variants play the same tasks, for comparison: what
    forgetting the pages costs, and whether the notes are what is answered from.
    """

    name: ClassVar[str] = "memory"
    agents: ClassVar[tuple[str, ...]] = ("agent",)
    reward_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {"answer": (0.0, 1.0)}

    def __init__(self, together: bool = False, lost: bool = False) -> None:
        self._together, self._lost = together, lost

    @property
    def variants(self) -> Mapping[str, Environment]:
        return {"together": Memory(together=True), "no_notes": Memory(lost=True)}

    def tasks(self, split: Split, n: int, seed: int) -> Iterator[Task]:
        return draw_tasks(self.name, split, n, seed, partial(self._draw, seed=seed))

    def _draw(self, split: Split, band: int, index: int, rng: random.Random, seed: int) -> Task:
        form = 1 if split == "forms" else 0
        pages, where = draw_pages(band, ITEMS_HELD_OUT if split in HELD_OUT else ITEMS, form, rng)
        item = rng.choice(sorted(where))
        return Task(
            id=f"{self.name}-{split}-{index:05d}",
            environment=self.name,
            split=split,
            band=band,
            form="held-out" if form else "trained",
            seed=seed,
            signature=f"{item}: {' '.join(page.said for page in pages)}",
            payload={
                "question": rng.choice(ASK[form]).format(item=item),
                "kind": f"{band} pages",
                "pages": [
                    HEAD[form].format(n=n, of=band, text=page.text)
                    for n, page in enumerate(pages, start=1)
                ],
                "events": [page.events for page in pages],
                "item": item,
            },
            answer=where[item],
        )

    def tools(self, task: Task) -> Sequence[Tool]:
        return Notepad().tools()

    def start(self, task: Task) -> MemoryWorld:
        return MemoryWorld(task, self._together, self._lost)

    def demonstrate(self, task: Task, skill: float, rng: random.Random) -> Demonstration:
        from ferrata.environments.memory_demonstrator import demonstrate

        return demonstrate(task, self.start(task), skill, rng)

    def fixtures(self) -> list[Fixture]:
        from ferrata.environments.memory_fixtures import fixtures

        return fixtures()


def grade(task: Task, content: str) -> tuple[dict[str, float], str | None]:
    """`answer` is 1 for the right shelf, else 0; and the number that was read. Never raises."""
    claimed = claimed_number(content)
    right = claimed is not None and claimed == task.answer
    return {"answer": float(right)}, None if claimed is None else str(claimed)
