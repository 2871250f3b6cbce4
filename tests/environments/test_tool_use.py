"""Tool use: the grader under attack, splits, demonstrators, and tools with hostile arguments."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ferrata.environments import toolbox
from ferrata.environments.base import SPLITS, Reply, Tool, ToolCall, ToolError
from ferrata.environments.tool_use import KINDS, ToolUse, grade
from ferrata.environments.tool_use_forms import ITEMS, ITEMS_HELD_OUT

ENVIRONMENT = ToolUse()
SPLIT_TASKS = {split: list(ENVIRONMENT.tasks(split, 150, 17)) for split in SPLITS}
HOSTILE = (
    "9**9**9",
    "9 ** 9",
    "__import__('os')",
    "1+" * 5000 + "1",
    "9*" * 49 + "9.9e9",
    "1/0",
    "1//0",
    "1%0",
    "((1+2)",
    ")1(",
    "(" * 99,
    "1 2",
    "()",
    "",
    "   ",
    "\x00",
    "1\n+1",
    "\u0661+\u0662",
    "[x for x in ().__class__.__bases__]",
    "9" * 40 + "." + "9" * 40,
)


def call(name: str, **arguments: Any) -> Any:
    task = SPLIT_TASKS["train"][0]
    step = ENVIRONMENT.start(task).step("agent", Reply("", (ToolCall(name, arguments),)))
    assert not step.done
    (result,) = step.results
    (message,) = step.observations["agent"].messages
    assert message == {"role": "tool", "name": name, "content": result.content}
    return result


def test_names_of_test_items_are_held_out() -> None:
    assert not set(ITEMS) & set(ITEMS_HELD_OUT)
    for split, tasks in SPLIT_TASKS.items():
        pool = ITEMS_HELD_OUT if split in ("test", "forms", "ood") else ITEMS
        assert all(set(task.payload["table"]) <= set(pool) for task in tasks), split
    trained = {task.form for s in ("sft", "train", "test") for task in SPLIT_TASKS[s]}
    assert not trained & {task.form for task in SPLIT_TASKS["forms"]}


def test_band_is_the_number_of_calls_of_an_expert() -> None:
    for name, kind in KINDS.items():
        assert kind.band == max(1, len(kind.calls)), name
    for split, tasks in SPLIT_TASKS.items():
        assert {task.band for task in tasks} == ({4} if split == "ood" else {1, 2, 3})
        for task in tasks:
            played = ENVIRONMENT.demonstrate(task, 1.0, random.Random(0))
            made = sum("tool_calls" in message for message in played.messages)
            assert task.band == max(1, made)


def test_an_expert_is_always_right() -> None:
    for tasks in SPLIT_TASKS.values():
        for task in tasks:
            played = ENVIRONMENT.demonstrate(task, 1.0, random.Random(1))
            assert played.success, task
            assert grade(task, played.messages[-1]["content"])[0] == {"answer": 1.0}


def test_a_fallible_demonstrator_is_right_less_often_in_every_band() -> None:
    tasks = [*SPLIT_TASKS["train"], *SPLIT_TASKS["ood"]]
    share: dict[int, list[bool]] = {}
    for task in tasks:
        for sample in range(4):
            played = ENVIRONMENT.demonstrate(task, 0.4, random.Random(f"{task.id}/{sample}"))
            share.setdefault(task.band, []).append(played.success)
            assert grade(task, played.messages[-1]["content"])[0]["answer"] == played.success
    rates = {band: sum(values) / len(values) for band, values in share.items()}
    assert set(rates) == {1, 2, 3, 4}
    assert all(0.02 < rate < 0.85 for rate in rates.values()), rates


@settings(max_examples=150, deadline=None)
@given(text=st.text() | st.text(alphabet="Answer: 0123456789.,-+=()\n").map("Answer: {}".format))
def test_any_text_is_graded_within_the_range(text: str) -> None:
    task = SPLIT_TASKS["train"][1]
    step = ENVIRONMENT.start(task).step("agent", Reply(text))
    assert step.done
    assert set(step.rewards["agent"]) == set(ENVIRONMENT.reward_ranges)
    for name, (low, high) in ENVIRONMENT.reward_ranges.items():
        assert low <= step.rewards["agent"][name] <= high
    assert step.answer is None or Decimal(step.answer).is_finite()


@pytest.mark.parametrize("expression", HOSTILE, ids=lambda e: e[:12])
def test_the_calculator_refuses_hostile_input(expression: str) -> None:
    with pytest.raises(ToolError):
        toolbox.calculator(expression)
    result = call("calculator", expression=expression)
    assert result.outcome == "refused"
    assert result.content.startswith("error: ")


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="0123456789+-*/(). ", max_size=120))
@example("...")
@example("()")
@example("1\n")
@example("9" * 100)
def test_the_calculator_answers_or_refuses(expression: str) -> None:
    assert call("calculator", expression=expression).outcome in ("ok", "refused")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("convert", {"value": float("nan"), "from_unit": "km", "to_unit": "m"}),
        ("convert", {"value": float("inf"), "from_unit": "km", "to_unit": "m"}),
        ("convert", {"value": 1, "from_unit": "km", "to_unit": "kg"}),
        ("convert", {"value": 1, "from_unit": "parsec**99", "to_unit": "m"}),
        ("lookup", {"item": "no such item", "field": "price"}),
        ("lookup", {"item": "x" * 10_000, "field": "price"}),
        ("weather", {"city": "Atlantis"}),
        ("weekday", {"date": "yesterday"}),
    ],
)
def test_tools_refuse_what_they_do_not_know(name: str, arguments: dict[str, Any]) -> None:
    result = call(name, **arguments)
    assert result.outcome == "refused"
    assert len(result.content) < 200


@pytest.mark.parametrize(
    ("name", "arguments", "part"),
    [
        ("calculator", {"expression": 7}, "valid string"),
        ("calculator", {"expression": ["1+1"]}, "valid string"),
        ("calculator", {"expression": None}, "valid string"),
        ("calculator", {}, "missing argument expression"),
        ("calculator", {"sum": "1+1"}, "unknown argument sum"),
        ("calculator", {"expression": "1+1", "more": 1}, "unknown argument more"),
        ("convert", {"value": "many", "from_unit": "km", "to_unit": "m"}, "value"),
        ("convert", {"value": 10**400, "from_unit": "km", "to_unit": "m"}, "value"),
        ("convert", {"value": 1, "from_unit": {}, "to_unit": "m"}, "from_unit"),
        ("search", {"words": "x"}, "no tool search; there are calculator, lookup"),
        ("s" * 10_000, {}, "no tool sss"),
    ],
)
def test_wrong_calls_are_invalid(name: str, arguments: dict[str, Any], part: str) -> None:
    result = call(name, **arguments)
    assert result.outcome == "invalid"
    assert result.content.startswith("error: ") and part in result.content
    assert len(result.content) < 250


def test_tools_answer() -> None:
    task = SPLIT_TASKS["train"][0]
    item, row = next(iter(task.payload["table"].items()))
    assert call("lookup", item=item.upper(), field="stock").content == str(row["stock"])
    assert call("calculator", expression="(2+3)*4/8").content == "2.5"
    assert call("convert", value=3.2, from_unit="kg", to_unit="g").content == "3200"
    assert call("weather", city="oslo").content == task.payload["weather"]["Oslo"]
    assert call("weekday", date="2024-05-31").content == "Friday"


def test_a_tool_that_breaks_has_failed() -> None:
    def broken(x: int) -> str:
        """breaks"""
        raise RuntimeError("secret")

    result = Tool(broken).call({"x": 1})
    assert result.outcome == "failed"
    assert result.content == "error: the tool failed (RuntimeError)"


def test_a_tool_needs_a_docstring_and_type_hints() -> None:
    def silent(x: int) -> int:
        return x

    def untyped(x):  # type: ignore[no-untyped-def]
        """something"""

    with pytest.raises(TypeError, match="docstring"):
        Tool(silent)
    with pytest.raises(TypeError, match="type hint"):
        Tool(untyped)
