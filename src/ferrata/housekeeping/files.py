"""Sizes, ages and places of files; symbolic links are never followed."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Usage:
    """What a file or folder takes.

    size: bytes; a file with several hard links inside the folder counts once.
    newest: time of the last change in it, seconds since the epoch; 0 if there is nothing.
    complete: whether all of it could be read.
    """

    size: int = 0
    newest: float = 0.0
    complete: bool = True

    def __str__(self) -> str:
        return human_size(self.size) if self.complete else f"at least {human_size(self.size)}"


def measure(*paths: Path) -> Usage:
    """Size and last change of files and folders together; what does not exist counts as empty.

    A link counts as itself and is not followed.
    """
    seen: set[tuple[int, int]] = set()
    size, newest, complete = 0, 0.0, True
    todo = [os.fspath(path) for path in paths]
    while todo:
        path = todo.pop()
        try:
            status = os.lstat(path)
            if stat.S_ISDIR(status.st_mode):
                todo += [entry.path for entry in os.scandir(path)]
            elif (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                size += status.st_size
        except FileNotFoundError:  # absent, or removed while we look
            continue
        except OSError:
            complete = False
            continue
        newest = max(newest, status.st_mtime)
    return Usage(size, newest, complete)


def human_size(size: float) -> str:
    """Bytes in decimal units with two or three digits: `1.6 GB`, `230 MB`, `0 B`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 9.95 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.0f} TB" if size >= 9.95 else f"{size:.1f} TB"


def human_age(moment: float) -> str:
    """Time since a moment (seconds since the epoch), as `3 hours ago`."""
    seconds = max(0.0, time.time() - moment)
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"


def listed(names: Iterable[str], most: int = 8) -> str:
    """Names with commas, cut after `most` of them: `a, b and 3 more`."""
    every = list(names)
    shown = ", ".join(every[:most])
    return f"{shown} and {len(every) - most} more" if len(every) > most else shown


def is_real_folder(path: Path) -> bool:
    """Whether it is a folder itself, not a link to one."""
    return path.is_dir() and not path.is_symlink()


def children(folder: Path) -> list[Path]:
    """What is in a folder, sorted; nothing if it is absent or a link.

    Raises:
        OSError: the folder cannot be read.
    """
    return sorted(folder.iterdir()) if is_real_folder(folder) else []


def pipelines(root: Path) -> list[Path]:
    """The project and the studies inside it (`experiments/NAME`), each with its own outputs."""
    studies = [
        folder
        for folder in children(root / "experiments")
        if is_real_folder(folder) and (folder / "dvc.yaml").is_file()
    ]
    return [root, *studies]
