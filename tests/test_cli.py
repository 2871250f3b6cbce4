"""The command line as a user meets it: help, and mistakes without tracebacks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "profiles", tmp_path / "profiles")
    shutil.copy(ROOT / "params.yaml", tmp_path)
    (tmp_path / "dvc.yaml").touch()
    return tmp_path


def ferrata(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "DVC_ROOT"}
    env["PYTHONPATH"] = str(ROOT / "src")
    command = [sys.executable, "-m", "ferrata.cli", *args]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_help(tmp_path: Path) -> None:
    done = ferrata(tmp_path, "--help")
    assert done.returncode == 0
    for word in ("params", "profile", "chat", "summary", "readme", "doctor", "clean", "examples:"):
        assert word in done.stdout


@pytest.mark.parametrize(
    "command", ["params", "profile", "chat", "summary", "readme", "doctor", "clean"]
)
def test_help_of_commands(tmp_path: Path, command: str) -> None:
    done = ferrata(tmp_path, command, "--help")
    assert done.returncode == 0
    assert command in done.stdout


def test_params(project: Path) -> None:
    done = ferrata(project, "params")
    assert (done.returncode, done.stdout, done.stderr) == (0, "params.yaml: OK\n", "")


def test_param_errors(project: Path) -> None:
    path = project / "params.yaml"
    text = path.read_text(encoding="utf-8")
    text = text.replace("max_turns:", "max_turn:").replace("confidence: 0.95", "confidence: '95'")
    path.write_text(text, encoding="utf-8")
    done = ferrata(project, "params")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: 3 errors in params.yaml\n")
    assert "episodes.max_turn: unknown key; nearest valid key: episodes.max_turns" in done.stderr
    assert "report.confidence: found '95' (text)" in done.stderr
    assert "Traceback" not in done.stderr


def test_profile(project: Path) -> None:
    done = ferrata(project, "profile", "tiny")
    assert done.returncode == 0, done.stderr
    assert ferrata(project, "params").returncode == 0
    done = ferrata(project, "profile", "nonsense")
    assert done.returncode == 2
    assert "default, tiny" in done.stderr


def test_outside_a_project(tmp_path: Path) -> None:
    done = ferrata(tmp_path, "params")
    assert done.returncode == 2
    assert "no Ferrata project here" in done.stderr


def test_usage_mistakes(project: Path) -> None:
    for args in ([], ["nonsense"], ["chat", "--temperature", "hot"], ["chat", "--greedy=1"]):
        done = ferrata(project, *args)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_no_heavy_imports() -> None:
    code = (
        "import sys, ferrata.cli, ferrata.config.loader, ferrata.config.env\n"
        "heavy = {'torch', 'transformers', 'pandas', 'numpy', 'mlflow', 'dvc'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
