"""Training that is interrupted goes on as if nothing had happened; damaged checkpoints are seen."""

from __future__ import annotations

import copy
import multiprocessing
import random
import resource
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ferrata.chat import Assembler
from ferrata.config.episodes import EpisodesParams
from ferrata.config.rl import RlParams
from ferrata.config.sft import SftParams
from ferrata.environments.base import Task, ToolWorld, World
from ferrata.environments.tool_use import ToolUse
from ferrata.errors import FerrataError
from ferrata.training import curves
from ferrata.training.checkpoint import CheckpointFolder, checkpoints, content_key, no_space
from ferrata.training.models import load_tokenizer, save_model
from ferrata.training.rl import train_rl
from ferrata.training.sft import train_sft

SYSTEM = "Use tools."


def draw(split: Any, n: int) -> list[Task]:
    return list(ToolUse().tasks(split, n, 3))


class Killed(BaseException):
    """Stands for a signal: nothing in training catches it."""


def kill_at(step: int) -> Any:
    from transformers import TrainerCallback

    class Kill(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == step:
                raise Killed

    return Kill()


@pytest.fixture
def start(tiny: tuple[Any, Any], tmp_path: Path) -> Path:
    import torch

    model, tokenizer = tiny
    model = copy.deepcopy(model)
    with torch.no_grad():  # turns are closed often, so that they are graded
        model.get_input_embeddings().weight[Assembler(tokenizer, SYSTEM).close_id] *= 4
    save_model(model, tokenizer, tmp_path / "start")
    return tmp_path / "start"


class PayForBreadth(ToolUse):
    """Tool use that pays for different characters: a random model earns something now and then,
    so that there is a gradient."""

    def start(self, task: Task) -> World:
        def grade(text: str) -> tuple[dict[str, float], str | None]:
            return {"success": float(len(set(text)) % 2)}, None

        return ToolWorld("Say something.", self.tools(task), grade)


def run_rl(
    start: Path, target: Path, folder: CheckpointFolder, *callbacks: Any, **changed: Any
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Six steps of two tasks, of which there are five: the run goes over the end of an epoch."""
    params = RlParams(
        tuning="full",
        generation="transformers",
        steps=6,
        tasks_per_step=2,
        group_size=4,
        micro_batch_size=4,
        learning_rate=1e-2,
        warmup_steps=0,
        lr_scheduler="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        temperature=1.0,  # cooler, a random model repeats itself and there is no gradient
        loss_type="dapo",
        scale_rewards="group",
        epsilon=0.2,
        epsilon_high=0.2,
        beta=0.0,
        curriculum=None,
        updates_per_batch=1,
        eval_every=2,
        checkpoint_every=2,
        precision="float32",
    )
    budgets = EpisodesParams(
        max_turns=2,
        max_turn_tokens=8,
        max_context_tokens=1024,
        max_invalid_calls=2,
        invalid_call_cost=0.1,
        call_cost=0.0,
        token_cost=0.0,
        max_result_chars=200,
    )
    return train_rl(
        start,
        target,
        PayForBreadth(),
        draw("train", 5),
        draw("validation", 2),
        RlParams(**{**params.model_dump(), **changed}),
        budgets,
        system=SYSTEM,
        seed=5,
        folder=folder,
        callbacks=callbacks,
    )


def run_sft(
    start: Path, target: Path, folder: CheckpointFolder, *callbacks: Any
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Six steps: two epochs of ten demonstrations, four a step."""
    params = SftParams(
        tuning="full",
        epochs=2.0,
        batch_size=4,
        micro_batch_size=2,
        learning_rate=1e-2,
        warmup_ratio=0.1,
        weight_decay=0.0,
        max_grad_norm=1.0,
        eval_every=2,
        checkpoint_every=2,
        validation_demonstrations=4,
        precision="float32",
    )
    world = ToolUse()
    shown = [world.demonstrate(t, 0.5, random.Random(i)) for i, t in enumerate(draw("sft", 14))]
    return train_sft(
        start,
        target,
        world,
        Assembler(load_tokenizer(start), SYSTEM),
        shown[:10],
        shown[10:],
        params,
        seed=5,
        max_length=1024,
        folder=folder,
        callbacks=callbacks,
    )


def record(folder: Path, stage: str, done: tuple[dict[str, float], list[Any]]) -> dict[str, bytes]:
    """What the stage would leave in metrics/, byte for byte."""
    curves.write(folder, stage, *done)
    return {f.name: f.read_bytes() for f in folder.rglob("*") if f.is_file()}


# At a threshold of 0 the level rises with each validation: a resumed run must know it.
run_rl_by_band = partial(run_rl, curriculum={"threshold": 0.0})


@pytest.mark.parametrize(
    ("stage", "run"), [("sft", run_sft), ("rl", run_rl), ("rl", run_rl_by_band)]
)
def test_interrupted_run_ends_with_the_same_bytes(
    stage: str, run: Callable[..., Any], start: Path, tmp_path: Path
) -> None:
    with checkpoints(tmp_path, stage, "whole") as folder:
        done = run(start, tmp_path / "whole", folder)
    assert any(entry.get("grad_norm", 0.0) > 0 for entry in done[1][-3:])  # there is learning
    expected = record(tmp_path / "a", stage, done)
    if stage == "rl":  # a validation does not push out what its step would log
        rows = {row["step"]: row for row in curves.curve(done[1])}
        assert all({"loss", "reward"} <= rows[step].keys() for step in range(1, 7))
        assert [s for s, row in rows.items() if "validation_success" in row] == [0, 2, 4, 6]
    for step in (3, 5):  # with a checkpoint at 2, then at 4; the second run is killed as well
        with pytest.raises(Killed), checkpoints(tmp_path, stage, "cut") as folder:
            run(start, tmp_path / "cut", folder, kill_at(step))
    with checkpoints(tmp_path, stage, "cut") as folder:
        latest = folder.latest()
        assert latest is not None and latest.step == 4
        found = record(tmp_path / "b", stage, run(start, tmp_path / "cut", folder))
    assert found == expected
    weights = "model.safetensors"
    assert (tmp_path / "cut" / weights).read_bytes() == (tmp_path / "whole" / weights).read_bytes()
    assert not list((tmp_path / ".checkpoints" / stage).iterdir())  # done: nothing is left


def test_lora_goes_on_too(start: Path, tmp_path: Path) -> None:
    lora = {"rank": 2, "alpha": 4, "dropout": 0.0, "target_modules": "all-linear"}
    changed: dict[str, Any] = {"tuning": "lora", "lora": lora}
    with checkpoints(tmp_path, "rl", "whole") as folder:
        expected = run_rl(start, tmp_path / "whole", folder, **changed)
    with pytest.raises(Killed), checkpoints(tmp_path, "rl", "cut") as folder:
        run_rl(start, tmp_path / "cut", folder, kill_at(3), **changed)
    with checkpoints(tmp_path, "rl", "cut") as folder:
        found = run_rl(start, tmp_path / "cut", folder, **changed)
    assert curves.curve(found[1]) == curves.curve(expected[1])
    assert found[0] == expected[0]


def sealed(folder: CheckpointFolder, step: int, text: str = "weights") -> Path:
    written = folder.scratch / f"checkpoint-{step}"
    written.mkdir(parents=True)
    (written / "model.safetensors").write_text(text * 100)
    best = folder.path / f"best-{step}"
    best.mkdir(exist_ok=True)
    folder.seal(written, step, {"best": best.name, "best_score": 0.5, "best_step": step})
    return folder.path / f"step-{step}"


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    made = CheckpointFolder(tmp_path / ".checkpoints" / "rl" / "key")
    made.path.mkdir(parents=True)
    return made


def cut(step: Path) -> None:
    file = step / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def flip(step: Path) -> None:
    file = step / "model.safetensors"
    file.write_bytes(b"W" + file.read_bytes()[1:])


def no_manifest(step: Path) -> None:
    (step / "manifest.json").unlink()


def half_a_manifest(step: Path) -> None:
    file = step / "manifest.json"
    file.write_text(file.read_text()[:40])


def strange_manifest(step: Path) -> None:
    (step / "manifest.json").write_text("[]")


def no_best(step: Path) -> None:
    shutil.rmtree(step.parent / f"best-{step.name.removeprefix('step-')}")


@pytest.mark.parametrize(
    "damage", [cut, flip, no_manifest, half_a_manifest, strange_manifest, no_best]
)
def test_damaged_checkpoint_is_passed_over_and_named(
    damage: Callable[[Path], None], folder: CheckpointFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    sealed(folder, 2)
    damage(sealed(folder, 4))
    found = folder.latest()
    assert found is not None and found.step == 2
    assert "step-4 is damaged" in capsys.readouterr().err


def test_old_checkpoints_and_weights_go(folder: CheckpointFolder) -> None:
    (folder.path / "best-0").mkdir()
    for step in (2, 4, 6):
        sealed(folder, step)
    names = sorted(entry.name for entry in folder.path.glob("*-*"))
    assert names == ["best-4", "best-6", "step-4", "step-6"]


def hold(root: Path, held: Any, done: Any) -> None:
    with checkpoints(root, "rl", "key"):
        held.set()
        done.wait(30)


def test_second_process_is_refused_with_the_first_ones_id(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held, done = context.Event(), context.Event()
    first = context.Process(target=hold, args=(tmp_path, held, done))
    first.start()
    try:
        assert held.wait(60)
        with (
            pytest.raises(FerrataError, match=f"process {first.pid} trains in"),
            checkpoints(tmp_path, "rl", "key"),
        ):
            pass
        assert (tmp_path / ".checkpoints" / "rl" / "key").is_dir()
    finally:
        done.set()
        first.join(30)
    with checkpoints(tmp_path, "rl", "key"):  # the lock went with the process
        pass


def test_full_disk_while_saving_costs_only_that_checkpoint(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A limit on the size of files fails writes as a full disk does; it hits the optimizer's state,
    which is twice the size of the weights."""
    with checkpoints(tmp_path, "rl", "free") as folder:
        expected = run_rl(start, tmp_path / "free", folder)
    capsys.readouterr()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    weights = (start / "model.safetensors").stat().st_size
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(weights * 1.5), before[1]))
        with checkpoints(tmp_path, "rl", "full") as folder:
            found = run_rl(start, tmp_path / "full", folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert found[0] == expected[0]
    said = capsys.readouterr().err
    assert "the checkpoint of step 2 could not be written" in said
    assert "Training goes on" in said


def test_full_disk_where_weights_must_be_kept_ends_with_a_message(
    start: Path, tmp_path: Path
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
        with (
            pytest.raises(FerrataError, match="no space left"),
            checkpoints(tmp_path, "rl", "full") as folder,
        ):
            run_rl(start, tmp_path / "full", folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def end_with(error: BaseException, root: Path, stage: str, *steps: int) -> None:
    with checkpoints(root, stage, "key") as folder:
        for step in steps:
            sealed(folder, step)
        raise error


def test_interruption_says_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        end_with(KeyboardInterrupt(), tmp_path, "rl", 4)
    said = capsys.readouterr().err
    assert "interrupted; steps 1 to 4 are kept" in said
    assert "dvc repro" in said
    with pytest.raises(SystemExit):
        end_with(SystemExit(143), tmp_path, "sft")
    assert "before its first checkpoint" in capsys.readouterr().err


def test_key_follows_parameters_and_content(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("a")
    paths = [tmp_path / "model", tmp_path / "missing.json"]
    key = content_key({"steps": 1}, paths)
    assert key == content_key({"steps": 1}, paths) and len(key) == 16
    assert key != content_key({"steps": 2}, paths)
    (tmp_path / "model" / "weights").write_text("b")
    assert key != content_key({"steps": 1}, paths)


def test_full_disk_is_recognised_behind_other_errors() -> None:
    behind = RuntimeError("stream failed")
    behind.__cause__ = OSError(28, "No space left on device")
    assert no_space(behind)
    assert not no_space(RuntimeError("shape mismatch"))


def test_a_folder_removed_while_it_is_opened_is_not_trained_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ferrata clean` between opening and locking: the lock would be on a file nobody can find."""
    import fcntl

    real = fcntl.flock

    def flock(file: Any, how: int) -> None:
        real(file, how)
        shutil.rmtree(tmp_path / ".checkpoints" / "rl" / "key")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(FerrataError, match="removed while"), checkpoints(tmp_path, "rl", "key"):
        pytest.fail("opened")
    monkeypatch.setattr(fcntl, "flock", real)
    with checkpoints(tmp_path, "rl", "key") as folder:
        assert folder.path.is_dir()
