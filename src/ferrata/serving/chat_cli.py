"""`ferrata chat`: ask an arm, and see its tool calls and the tools' answers as they happen."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ferrata.config.loader import load
from ferrata.config.paths import params_folder
from ferrata.data.store import read_tasks
from ferrata.environments.base import Message, Task
from ferrata.episodes.trajectory import render

COLOURS = {"assistant": "cyan", "tool": "yellow"}


def run(arm: str, question: str | None, temperature: float) -> int:
    """Answer one question, or questions from the terminal until an empty line.

    Args:
        arm: an arm of params.yaml with a model.
        temperature: 0 is greedy.

    Raises:
        FerrataError: there is no such arm, or its model has not been made yet.
    """
    params, folder = load(), params_folder()
    from ferrata.serving.ask import check_arm, load_arm, own_question, play_one

    model_folder = folder / check_arm(arm, params)
    tasks = read_tasks(folder / "data" / "tasks", "validation")
    # A world that answers questions of one's own; without a shop, the first task's tools.
    task = next((task for task in tasks if "table" in task.payload), tasks[0])
    console = Console()
    model, tokenizer = load_arm(model_folder, params)
    if question is None:
        if "table" in task.payload:
            console.print(shop(task))
            console.print("Ask about the shop, sums or units; an empty line ends.", style="dim")
        else:
            console.print(
                f"For example: {task.payload['question']}\nAn empty line ends.", style="dim"
            )

    def show(_: int, message: Message) -> None:
        if message["role"] in COLOURS:
            console.print(Text(render([message]), style=COLOURS[message["role"]]))

    asked = 0
    while line := question if question is not None else _line(console):
        played = play_one(
            model,
            tokenizer,
            params,
            own_question(task, line),
            temperature=temperature,
            sample=asked,
            observer=show,
        )
        if played.answer is None:
            console.print(f"no answer was claimed ({played.stop})", style="red")
        asked += 1
        if question is not None:
            return 0
    return 0


def _line(console: Console) -> str:
    try:
        return console.input("\n[bold]>[/bold] ").strip()
    except (EOFError, KeyboardInterrupt):
        print(file=sys.stderr)
        return ""


def shop(task: Task) -> Table:
    """What the model can look up."""
    table = Table(title="The shop, which the model sees through its tools only")
    for column in ("item", "price (coins)", "stock", "weight (kg)"):
        table.add_column(column)
    for name, row in task.payload["table"].items():
        table.add_row(name, *(str(row[key]) for key in ("price", "stock", "weight")))
    return table
