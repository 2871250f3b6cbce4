"""A small real project: git, DVC, and a pipeline of two stages that never runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from leftovers import git

ROOT = Path(__file__).resolve().parents[2]
PIPELINE = """\
stages:
  first:
    cmd: echo first
    outs: [models/first]
  second:
    cmd: echo second
    deps: [models/first]
    outs: [models/second]
"""
LOCK = """\
schema: '2.0'
stages:
  first:
    cmd: echo first
    outs:
    - {path: models/first, hash: md5, md5: d41d8cd98f00b204e9800998ecf8427e, size: 0}
  second:
    cmd: echo second
    deps:
    - {path: models/first, hash: md5, md5: d41d8cd98f00b204e9800998ecf8427e, size: 0}
    outs:
    - {path: models/second, hash: md5, md5: 0cc175b9c0f1b6a831c399e269772661, size: 1}
"""


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in list(os.environ):
        if key.startswith(("DVC_", "GIT_", "MLFLOW_")):
            monkeypatch.delenv(key)
    monkeypatch.setenv("FERRATA_ENV", sys.prefix)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh clone, and the current folder: what git has, and nothing else."""
    root = tmp_path / "project"
    (root / ".dvc").mkdir(parents=True)
    (root / ".dvc" / "config").write_text("[core]\n    analytics = false\n")
    (root / ".dvc" / ".gitignore").write_text("/tmp\n/cache\n/config.local\n")
    (root / "dvc.yaml").write_text(PIPELINE)
    (root / "dvc.lock").write_text(LOCK)
    for name in ("params.yaml", "env.yaml", ".gitignore"):
        (root / name).write_bytes((ROOT / name).read_bytes())
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "start")
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def hold() -> Iterator[Callable[[Path], int]]:
    """Starts a process that holds a key folder's lock, as a running stage does; gives its id."""
    started: list[Any] = []
    code = (
        "import fcntl, os, sys\n"
        "file = open(sys.argv[1], 'a+')\n"
        "fcntl.flock(file, fcntl.LOCK_EX)\n"
        "file.truncate(0); file.write(str(os.getpid())); file.flush()\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )

    def start(folder: Path) -> int:
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(folder / "lock")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        return process.pid

    yield start
    for process in started:
        process.communicate()
