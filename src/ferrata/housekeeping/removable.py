"""What is safe to remove from a project, and what looks so but stays.

Safe is what a stage, Python or a tool makes again and nobody uses at the moment. Models, data,
DVC's cache, MLflow's records and what git or DVC tracks are never removable, and links are never
followed. Nothing is written here.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ferrata.errors import FerrataError
from ferrata.housekeeping.checkpoints import (
    FOLDER,
    PARTIAL,
    KeyFolder,
    key_folders,
    unfinished_entries,
    whoever_runs,
)
from ferrata.housekeeping.files import (
    Usage,
    children,
    human_age,
    is_real_folder,
    measure,
    pipelines,
)

# What has no lock of its own and changed within this time may be in use: it is left.
QUIET_S = 600
TOOL_CACHES = (".pytest_cache", ".ruff_cache", ".mypy_cache")
# No search for Python's caches in these: they hold other things, or are large.
NOT_SEARCHED = (FOLDER, ".git", ".dvc", "models", "data", "evaluations", "mlartifacts", "mlruns")


@dataclass(frozen=True)
class Item:
    """Something to remove.

    paths: folders or files that go together.
    lock: the key folder whose lock must be had while they go.
    """

    name: str
    paths: tuple[Path, ...]
    usage: Usage
    reason: str
    lock: Path | None = None

    @property
    def label(self) -> str:
        """The name, and of how many it is if they are several."""
        return self.name if len(self.paths) == 1 else f"{self.name} ({len(self.paths)} of them)"


@dataclass(frozen=True)
class Left:
    """Something that looks removable and stays, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Plan:
    items: tuple[Item, ...]
    left: tuple[Left, ...]

    @property
    def size(self) -> int:
        return sum(item.usage.size for item in self.items)


def plan(root: Path, *, keep_checkpoints: bool = False) -> Plan:
    """What would be removed from a project, and what looks so but stays.

    Args:
        root: the project's folder.
        keep_checkpoints: leave what an interrupted stage can go on from.

    Raises:
        FerrataError: git does not say what it tracks.
    """
    root = root.resolve()
    tracked = _tracked_by_git(root)
    outputs = _outputs(root)
    items: list[Item] = []
    left: list[Left] = []
    found = [*_checkpoints(root, keep_checkpoints), *_unfinished(root), *_made_again(root)]
    for entry in found:
        if isinstance(entry, Left):
            left.append(entry)
            continue
        free: list[Path] = []
        for path in entry.paths:
            name = _name(path, root)
            if any(file == name or file.startswith(f"{name}/") for file in tracked):
                left.append(Left(name, "git tracks files of it"))
            elif _overlaps(path, outputs) or path.with_name(f"{path.name}.dvc").exists():
                left.append(Left(name, "DVC tracks it"))
            else:
                free.append(path)
        if len(free) == len(entry.paths):
            items.append(entry)
        elif free:
            items.append(replace(entry, paths=tuple(free), usage=measure(*free)))
    return Plan(tuple(items), tuple(left))


def _checkpoints(root: Path, keep: bool) -> Iterator[Item | Left]:
    """Key folders of interrupted stages, and links in place of folders."""
    for link in [root / FOLDER, *children(root / FOLDER)]:
        if link.is_symlink():
            yield Left(_name(link, root), "a link, not followed")
    for stage in children(root / FOLDER):
        for entry in children(stage):
            if entry.is_symlink():
                yield Left(_name(entry, root), "a link, not followed")
    for folder in key_folders(root):
        yield from _checkpoint(folder, _name(folder.path, root), keep)


def _checkpoint(folder: KeyFolder, name: str, keep: bool) -> Iterator[Item | Left]:
    lock, usage, stage, step = folder.lock(), folder.usage, folder.stage, folder.step
    if lock.state == "held":
        yield Left(name, f"in use by process {lock.detail}" if lock.detail else "in use")
        return
    if lock.state == "unknown":
        yield Left(name, f"perhaps in use: {lock.detail}")
        return
    if lock.state == "absent" and _recent(usage):
        yield Left(name, f"perhaps in use: no lock, changed {human_age(usage.newest)}")
        return
    held = folder.path if lock.state == "free" else None
    if step and keep:
        yield Left(name, f"kept: {stage} can go on from step {step}")
        rest = [entry for entry in children(folder.path) if _is_partial(entry)]
        if rest:
            names = f"{name}/*{PARTIAL}"
            yield Item(names, tuple(rest), measure(*rest), "never finished", held)
        return
    when = human_age(usage.newest)
    reason = (
        f"{stage} was interrupted at step {step}, {when}; without it, {stage} would start again "
        "from step 0"
        if step
        else f"{stage} was interrupted before its first checkpoint, {when}; nothing is lost"
    )
    yield Item(name, (folder.path,), usage, reason, held)


def _unfinished(root: Path) -> Iterator[Item | Left]:
    """`*.partial` beside key folders and beside models: what a killed process was writing."""
    entries = unfinished_entries(root)
    if not entries:
        return
    running = whoever_runs(root)
    for entry in entries:
        name, usage = _name(entry, root), measure(entry)
        if entry.is_symlink():
            if entry.parent.name == "models":  # those in .checkpoints are named already
                yield Left(name, "a link, not followed")
        elif running:
            yield Left(name, f"{running} is running and may be writing it")
        elif _recent(usage):
            yield Left(name, f"perhaps in use: changed {human_age(usage.newest)}")
        else:
            reason = f"never finished, {human_age(usage.newest)}"
            yield Item(name, (entry,), usage, reason)


def _made_again(root: Path) -> Iterator[Item]:
    """Caches of Python and of tools, and the pages of `dvc plots`."""
    caches = list(_python_caches(root))
    compiled = [path for path in caches if path.name == "__pycache__"]
    if compiled:
        reason = "compiled modules; Python makes them again"
        yield Item("__pycache__", tuple(compiled), measure(*compiled), reason)
    for path in caches:
        if path.name != "__pycache__":
            tool = path.name.strip(".").partition("_")[0]
            reason = f"cache of {tool}, which makes it again"
            yield Item(_name(path, root), (path,), measure(path), reason)
    for folder in pipelines(root):
        path = folder / "dvc_plots"
        if is_real_folder(path):
            reason = "`dvc plots show` and `diff` make it again"
            yield Item(_name(path, root), (path,), measure(path), reason)


def _python_caches(root: Path) -> Iterator[Path]:
    todo = [root]
    while todo:
        folder = todo.pop()
        try:
            inside = [entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
        except OSError:  # unreadable: nothing of it is removed
            continue
        for entry in sorted(inside, key=lambda entry: entry.name):
            path = Path(entry.path)
            if entry.name == "__pycache__" or entry.name in TOOL_CACHES:
                yield path
            elif entry.name not in NOT_SEARCHED and not _is_foreign(path):
                todo.append(path)


def _is_foreign(folder: Path) -> bool:
    """Whether a folder is a virtual environment or another repository."""
    return any(os.path.lexists(folder / name) for name in ("pyvenv.cfg", ".git"))


def _is_partial(entry: Path) -> bool:
    return entry.name.endswith(PARTIAL) and not entry.is_symlink()


def _overlaps(path: Path, outputs: frozenset[Path]) -> bool:
    """Whether a path is an output, lies in one or holds one."""
    return any(path.is_relative_to(out) or out.is_relative_to(path) for out in outputs)


def _recent(usage: Usage) -> bool:
    return time.time() - usage.newest < QUIET_S


def _name(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _tracked_by_git(root: Path) -> frozenset[str]:
    """Paths below root that git tracks; empty without a repository.

    Raises:
        FerrataError: there is a repository, and git does not answer.
    """
    if not any(os.path.lexists(folder / ".git") for folder in (root, *root.parents)):
        return frozenset()
    # Within a git hook these would name another repository.
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", "-C", str(root), "ls-files", "-z"]
    try:
        done = subprocess.run(command, env=env, capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error).encode()
        raise FerrataError(
            "git does not say which files it tracks, so nothing is removed",
            found=said.decode(errors="replace").strip(),
            expected=f"`git ls-files` works in {root}",
        ) from None
    return frozenset(os.fsdecode(done.stdout).split("\0")) - {""}


def _outputs(root: Path) -> frozenset[Path]:
    """What the dvc.lock of the project and of its studies name as outputs.

    Raises:
        FerrataError: a dvc.lock cannot be read.
    """
    from ferrata.config.loader import parse_yaml, read_text

    found: set[Path] = set()
    for folder in pipelines(root):
        lock = folder / "dvc.lock"
        if lock.is_file():
            stages = parse_yaml(read_text(lock), _name(lock, root)).get("stages") or {}
            outs = [out for entry in stages.values() for out in entry.get("outs") or ()]
            found |= {Path(os.path.normpath(folder / out["path"])) for out in outs}
    return frozenset(found)
