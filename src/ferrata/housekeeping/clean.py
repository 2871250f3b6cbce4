"""`ferrata clean`: removes what is safe to remove, after it has listed it and asked."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from pathlib import Path

from ferrata.errors import FerrataError
from ferrata.housekeeping.checkpoints import PARTIAL
from ferrata.housekeeping.files import human_size, is_real_folder
from ferrata.housekeeping.removable import Item, Left, Plan, plan


class InUse(Exception):
    """A process took the lock between the listing and the removal."""


def remove(root: Path, items: tuple[Item, ...]) -> tuple[int, list[Left]]:
    """Remove items; returns the bytes of those that went and those that could not, with reasons.

    A failure does not stop the others.
    """
    root = root.resolve()
    freed, failed = 0, []
    for item in items:
        try:
            if item.lock is not None:
                _remove_locked(item, item.lock)
            else:
                for path in item.paths:
                    _remove(path)
        except InUse:
            failed.append(Left(item.name, "a process has begun to use it"))
        except OSError as error:
            failed.append(Left(item.name, f"cannot be removed: {error.strerror or error}"))
        else:
            freed += item.usage.size
    return freed, failed


def run(*, dry_run: bool, yes: bool, keep_checkpoints: bool = False) -> int:
    """The command: list, ask, remove; 1 if something could not be removed, else 0.

    Raises:
        FerrataError: no project, git gives no answer, or nobody can be asked.
    """
    from ferrata.config.paths import project_root

    root = project_root()
    found = plan(root, keep_checkpoints=keep_checkpoints)
    _show(root, found)
    if dry_run or not found.items:
        return 0
    if not yes:
        if not sys.stdin.isatty():
            raise FerrataError(
                "clean asks before it removes, and there is no terminal to ask on",
                hint="`ferrata clean --yes` removes what is listed, `--dry-run` only lists",
            )
        if not _confirmed():
            print("nothing removed")
            return 0
    freed, failed = remove(root, found.items)
    print(f"removed {human_size(freed)}")
    for entry in failed:
        print(f"not removed: {entry.name}: {entry.reason}", file=sys.stderr)
    return 1 if failed else 0


def _confirmed() -> bool:
    try:
        return input("\nRemove? [y/N] ").strip().lower() in ("y", "yes")
    except (EOFError, KeyboardInterrupt):
        print()
        return False


def _remove(path: Path) -> None:
    if path.parent.resolve() != path.parent:  # a folder above has become a link since the listing
        raise OSError(f"{path.parent} is a link")
    if is_real_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _remove_locked(item: Item, folder: Path) -> None:
    """Remove with the lock in hand, so that no stage can start in the middle.

    A whole key folder is renamed first: a stage that starts now makes a new one, and what an
    interrupted removal leaves is a `*.partial`, never half a checkpoint.

    Raises:
        InUse: the lock is held.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(folder / "lock", flags)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for path in item.paths:
            if path == folder:
                aside = folder.with_name(f"{folder.name}.{os.getpid()}{PARTIAL}")
                os.rename(folder, aside)
                path = aside
            _remove(path)
    except BlockingIOError:
        raise InUse from None
    finally:
        os.close(descriptor)


def _show(root: Path, found: Plan) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ferrata.housekeeping.doctor import WIDEST
    from ferrata.housekeeping.storage import stores

    console = Console(highlight=False)
    console.width = min(console.width, WIDEST)

    def table(title: str, rows: list[tuple[str, str, str]]) -> None:
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=9, justify="right")
        grid.add_column()
        for size, name, reason in rows:
            text = Text(name)
            text.append(f"\n{reason}", style="dim")
            grid.add_row(size, text)
        console.print(title, style="bold", markup=False)
        console.print(grid)

    if found.items:
        rows = [(str(item.usage), item.label, item.reason) for item in found.items]
        table("Safe to remove", rows)
        console.print(f"{human_size(found.size):>9}  in all", style="bold")
    else:
        console.print("Nothing to remove", style="bold")
    if found.left:
        console.print()
        table("Left alone", [("", entry.name, entry.reason) for entry in found.left])
    console.print()
    rows = [(str(store.usage), store.name, store.cleaned) for store in stores(root)]
    table("Never removed by this command", rows)
