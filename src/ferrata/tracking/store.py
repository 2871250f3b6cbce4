"""Where MLflow's records of this project are kept, and a client for them.

mlflow takes seconds to import, so it is imported only when it is needed.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ferrata.errors import FerrataError

EXPERIMENT = "ferrata"


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
