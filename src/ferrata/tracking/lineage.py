"""What a run came from: commit, parameters, DVC's hashes, versions, machine."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

VERSIONS = (
    *("torch", "transformers", "trl", "peft", "datasets", "accelerate", "tokenizers"),
    "mlflow",
)

# What a stage writes while it runs: a tree that differs only here is not a dirty tree.
_GENERATED = ("dvc.lock", "metrics")


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested parameters as `section.key` -> text; lists as JSON."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        elif isinstance(value, (list, tuple)):
            flat[f"{prefix}{key}"] = json.dumps(value, default=str)
        else:
            flat[f"{prefix}{key}"] = str(value)
    return flat


def pipeline_key(folder: Path) -> str:
    """What the stages of one pipeline share: the experiment's name, or commit and params.yaml's
    hash.
    """
    if name := os.environ.get("DVC_EXP_NAME"):
        return re.sub(r"[^\w./@-]", "_", name)  # it goes into a filter string
    params = folder / "params.yaml"
    digest = hashlib.sha256(params.read_bytes()).hexdigest()[:8] if params.is_file() else "noparams"
    return f"{(git_commit(folder) or 'nogit')[:12]}-{digest}"


def git_commit(folder: Path) -> str | None:
    """The commit checked out in `folder`, or None outside a repository."""
    return _git(folder, "rev-parse", "HEAD")


def dvc_dependencies(folder: Path, address: str | None) -> dict[str, str]:
    """DVC hashes, by path, of what the stage `address` (`DVC_STAGE`) of `folder` depends on.

    A stage's own entry in dvc.lock still describes its previous run while it runs, so only hashes
    that an earlier stage has written for its outputs are given; a dependency that no stage produces
    is left out.
    """
    if not address:
        return {}
    name = address.rpartition(":")[2]
    produced: dict[str, str] = {}
    wanted: set[str] = set()
    for stage, entry in _stages(folder / "dvc.lock").items():
        if stage == name:
            wanted.update(d["path"] for d in entry.get("deps", []) if "path" in d)
            continue
        for out in entry.get("outs", []):
            if "path" in out and "md5" in out:
                produced[out["path"]] = out["md5"]
    declared = _stages(folder / "dvc.yaml").get(name, {}).get("deps", [])
    wanted.update(d for d in declared if isinstance(d, str))
    return {path: produced[path] for path in sorted(wanted) if path in produced}


def lineage_tags(stage: str, folder: Path) -> dict[str, str]:
    """The tags by which a run of `stage` in `folder` can be traced back and compared."""
    commit = git_commit(folder) or "unknown"
    tags = {
        "ferrata.kind": "stage",
        "ferrata.stage": stage,
        "ferrata.commit": commit,
        "ferrata.dirty": _dirty(folder),
        "ferrata.device": device(),
        "ferrata.process": process_mark(os.getpid()),
    }
    if commit != "unknown":
        tags["mlflow.source.git.commit"] = commit
    for package in VERSIONS:
        with suppress(metadata.PackageNotFoundError):
            tags[f"ferrata.version.{package}"] = metadata.version(package)
    address = os.environ.get("DVC_STAGE")
    if address:
        tags["ferrata.dvc_stage"] = address
    if hashes := dvc_dependencies(folder, address):
        tags.update({f"ferrata.deps.{path}": value for path, value in hashes.items()})
        text = json.dumps(hashes, sort_keys=True)
        tags["ferrata.dvc_lock"] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return tags


def process_mark(pid: int) -> str:
    """Machine, process id and start time (ticks since boot): a reused id has another start time."""
    try:
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        started = "?"
    return f"{socket.gethostname()}:{pid}:{started}"


def process_is_gone(mark: str) -> bool:
    """Whether the process of this mark ran on this machine and runs no more."""
    host, _, rest = mark.rpartition(":")[0].rpartition(":")
    if host != socket.gethostname() or not rest.isdigit() or mark.endswith(":?"):
        return False  # of another machine, or this one cannot tell
    return process_mark(int(rest)) != mark


def device() -> str:
    """Processor or GPU, and the threads in use."""
    torch = sys.modules.get("torch")  # importing it only for a tag would cost seconds
    if torch is not None and torch.cuda.is_available():
        return f"cuda: {torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    threads = f", {torch.get_num_threads()} threads" if torch is not None else ""
    model = platform.processor() or platform.machine()
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text()
        if found := re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE):
            model = found.group(1)
    return f"cpu: {model}{threads}"


def _dirty(folder: Path) -> str:
    """'true' if anything but outputs of stages differs from the commit."""
    outs = {
        str(out["path"])
        for entry in _stages(folder / "dvc.lock").values()
        for out in entry.get("outs", [])
        if "path" in out
    }
    exclude = [f":(exclude){path}" for path in sorted({*_GENERATED, *outs})]
    status = _git(folder, "status", "--porcelain", "--", ".", *exclude)
    return "unknown" if status is None else str(bool(status)).lower()


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _stages(path: Path) -> dict[str, Any]:
    """The `stages` of a dvc.yaml or dvc.lock; empty if there is none that can be read."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        content = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
        return dict(content["stages"])
    except (OSError, YAMLError, KeyError, TypeError, ValueError):
        return {}
