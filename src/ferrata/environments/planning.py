"""Planning: make a thing from parts, where a wrong step uses up what the right one needs.

The question lists what there is, the recipes, and the goal. `craft` uses parts up and gives the
thing; `undo` takes the last step back. There is exactly as much raw material as a shortest plan
needs, and some recipes lead nowhere, so that a hasty step ends in a dead end and backtracking pays.
A step that is not possible is answered, not punished. Difficulty is the length of the shortest plan
(found by search): band 1 has two steps, band 3 four, and band 4, never trained on, five. The
demonstrator has three habits and gives in to each with probability 1 - skill, for a whole episode:
it grabs a thing that leads nowhere, it forgets that two of a part are needed, and where it is stuck
it gives up instead of going back.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from ferrata.environments.base import (
    Demonstration,
    Fixture,
    Message,
    Observation,
    Reply,
    Split,
    Step,
    Task,
    Tool,
    ToolError,
    ToolWorld,
)
from ferrata.environments.planning_forms import ASK, FORMS, THINGS, THINGS_HELD_OUT
from ferrata.environments.splits import HELD_OUT, draw_tasks

Recipes = Mapping[str, Sequence[str]]  # thing: the parts that it uses up
State = Counter[str]

RAW = 3  # kinds of raw material
NOWHERE = (2, 3)  # recipes that lead nowhere: at least, at most
GIVE_UP = "Answer: not possible"


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


class PlanningWorld(ToolWorld):
    """Ends as soon as the goal is made; a message without a call gives up.

    Args:
        progress: of the return for what a step brings nearer (0: only the goal pays); taken back
            where a step leads away, so that no detour pays.
    """

    def __init__(self, task: Task, progress: float = 0.0) -> None:
        self.workshop = Workshop(task.payload)
        tools = [Tool(self.workshop.craft), Tool(self.workshop.undo)]
        super().__init__(task.payload["question"], tools, lambda text: ({"goal": 0.0}, None))
        self._optimum = task.payload["optimum"]
        self._progress = progress
        self._left = self._optimum

    def step(self, agent: str, reply: Reply) -> Step:
        if not reply.calls:
            return super().step(agent, reply)
        results = []
        for call in reply.calls:
            results.append(self._run(call))
            if self.workshop.done:
                break
        parts: dict[str, float] = {}
        if self._progress:
            way = shortest(self.workshop)  # a dead end is as far as the beginning
            left = self._optimum if way is None else min(len(way), self._optimum)
            parts["progress"] = self._progress * (self._left - left) / self._optimum
            self._left = left
        if self.workshop.done:
            parts["goal"] = 1.0 - self._progress
            plan = ", ".join(self.workshop.taken)
            return Step(
                rewards={agent: parts}, results=results, done=True, answer=plan, success=True
            )
        messages = [{"role": "tool", "name": r.name, "content": r.content} for r in results]
        rewards = {agent: parts} if parts else {}
        return Step({agent: Observation(messages)}, rewards, results)


class Planning:
    """The environment; stateless, see the module's docstring. `progress` as for its world."""

    name: ClassVar[str] = "planning"
    agents: ClassVar[tuple[str, ...]] = ("agent",)
    reward_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {
        "goal": (0.0, 1.0),
        "progress": (0.0, 1.0),
    }

    def __init__(self, progress: float = 0.0) -> None:
        self._progress = progress

    def tasks(self, split: Split, n: int, seed: int) -> Iterator[Task]:
        return draw_tasks(self.name, split, n, seed, partial(self._draw, seed=seed))

    def _draw(self, split: Split, band: int, index: int, rng: random.Random, seed: int) -> Task:
        names = rng.sample(THINGS_HELD_OUT if split in HELD_OUT else THINGS, 12)
        payload = draw_workshop(band + 1, names, rng)
        form = 1 if split == "forms" else 0
        parts = listed(payload["have"])
        recipes = [
            FORMS[form].format(item=i, parts=" + ".join(p)) for i, p in payload["recipes"].items()
        ]
        question = rng.choice(ASK[form]).format(
            have=parts, recipes="\n".join(recipes), goal=payload["goal"]
        )
        place = {name: f"#{n}" for n, name in enumerate(names)}
        return Task(
            id=f"{self.name}-{split}-{index:05d}",
            environment=self.name,
            split=split,
            band=band,
            form="held-out" if form else "trained",
            seed=seed,
            # Whatever the things are called and in which order: equal recipes are one problem.
            signature="; ".join(
                sorted(
                    f"{place[item]}={'+'.join(place[part] for part in parts)}"
                    for item, parts in payload["recipes"].items()
                )
            ),
            payload={"question": question, "kind": f"{payload['optimum']} steps", **payload},
            answer=payload["optimum"],
        )

    def tools(self, task: Task) -> Sequence[Tool]:
        workshop = Workshop(task.payload)
        return [Tool(workshop.craft), Tool(workshop.undo)]

    def start(self, task: Task) -> PlanningWorld:
        return PlanningWorld(task, self._progress)

    def demonstrate(self, task: Task, skill: float, rng: random.Random) -> Demonstration:
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
                stuck = self._recover(workshop, call)
            if stuck or workshop.done:
                break
        if workshop.done:
            messages.pop()  # the episode ends with the call
        else:
            messages.append({"role": "assistant", "content": GIVE_UP})
        return Demonstration(task, messages, success=workshop.done)

    @staticmethod
    def _recover(workshop: Workshop, call: Any) -> bool:
        """Go back until there is a way, then go it; returns whether it is stuck still."""
        way = shortest(workshop)
        if way is None:
            call("undo")
            return True
        for item in way:
            call("craft", item=item)
        return not workshop.done

    def fixtures(self) -> list[Fixture]:
        from ferrata.environments.planning_fixtures import fixtures

        return fixtures()


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
