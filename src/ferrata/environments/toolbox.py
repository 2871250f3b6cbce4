"""Tools that environments share. Arguments are written by a model, so they are hostile: nothing
here evaluates code."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from ferrata.environments.base import ToolError

EXPRESSION = re.compile(r"[0-9+\-*/(). ]+")
MAX_EXPRESSION = (
    100  # characters; with no power operator this bounds the work and the size of the result
)

UNITS = {
    **dict.fromkeys(("mm", "cm", "m", "km"), "length"),
    **dict.fromkeys(("g", "kg"), "weight"),
    **dict.fromkeys(("ml", "l"), "volume"),
    **dict.fromkeys(("s", "min", "h", "day"), "time"),
}


def number_text(value: float | int) -> str:
    """A number as tools print it: no exponent, no trailing zeros, at most six decimals."""
    if isinstance(value, int):
        return str(value)
    return f"{value:.6f}".rstrip("0").rstrip(".")


def calculator(expression: str) -> str:
    """+ - * / ( )"""
    from simpleeval import DEFAULT_OPERATORS, SimpleEval

    if len(expression) > MAX_EXPRESSION:
        raise ToolError(f"longer than {MAX_EXPRESSION} characters")
    if not EXPRESSION.fullmatch(expression) or "**" in expression:
        raise ToolError("only numbers and + - * / ( )")
    import ast

    allowed = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.USub, ast.UAdd)
    evaluator = SimpleEval(
        operators={op: f for op, f in DEFAULT_OPERATORS.items() if op in allowed},
        functions={},
        names={},
    )
    try:
        value = evaluator.eval(expression)
    except ZeroDivisionError:
        raise ToolError("division by zero") from None
    except Exception:  # syntax errors of several kinds, overflow: all are the caller's
        raise ToolError("not a complete expression") from None
    if not isinstance(value, int | float):  # `...` is an expression too
        raise ToolError("not a complete expression")
    if isinstance(value, float) and not abs(value) < 1e15:
        raise ToolError("the result is too large")
    return number_text(value)


@cache
def _registry() -> Any:
    import pint

    return pint.UnitRegistry()


def convert(value: float, from_unit: str, to_unit: str) -> str:
    """length, weight, volume, time"""
    for unit in (from_unit, to_unit):
        if unit not in UNITS:  # only these few names ever reach the library's parser
            raise ToolError(f"no unit {unit[:20]}; there are {' '.join(UNITS)}")
    if UNITS[from_unit] != UNITS[to_unit]:
        raise ToolError(f"{from_unit} is {UNITS[from_unit]}, {to_unit} is {UNITS[to_unit]}")
    if not abs(value) < 1e12:
        raise ToolError("the value is too large")
    return number_text(float(_registry().Quantity(value, from_unit).to(to_unit).magnitude))


def weekday(date: str) -> str:
    """of year-month-day"""
    try:
        return dt.date.fromisoformat(date).strftime("%A")
    except ValueError:
        raise ToolError("not a date such as 2024-05-31") from None


def make_lookup(table: Mapping[str, Mapping[str, float]]) -> Callable[..., Any]:
    """A `lookup` tool bound to one task's table of items."""

    def lookup(item: str, field: str) -> str:
        """price, stock or weight in kg"""
        row = table.get(item.strip().lower())
        if row is None:
            raise ToolError(f"no item {item[:30]}")
        if field not in row:
            raise ToolError(f"no field {field[:20]}; there are {', '.join(row)}")
        return number_text(row[field])

    return lookup


def make_weather(cities: Mapping[str, str]) -> Callable[..., Any]:
    """A `weather` tool bound to one task's report."""

    def weather(city: str) -> str:
        """forecast"""
        if city.strip().title() not in cities:
            raise ToolError(f"no report for {city[:30]}; there are {', '.join(cities)}")
        return cities[city.strip().title()]

    return weather
