"""The stage `report` as DVC runs it: a process in a project's folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from ruamel.yaml import YAML

REPO = Path(__file__).parents[2]
NAMES = (
    *("behaviour.json", "summary.json", "plots/bands.csv", "plots/success.csv"),
    "trajectories.md",
)


@pytest.fixture
def project(tmp_path: Path, frames: dict[str, pd.DataFrame]) -> Path:
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    yaml = YAML()
    params = yaml.load((REPO / "params.yaml").read_text())
    params["arms"] = {
        arm: {"policy": "model", "model": f"models/{arm}", "shots": 0} for arm in frames
    }
    params["report"]["bootstrap"] = 300
    yaml.dump(params, tmp_path / "params.yaml")
    for arm, frame in frames.items():
        folder = tmp_path / "evaluations" / arm
        folder.mkdir(parents=True)
        frame.to_parquet(folder / "trajectories.parquet")
    return tmp_path


def report(project: Path) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("DVC", "MLFLOW"))}
    # Tracking has its own tests; a rank other than 0 keeps no record and saves starting mlflow.
    env |= {"PYTHONPATH": str(REPO / "src"), "RANK": "1", "COLUMNS": "80"}
    return subprocess.run(
        [sys.executable, str(REPO / "stages" / "report.py")],
        cwd=project,
        env=env,
        capture_output=True,
        text=True,
    )


def contents(project: Path) -> dict[str, bytes]:
    return {name: (project / "metrics" / name).read_bytes() for name in NAMES}


def test_two_runs_write_the_same_bytes_and_a_removed_arm_leaves_nothing(project: Path) -> None:
    done = report(project)
    assert done.returncode == 0, done.stderr
    assert "rl minus sft (test, greedy, paired): +0.60" in done.stdout
    first = contents(project)
    assert report(project).returncode == 0
    assert contents(project) == first
    summary = json.loads(first["summary.json"])
    assert summary["confidence"] == 0.95
    assert list(summary["tool_use"]["test"])[:4] == ["base", "base_fewshot", "sft", "rl"]
    assert all(b"NaN" not in content and b"nan," not in content for content in first.values())

    text = (project / "params.yaml").read_text()
    yaml = YAML()
    params = yaml.load(text)
    del params["arms"]["base_fewshot"]
    yaml.dump(params, project / "params.yaml")
    assert report(project).returncode == 0
    assert all(b"base_fewshot" not in content for content in contents(project).values())


def test_missing_episodes_are_one_message_and_keep_earlier_files(project: Path) -> None:
    assert report(project).returncode == 0
    before = contents(project)
    (project / "evaluations" / "sft" / "trajectories.parquet").unlink()
    done = report(project)
    assert done.returncode == 2
    assert "the episodes of the arm 'sft' are missing" in done.stderr
    assert "Traceback" not in done.stderr
    assert contents(project) == before


def test_an_arm_of_one_split_and_one_that_lacks_a_split_it_should_have_played(
    project: Path,
) -> None:
    path = project / "evaluations" / "base" / "trajectories.parquet"
    frame = pd.read_parquet(path)
    frame[frame["split"] == "test"].to_parquet(path)
    done = report(project)
    assert done.returncode == 2
    assert "the arm 'base' played other splits than params.yaml asks for" in done.stderr
    assert "found: test" in done.stderr and "expected: test, forms, ood" in done.stderr
    assert "`dvc repro evaluate@base` plays them" in done.stderr

    yaml = YAML()
    params = yaml.load((project / "params.yaml").read_text())
    params["arms"]["base"]["splits"] = ["test"]
    yaml.dump(params, project / "params.yaml")
    done = report(project)
    assert done.returncode == 0, done.stderr
    cells = json.loads(contents(project)["summary.json"])["tool_use"]
    assert "base" in cells["test"] and "base" not in cells["forms"]
    row = next(line for line in done.stdout.splitlines() if line.split()[:1] == ["base"])
    assert row.split().count("-") == 2  # forms and ood
