"""The demonstrator of tool use and its habits.

It has three and gives in to each with probability 1 - skill: it does large sums in its head, it
never looks the same kind of thing up twice, and it converts large values in its head. They are
systematic: to imitate the majority of such demonstrations greedily is to imitate the mistakes.
"""

from __future__ import annotations

import random
from typing import Any

from ferrata.environments import toolbox
from ferrata.environments.base import Demonstration, Message, Task
from ferrata.environments.tool_use import ToolUse, grade
from ferrata.environments.tool_use_kinds import KINDS, number

HEAD_SUM = 100  # a result above this the demonstrator's habit computes in its head, wrongly
HEAD_VALUE = 10  # a value from this on its habit converts in its head, one place short
SLIP = 0.1  # chance of a slip of the pen in a call, at skill 0


def demonstrate(
    environment: ToolUse, task: Task, skill: float, rng: random.Random
) -> Demonstration:
    """Play a task, with the habits that this skill leaves."""
    tools = {tool.name: tool for tool in environment.tools(task)}
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
            right = number(toolbox.calculator(**call))
            if abs(right) > HEAD_SUM:  # habit: large sums in the head
                results.append(right + rng.choice((-1, 1)) * rng.randint(1, int(abs(right) * 0.1)))
                continue
        if given_in and name == "convert" and call["value"] >= HEAD_VALUE:
            right = number(toolbox.convert(**call))
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
        results.append(number(result.content))
        if name == "lookup":
            looked_up[call["field"]] = results[-1]
    answer = toolbox.number_text(results[-1]) if results else str(values.get("b", 0))
    messages.append({"role": "assistant", "content": f"Answer: {answer}"})
    reward, _ = grade(task, messages[-1]["content"])
    return Demonstration(task, messages, success=reward["answer"] == 1.0)


def _slip(call: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    if "field" in call:
        return call | {"field": rng.choice(("price", "stock", "weight"))}
    if "expression" in call:
        return call | {"expression": call["expression"].replace("1", "7").replace("*", "+")}
    return call | {"from_unit": call["to_unit"], "to_unit": call["from_unit"]}
