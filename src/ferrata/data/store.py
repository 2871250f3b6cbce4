"""Reading and writing tasks and demonstrations (JSON Lines)."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ferrata.environments.base import Demonstration, Task
from ferrata.errors import FerrataError


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows as JSON Lines; the same rows give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n")


def _read_rows(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise FerrataError(str(path), found="no such file", hint="run `dvc repro prepare`")
    rows = []
    for number, line in enumerate(io.StringIO(path.read_text(encoding="utf-8")), start=1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"not {type(row).__name__}")
            rows.append(row)
        except ValueError as error:
            raise FerrataError(
                f"{path}, line {number}",
                found=repr(line[:80]),
                expected=f"a JSON object ({error})",
                hint="run `dvc repro prepare` to write the file again",
            ) from error
    if not rows:
        raise FerrataError(
            str(path),
            found="an empty dataset",
            expected="at least one row",
            hint="raise the number of tasks in the section prepare of params.yaml",
        )
    return rows


def read_tasks(folder: Path, split: str) -> list[Task]:
    """The tasks of a split. Raises FerrataError if the file is missing, empty or does not fit."""
    path = folder / f"{split}.jsonl"
    tasks = []
    for number, row in enumerate(_read_rows(path), start=1):
        try:
            tasks.append(Task.from_row(row))
        except TypeError as error:
            raise FerrataError(
                f"{path}, line {number}",
                found=f"columns {', '.join(sorted(row))}",
                expected=f"the columns of a task ({error})",
                hint="run `dvc repro prepare` to write the file again",
            ) from error
    return tasks


def write_demonstrations(path: Path, demonstrations: Sequence[Demonstration]) -> None:
    """One row per demonstration: its task, its messages, and whether its answer is right."""
    rows = (
        {"task": d.task.to_row(), "messages": d.messages, "success": d.success}
        for d in demonstrations
    )
    write_rows(path, rows)


def read_demonstrations(path: Path) -> list[Demonstration]:
    """The inverse of `write_demonstrations`."""
    return [
        Demonstration(Task.from_row(row["task"]), row["messages"], row["success"])
        for row in _read_rows(path)
    ]


def task_set_digest(tasks: Sequence[Task]) -> str:
    """Identifies a set of tasks by content: arms may be compared only where it is equal. 16 hex
    digits."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(json.dumps(task.to_row(), sort_keys=True, ensure_ascii=False).encode())
    return digest.hexdigest()[:16]
