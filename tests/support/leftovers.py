"""Files as killed stages and tools leave them, for the tests of housekeeping."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import time
from pathlib import Path

LONG_AGO = time.time() - 7500  # seconds; a little over two hours


def git(root: Path, *words: str) -> None:
    user = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "-C", str(root), *user, *words], check=True)


def write(path: Path, text: str = "x" * 1000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def age(path: Path) -> Path:
    """Make a file or folder, and all in it, look two hours old."""
    for entry in [*path.rglob("*"), path]:
        os.utime(entry, (LONG_AGO, LONG_AGO), follow_symlinks=False)
    return path


def interrupted(
    root: Path, stage: str = "rl", key: str = "0123456789abcdef", step: int = 4
) -> Path:
    """A key folder as a killed stage leaves it; without a checkpoint if step is 0."""
    folder = root / ".checkpoints" / stage / key
    write(folder / "lock", "4194304")
    write(folder / "writing.partial" / "weights")
    if step:
        write(folder / f"step-{step}" / "manifest.json", json.dumps({"step": step}))
        write(folder / f"step-{step}" / "weights")
        write(folder / f"best-{step}" / "weights")
    write(folder / f"step-{step + 1}" / "weights")  # no manifest: not complete
    return age(folder)


def is_locked(folder: Path) -> bool:
    with (folder / "lock").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def snapshot(root: Path) -> dict[str, tuple[int, int]]:
    """Every path of a project with size and time of change; DVC's notes to itself are left out."""
    found = {}
    for path in root.rglob("*"):
        name = path.relative_to(root).as_posix()
        if not name.startswith((".dvc/tmp", ".git/")) and not path.is_dir():
            status = path.lstat()
            found[name] = (status.st_size, status.st_mtime_ns)
    return found
