"""The screen of `ferrata doctor`: what each line says, and that none takes the others with it."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from leftovers import age, interrupted, snapshot, write

from ferrata.errors import FerrataError
from ferrata.housekeeping import doctor, files, graph, machine, storage
from ferrata.housekeeping.doctor import Check, Project


def at(root: Path) -> Project:
    return Project(root, root)


def test_a_fresh_clone(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot(project)
    status = doctor.run(as_json=True)
    result = json.loads(capsys.readouterr().out)
    assert status == (0 if result["ok"] else 1)
    lines = {check["name"]: check for part in result["sections"] for check in part["checks"]}
    assert result["errors"] == 0, lines
    cannot = [name for name, line in lines.items() if "cannot be checked" in line["text"]]
    assert cannot == []
    assert lines["would run"]["text"] == "nothing: every stage is as dvc.lock says"
    assert lines["outputs"]["mark"] == "warning"
    assert "2 of 2 of dvc.lock are missing: models/first, models/second" in lines["outputs"]["text"]
    assert lines["outputs"]["next_step"] == "dvc repro makes them"
    assert lines["DVC cache"]["text"].startswith("0 B")
    assert snapshot(project) == before


def test_outside_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FerrataError, match="no Ferrata project here"):
        doctor.run()


def test_no_check_takes_the_screen_with_it(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(found: Project) -> list[Check]:
        raise RuntimeError("no such\nthing")

    def wrong(found: Project) -> list[Check]:
        raise FerrataError("it is wrong", found="this [bold]one", hint="mend it")

    checks = [("broken", broken), ("wrong", wrong), ("disk", machine.disk)]
    monkeypatch.setattr(doctor, "_plan", lambda: [("Title", "...", checks)])
    monkeypatch.setenv("COLUMNS", "80")
    assert doctor.run() == 1
    shown = capsys.readouterr().out
    assert "cannot be checked: RuntimeError: no such thing" in shown
    assert "found: this [bold]one" in shown and "next: mend it" in shown
    assert "free of" in shown
    assert "1 error, " in shown
    assert max(len(line) for line in shown.splitlines() if str(project) not in line) <= 80

    assert doctor.run(as_json=True) == 1
    result = json.loads(capsys.readouterr().out)
    assert (result["ok"], result["errors"]) == (False, 1)
    assert result["sections"][0]["checks"][1] == {
        "mark": "error",
        "name": "wrong",
        "text": "it is wrong\nfound: this [bold]one",
        "next_step": "mend it",
    }


def test_all_errors_of_params(project: Path) -> None:
    path = project / "params.yaml"
    path.write_text(path.read_text().replace("max_turns:", "max_turn:").replace("seed:", "sede:"))
    (check,) = graph.parameters(at(project))
    assert check.mark == "error"
    count, *lines = check.text.splitlines()
    assert count == f"{len(lines)} errors in params.yaml" and len(lines) == 4
    for start in ("seed: missing", "sede: unknown key", "episodes.max_turn: unknown key"):
        assert any(line.startswith(start) for line in lines), start


def test_interrupted_and_running_stages(project: Path, hold: Callable[[Path], int]) -> None:
    assert [check.mark for check in storage.interrupted(at(project))] == ["ok"]
    interrupted(project)
    interrupted(project, stage="sft", key="bbbb", step=0)
    pid = hold(interrupted(project, key="cccc", step=7))
    rl, running, sft = storage.interrupted(at(project))
    assert rl.mark == "warning" and rl.next_step and "dvc repro" in rl.next_step
    assert rl.text.startswith("interrupted at step 4, 2 hours ago: rl/0123456789abcdef, ")
    assert sft.text.startswith("interrupted before its first checkpoint")
    assert running.mark == "ok" and f"in use by process {pid}" in running.text
    assert "step 7" in running.text


def test_unfinished_folders(project: Path, hold: Callable[[Path], int]) -> None:
    assert list(storage.unfinished(at(project))) == []
    age(write(project / "models/rl.partial/weights").parent)
    (check,) = storage.unfinished(at(project))
    assert (check.mark, check.text) == ("warning", "models/rl.partial, 1.0 kB")
    hold(interrupted(project))
    (check,) = storage.unfinished(at(project))
    assert check.mark == "ok" and "perhaps being written" in check.text


def test_offline_records(project: Path) -> None:
    age(write(project / ".mlflow-offline/rl-1.jsonl"))
    (check,) = storage.offline_records(at(project))
    assert check.mark == "warning"
    assert "1 record is not in MLflow" in check.text and "2 hours ago" in check.text


def test_outputs_and_what_would_run(project: Path) -> None:
    # The content is the one that dvc.lock names: nothing to run, nothing missing.
    write(project / "models/first", "")
    write(project / "models/second", "a")
    found = {check.name: check for check in graph.pipeline(at(project))}
    assert found["would run"].text.startswith("nothing")
    assert found["outputs"].text == "all 2 of dvc.lock are here"

    (project / "models/second").unlink()
    write(project / ".dvc/cache/files/md5/0c/c175b9c0f1b6a831c399e269772661", "a")
    path = project / "dvc.yaml"
    path.write_text(path.read_text().replace("echo first", "echo changed"))
    found = {check.name: check for check in graph.pipeline(at(project))}
    assert found["would run"].text.startswith("first")
    assert found["would run"].next_step == "dvc repro"
    assert found["outputs"].next_step == "dvc checkout (they are in DVC's cache)"

    path.write_text("stages: [")
    would_run = next(iter(graph.pipeline(at(project))))
    assert would_run.mark == "error" and "dvc.yaml" in would_run.text


def test_dvc_that_takes_too_long(project: Path) -> None:
    assert graph.dry_run(project, patience_s=0.01) is None


def test_dry_run_with_inputs_that_are_not_here() -> None:
    output = """Running stage 'code':
> python code.py

Stage 'base' didn't change, skipping
WARNING: [Errno 2] No such file or directory: '/x/models/base'
WARNING: Stages 'sft', 'evaluate@rl' and 'report' will be skipped due to this failure
ERROR: failed to reproduce 'prepare'
"""
    found = graph.parse_dry_run(output, 255)
    assert found.run == ("code",) and found.same == ("base",)
    assert found.blocked == ("prepare", "sft", "evaluate@rl", "report")
    found = dataclasses.replace(found, run=())  # without `code`, whose fingerprints need a project
    order = ["prepare", "sft", "report", "evaluate@rl"]
    check = graph._would_run(at(Path("/nowhere")), found, ["models/base"], order)
    assert (check.mark, check.next_step) == ("ok", "dvc repro")
    assert check.text == "prepare; then perhaps sft, report, evaluate@rl"
    check = graph._would_run(at(Path("/nowhere")), found, [], order)
    assert check.mark == "warning" and "No such file" in check.text


def test_another_interpreter_and_versions(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "env.yaml").write_text('torch: "0.0.1"\nnothing_of_this_name: "1"\n')
    monkeypatch.setenv("FERRATA_ENV", "/elsewhere")
    checks = [*doctor._guarded("Python", machine.interpreter, at(project))]
    checks += doctor._guarded("packages", machine.packages, at(project))
    assert [check.mark for check in checks] == ["error", "error"]
    assert "/elsewhere" in checks[0].text and "activate" in (checks[0].next_step or "")
    assert "expected 0.0.1" in checks[1].text and "none installed" in checks[1].text


def test_python_of_another_place_on_path(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "bin"
    other.mkdir()
    (other / "python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{other}{os.pathsep}{os.environ['PATH']}")
    found = {check.name: check for check in machine.tools(at(project))}
    assert found["PATH"].mark == "warning" and str(other) in found["PATH"].text


def test_limits_of_a_container(tmp_path: Path) -> None:
    assert machine.processor_quota(tmp_path) is None
    assert machine.memory_limit(tmp_path) is None
    write(tmp_path / "cpu.max", "150000 100000\n")
    write(tmp_path / "memory.max", "1000\n")
    write(tmp_path / "memory.current", "600\n")
    write(tmp_path / "memory.stat", "anon 300\ninactive_file 200\n")
    assert machine.processor_quota(tmp_path) == 1.5
    assert machine.memory_limit(tmp_path) == (1000, 600)
    write(tmp_path / "cpu.max", "max 100000\n")
    write(tmp_path / "memory.max", "max\n")
    assert machine.processor_quota(tmp_path) is None
    assert machine.memory_limit(tmp_path) is None


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (9960, "10 kB"), (1.62e9, "1.6 GB"),
     (999.6e6, "1.0 GB"), (3e12, "3.0 TB")],
)  # fmt: skip
def test_sizes(size: float, text: str) -> None:
    assert files.human_size(size) == text


def test_measure_counts_hard_links_once_and_follows_no_link(tmp_path: Path) -> None:
    write(tmp_path / "a/x")
    os.link(tmp_path / "a/x", tmp_path / "a/y")
    write(tmp_path / "b")
    (tmp_path / "a/z").symlink_to(tmp_path / "b")
    size = files.measure(tmp_path / "a", tmp_path / "absent").size
    assert 1000 <= size < 1200
