"""The workshop of planning: what there is, recipes, and the shortest way to a goal."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

from ferrata.environments.base import ToolError

Recipes = Mapping[str, Sequence[str]]  # thing: the parts that it uses up
State = Counter[str]

RAW = 3  # kinds of raw material
NOWHERE = (2, 3)  # recipes that lead nowhere: at least, at most


class Workshop:
    """What there is, and the steps taken so far."""

    def __init__(self, payload: Mapping[str, Any]) -> None:
        self.recipes: Recipes = payload["recipes"]
        self.goal: str = payload["goal"]
        self.have: State = Counter(payload["have"])
        self.taken: list[str] = []

    @property
    def done(self) -> bool:
        return self.have[self.goal] > 0

    def craft(self, item: str) -> str:
        """Make an item from its parts."""
        if item not in self.recipes:
            raise ToolError(f"no recipe for {item[:40]}")
        missing = Counter(self.recipes[item]) - self.have
        if missing:
            return f"not possible: {listed(missing)} missing"
        self.have = self.have - Counter(self.recipes[item])
        self.have[item] += 1
        self.taken.append(item)
        return f"you have {listed(self.have)}"

    def undo(self) -> str:
        """Take the last craft back."""
        if not self.taken:
            return "not possible: nothing was made yet"
        item = self.taken.pop()
        self.have[item] -= 1
        self.have = +(self.have + Counter(self.recipes[item]))
        return f"you have {listed(self.have)}"


def listed(things: Mapping[str, int]) -> str:
    """`2 plank, 1 rope`; sorted, so that order says nothing."""
    return ", ".join(f"{n} {name}" for name, n in sorted(things.items()) if n) or "nothing"


def shortest(workshop: Workshop) -> list[str] | None:
    """A shortest sequence of crafts to the goal, by breadth-first search; None from a dead end."""
    start = frozenset(workshop.have.items())
    queue: deque[tuple[frozenset[tuple[str, int]], list[str]]] = deque([(start, [])])
    seen = {start}
    while queue:
        state, path = queue.popleft()
        have = Counter(dict(state))
        if have[workshop.goal]:
            return path
        for item, parts in workshop.recipes.items():
            if Counter(parts) - have:
                continue
            after = have - Counter(parts)
            after[item] += 1
            key = frozenset(after.items())
            if key not in seen:
                seen.add(key)
                queue.append((key, [*path, item]))
    return None


def draw_workshop(length: int, names: Sequence[str], rng: random.Random) -> dict[str, Any]:
    """Recipes, raw material and a goal whose shortest plan has `length` steps."""
    while True:
        raw, things = list(names[:RAW]), list(names[RAW:])
        made: list[str] = []
        recipes: dict[str, list[str]] = {}
        for item in things[:length]:
            parts = [made[-1]] if made else []
            while len(parts) < 2 and (not parts or rng.random() < 0.7):
                parts.append(rng.choice([*raw, *made]))
            recipes[item] = parts
            made.append(item)
            need = Counter(count_crafts(item, recipes))
            if need.total() >= length:
                break
        if need.total() != length:
            continue
        goal = made[-1]
        have: State = Counter()
        for item, times in need.items():
            for part in recipes[item]:
                have[part] += times if part in raw else 0
        have = +have
        for item in things[length : length + rng.randint(*NOWHERE)]:
            parts = [rng.choice(list(have))]
            parts += [rng.choice([*have, *made[:-1]])] if rng.random() < 0.5 else []
            recipes[item] = parts
        order = list(recipes)
        rng.shuffle(order)
        payload: dict[str, Any] = {
            "have": dict(sorted(have.items())),
            "recipes": {item: recipes[item] for item in order},
            "goal": goal,
        }
        if len(shortest(Workshop(payload)) or ()) == length:
            return {**payload, "optimum": length}


def count_crafts(item: str, recipes: Recipes) -> State:
    """How often each thing is made on the way to one `item`, itself included."""
    total: State = Counter({item: 1})
    for part in recipes[item]:
        if part in recipes:
            total += count_crafts(part, recipes)
    return total
