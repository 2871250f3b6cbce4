"""Two processes through `accelerate launch` train like one."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ferrata.chat import Assembler
from ferrata.config.launch import LaunchParams
from ferrata.errors import FerrataError
from ferrata.training.launch import launch_command, relaunch
from ferrata.training.models import save_model

ROOT = Path(__file__).resolve().parents[2]
WORKER = Path(__file__).with_name("launched.py")
LIMIT_S = 300  # a hang is what this is about


def run(out: Path, start: Path, *launcher: str) -> None:
    out.mkdir()
    command = [*launcher, str(WORKER), str(ROOT), str(start), str(out)]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_two_processes_have_the_gradients_of_one(tiny: tuple[Any, Any], tmp_path: Path) -> None:
    import torch

    model, tokenizer = tiny
    model = copy.deepcopy(model)
    with torch.no_grad():  # turns are closed often, after different numbers of tokens
        model.get_input_embeddings().weight[Assembler(tokenizer, "").close_id] *= 4
    start = tmp_path / "start"
    save_model(model, tokenizer, start)
    run(tmp_path / "one", start, sys.executable)
    *launcher, _ = launch_command(launch_params(), "script", tmp_path)
    run(tmp_path / "two", start, *launcher)

    one = torch.load(tmp_path / "one" / "gradients-0.pt", weights_only=True)
    assert len(one) == 2
    for process in (0, 1):
        two = torch.load(tmp_path / "two" / f"gradients-{process}.pt", weights_only=True)
        for name, expected in one[0].items():
            assert torch.allclose(two[0][name], expected, rtol=1e-4, atol=1e-6), name
    assert any(gradient.abs().max() > 1e-4 for gradient in one[0].values())
    rows = {
        name: json.loads((tmp_path / name / "rows-0.json").read_text()) for name in ("one", "two")
    }
    for a, b in zip(rows["one"], rows["two"], strict=True):
        assert a["step"] == b["step"]
        for key in ("validation_success", "reward", "turns"):  # the same episodes were played
            assert a.get(key) == pytest.approx(b.get(key), abs=1e-5), (key, a["step"])
    assert (tmp_path / "two" / "model" / "model.safetensors").is_file()
    assert not list((tmp_path / "two" / ".checkpoints" / "rl").iterdir())


def launch_params(**changed: Any) -> LaunchParams:
    return LaunchParams(**{"processes": 2, "config": None, **changed})


def test_one_process_is_not_launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert relaunch(launch_params(processes=1), "stage.py", tmp_path) is None


def test_launched_process_does_the_work_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert relaunch(launch_params(), "stage.py", tmp_path) is None
    with pytest.raises(FerrataError, match=r"launch\.processes"):
        relaunch(launch_params(processes=3), "stage.py", tmp_path)


def test_missing_configuration_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(FerrataError, match=r"launch\.config"):
        relaunch(launch_params(config="no.yaml"), "stage.py", tmp_path)


def test_status_of_the_launched_processes_is_returned(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    script = tmp_path / "stage.py"
    script.write_text(
        "import os, sys\n"
        f"open({str(tmp_path)!r} + '/rank-' + os.environ['RANK'], 'w').close()\n"
        "sys.exit(int(os.environ['WORLD_SIZE']) - 2)\n"
    )
    assert relaunch(launch_params(), str(script), tmp_path) == 0
    assert (tmp_path / "rank-0").is_file()
    assert (tmp_path / "rank-1").is_file()
