"""What interrupted training stages left under `.checkpoints/`, and whether a process uses it.

The layout is that of `ferrata.training.checkpoint`: `.checkpoints/<stage>/<key>/` with the file
`lock`, complete checkpoints `step-N`, best weights `best-N`, unfinished ones `*.partial`. It is
read here without torch, and nothing is written.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ferrata.housekeeping.files import Usage, children, is_real_folder, measure, pipelines

FOLDER = ".checkpoints"
PARTIAL = ".partial"


@dataclass(frozen=True)
class Lock:
    """State of a key folder's lock.

    state: `free`; `held` by a running process; `absent`: there is no lock file; `unknown`: it
        could not be tried.
    detail: the process id if held and noted, the reason if unknown.
    """

    state: str
    detail: str = ""


@dataclass(frozen=True)
class KeyFolder:
    """`.checkpoints/<stage>/<key>`: the checkpoints of one training run that did not end well."""

    path: Path

    @property
    def stage(self) -> str:
        return self.path.parent.name

    @cached_property
    def usage(self) -> Usage:
        return measure(self.path)

    @cached_property
    def step(self) -> int:
        """Step of the newest complete checkpoint; 0: there is none, the stage would begin anew."""
        found = [0]
        for entry in children(self.path):
            match = re.fullmatch(r"step-(\d+)", entry.name)
            if match and is_real_folder(entry) and _has_manifest(entry):
                found.append(int(match.group(1)))
        return max(found)

    def lock(self) -> Lock:
        """Try the lock without keeping it.

        Shared, so that two who look do not see each other, and for an instant only: a stage that
        starts in this very instant would be told that its folder is in use.
        """
        try:
            # O_NONBLOCK: opening a pipe by this name would wait for ever.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(self.path / "lock", flags)
        except FileNotFoundError:
            return Lock("absent")
        except OSError as error:
            return Lock("unknown", f"the lock cannot be opened: {error.strerror}")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            noted = os.read(descriptor, 20).decode(errors="replace").strip()
            return Lock("held", noted if noted.isdigit() else "")
        except OSError as error:
            return Lock("unknown", f"the lock cannot be tried: {error.strerror}")
        finally:
            os.close(descriptor)
        return Lock("free")


def key_folders(root: Path) -> list[KeyFolder]:
    """All key folders of the project, unfinished `*.partial` ones not counted."""
    return [
        KeyFolder(entry)
        for stage in children(root / FOLDER)
        if not stage.name.endswith(PARTIAL)
        for entry in children(stage)
        if is_real_folder(entry) and not entry.name.endswith(PARTIAL)
    ]


def unfinished_entries(root: Path) -> list[Path]:
    """`*.partial` beside key folders and beside models, links included: what a killed process was
    writing."""
    places = [root / FOLDER, *children(root / FOLDER)]
    places += [folder / "models" for folder in pipelines(root)]
    entries = [e for place in places if not place.name.endswith(PARTIAL) for e in children(place)]
    return [entry for entry in entries if entry.name.endswith(PARTIAL)]


def running_processes(root: Path) -> list[int]:
    """Ids of live processes that DVC notes as readers or writers of this project's files.

    Raises:
        OSError: the notes cannot be read.
    """
    try:
        notes = json.loads((root / ".dvc" / "tmp" / "rwlock").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # none, or being written
        return []
    found: set[int] = set()
    if isinstance(notes, dict):
        for paths in notes.values():
            # Readers are lists of processes, writers single ones.
            for users in paths.values() if isinstance(paths, dict) else ():
                for user in users if isinstance(users, list) else [users]:
                    if isinstance(user, dict) and isinstance(user.get("pid"), int):
                        found.add(user["pid"])
    return sorted(pid for pid in found if _lives(pid))


def whoever_runs(root: Path) -> str | None:
    """`process 123` if a stage of the project seems to be running, which may be writing files that
    have no lock of their own; None if not.

    Raises:
        OSError: DVC's notes cannot be read.
    """
    for folder in key_folders(root):
        lock = folder.lock()
        if lock.state == "held":
            return f"process {lock.detail or '?'}"
    running = running_processes(root)
    return f"process {running[0]}" if running else None


def _has_manifest(folder: Path) -> bool:
    try:
        return isinstance(json.loads((folder / "manifest.json").read_bytes()), dict)
    except (OSError, ValueError):
        return False


def _lives(pid: int) -> bool:
    import psutil

    return bool(psutil.pid_exists(pid))
