"""One MLflow run per stage process, under one parent run per pipeline.

A stage opens its run with `stage_run` and logs through the `StageRun` it gets. Tracking is a record
of training, never a condition of it: when the server or database cannot be reached, everything that
would have been logged goes to a file under `.mlflow-offline/` and the stage goes on.

mlflow takes seconds to import, so it is imported only when a run is opened.
"""

from __future__ import annotations

import json
import math
import os
import re
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from ferrata.tracking.lineage import (
    device,
    flatten,
    lineage_tags,
    pipeline_key,
    process_is_gone,
)
from ferrata.tracking.store import connect, quiet_retries, store_root, tracking_uri, workspace

KILLED_EXIT_CODES = (130, 143)  # 128 + SIGINT, 128 + SIGTERM

_FLUSH_EVERY_S = 1.0
_FLUSH_AT = 500  # metrics; mlflow takes at most 1000 in one request
_BATCH = 100  # params or tags in one request, mlflow's limit
_PARAM_LENGTH = 6000  # characters, mlflow's limit
_TAG_LENGTH = 8000
_RSS_BYTES = 1 if sys.platform == "darwin" else 1024  # the unit of getrusage's peak
_REFUSED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_ALREADY_EXISTS")

_T = TypeVar("_T")


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
        self._tags = lineage_tags(self.stage, self._folder)
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
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_BYTES / 1e9
        final = {"ferrata.device": device(), "ferrata.peak_memory_gb": f"{peak:.2f}"}
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
            if mark and process_is_gone(mark):
                self._client.set_terminated(run.info.run_id, "KILLED")

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


def _short(thing: Any) -> str:
    text = " ".join(str(thing).split())
    return text if len(text) <= 160 else text[:157] + "..."


def _now() -> int:
    return int(time.time() * 1000)


def _say(text: str) -> None:
    print(f"tracking: {text}", file=sys.stderr, flush=True)
