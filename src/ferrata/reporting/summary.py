"""The result as text: the table after `make repro`, its sentences, and one trajectory per arm.

Reads `metrics/summary.json`, which the stage `report` writes: `confidence` (of every interval) and
the nested scalars of `ferrata.evaluation.compare.summarise`.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ferrata.config.arms import SPLITS
from ferrata.errors import FerrataError

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

SUMMARY = "metrics/summary.json"
NAMES = {"test": "test tasks", "forms": "unseen forms", "ood": "harder, out-of-distribution tasks"}
NEXT = (
    ("metrics/trajectories.md", "one task as every arm played it"),
    ("dvc plots show", "success by arm and band, training curves"),
    ("make ui", "every run in MLflow"),
    ("ferrata chat --arm rl", "ask the trained model yourself"),
)
ALPHA = 0.05  # a claim needs a p-value below it beside its interval
WIDTH = 92  # of a trajectory's text; GitHub shows about this many before it scrolls
LONGEST = 1200  # characters of one message that are shown
TEXTS = ("question", "expected", "answer", "messages")

Entry = Mapping[str, float]


def read_summary(root: Path) -> dict[str, Any]:
    """The content of `metrics/summary.json` under the project's root.

    Raises:
        FerrataError: the file is missing or is not what `report` writes.
    """
    path = root / SUMMARY
    hint = "`dvc repro` makes it"
    if not path.is_file():
        raise FerrataError(f"{SUMMARY} is missing", expected=str(path), hint=hint)
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FerrataError(f"{SUMMARY} is not JSON", found=str(error), hint=hint) from error
    if not isinstance(summary, dict) or "confidence" not in summary:
        raise FerrataError(
            f"{SUMMARY} is not a summary",
            expected="an object with `confidence` and environments",
            hint=hint,
        )
    return summary


def environments(summary: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The environments in a summary, without its scalars."""
    return {name: cells for name, cells in summary.items() if isinstance(cells, dict)}


def arms(cells: Mapping[str, Any]) -> list[str]:
    """The arms of one environment, in climb order."""
    found: dict[str, None] = {}
    for cell in cells.values():
        found |= {name: None for name, entry in cell.items() if "success" in entry}
    return list(found)


def differences(cells: Mapping[str, Any]) -> list[str]:
    """The keys `<first>_minus_<second>` of one environment."""
    found: dict[str, None] = {}
    for cell in cells.values():
        found |= {name: None for name, entry in cell.items() if "diff" in entry}
    return list(found)


def success(entry: Entry | None) -> str:
    """`0.81 [0.76, 0.86]`, or `-` where an arm has no such number."""
    return f"{entry['success']:.2f} [{entry['low']:.2f}, {entry['high']:.2f}]" if entry else "-"


def difference(entry: Entry) -> str:
    """`+0.31 [0.24, 0.38]`; four digits where two would show an end that is not 0 as 0."""
    numbers = entry["diff"], entry["low"], entry["high"]
    hidden = any(number != 0 and round(number, 2) == 0 for number in numbers[1:])
    value, low, high = (f"{number:.{4 if hidden else 2}f}" for number in numbers)
    return f"{'+' if entry['diff'] >= 0 else ''}{value} [{low}, {high}]"


def shown(entry: Entry) -> int:
    """1 or -1 where a difference is shown, in its direction, else 0. It takes an interval without 0
    and a p-value below ALPHA: where few tasks changed, the two can disagree."""
    if entry["p_value"] >= ALPHA:
        return 0
    return int(entry["low"] > 0) - int(entry["high"] < 0)


def claim(key: str, split: str, entry: Entry) -> str:
    """The sentence that a difference supports, and no stronger one."""
    first, second = (
        name.upper() if name in ("rl", "sft") else name for name in key.split("_minus_")
    )
    where = f"on the {NAMES[split]}"
    if direction := shown(entry):
        verb = "improves on" if direction > 0 else "is worse than"
        return f"{first} {verb} {second} {where}: the interval excludes 0."
    why = "the interval includes 0"
    if entry["low"] > 0 or entry["high"] < 0:
        why = f"the interval excludes 0, but p is not below {ALPHA:g}"
    return f"No difference between {first} and {second} is shown {where}: {why}."


def print_summary(root: Path) -> None:
    """Prints success per arm, RL against SFT in words, and where to look next.

    Fits 80 columns, where only test success has its interval; from 112 columns on all have. Without
    a terminal (a pipe, CI) there are no colours and no control codes.

    Raises:
        FerrataError: as `read_summary`.
    """
    from rich.console import Console
    from rich.text import Text

    summary = read_summary(root)
    console = Console(highlight=False)
    for environment, cells in environments(summary).items():
        console.print()
        console.print(_table(environment, cells, summary["confidence"], console.width >= 112))
        entry = cells.get("test", {}).get("rl_minus_sft")
        if entry:
            style = {1: "green", -1: "red", 0: "yellow"}[shown(entry)]
            line = f"rl minus sft (test, greedy, paired): {difference(entry)}"
            console.print(Text(line, style="bold"), soft_wrap=True)
            console.print(Text(claim("rl_minus_sft", "test", entry), style=style), soft_wrap=True)
    console.print()
    console.print(Text("Where to look next", style="bold"))
    for what, why in NEXT:
        console.print(Text.assemble("  ", (f"{what:<25}", "cyan"), why), soft_wrap=True)


def _table(environment: str, cells: Mapping[str, Any], confidence: float, wide: bool) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(
        title=f"{environment}: success, greedy \\[{100 * confidence:.4g}% interval over tasks]",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("arm", no_wrap=True)
    for heading in (*SPLITS, "test, sampled"):
        table.add_column(heading, justify="right", no_wrap=True)
    for arm in arms(cells):
        entries = [cells.get(split, {}).get(arm) for split in SPLITS]
        entries.append(cells.get("test", {}).get("sampled", {}).get(arm))
        shown = [success(entry) for entry in entries]
        if not wide:
            shown[1:] = [text.partition(" ")[0] for text in shown[1:]]
        table.add_row(arm, *shown, style="bold" if arm == "rl" else None)
    return table


def trajectories_text(frames: Mapping[str, pd.DataFrame]) -> str:
    """One test task per environment as every arm played it greedily, in Markdown.

    The task is the first, in the order of the file, on which rl is right and sft is wrong; where
    there is none, the first one. That choice flatters rl, so the text says how it was made.

    Args:
        frames: episodes per arm in climb order, as in `ferrata.evaluation.compare`, with the
            columns question, expected, answer and messages beside.

    Raises:
        FerrataError: an arm lacks one of these columns, or the arms have no test tasks.
    """
    for arm, frame in frames.items():
        if missing := [column for column in TEXTS if column not in frame.columns]:
            raise FerrataError(
                f"evaluations/{arm}/trajectories.parquet lacks columns",
                found=", ".join(missing),
                hint=f"`dvc repro --force evaluate@{arm}`",
            )
    greedy = {
        arm: frame[(frame["mode"] == "greedy") & (frame["split"] == "test")]
        for arm, frame in frames.items()
    }
    names = sorted({str(name) for rows in greedy.values() for name in rows["environment"]})
    if not names:
        raise FerrataError(
            "there is no greedy test episode to show",
            expected="test tasks, `prepare.test_tasks` in params.yaml",
            hint="raise it, then `dvc repro`",
        )
    parts: list[str] = []
    for name in names:
        here = {
            arm: rows[rows["environment"] == name].set_index("task_id")
            for arm, rows in greedy.items()
        }
        task, why = _choose(here)
        shown = next(rows.loc[task] for rows in here.values() if task in rows.index)
        intro = (
            f"Task `{task}` of {name}, band {shown['band']}: {why}. Played greedily by each arm."
        )
        question = _plain(shown["question"])
        expected = f"Expected: {_plain(shown['expected'])}"
        parts += ["\n".join(textwrap.wrap(intro, WIDTH)), _fenced(f"{question}\n\n{expected}")]
        parts += [_episode(arm, rows.loc[task]) for arm, rows in here.items() if task in rows.index]
    return "\n\n".join(parts) + "\n"


def _choose(here: Mapping[str, pd.DataFrame]) -> tuple[str, str]:
    if "rl" in here and "sft" in here:
        wrong = here["sft"].index[~here["sft"]["success"].astype(bool)]
        for task, right in here["rl"]["success"].items():
            if right and task in wrong:
                return str(task), "the first test task that rl solves and sft does not"
    return str(next(rows for rows in here.values() if not rows.empty).index[0]), "the first one"


def _episode(arm: str, row: pd.Series[Any]) -> str:
    answer = row["answer"]
    said = f"answer {_plain(answer)}" if isinstance(answer, str) else "no answer"
    head = (
        f"**{arm}**: {'right' if row['success'] else 'wrong'}, {said}, "
        f"turns {row['turns']}, calls {row['calls']}, "
        f"invalid calls {row['invalid_calls']}, stop: {row['stop']}"
    ).replace("\n", " ")
    messages = json.loads(row["messages"])
    # The question stands above all arms; pages that come before it are part of the episode.
    opening = messages[0] if messages else {}
    asked = opening.get("role") == "user" and str(row["question"]) in str(opening.get("content"))
    lines: list[str] = []
    context = 0
    for message in messages[int(asked) :]:
        if message.get("context", 0) != context:
            context = message.get("context", 0)
            whose = message.get("agent", "agent")
            of = "" if whose == "agent" else f" of the {whose}"
            lines.append(f"{'':<10} --- context {context + 1}{of} ---")
        lines += _message(message)
    return f"{head}\n\n{_fenced(chr(10).join(lines) or '(nothing)')}"


def _message(message: Mapping[str, Any]) -> Iterator[str]:
    content = message.get("content")
    text = content if isinstance(content, str) else json.dumps(content) if content else ""
    spoken = [line for line in _plain(text).splitlines() if line.strip()]
    for call in message.get("tool_calls") or []:
        arguments = call.get("arguments")
        inside = (
            ", ".join(f"{key}={json.dumps(value)}" for key, value in arguments.items())
            if isinstance(arguments, dict)
            else str(arguments)
        )
        spoken.append(_plain(f"-> {call.get('name')}({inside})"))
    label = f"{message['role']:<10} "
    for line in spoken or ["(empty)"]:
        for piece in textwrap.wrap(line, WIDTH - len(label)) or [""]:
            yield label + piece
            label = " " * len(label)


def _plain(value: Any) -> str:
    """Text that can neither end a README block nor hide control characters, cut visibly."""
    text = str(value)
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]} [... {len(text) - LONGEST} characters more]"
    text = re.sub(r"[^\n\t -~\u00a0-\uffff]|[\u2028\u2029]", lambda m: ascii(m[0])[1:-1], text)
    return text.replace("<!--", "<! --")


def _fenced(text: str) -> str:
    ticks = max((len(run) for run in re.findall(r"`{3,}", text)), default=2) + 1
    return f"{'`' * ticks}text\n{text}\n{'`' * ticks}"
