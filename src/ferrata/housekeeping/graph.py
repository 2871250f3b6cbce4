"""Checks of `ferrata doctor` on the pipeline: parameters, outputs, and what would run."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ferrata.errors import FerrataError
from ferrata.housekeeping.checkpoints import running_processes
from ferrata.housekeeping.doctor import Check, Project, from_error
from ferrata.housekeeping.files import listed

PATIENCE_S = 120  # DVC hashes changed outputs before it answers
_NAME = r"'([^']+)'"


@dataclass(frozen=True)
class DryRun:
    """What `dvc repro --dry` said.

    run: stages that would run, in order.
    blocked: those it could not judge, as an input is not here, and all that follow from them.
    same: unchanged ones.
    complaints: its warnings and errors, one a line.
    """

    run: tuple[str, ...]
    blocked: tuple[str, ...]
    same: tuple[str, ...]
    complaints: tuple[str, ...]


def parameters(project: Project) -> Iterator[Check]:
    from ferrata.config.loader import load

    try:
        load(project.folder)
    except FerrataError as error:
        check = from_error("params.yaml", error)
        # The name of the file stands in the column before.
        yield replace(check, text=check.text.replace("\nparams.yaml: ", "\n"))
    else:
        yield Check("ok", "params.yaml", "valid")


def pipeline(project: Project) -> Iterator[Check]:
    """What would run, then whether what dvc.lock names is here."""
    if not (project.root / ".dvc").is_dir():
        yield Check(
            "error", "DVC", "no folder .dvc: DVC does not know this project", "git checkout .dvc"
        )
        return
    answer = dry_run(project.folder)
    known = {*answer.run, *answer.blocked, *answer.same} if answer else set()
    locked = _locked_outputs(project.folder)
    # An arm that was removed from params.yaml keeps its entry, but its outputs are not missed.
    stages = [stage for stage in locked if not known or stage in known]
    outs = [out for stage in stages for out in locked[stage]]
    missing = [out for out in outs if not os.path.lexists(project.folder / out["path"])]
    yield _would_run(project, answer, [str(out["path"]) for out in missing], list(locked))
    if not outs:
        yield Check("warning", "outputs", "none in dvc.lock: nothing was run yet", "dvc repro")
    elif not missing:
        yield Check("ok", "outputs", f"all {len(outs)} of dvc.lock are here")
    else:
        names = listed(str(out["path"]) for out in missing)
        text = f"{len(missing)} of {len(outs)} of dvc.lock are missing: {names}"
        yield Check("warning", "outputs", text, _brought_back(project.root, missing))


def _would_run(
    project: Project, answer: DryRun | None, missing: list[str], order: list[str]
) -> Check:
    """The line; missing: paths of outputs that are not here; order: stages as dvc.lock has them."""
    name = "would run"
    if answer is None:
        return Check("warning", name, f"cannot be said: DVC took more than {PATIENCE_S} s")
    # That a changed stage's input is not here is no fault: an earlier stage makes it.
    complaints = [
        line for line in answer.complaints if not any(f"/{path}'" in line for path in missing)
    ]
    if not answer.run and not answer.blocked:
        if not complaints:
            return Check("ok", name, "nothing: every stage is as dvc.lock says")
        text = "\n".join(complaints)
        if "lock" in text and (running := running_processes(project.root)):
            text = f"cannot be said: a DVC command is at work (process {running[0]})"
            return Check("warning", name, text)
        return Check("error", name, f"DVC refuses: {text}", "put that right, in dvc.yaml perhaps")
    text = listed([*answer.run, *answer.blocked[:1]], 20)
    if rest := answer.blocked[1:]:
        places = {stage: place for place, stage in enumerate(order)}
        text += "; then perhaps "
        text += listed(sorted(rest, key=lambda stage: places.get(stage, len(places))), 20)
    if "code" in answer.run and (changed := _changed_code(project)):
        text += f". New code, so these run, and what follows may: {', '.join(changed)}"
    if complaints:
        return Check("warning", name, "\n".join([text, *complaints]), "dvc repro")
    return Check("ok", name, text, "dvc repro")


def _changed_code(project: Project) -> list[str]:
    """Stages whose fingerprint the stage `code` would write anew; a dry run cannot know them."""
    from ferrata.config.fingerprint import write_fingerprints

    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / "code"
        if (project.folder / "code").is_dir():
            shutil.copytree(project.folder / "code", copy)
        return write_fingerprints(project.root, copy)


def _locked_outputs(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Stage -> its outputs, as dvc.lock has them."""
    from ferrata.config.loader import parse_yaml, read_text

    lock = folder / "dvc.lock"
    if not lock.is_file():
        return {}
    stages = parse_yaml(read_text(lock), lock.name).get("stages") or {}
    return {stage: list(entry.get("outs") or ()) for stage, entry in stages.items()}


def _brought_back(root: Path, missing: list[dict[str, Any]]) -> str:
    from dvc.config import Config

    from ferrata.housekeeping.storage import cache_folder

    cache = cache_folder(root)
    if all(_cached(out, cache) for out in missing):
        return "dvc checkout (they are in DVC's cache)"
    if Config(dvc_dir=str(root / ".dvc"), validate=False)["remote"]:
        return "dvc pull, or dvc repro to make them again"
    return "dvc repro makes them"


def _cached(out: Mapping[str, Any], cache: Path) -> bool:
    digest = str(out.get("md5", ""))
    return bool(digest) and (cache / "files" / "md5" / digest[:2] / digest[2:]).exists()


def dry_run(folder: Path, patience_s: float = PATIENCE_S) -> DryRun | None:
    """Ask DVC what `dvc repro` would run in a pipeline's folder; None if it takes too long.

    Missing outputs of unchanged stages do not count as changes, so a fresh clone is judged by what
    it would have to compute.
    """
    # This interpreter's DVC, whatever PATH says; -P: the project's folders are no modules.
    command = [sys.executable, "-P", "-m", "dvc", "repro", "--dry", "--allow-missing"]
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("DVC_", "GIT_"))}
    process = subprocess.Popen(
        [*command, "--keep-going"],
        cwd=folder,
        env={**kept, "DVC_NO_ANALYTICS": "1", "PYTHONDONTWRITEBYTECODE": "1", "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # its children must end with it
    )
    try:
        output, _ = process.communicate(timeout=patience_s)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            return None
        raise
    return parse_dry_run(output, process.returncode)


def parse_dry_run(output: str, status: int) -> DryRun:
    """Take the output of `dvc repro --dry --keep-going` (dvc 3.67) apart."""
    # A study inside the project has its folder before the name: `experiments/x/dvc.yaml:sft`.
    run = _names(r"^Running stage '([^']+)':", output)
    same = _names(r"^Stage '([^']+)' (?:didn't change|is cached)", output)
    failed: list[str] = []
    skipped: list[str] = []
    complaints: list[str] = []
    for line in output.splitlines():
        kind, _, text = line.partition(": ")
        if kind not in ("WARNING", "ERROR"):
            continue
        if text.startswith("failed to reproduce"):
            failed += _names(_NAME, text)
        elif text.endswith("will be skipped due to this failure"):
            skipped += _names(_NAME, text)
        else:
            complaints.append(text)
    if status and not (failed or complaints):
        complaints.append(" ".join(output.split())[-300:] or f"exit status {status}")
    blocked = dict.fromkeys([*failed, *skipped])
    return DryRun(
        tuple(name for name in run if name not in blocked),
        tuple(blocked),
        tuple(same),
        tuple(dict.fromkeys(complaints)),
    )


def _names(pattern: str, text: str) -> list[str]:
    found = re.findall(pattern, text, re.MULTILINE)
    short = [name.rpartition(":")[2] for name in found]
    return [name for name in short if "/" not in name]  # a path, no stage
