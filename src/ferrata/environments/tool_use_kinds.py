"""The kinds of questions of tool use, and the calls with which an expert answers them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ferrata.environments import toolbox

Params = dict[str, Any]
Draw = Callable[[random.Random], Params]
Call = tuple[
    str, Callable[[Params, list[float]], dict[str, Any]]
]  # tool, arguments from earlier results

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


def expert_results(kind: str, values: Params, table: Any) -> list[float]:
    """What the calls of an expert give, in order."""
    tools: dict[str, Callable[..., str]] = {
        "lookup": toolbox.make_lookup(table),
        "calculator": toolbox.calculator,
        "convert": toolbox.convert,
    }
    results: list[float] = []
    for tool, arguments in KINDS[kind].calls:
        results.append(number(tools[tool](**arguments(values, results))))
    return results


def number(text: str) -> float:
    """A tool's result; an integer where it is one."""
    value = float(text)
    return int(value) if value.is_integer() else value
