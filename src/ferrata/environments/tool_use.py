"""Tool use: questions about a shop that the model cannot see, and sums that it cannot do in its
head.

Difficulty is the number of calls an expert makes: band 1 needs one (or none: some questions contain
    their answer),
band 4 needs four and is never trained on. Arguments are built from the question and from earlier
results; two of the tools are never of use. The demonstrator has three habits and gives in to each
with probability 1 - skill: it does large sums in its head, it never looks the same kind of thing up
twice, and it converts large values in its head.
They are systematic: to imitate the majority of such demonstrations greedily is to imitate the
    mistakes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any, ClassVar

from ferrata.environments import toolbox
from ferrata.environments.base import Demonstration, Fixture, Message, Split, Task, Tool, ToolWorld
from ferrata.environments.numbers import claimed_number
from ferrata.environments.splits import HELD_OUT, draw_tasks
from ferrata.environments.tool_use_forms import CITIES, FORMS, ITEMS, ITEMS_HELD_OUT, SKIES

Params = dict[str, Any]
Draw = Callable[[random.Random], Params]
Call = tuple[
    str, Callable[[Params, list[float]], dict[str, Any]]
]  # tool, arguments from earlier results

HEAD_SUM = 100  # a result above this the demonstrator's habit computes in its head, wrongly
HEAD_VALUE = 10  # a value from this on its habit converts in its head, one place short
SLIP = 0.1  # chance of a slip of the pen in a call, at skill 0
CONVERSIONS = ("km m", "m cm", "cm mm", "kg g", "l ml", "h min", "min s", "day h")


def _nothing(rng: random.Random) -> Params:
    return {}


def _numbers(rng: random.Random) -> Params:
    low, high = (21, 99) if rng.random() < 0.7 else (2, 9)
    return {"a": rng.randint(low + high, high * 9), "b": rng.randint(low, high)}


def _counts(rng: random.Random) -> Params:
    return {name: rng.randint(2, 19) for name in "nmk"}


def _conversion(rng: random.Random) -> Params:
    unit, to = rng.choice(CONVERSIONS).split()
    return {"a": rng.randint(2, 99), "u": unit, "v": to}


def _look(item: str, field: str) -> Call:
    return "lookup", lambda p, results: {"item": p[item], "field": field}


def _sum(template: str) -> Call:
    def arguments(p: Params, results: list[float]) -> dict[str, Any]:
        return {"expression": template.format(*map(toolbox.number_text, results), **p)}

    return "calculator", arguments


def _convert_question() -> Call:
    return "convert", lambda p, results: {"value": p["a"], "from_unit": p["u"], "to_unit": p["v"]}


def _grams() -> Call:
    return "convert", lambda p, r: {"value": r[-1], "from_unit": "kg", "to_unit": "g"}


@dataclass(frozen=True)
class Kind:
    """A kind of question: its band, the calls of an expert, how many items it names, how its
    numbers are drawn.

    unit: of the answer, which a model may write behind the number; "v" names the parameter that
        holds it.
    """

    band: int
    calls: tuple[Call, ...]
    items: int = 0
    draw: Draw = _nothing
    unit: str = ""


KINDS: dict[str, Kind] = {
    "product": Kind(1, (_sum("{a}*{b}"),), draw=_numbers),
    "sum": Kind(1, (_sum("{a}+{b}"),), draw=_numbers),
    "difference": Kind(1, (_sum("{a}-{b}"),), draw=_numbers),
    "price": Kind(1, (_look("x", "price"),), items=1, unit="coins"),
    "stock": Kind(1, (_look("x", "stock"),), items=1),
    "convert": Kind(1, (_convert_question(),), draw=_conversion, unit="v"),
    "given": Kind(1, (), items=1, draw=_numbers, unit="coins"),
    "cost": Kind(2, (_look("x", "price"), _sum("{n}*{0}")), 1, _counts, "coins"),
    "grams": Kind(2, (_look("x", "weight"), _grams()), 1, unit="g"),
    "basket": Kind(
        3, (_look("x", "price"), _look("y", "price"), _sum("{n}*{0}+{m}*{1}")), 2, _counts, "coins"
    ),
    "load": Kind(3, (_look("x", "weight"), _sum("{n}*{0}"), _grams()), 1, _counts, "g"),
    "big_basket": Kind(
        4,
        (
            _look("x", "price"),
            _look("y", "price"),
            _look("z", "price"),
            _sum("{n}*{0}+{m}*{1}+{k}*{2}"),
        ),
        3,
        _counts,
        "coins",
    ),
    "two_loads": Kind(
        4,
        (_look("x", "weight"), _look("y", "weight"), _sum("{n}*{0}+{m}*{1}"), _grams()),
        2,
        _counts,
        "g",
    ),
}


class ToolUse:
    """The environment; stateless, see the module's docstring."""

    name: ClassVar[str] = "tool_use"
    agents: ClassVar[tuple[str, ...]] = ("agent",)
    reward_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {"answer": (0.0, 1.0)}

    def tasks(self, split: Split, n: int, seed: int) -> Iterator[Task]:
        return draw_tasks(self.name, split, n, seed, partial(self._draw, seed=seed))

    def _draw(self, split: Split, band: int, index: int, rng: random.Random, seed: int) -> Task:
        kind = rng.choice([name for name, k in KINDS.items() if k.band == band])
        pool = ITEMS_HELD_OUT if split in HELD_OUT else ITEMS
        names = rng.sample(pool, 5)
        table = {
            name: {
                "price": rng.randint(3, 97),
                "stock": rng.randint(2, 250),
                "weight": rng.randint(3, 95) / 10,
            }
            for name in sorted(names)
        }
        values = KINDS[kind].draw(rng)
        values |= dict(zip("xyz", names[: KINDS[kind].items], strict=False))
        forms = FORMS[kind][1 if split == "forms" else 0]
        form = rng.randrange(len(forms))
        results = self._expert(kind, values, table)
        asked = [
            f"{key}={value}" for key, value in sorted(values.items()) if f"{{{key}}}" in forms[form]
        ]
        found = [toolbox.number_text(r) for r in results]
        return Task(
            id=f"{self.name}-{split}-{index:05d}",
            environment=self.name,
            split=split,
            band=band,
            form=f"{kind}-{'held-out-' if split == 'forms' else ''}{form}",
            seed=seed,
            signature=f"{kind}: {' '.join(asked)} -> {' '.join(found)}",
            payload={
                "question": forms[form].format(**values),
                "kind": kind,
                "values": values,
                "table": table,
                "weather": {city: rng.choice(SKIES) for city in CITIES},
            },
            answer=found[-1] if found else str(values["b"]),
        )

    def _expert(self, kind: str, values: Params, table: Any) -> list[float]:
        tools: dict[str, Callable[..., str]] = {
            "lookup": toolbox.make_lookup(table),
            "calculator": toolbox.calculator,
            "convert": toolbox.convert,
        }
        results: list[float] = []
        for tool, arguments in KINDS[kind].calls:
            results.append(_number(tools[tool](**arguments(values, results))))
        return results

    def tools(self, task: Task) -> Sequence[Tool]:
        lookup = toolbox.make_lookup(task.payload["table"])
        weather = toolbox.make_weather(task.payload["weather"])
        return [
            Tool(f) for f in (toolbox.calculator, lookup, toolbox.convert, weather, toolbox.weekday)
        ]

    def start(self, task: Task) -> ToolWorld:
        return ToolWorld(task.payload["question"], self.tools(task), lambda text: grade(task, text))

    def demonstrate(self, task: Task, skill: float, rng: random.Random) -> Demonstration:
        tools = {tool.name: tool for tool in self.tools(task)}
        values = task.payload["values"]
        messages: list[Message] = [{"role": "user", "content": task.payload["question"]}]
        results: list[float] = []
        looked_up: dict[str, float] = {}
        for name, arguments in KINDS[task.payload["kind"]].calls:
            call = arguments(values, results)
            given_in = rng.random() > skill
            if given_in and name == "lookup" and call["field"] in looked_up:
                results.append(looked_up[call["field"]])  # habit: never looks up twice
                continue
            if given_in and name == "calculator":
                right = _number(toolbox.calculator(**call))
                if abs(right) > HEAD_SUM:  # habit: large sums in the head
                    results.append(
                        right + rng.choice((-1, 1)) * rng.randint(1, int(abs(right) * 0.1))
                    )
                    continue
            if given_in and name == "convert" and call["value"] >= HEAD_VALUE:
                right = _number(toolbox.convert(**call))
                results.append(right / 10)  # habit: converts in the head, one place short
                continue
            if rng.random() < SLIP * (1 - skill):
                call = _slip(call, rng)
            result = tools[name].call(call)
            messages += [
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"name": name, "arguments": call}],
                },
                {"role": "tool", "name": name, "content": result.content},
            ]
            if result.outcome != "ok":
                break
            results.append(_number(result.content))
            if name == "lookup":
                looked_up[call["field"]] = results[-1]
        answer = toolbox.number_text(results[-1]) if results else str(values.get("b", 0))
        messages.append({"role": "assistant", "content": f"Answer: {answer}"})
        reward, _ = grade(task, messages[-1]["content"])
        return Demonstration(task, messages, success=reward["answer"] == 1.0)

    def fixtures(self) -> list[Fixture]:
        from ferrata.environments.tool_use_fixtures import fixtures

        return fixtures(self)


def _number(text: str) -> float:
    value = float(text)
    return int(value) if value.is_integer() else value


def _slip(call: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    if "field" in call:
        return call | {"field": rng.choice(("price", "stock", "weight"))}
    if "expression" in call:
        return call | {"expression": call["expression"].replace("1", "7").replace("*", "+")}
    return call | {"from_unit": call["to_unit"], "to_unit": call["from_unit"]}


def grade(task: Task, content: str) -> tuple[dict[str, float], str | None]:
    """Grade a final message: `answer` is 1 if the claimed number is right (to 1e-6), else 0.

    Returns the reward parts, and the number that was read (None where none was claimed). Never
    raises.
    """
    unit = KINDS[task.payload["kind"]].unit
    unit = task.payload["values"]["v"] if unit == "v" else unit
    claimed = claimed_number(content, (unit,) if unit else ())
    if claimed is None:
        return {"answer": 0.0}, None
    right = abs(claimed - Decimal(task.answer)) <= Decimal("1e-6")
    return {"answer": float(right)}, str(claimed)
