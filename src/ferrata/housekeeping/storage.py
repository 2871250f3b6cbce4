"""Checks of `ferrata doctor` on what is stored: disk use, interrupted stages, offline records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ferrata.housekeeping.checkpoints import (
    FOLDER,
    KeyFolder,
    key_folders,
    unfinished_entries,
    whoever_runs,
)
from ferrata.housekeeping.doctor import Check, Project
from ferrata.housekeeping.files import (
    Usage,
    children,
    human_age,
    human_size,
    listed,
    measure,
    pipelines,
)


@dataclass(frozen=True)
class Store:
    """A place that fills the disk: its name, its size, and how it is cleaned."""

    name: str
    usage: Usage
    cleaned: str


def cache_folder(root: Path) -> Path:
    """DVC's cache: `cache.dir` of its configuration, else `.dvc/cache`."""
    from dvc.config import Config

    folder = Config(dvc_dir=str(root / ".dvc"), validate=False)["cache"].get("dir")
    return (root / ".dvc" / folder if folder else root / ".dvc" / "cache").resolve()


def stores(root: Path) -> list[Store]:
    """What `ferrata clean` never touches, with the command that cleans it."""
    folders = pipelines(root)
    outputs = [folder / name for folder in folders for name in ("models", "data", "evaluations")]
    gc = "mlflow gc --backend-store-uri sqlite:///mlflow.db"
    records = [*root.glob("mlflow.db*"), root / "mlartifacts"]
    return [
        Store(
            "models, data, evaluations",
            measure(*outputs),
            "outputs of stages: `dvc repro` or `dvc checkout` brings a removed one back",
        ),
        Store(
            "DVC cache",
            measure(cache_folder(root)),
            "`dvc gc --workspace` drops all but the present workspace's outputs "
            "(--all-commits keeps those of every commit)",
        ),
        Store(
            "mlflow.db, mlartifacts",
            measure(*records),
            f"`{gc}` drops the runs that were deleted in `make ui`",
        ),
    ]


def disk_use(project: Project) -> Iterator[Check]:
    root = project.root
    sizes = {
        name: measure(*(folder / name for folder in pipelines(root)))
        for name in ("models", "data", "evaluations")
    }
    text = ", ".join(f"{name} {usage}" for name, usage in sizes.items())
    yield Check("ok", "stage outputs", text)
    cache = cache_folder(root)
    inside = cache.is_relative_to(root)
    place = cache.relative_to(root) if inside else cache
    yield Check("ok", "DVC cache", f"{measure(cache)} in {place}")
    records = measure(*root.glob("mlflow.db*"), root / "mlartifacts")
    yield Check("ok", "MLflow", f"{records} in mlflow.db and mlartifacts/")
    yield Check("ok", FOLDER, str(measure(root / FOLDER)))


def interrupted(project: Project) -> Iterator[Check]:
    """One line per key folder: a running stage has one, an interrupted one has left one."""
    found = key_folders(project.root)
    for folder in found:
        yield _interrupted(folder)
    if not found:
        yield Check("ok", "checkpoints", "none: no stage was interrupted")


def _interrupted(folder: KeyFolder) -> Check:
    usage, lock = folder.usage, folder.lock()
    where = f"{folder.path.parent.name}/{folder.path.name}, {usage}"
    at = f"at step {folder.step}" if folder.step else "before its first checkpoint"
    if lock.state == "held":
        by = f" by process {lock.detail}" if lock.detail else ""
        reached = f"checkpoint of step {folder.step}" if folder.step else "no checkpoint yet"
        return Check("ok", folder.stage, f"in use{by}, {reached}: {where}")
    if lock.state == "unknown":
        return Check("warning", folder.stage, f"{where}: {lock.detail}")
    return Check(
        "warning",
        folder.stage,
        f"interrupted {at}, {human_age(usage.newest)}: {where}",
        "`dvc repro` goes on from there if parameters, data and code are as they were; "
        "`ferrata clean` removes it"
        if folder.step
        else "`ferrata clean` removes it",
    )


def unfinished(project: Project) -> Iterator[Check]:
    """`*.partial` next to models and key folders: what a killed process was writing."""
    root = project.root
    found = unfinished_entries(root)
    if not found:
        return
    names = listed(str(entry.relative_to(root)) for entry in found)
    size = human_size(measure(*found).size)
    if running := whoever_runs(root):
        yield Check("ok", "unfinished", f"perhaps being written by {running}: {names}, {size}")
        return
    yield Check("warning", "unfinished", f"{names}, {size}", "`ferrata clean` removes it")


def offline_records(project: Project) -> Iterator[Check]:
    """What stages logged to files because MLflow did not answer."""
    folder = project.root / ".mlflow-offline"
    found = [entry for entry in children(folder) if entry.suffix == ".jsonl"]
    if not found:
        yield Check("ok", "MLflow", "no records wait outside of it")
        return
    size, newest = measure(*found).size, max(entry.stat().st_mtime for entry in found)
    count = "1 record is" if len(found) == 1 else f"{len(found)} records are"
    yield Check(
        "warning",
        "MLflow",
        f"{count} not in MLflow, because it did not answer: {human_size(size)} of JSON Lines in "
        f".mlflow-offline, the newest {human_age(newest)}",
        "keep them; see that MLflow answers at MLFLOW_TRACKING_URI (if that is set)",
    )
