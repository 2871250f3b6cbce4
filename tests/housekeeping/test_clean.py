"""What `ferrata clean` removes, and above all what it leaves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from leftovers import age, git, interrupted, is_locked, snapshot, write

from ferrata.errors import FerrataError
from ferrata.housekeeping import clean
from ferrata.housekeeping.removable import Plan, plan


def names(found: Plan) -> list[str]:
    return [item.name for item in found.items]


def left(found: Plan) -> dict[str, str]:
    return {entry.name: entry.reason for entry in found.left}


def test_a_fresh_clone_has_nothing_to_remove(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(project)
    # Without a terminal: there is nothing to ask.
    assert clean.run(dry_run=False, yes=False) == 0
    shown = capsys.readouterr().out
    assert "Nothing to remove" in shown
    assert "dvc gc --workspace" in shown and "mlflow gc" in shown
    assert snapshot(project) == before


def test_removes_leftovers_and_keeps_results(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = [
        write(project / name)
        for name in (
            "models/rl/weights",
            "models/rl/inner.partial/weights",  # inside a model: part of an output
            "data/tasks/__pycache__/x.pyc",
            "evaluations/rl/x",
            ".dvc/cache/files/md5/ab/cdef",
            "mlflow.db",
            "mlartifacts/1/model",
            ".mlflow-offline/rl.jsonl",
            ".venv/pyvenv.cfg",
            ".venv/lib/__pycache__/x.pyc",
            "elsewhere/.git",
            "elsewhere/__pycache__/x.pyc",
            "src/module.py",
        )
    ]
    folder = interrupted(project)
    age(write(project / "models/sft.partial/weights").parent)
    age(write(project / ".checkpoints/rl/fedc.partial/weights").parent)
    write(project / "src/__pycache__/module.pyc")
    write(project / ".pytest_cache/x")
    write(project / "dvc_plots/index.html")

    found = plan(project)
    assert names(found) == [
        ".checkpoints/rl/0123456789abcdef",
        ".checkpoints/rl/fedc.partial",
        "models/sft.partial",
        "__pycache__",
        ".pytest_cache",
        "dvc_plots",
    ]
    assert found.left == ()
    assert "rl was interrupted at step 4, 2 hours ago" in found.items[0].reason
    assert "rl would start again from step 0" in found.items[0].reason
    assert found.items[0].usage.size > 4000

    assert clean.run(dry_run=True, yes=False) == 0
    assert folder.is_dir()
    assert clean.run(dry_run=False, yes=True) == 0
    assert "removed" in capsys.readouterr().out
    assert plan(project).items == ()
    assert list((project / ".checkpoints/rl").iterdir()) == []
    assert all(path.is_file() for path in kept)


def test_a_running_stage_keeps_its_folder(project: Path, hold: Callable[[Path], int]) -> None:
    running = interrupted(project, key="aaaa")
    free = interrupted(project, stage="sft", key="bbbb")
    age(write(project / "models/rl.partial/weights").parent)  # perhaps of the running stage
    pid = hold(running)
    found = plan(project)
    assert names(found) == [".checkpoints/sft/bbbb"]
    assert left(found)[".checkpoints/rl/aaaa"] == f"in use by process {pid}"
    assert "models/rl.partial" in left(found)
    assert clean.run(dry_run=False, yes=True) == 0
    assert running.is_dir() and not free.exists()


def test_a_lock_that_is_taken_after_the_listing(project: Path, hold: Callable[[Path], int]) -> None:
    folder = interrupted(project)
    found = plan(project)
    hold(folder)
    freed, failed = clean.remove(project, found.items)
    assert freed == 0
    assert [entry.reason for entry in failed] == ["a process has begun to use it"]
    assert (folder / "step-4" / "weights").is_file() and is_locked(folder)


def test_looking_does_not_keep_the_lock(project: Path) -> None:
    folder = interrupted(project)
    plan(project)
    assert not is_locked(folder)


def test_what_has_no_lock_and_is_new_stays(project: Path) -> None:
    folder = interrupted(project)
    (folder / "lock").unlink()
    write(folder / "step-5" / "weights")
    write(project / "models/rl.partial/weights")
    found = plan(project)
    assert names(found) == []
    assert all("perhaps in use" in reason for reason in left(found).values())
    assert len(found.left) == 2
    age(project / ".checkpoints")
    assert names(plan(project)) == [".checkpoints/rl/0123456789abcdef"]


def test_a_running_dvc_command_keeps_what_it_may_be_writing(project: Path) -> None:
    age(write(project / "models/rl.partial/weights").parent)
    user = {"pid": os.getpid(), "cmd": "dvc repro"}
    notes = {"write": {"models/rl": user}, "read": {"x": [user]}}
    write(project / ".dvc/tmp/rwlock", json.dumps(notes))
    assert names(plan(project)) == []
    write(project / ".dvc/tmp/rwlock", json.dumps({"read": {"x": [user | {"pid": 4194304}]}}))
    assert names(plan(project)) == ["models/rl.partial"]


def test_keep_checkpoints(project: Path) -> None:
    folder = interrupted(project)
    empty = interrupted(project, stage="sft", step=0)
    found = plan(project, keep_checkpoints=True)
    assert left(found) == {".checkpoints/rl/0123456789abcdef": "kept: rl can go on from step 4"}
    assert "nothing is lost" in found.items[1].reason
    assert clean.run(dry_run=False, yes=True, keep_checkpoints=True) == 0
    assert (folder / "step-4" / "weights").is_file() and (folder / "lock").is_file()
    assert not (folder / "writing.partial").exists() and not empty.exists()


def test_links_are_not_followed(project: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    precious = interrupted(outside)
    write(outside / "__pycache__/x.pyc")
    key = interrupted(project)
    (key / "step-3").symlink_to(precious)  # inside what is removed: the link goes, no more
    (key.parent / "linked").symlink_to(precious)
    (project / ".checkpoints/sft").symlink_to(precious.parent)
    (project / "models").mkdir()
    (project / "models/x.partial").symlink_to(precious)
    (project / "dvc_plots").symlink_to(outside)
    (project / "src").symlink_to(outside)
    (project / "experiments").symlink_to(outside)
    before = snapshot(outside)
    found = plan(project)
    assert names(found) == [".checkpoints/rl/0123456789abcdef"]
    assert set(left(found)) == {".checkpoints/rl/linked", ".checkpoints/sft", "models/x.partial"}
    assert clean.run(dry_run=False, yes=True) == 0
    assert not key.exists()
    assert snapshot(outside) == before


def test_the_folder_of_checkpoints_may_be_a_link(project: Path, tmp_path: Path) -> None:
    interrupted(tmp_path / "outside")
    (project / ".checkpoints").symlink_to(tmp_path / "outside" / ".checkpoints")
    found = plan(project)
    assert (names(found), left(found)) == ([], {".checkpoints": "a link, not followed"})


def test_a_folder_that_became_a_link_after_the_listing(project: Path, tmp_path: Path) -> None:
    write(project / "src/__pycache__/x.pyc")
    found = plan(project)
    outside = tmp_path / "outside"
    shutil.move(project / "src", outside)
    (project / "src").symlink_to(outside)
    freed, failed = clean.remove(project, found.items)
    assert (freed, len(failed)) == (0, 1)
    assert (outside / "__pycache__/x.pyc").is_file()


def test_what_git_or_dvc_tracks_stays(project: Path) -> None:
    for name in ("models/fixture.partial/x", "tests/__pycache__/x.pyc", "dvc_plots/x"):
        age(write(project / name).parent)
    git(project, "add", "-f", "models", "tests", "dvc_plots")
    age(write(project / "models/second.partial/x").parent)
    age(write(project / "models/added.partial/x").parent)
    write(project / "models/added.partial.dvc")
    lock = (project / "dvc.lock").read_text().replace("models/second,", "models/second.partial,")
    (project / "dvc.lock").write_text(lock)
    write(project / "src/__pycache__/x.pyc")
    found = plan(project)
    assert names(found) == ["__pycache__"]
    assert found.items[0].paths == (project / "src/__pycache__",)
    assert left(found) == {
        "models/fixture.partial": "git tracks files of it",
        "tests/__pycache__": "git tracks files of it",
        "dvc_plots": "git tracks files of it",
        "models/second.partial": "DVC tracks it",
        "models/added.partial": "DVC tracks it",
    }
    assert clean.run(dry_run=False, yes=True) == 0
    assert (project / "tests/__pycache__/x.pyc").is_file()
    assert not (project / "src/__pycache__").exists()


def test_nothing_goes_if_git_gives_no_answer(project: Path) -> None:
    folder = interrupted(project)
    (project / ".git/HEAD").write_text("nonsense")
    with pytest.raises(FerrataError, match="git does not say"):
        clean.run(dry_run=False, yes=True)
    assert folder.is_dir()


def test_without_git(project: Path) -> None:
    shutil.rmtree(project / ".git")
    interrupted(project)
    assert len(names(plan(project))) == 1


def test_without_a_terminal_it_refuses(project: Path) -> None:
    folder = interrupted(project)
    with pytest.raises(FerrataError) as refused:
        clean.run(dry_run=False, yes=False)
    assert "--yes" in str(refused.value) and "--dry-run" in str(refused.value)
    assert folder.is_dir()


@pytest.mark.parametrize(
    ("answer", "gone"), [("y", True), ("", False), ("n", False), (None, False)]
)
def test_the_question(
    project: Path, monkeypatch: pytest.MonkeyPatch, answer: str | None, gone: bool
) -> None:
    folder = interrupted(project)

    def asked(question: str) -> str:
        assert "Remove? [y/N]" in question
        if answer is None:
            raise EOFError
        return answer

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", asked)
    assert clean.run(dry_run=False, yes=False) == 0
    assert folder.exists() is not gone


def test_what_cannot_be_removed_is_said(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(project / "dvc_plots/x")
    write(project / ".ruff_cache/x")
    real = shutil.rmtree

    def refuse(path: Path) -> None:
        if path.name == ".ruff_cache":
            raise PermissionError(13, "Permission denied")
        real(path)

    monkeypatch.setattr("shutil.rmtree", refuse)
    assert clean.run(dry_run=False, yes=True) == 1
    assert ".ruff_cache: cannot be removed: Permission denied" in capsys.readouterr().err
    assert not (project / "dvc_plots").exists()


def test_studies_are_cleaned_too(project: Path) -> None:
    write(project / "experiments/study/dvc.yaml", "stages: {}\n")
    age(write(project / "experiments/study/models/rl.partial/x").parent)
    assert names(plan(project)) == ["experiments/study/models/rl.partial"]


def test_a_lock_that_is_a_pipe_does_not_hang(project: Path) -> None:
    folder = interrupted(project)
    (folder / "lock").unlink()
    os.mkfifo(folder / "lock")
    plan(project)


def test_the_lock_is_that_of_training(project: Path) -> None:
    from ferrata.training.checkpoint import checkpoints

    with checkpoints(project, "rl", "cccc") as folder:
        assert left(plan(project)) == {".checkpoints/rl/cccc": f"in use by process {os.getpid()}"}
        assert folder.path.is_dir()


def test_nothing_that_this_repository_tracks_is_removable() -> None:
    root = Path(__file__).resolve().parents[2]
    tracked = subprocess.run(
        ["git", "-C", str(root), "ls-files"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    found = plan(root)
    for item in found.items:
        for path in item.paths:
            assert not any(line.startswith(f"{path.relative_to(root)}/") for line in tracked)
