"""Checkpoints that survive a kill at any moment, so that training goes on where it was.

A stage's checkpoints lie under `.checkpoints/<stage>/<key>/`, where the key is a hash of everything
the result depends on: a changed parameter never continues an old run. A checkpoint is written
aside, synced, given a manifest of sizes and hashes, and renamed; one that a kill, a full disk or a
bad sector left incomplete is recognised and passed over. transformers writes and reads the content
(weights, optimizer, schedule, random states, log history); what is added here makes it atomic.

Layout: `lock` (held by the process that trains), `step-N/` (complete), `best-N/` (weights of the
best validation so far), `*.partial` (unfinished).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ferrata.errors import FerrataError
from ferrata.training.launch import rank

KEPT = 2  # complete checkpoints; the older one serves if the newer turns out to be damaged
MANIFEST = "manifest.json"
_CHUNK = 1 << 22  # bytes read at once while hashing


def content_key(settings: Mapping[str, Any], paths: Sequence[Path]) -> str:
    """Sixteen hex digits for parameters and for the content of files and folders; a path that does
    not exist counts as empty."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for path in paths:
        for file in _files(path) if path.is_dir() else [path] * path.is_file():
            name = file.relative_to(path) if file != path else Path(file.name)
            digest.update(f"\0{name}\0{_sha256(file)}".encode())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: `folder` for the trainer's `resume_from_checkpoint`, and the notes
    that were given when it was sealed."""

    folder: Path
    step: int
    notes: dict[str, Any]


class CheckpointFolder:
    """The checkpoints of one training run; `checkpoints` opens it.

    Attributes:
        path: `.checkpoints/<stage>/<key>`.
        scratch: where the trainer writes; its content is worthless until sealed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stage = path.parent.name
        self.scratch = path / "writing.partial"
        self.newest = 0  # step of the newest complete checkpoint; 0: there is none

    def latest(self) -> Checkpoint | None:
        """The newest complete checkpoint; damaged ones are removed and named on stderr."""
        for step in sorted(self._steps(), reverse=True):
            folder = self.path / f"step-{step}"
            try:
                notes = self._verified(folder)
            except (OSError, ValueError, KeyError, TypeError) as error:
                _say(f"{self.stage}: checkpoint {folder} is damaged ({error}) and is passed over")
                shutil.rmtree(folder, ignore_errors=True)
                continue
            self.newest = step
            return Checkpoint(folder, step, notes)
        return None

    def seal(self, written: Path, step: int, notes: Mapping[str, Any]) -> None:
        """Make what the trainer has written in `written` the checkpoint of `step`; older ones go.

        `notes["best"]`, if set, names the folder `best-N` that this checkpoint needs.

        Raises:
            OSError: it could not be written; the checkpoints before are untouched.
        """
        files = {}
        for file in _files(written):
            files[str(file.relative_to(written))] = [file.stat().st_size, _sha256(file)]
            _sync(file)
        manifest = written / MANIFEST
        content = {"step": step, "notes": dict(notes), "files": files}
        manifest.write_text(json.dumps(content, indent=1), encoding="utf-8")
        _sync(manifest)
        _sync(written)
        target = self.path / f"step-{step}"
        shutil.rmtree(target, ignore_errors=True)
        os.replace(written, target)
        _sync(self.path)
        self.newest = step
        self._prune()

    def failed(self, step: int, error: Exception) -> None:
        """Say that the checkpoint of `step` could not be written, and clear what there is of it."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        kept = f"the one of step {self.newest} stays" if self.newest else "there is none before"
        _say(
            f"{self.stage}: the checkpoint of step {step} could not be written to {self.path} "
            f"({_one_line(error)}); {kept}. Training goes on. Next step: free disk space "
            "(`ferrata doctor` shows what uses it)"
        )

    def _steps(self) -> list[int]:
        found = (re.fullmatch(r"step-(\d+)", entry.name) for entry in self.path.iterdir())
        return [int(match.group(1)) for match in found if match]

    def _verified(self, folder: Path) -> dict[str, Any]:
        """Notes of a checkpoint whose files, and whose best weights, are as they were written."""
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        for name, (size, digest) in manifest["files"].items():
            file = folder / name
            if not file.is_file() or file.stat().st_size != size or _sha256(file) != digest:
                raise ValueError(f"{name} is not as it was written")
        notes = dict(manifest["notes"])
        best = notes.get("best")
        if best is not None and not (self.path / best).is_dir():
            raise ValueError(f"{best} is missing")
        return notes

    def _prune(self) -> None:
        """Keep the newest checkpoints and the best weights that these name."""
        steps = sorted(self._steps(), reverse=True)
        for step in steps[KEPT:]:
            shutil.rmtree(self.path / f"step-{step}", ignore_errors=True)
        needed = set()
        for step in steps[:KEPT]:
            with suppress(OSError, ValueError, KeyError):
                text = (self.path / f"step-{step}" / MANIFEST).read_text(encoding="utf-8")
                needed.add(json.loads(text)["notes"]["best"])
        for folder in self.path.glob("best-*"):
            if folder.name not in needed:
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def checkpoints(root: Path, stage: str, key: str) -> Iterator[CheckpointFolder]:
    """Open the checkpoints of a stage for the time of the block.

    They are removed when the block ends well, and kept when it does not: running the stage again
    goes on from the newest. Folders of other keys, left by runs with other parameters or code, go
    when their own run is done or with `ferrata clean`.

    Args:
        root: the project's root.
        key: from `content_key`.

    Raises:
        FerrataError: another process trains in the same folder, or the disk is full.
    """
    folder = CheckpointFolder(root / ".checkpoints" / stage / key)
    if rank() != 0:  # process 0 locks, seals and clears for all
        yield folder
        return
    with _locked(folder):
        shutil.rmtree(folder.scratch, ignore_errors=True)
        try:
            yield folder
        except BaseException as error:
            shutil.rmtree(folder.scratch, ignore_errors=True)
            _say(_how_to_go_on(folder, error))
            if no_space(error):
                raise FerrataError(
                    f"{stage}: no space left on the disk",
                    found=_one_line(error),
                    expected=f"{shutil.disk_usage(root).free / 1e9:.1f} GB are free, more is "
                    "needed for weights and optimizer",
                    hint="`ferrata doctor` shows what uses the disk; then run `dvc repro` again",
                ) from error
            raise
        shutil.rmtree(folder.path, ignore_errors=True)


@contextmanager
def _locked(folder: CheckpointFolder) -> Iterator[None]:
    """Hold the folder's lock; it goes with the process, however that ends."""
    path = folder.path / "lock"
    folder.path.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise FerrataError(
                f"{folder.stage}: the checkpoint folder is in use",
                found=f"process {file.read().strip() or '?'} trains in {folder.path}",
                expected="one process per folder; it computes the same result",
                hint="wait for it, or end it, then run the same command again",
            ) from None
        # Between opening and locking, `ferrata clean` or the end of another run may have removed
        # the folder: a lock on a file that nobody else can find locks nothing.
        if not path.exists() or not os.path.samestat(path.stat(), os.fstat(file.fileno())):
            raise FerrataError(
                f"{folder.stage}: the checkpoint folder was removed while it was being opened",
                found=str(folder.path),
                hint="run the same command again",
            )
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def resumable(trainer_class: type) -> type:
    """A transformers (or TRL) trainer class whose checkpoints are sealed in a CheckpointFolder.

    The trainer's `output_dir` must be the folder's `scratch`. Set `checkpoint_folder`, and
    `checkpoint_notes` to a function without arguments that returns what `seal` is to note. Without
    a folder nothing is saved. A checkpoint that cannot be written is said and passed over: losing
    it costs time only if the run is interrupted, stopping would cost it for certain.
    """

    class Resumable(trainer_class):  # type: ignore[misc]
        checkpoint_folder: CheckpointFolder | None = None
        checkpoint_notes: Callable[[], Mapping[str, Any]] = staticmethod(dict)

        def _save_checkpoint(self, model: Any, trial: Any) -> None:
            folder, step = self.checkpoint_folder, self.state.global_step
            if folder is None or step >= self.state.max_steps:
                return  # at the end the stage's own output follows at once
            from safetensors import SafetensorError

            error: Exception | None = None
            try:
                super()._save_checkpoint(model, trial)
            except (OSError, RuntimeError, SafetensorError) as caught:
                error = caught
            self.accelerator.wait_for_everyone()
            if self.is_world_process_zero():
                try:
                    if error is not None:
                        raise error
                    written = folder.scratch / f"checkpoint-{step}"
                    folder.seal(written, step, self.checkpoint_notes())
                except (OSError, RuntimeError, SafetensorError) as caught:
                    folder.failed(step, caught)
            self.accelerator.wait_for_everyone()

    return Resumable


def no_space(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is a full disk or quota; torch and safetensors say it in
    words only."""
    import errno

    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return True
        if re.search(r"No space left|os error 28\b|os error 27\b|File too large", str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def link_tree(source: Path, target: Path) -> None:
    """Copy a folder of files by hard links where the file system has them: the weights must stay
    in the checkpoint until the stage is over."""

    def copy(a: str, b: str) -> None:
        try:
            os.link(a, b)
        except OSError:
            shutil.copy2(a, b)

    shutil.copytree(source, target, copy_function=copy)


def _how_to_go_on(folder: CheckpointFolder, error: BaseException) -> str:
    ended = "interrupted" if isinstance(error, (KeyboardInterrupt, SystemExit)) else "ended"
    if folder.newest:
        return (
            f"{folder.stage}: {ended}; steps 1 to {folder.newest} are kept in {folder.path}. "
            "Next step: the same command again (`dvc repro`) goes on from there"
        )
    return f"{folder.stage}: {ended} before its first checkpoint; `dvc repro` starts it again"


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _say(text: str) -> None:
    print(f"checkpoint: {text}", file=sys.stderr, flush=True)
