from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from ferrata.tracking import lineage, runs, store
from ferrata.tracking.runs import stage_run

SRC = Path(runs.__file__).parents[2]


def client_of(root: Path) -> Any:
    return store.connect(root)[0]


def all_runs(root: Path) -> list[Any]:
    client, _, experiment = store.connect(root)
    return list(client.search_runs([experiment]))


def nothing_runs(root: Path) -> bool:
    return all(run.info.status != "RUNNING" for run in all_runs(root))


def test_a_run_holds_params_metrics_tags_and_dataset(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DVC_STAGE", "sft")
    (project / "out.txt").write_text("a text")
    with stage_run("sft", {"rl": {"learning_rate": 1e-5, "sizes": [1, 2]}}, root=project) as run:
        for step in range(3):
            run.metrics({"loss": 1.0 / (step + 1), "reward@mean": 2}, step=step)
        run.metrics({"loss": math.nan, "kl": math.inf}, step=3)
        run.tags({"extra": 7})
        run.dataset("tasks", "ab" * 32, rows=12)
        run.artifact(project / "out.txt", "files")
    (project / "out.txt").unlink()
    assert run.run_id and run.offline_file is None
    stored = client_of(project).get_run(run.run_id)
    assert stored.info.status == "FINISHED"
    assert stored.data.params == {"rl.learning_rate": "1e-05", "rl.sizes": "[1, 2]"}
    assert stored.data.metrics == {"loss": 1 / 3, "reward_mean": 2.0}
    history = client_of(project).get_metric_history(run.run_id, "loss")
    assert [(m.step, m.value) for m in history] == [(0, 1.0), (1, 0.5), (2, 1 / 3)]
    tags = stored.data.tags
    assert tags["ferrata.stage"] == "sft" and tags["extra"] == "7"
    assert tags["ferrata.commit"] == lineage.git_commit(project)
    assert tags["mlflow.parentRunId"] == run.parent_id
    assert tags["ferrata.deps.data/a"] == "0123", "the producer's hash, not the stale one"
    assert "ferrata.deps.src/b" not in tags
    assert tags["ferrata.version.mlflow"] and tags["ferrata.device"]
    assert json.loads(tags["ferrata.dropped_metrics"]) == {"kl": 1, "loss": 1}
    assert tags["ferrata.dataset.tasks"] == "ab" * 32
    assert stored.inputs.dataset_inputs[0].dataset.digest == ("ab" * 32)[:36]
    assert stored.info.artifact_uri.startswith((project / "mlartifacts").as_uri())
    assert (project / "mlartifacts" / run.run_id / "artifacts/files/out.txt").is_file()
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "loss is nan at step 3" in shown.err and "alembic" not in shown.err
    assert not (project / ".mlflow-offline").exists()
    assert nothing_runs(project)


def test_stages_of_one_pipeline_share_a_parent(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parents = []
    for stage in ("prepare", "sft", "sft"):
        with stage_run(stage, {}, root=project) as run:
            pass
        parents.append(run.parent_id)
    assert len(set(parents)) == 1
    parent = client_of(project).get_run(parents[0])
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["ferrata.pipeline"] == lineage.pipeline_key(project)
    monkeypatch.setenv("DVC_EXP_NAME", "it's-new")
    others = []
    for _ in range(2):
        with stage_run("sft", {}, root=project) as run:
            pass
        others.append(run.parent_id)
    assert len(set(others)) == 1 and others[0] != parents[0]


def test_the_tree_is_dirty_only_by_what_no_stage_writes(project: Path) -> None:
    def dirty() -> str:
        return lineage.lineage_tags("sft", project)["ferrata.dirty"]

    lock = (project / "dvc.lock").read_text()
    (project / "dvc.lock").write_text(lock + "\n")
    (project / "metrics").mkdir(exist_ok=True)
    (project / "metrics" / "x.json").write_text("{}")
    assert dirty() == "false"
    (project / "params.yaml").write_text("seed: 2\n")
    assert dirty() == "true"
    (project / "params.yaml").write_text("seed: 1\n")
    (project / "dvc.lock").write_text(lock)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("boom"), "FAILED"),
        (KeyboardInterrupt(), "KILLED"),
        (SystemExit(143), "KILLED"),
        (SystemExit(2), "FAILED"),
        (SystemExit(0), "FINISHED"),
    ],
)
def test_the_exception_decides_the_status_and_propagates(
    project: Path, error: BaseException, status: str
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with (
        pytest.raises(type(error)) as caught,
        stage_run("sft", {}, root=project) as run,
    ):
        raise error
    assert caught.value is error
    assert run.run_id and client_of(project).get_run(run.run_id).info.status == status
    assert signal.getsignal(signal.SIGTERM) is before


def start(root: Path, body: str) -> subprocess.Popen[str]:
    code = "from ferrata.tracking.runs import stage_run\nfrom pathlib import Path\nimport time\n"
    code += f"with stage_run('rl', {{}}, root=Path({str(root)!r})) as run:\n"
    code += textwrap.indent(textwrap.dedent(body), "    ")
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_process_leaves_nothing_running(project: Path, number: int) -> None:
    process = start(
        project, "run.metrics({'x': 1.5}, step=4)\nprint(run.run_id, flush=True)\ntime.sleep(60)"
    )
    assert process.stdout
    run_id = process.stdout.readline().strip()
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    if number == signal.SIGTERM:
        assert process.returncode == 143, said
        assert client_of(project).get_run(run_id).data.metrics == {"x": 1.5}
    else:  # nobody could end it: the next stage does
        assert client_of(project).get_run(run_id).info.status == "RUNNING"
        with stage_run("rl", {}, root=project):
            pass
    assert client_of(project).get_run(run_id).info.status == "KILLED"
    assert nothing_runs(project)


def test_mlflow_run_id_in_the_environment_has_no_effect(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage_run("first", {}, root=project) as first:
        first.metrics({"x": 1.0})
    assert first.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", first.run_id)
    with stage_run("second", {"a": 1}, root=project, name="other") as second:
        assert "MLFLOW_RUN_ID" not in os.environ
    assert second.run_id not in (None, first.run_id)
    stored = client_of(project).get_run(first.run_id)
    assert stored.info.run_name == "first" and stored.data.params == {}


def test_other_ranks_of_a_launch_make_no_run(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(all_runs(project))
    monkeypatch.setenv("RANK", "1")
    with stage_run("sft", {}, root=project) as run:
        run.metrics({"x": 1.0})
        run.tags({"a": 1})
    assert run.run_id is None and run.offline_file is None
    assert len(all_runs(project)) == before


def test_a_temporary_experiment_writes_to_the_original_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / ".dvc" / "tmp" / "exps" / "standalone" / "tmpabc"
    copy.mkdir(parents=True)
    for folder in (tmp_path, copy):
        (folder / "dvc.yaml").write_text("stages: {}\n")
        (folder / "params.yaml").write_text(f"seed: {len(folder.parts)}\n")
    assert store.store_root(copy) == tmp_path.resolve()
    assert store.store_root(tmp_path) == tmp_path.resolve()
    assert store.tracking_uri(copy) == f"sqlite:///{tmp_path.resolve() / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///own.db")
    assert store.tracking_uri(copy) == f"sqlite:///{tmp_path.resolve() / 'own.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://example.org")
    assert store.tracking_uri(copy) == "http://example.org"
    # DVC_ROOT names the original project there, while parameters and commit are the copy's.
    monkeypatch.chdir(copy)
    assert store.workspace(tmp_path) == copy.resolve()
    assert lineage.pipeline_key(store.workspace(tmp_path)) != lineage.pipeline_key(tmp_path)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_unreachable_server_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    began = time.monotonic()
    with stage_run("sft", {"sft": {"epochs": 1}}, root=tmp_path) as run:
        run.metrics({"loss": 0.5}, step=1)
        run.tags({"a": "b"})
        run.dataset("tasks", "abc", rows=3)
        run.artifact(tmp_path)
    assert time.monotonic() - began < 20
    assert run.run_id is None and run.offline_file
    assert run.offline_file.parent == tmp_path / ".mlflow-offline"
    found = records(run.offline_file)
    kinds = [record["kind"] for record in found]
    assert kinds[:3] == ["run", "params", "tags"]
    assert {"metrics", "dataset", "artifact", "status"} <= set(kinds)
    assert found[1]["values"] == {"sft.epochs": "1"}
    metric = next(record for record in found if record["kind"] == "metrics")["values"][0]
    assert (metric["key"], metric["value"], metric["step"]) == ("loss", 0.5, 1)
    assert found[-1] == {"time": found[-1]["time"], "kind": "status", "status": "FINISHED"}
    said = capfd.readouterr().err
    assert said.count("cannot be reached") == 1
    assert "http://127.0.0.1:9" in said and str(run.offline_file) in said


@pytest.mark.slow
def test_a_server_that_dies_on_the_way_stops_nothing(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    store = f"sqlite:///{project / 'mlflow.db'}"
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    arguments += ["--backend-store-uri", store, "--artifacts-destination", str(tmp_path / "served")]
    server = subprocess.Popen(
        [sys.executable, "-m", "mlflow", "server", *arguments],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
        with stage_run("rl", {"a": 1}, root=tmp_path) as run:
            assert run.online
            run.metrics({"x": 1.0}, step=0)
            run._flush()
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
            run.metrics({"x": 2.0}, step=1)
            run.tags({"after": "death"})
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
    assert run.offline_file
    found = records(run.offline_file)
    assert found[0]["run_id"] == run.run_id is not None
    values = [row["value"] for r in found if r["kind"] == "metrics" for row in r["values"]]
    assert values == [2.0]
    assert found[-1]["status"] == "FINISHED"
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert client_of(project).get_run(run.run_id).data.metrics == {"x": 1.0}
