"""`ferrata doctor`: one screen of what is right, what is not, and what to do about it.

Nothing is written to the project (`dvc repro --dry`, which is asked what would run, keeps notes of
its own in `.dvc/tmp`). A check that cannot be made says so in its line and the others go on.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ferrata.errors import FerrataError

if TYPE_CHECKING:
    from rich.console import Console

Mark = Literal["ok", "warning", "error"]
COLOURS = {"ok": "green", "warning": "yellow", "error": "bold red"}
WIDEST = 100  # columns; longer lines are hard to read


@dataclass(frozen=True)
class Check:
    """One line of the screen.

    name: what was looked at.
    text: what was found; several lines if there are several findings.
    next_step: what to do, where something is to be done.
    """

    mark: Mark
    name: str
    text: str
    next_step: str | None = None


@dataclass(frozen=True)
class Section:
    title: str
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Project:
    """root: the project's folder; folder: the pipeline in it whose params.yaml counts."""

    root: Path
    folder: Path


Checker = Callable[[Project], Iterable[Check]]


def diagnose(project: Project, waiting: Callable[[str], Any] | None = None) -> Iterator[Section]:
    """All sections, each when it is ready; takes some seconds, most of them DVC's and torch's.

    Args:
        waiting: makes a context manager that shows a note while a section is looked into.
    """
    for title, note, checkers in _plan():
        with waiting(note) if waiting else nullcontext():
            checks = [check for name, made in checkers for check in _guarded(name, made, project)]
        yield Section(title, tuple(checks))


def run(*, as_json: bool = False) -> int:
    """The command: prints the screen, or the same as JSON; 0 without an error in it, else 1.

    Raises:
        FerrataError: there is no project here.
    """
    from rich.console import Console

    from ferrata.config.paths import params_folder, project_root

    project = Project(project_root(), params_folder())
    console = Console(highlight=False)
    console.width = min(console.width, WIDEST)
    if as_json:
        sections = list(diagnose(project))
        errors, warnings = _count(sections, "error"), _count(sections, "warning")
        counts = {"errors": errors, "warnings": warnings}
        result = {"project": str(project.root), "ok": not errors, **counts}
        result["sections"] = [asdict(section) for section in sections]
        print(json.dumps(result, indent=2, ensure_ascii=False))
        return 1 if errors else 0

    notes = Console(stderr=True)

    def waiting(note: str) -> AbstractContextManager[Any]:
        return notes.status(note) if notes.is_terminal else nullcontext()

    console.print(f"Ferrata in {project.folder}", markup=False, soft_wrap=True)
    sections = []
    for section in diagnose(project, waiting):
        sections.append(section)
        show(section, console)
        sys.stdout.flush()
    errors, warnings = _count(sections, "error"), _count(sections, "warning")
    parts = [_number(errors, "error"), _number(warnings, "warning")]
    console.print(f"\n{parts[0]}, {parts[1]}", style="bold red" if errors else "bold")
    return 1 if errors else 0


def show(section: Section, console: Console) -> None:
    """Print a section; long texts wrap within their column."""
    from rich.table import Table
    from rich.text import Text

    console.print(f"\n{section.title}", style="bold", markup=False)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=2)
    table.add_column(width=7)
    table.add_column(width=13)
    table.add_column()
    for check in section.checks:
        text = Text(check.text)
        if check.next_step:
            text.append("\nnext: ", style="cyan")
            text.append(check.next_step)
        mark = Text(check.mark, style=COLOURS[check.mark])
        table.add_row("", mark, Text(check.name), text)
    console.print(table)


def from_error(name: str, error: FerrataError) -> Check:
    """The line for a mistake that a user can put right."""
    lines = error.what.splitlines()
    for label, value in (("found", error.found), ("expected", error.expected)):
        if value is not None:
            lines.append(f"{label}: {value}")
    text = "\n".join(line.strip() for line in lines)
    return Check("error", name, text, error.hint)


def _guarded(name: str, checker: Checker, project: Project) -> list[Check]:
    checks: list[Check] = []
    try:
        checks.extend(checker(project))  # what came before a failure stays
    except FerrataError as error:
        checks.append(from_error(name, error))
    except Exception as error:  # one check must not take the screen with it
        found = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        checks.append(Check("warning", name, f"cannot be checked: {found}"))
    return checks


def _plan() -> list[tuple[str, str, list[tuple[str, Checker]]]]:
    """Title, note while waiting, and named checks of every section."""
    from ferrata.housekeeping import graph, machine, storage

    return [
        (
            "Environment",
            "looking at the environment ...",
            [
                ("Python", machine.interpreter),
                ("packages", machine.packages),
                ("tools", machine.tools),
            ],
        ),
        (
            "Processor and GPU",
            "importing torch ...",
            [
                ("processor", machine.processor),
                ("GPU", machine.gpu),
                ("precision", machine.precision),
            ],
        ),
        (
            "Memory and disk",
            "measuring memory and disk ...",
            [
                ("memory", machine.memory),
                ("disk", machine.disk),
                ("in use", storage.disk_use),
            ],
        ),
        (
            "Left over",
            "looking for what was left over ...",
            [
                ("checkpoints", storage.interrupted),
                ("unfinished", storage.unfinished),
                ("records", storage.offline_records),
            ],
        ),
        (
            "Pipeline",
            "asking DVC what would run (some seconds) ...",
            [
                ("params.yaml", graph.parameters),
                ("dvc", graph.pipeline),
            ],
        ),
    ]


def _count(sections: Iterable[Section], mark: Mark) -> int:
    return sum(check.mark == mark for section in sections for check in section.checks)


def _number(count: int, word: str) -> str:
    return f"{count or 'no'} {word}{'' if count == 1 else 's'}"
