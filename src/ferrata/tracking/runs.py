"""One MLflow run per stage process, under one parent run per pipeline.

A stage opens its run with `stage_run` and logs through the `StageRun` it gets. Tracking is a record
of training, never a condition of it: when the server or database cannot be reached, everything that
would have been logged goes to a file under `.mlflow-offline/` and the stage goes on.

mlflow takes seconds to import, so it is imported only when a run is opened.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from ferrata.errors import FerrataError

EXPERIMENT = "ferrata"
KILLED_EXIT_CODES = (130, 143)  # 128 + SIGINT, 128 + SIGTERM
VERSIONS = (
    *("torch", "transformers", "trl", "peft", "datasets", "accelerate", "tokenizers"),
    "mlflow",
)

_FLUSH_EVERY_S = 1.0
_FLUSH_AT = 500  # metrics; mlflow takes at most 1000 in one request
_BATCH = 100  # params or tags in one request, mlflow's limit
_PARAM_LENGTH = 6000  # characters, mlflow's limit
_TAG_LENGTH = 8000
_REFUSED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_ALREADY_EXISTS")
# What this process writes while it runs: a tree that differs only here is not a dirty tree.
_GENERATED = ("dvc.lock", "metrics")

_T = TypeVar("_T")


class TrackingUnreachable(FerrataError):
    """The tracking server or database gave no answer where one was needed (registering a model)."""


def store_root(root: Path) -> Path:
    """The project whose database a stage in `root` writes to: `root`, or a temporary one's
    original.

    `dvc exp run --temp` and `--queue` work in `<project>/.dvc/tmp/exps/...`, which DVC deletes
    afterwards.
    """
    root = Path(root).resolve()
    for folder in (root, *root.parents):
        if folder.parts[-3:] == (".dvc", "tmp", "exps"):
            return folder.parents[2]
    return root


def workspace(root: Path) -> Path:
    """The folder whose params.yaml, dvc.lock and commit a stage of the project `root` uses.

    It is `root` itself, a study inside it, or the temporary copy of `dvc exp run --temp` (where
    `DVC_ROOT` names the original project, so `root` alone would tell the wrong commit and
    parameters).
    """
    root, here = Path(root).resolve(), Path.cwd().resolve()
    for folder in (here, *here.parents):
        if not folder.is_relative_to(root):
            break
        if (folder / "dvc.yaml").is_file() and (folder / "params.yaml").is_file():
            return folder
    return root


def tracking_uri(root: Path) -> str:
    """Where runs are stored: `MLFLOW_TRACKING_URI` if set, else the project's own sqlite
    database.
    """
    base = store_root(root)
    uri = os.environ.get("MLFLOW_TRACKING_URI", "").strip()
    if not uri:
        return f"sqlite:///{base / 'mlflow.db'}"
    relative = re.fullmatch(r"sqlite:///([^/].*)", uri)
    # sqlite would take it from the working directory, which DVC deletes after `--temp`.
    return f"sqlite:///{base / relative.group(1)}" if relative else uri


def prepare_environment() -> None:
    """Set mlflow's environment: no telemetry, no banners, short waits; what the user set stays.

    `MLFLOW_RUN_ID` is removed: mlflow would silently rename and resume that run instead of opening
    one.
    """
    os.environ.pop("MLFLOW_RUN_ID", None)
    for key, value in {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "MLFLOW_DISABLE_AGENT_HINT": "true",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",  # seconds
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
        "MLFLOW_LOGGING_LEVEL": "WARNING",  # else a page of database migrations at the first run
    }.items():
        os.environ.setdefault(key, value)
    if "mlflow" in sys.modules:  # it read the level when it was imported
        logging.getLogger("mlflow").setLevel(os.environ["MLFLOW_LOGGING_LEVEL"].upper())


def connect(root: Path) -> tuple[Any, str, str]:
    """An `MlflowClient`, the tracking URI and the id of the experiment, created if missing.

    Raises whatever mlflow raises when the store does not answer.
    """
    prepare_environment()
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    uri = tracking_uri(root)
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    if experiment is not None:
        return client, uri, str(experiment.experiment_id)
    # Without an explicit location a local store would put artifacts relative to the working
    # directory.
    location = (store_root(root) / "mlartifacts").as_uri() if uri.startswith("sqlite:") else None
    try:
        return client, uri, str(client.create_experiment(EXPERIMENT, artifact_location=location))
    except MlflowException:  # another process created it in between
        experiment = client.get_experiment_by_name(EXPERIMENT)
        if experiment is None:
            raise
        return client, uri, str(experiment.experiment_id)


@contextmanager
def quiet_retries() -> Iterator[None]:
    """Keep urllib3 from printing a line per retry: the failure is reported once, by us."""
    logger = logging.getLogger("urllib3.connectionpool")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


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


class StageRun:
    """The run of one stage process; `stage_run` makes it. An unreachable store never raises here.

    `run_id` is None if MLflow has no run: it was unreachable, or this is not the first process of a
    distributed launch.
    """

    def __init__(self, stage: str, params: Mapping[str, Any], root: Path, name: str | None) -> None:
        self.stage = stage
        self.root = Path(root).resolve()
        self.uri = tracking_uri(self.root)
        self.run_id: str | None = None
        self.parent_id: str | None = None
        self.experiment_id: str | None = None
        self.offline_file: Path | None = None
        self._name = name or (os.environ.get("DVC_STAGE") or stage).rpartition(":")[2]
        self._folder = workspace(self.root)
        self._key = pipeline_key(self._folder)
        self._params = flatten(params)
        self._tags: dict[str, str] = {}
        self._client: Any = None
        self._metrics: list[tuple[str, float, int, int]] = []  # key, value, time in ms, step
        self._flushed_at = time.monotonic()
        self._dropped: dict[str, int] = {}
        # Every process of a distributed launch runs the stage script; one of them keeps the record.
        self._silent = os.environ.get("RANK", "0") not in ("", "0")

    @property
    def online(self) -> bool:
        """Whether values reach MLflow at this moment."""
        return self._client is not None

    def metrics(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Log numbers at a step (0 if None); what is no finite number is dropped, said once per
        name.
        """
        if self._silent:
            return
        now = _now()
        for key, value in values.items():
            try:
                number = float(value)
            except (TypeError, ValueError):
                number = math.nan
            if not math.isfinite(number):
                if key not in self._dropped:
                    _say(f"{self.stage}: metric {key} is {value!r} at step {step}: not logged")
                self._dropped[key] = self._dropped.get(key, 0) + 1
                continue
            self._metrics.append((re.sub(r"[^\w./ :-]", "_", key), number, now, step or 0))
        if len(self._metrics) >= _FLUSH_AT or time.monotonic() - self._flushed_at > _FLUSH_EVERY_S:
            self._flush()

    def tags(self, values: Mapping[str, Any]) -> None:
        """Set tags; values become text, cut at 8000 characters."""
        if self._silent:
            return
        tags = {key: str(value)[:_TAG_LENGTH] for key, value in values.items()}
        self._tags.update(tags)
        self._do(lambda: self._log_batch(tags=tags), {"kind": "tags", "values": tags})

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """Copy a file or a folder into the run, below `folder`; offline, its path is noted."""
        path = Path(path).resolve()

        def log() -> None:
            log_path = self._client.log_artifacts if path.is_dir() else self._client.log_artifact
            log_path(self.run_id, str(path), folder)

        self._do(log, {"kind": "artifact", "path": str(path), "folder": folder})

    def dataset(self, name: str, digest: str, rows: int) -> None:
        """Record an input; mlflow keeps 36 characters of the digest, the tag
        `ferrata.dataset.<name>` all.
        """

        def log() -> None:
            from mlflow.entities import Dataset, DatasetInput, InputTag

            data = Dataset(
                name=name,
                digest=digest[:36],
                source_type="local",
                source=json.dumps({"name": name, "digest": digest}),
                profile=json.dumps({"num_rows": rows}),
            )
            tag = InputTag(key="mlflow.data.context", value=self.stage)
            self._client.log_inputs(self.run_id, [DatasetInput(data, [tag])])

        self._do(log, {"kind": "dataset", "name": name, "digest": digest, "rows": rows})
        self.tags({f"ferrata.dataset.{name}": digest})

    # What follows is for `stage_run` alone.

    def open(self) -> None:
        if self._silent:
            return
        self._tags = self._lineage()
        try:
            with quiet_retries():
                self._client, self.uri, self.experiment_id = connect(self.root)
                self._close_dead_runs()
                self.parent_id = self._find_or_create_parent()
                tags = {**self._tags, "mlflow.parentRunId": self.parent_id}
                run = self._client.create_run(self.experiment_id, tags=tags, run_name=self._name)
                self.run_id = run.info.run_id
        except Exception as error:
            self._go_offline(error)
            return
        params = {key: value[:_PARAM_LENGTH] for key, value in self._params.items()}
        self._do(lambda: self._log_batch(params=params), None)

    def close(self, status: str) -> None:
        if self._silent:
            return
        # Known for certain only now: torch is imported lazily.
        final = {"ferrata.device": _device()}
        if self._dropped:
            final["ferrata.dropped_metrics"] = json.dumps(self._dropped, sort_keys=True)
        self.tags(final)
        self._flush()
        self._do(lambda: self._terminate(status), {"kind": "status", "status": status})
        if not self.online and self.run_id is not None:
            # The server died on the way. If it is back, its run must not stay RUNNING.
            with suppress(Exception), quiet_retries():
                self._client, _, _ = connect(self.root)
                self._log_batch(tags={"ferrata.offline": str(self.offline_file)})
                self._terminate(status)
            self._client = None
        if self.offline_file is not None:
            _say(f"{self.stage}: not in MLflow ({self.uri}); the record is {self.offline_file}")

    def _terminate(self, status: str) -> None:
        self._client.set_terminated(self.run_id, status)
        if self.parent_id is not None:  # its end moves with its last child's
            self._client.set_terminated(self.parent_id, "FINISHED")

    def _find_or_create_parent(self) -> str:
        found = self._client.search_runs(
            [self.experiment_id],
            f"tags.`ferrata.kind` = 'pipeline' and tags.`ferrata.pipeline` = '{self._key}'",
            max_results=1,
            order_by=["attributes.start_time ASC"],
        )
        if found:
            return str(found[0].info.run_id)
        tags = {
            "ferrata.kind": "pipeline",
            "ferrata.pipeline": self._key,
            "ferrata.commit": self._tags["ferrata.commit"],
        }
        parent = self._client.create_run(self.experiment_id, tags=tags, run_name=self._key)
        # Nobody knows which stage is the last, so the parent never waits for one.
        self._client.set_terminated(parent.info.run_id, "FINISHED")
        return str(parent.info.run_id)

    def _close_dead_runs(self) -> None:
        """End runs whose process on this machine is gone (SIGKILL, out of memory, power
        failure).
        """
        for run in self._client.search_runs(
            [self.experiment_id], "attributes.status = 'RUNNING'", max_results=50
        ):
            mark = run.data.tags.get("ferrata.process")
            if mark and _process_is_gone(mark):
                self._client.set_terminated(run.info.run_id, "KILLED")

    def _lineage(self) -> dict[str, str]:
        commit = git_commit(self._folder) or "unknown"
        tags = {
            "ferrata.kind": "stage",
            "ferrata.stage": self.stage,
            "ferrata.commit": commit,
            "ferrata.dirty": _dirty(self._folder),
            "ferrata.device": _device(),
            "ferrata.process": _process_mark(os.getpid()),
        }
        if commit != "unknown":
            tags["mlflow.source.git.commit"] = commit
        for package in VERSIONS:
            with suppress(metadata.PackageNotFoundError):
                tags[f"ferrata.version.{package}"] = metadata.version(package)
        address = os.environ.get("DVC_STAGE")
        if address:
            tags["ferrata.dvc_stage"] = address
        if hashes := dvc_dependencies(self._folder, address):
            tags.update({f"ferrata.deps.{path}": value for path, value in hashes.items()})
            text = json.dumps(hashes, sort_keys=True)
            tags["ferrata.dvc_lock"] = hashlib.sha256(text.encode()).hexdigest()[:16]
        return tags

    def _log_batch(
        self, *, params: Mapping[str, str] | None = None, tags: Mapping[str, str] | None = None
    ) -> None:
        from mlflow.entities import Param, RunTag

        rows = list((params or {}).items())
        for start in range(0, len(rows), _BATCH):
            batch = [Param(key, value) for key, value in rows[start : start + _BATCH]]
            self._client.log_batch(self.run_id, params=batch)
        rows = list((tags or {}).items())
        for start in range(0, len(rows), _BATCH):
            marks = [RunTag(key, value) for key, value in rows[start : start + _BATCH]]
            self._client.log_batch(self.run_id, tags=marks)

    def _flush(self) -> None:
        self._flushed_at = time.monotonic()
        pending, self._metrics = self._metrics, []
        if not pending:
            return

        def log() -> None:
            from mlflow.entities import Metric

            for start in range(0, len(pending), _FLUSH_AT):
                batch = [Metric(*row) for row in pending[start : start + _FLUSH_AT]]
                self._client.log_batch(self.run_id, metrics=batch)

        rows = [{"key": k, "value": v, "time": t, "step": s} for k, v, t, s in pending]
        self._do(log, {"kind": "metrics", "values": rows})

    def _do(self, log: Callable[[], None], record: Mapping[str, Any] | None) -> None:
        """Log to MLflow; if it does not answer, keep `record` and all later ones in the offline
        file.
        """
        if self._silent:
            return
        if self.online:
            try:
                with quiet_retries():
                    log()
                return
            except Exception as error:
                if getattr(error, "error_code", None) in _REFUSED:
                    # It answered: a value it does not take is no reason to stop logging others.
                    _say(f"{self.stage}: MLflow refused {_short(record)}: {_short(error)}")
                    return
                self._go_offline(error)
        if record is not None:
            self._write(record)

    def _go_offline(self, error: Exception) -> None:
        self._client = None
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
        name = re.sub(r"[^\w.@-]", "_", self._name)
        self.offline_file = store_root(self.root) / ".mlflow-offline" / f"{name}-{stamp}.jsonl"
        _say(
            f"{self.stage}: the tracking server {self.uri} cannot be reached ({_short(error)}). "
            f"The stage goes on; from here its values are written to {self.offline_file}"
        )
        self._write(
            {
                "kind": "run",
                "stage": self.stage,
                "name": self._name,
                "pipeline": self._key,
                "uri": self.uri,
                "run_id": self.run_id,  # not None: the server has what came before
            }
        )
        self._write({"kind": "params", "values": self._params})
        self._write({"kind": "tags", "values": self._tags})

    def _write(self, record: Mapping[str, Any]) -> None:
        if self.offline_file is None:
            return
        try:
            self.offline_file.parent.mkdir(parents=True, exist_ok=True)
            with self.offline_file.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"time": _now(), **record}) + "\n")
        except OSError as error:
            _say(f"{self.stage}: {self.offline_file} cannot be written ({error}): values are lost")
            self.offline_file = None


@contextmanager
def stage_run(
    stage: str, params: Mapping[str, Any], *, root: Path, name: str | None = None
) -> Iterator[StageRun]:
    """Open the MLflow run of a stage for the time of the block, as a child of its pipeline's run.

    `params` are nested and logged flat (`rl.learning_rate`); `root` is the project's root; `name`
    is the run's name (default: DVC's name of the stage, else `stage`). The run ends FINISHED,
    FAILED after an exception, or KILLED after Ctrl-C or SIGTERM, which raises `SystemExit(143)` in
    the main thread. The block's exception propagates unchanged. Never raises because the store is
    unreachable.
    """
    with _sigterm_raises():
        run = StageRun(stage, params, root, name)
        try:
            run.open()
            yield run
        except BaseException as error:
            with _sigterm_ignored():
                run.close(_status_of(error))
            raise
        with _sigterm_ignored():
            run.close("FINISHED")


def _status_of(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "KILLED"
    if isinstance(error, SystemExit):
        if error.code in KILLED_EXIT_CODES:
            return "KILLED"
        return "FINISHED" if error.code in (None, 0) else "FAILED"
    return "FAILED"


def _exit_on_sigterm(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextmanager
def _handler(handler: Any) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # Python takes signal handlers in the main thread only
        return
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _sigterm_raises() -> Any:
    return _handler(_exit_on_sigterm)


def _sigterm_ignored() -> Any:
    # A second SIGTERM while the run is being ended would leave it RUNNING; ending takes seconds at
    # most.
    return _handler(signal.SIG_IGN)


def _process_mark(pid: int) -> str:
    """Machine, process id and start time (ticks since boot): a reused id has another start time."""
    try:
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        started = "?"
    return f"{socket.gethostname()}:{pid}:{started}"


def _process_is_gone(mark: str) -> bool:
    host, _, rest = mark.rpartition(":")[0].rpartition(":")
    if host != socket.gethostname() or not rest.isdigit() or mark.endswith(":?"):
        return False  # of another machine, or this one cannot tell
    return _process_mark(int(rest)) != mark


def _device() -> str:
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


def _short(thing: Any) -> str:
    text = " ".join(str(thing).split())
    return text if len(text) <= 160 else text[:157] + "..."


def _now() -> int:
    return int(time.time() * 1000)


def _say(text: str) -> None:
    print(f"tracking: {text}", file=sys.stderr, flush=True)
