"""The graph itself: its rules, its lock, and two complete runs of the tiny profile.

The slow tests clone HEAD: what is not committed is not in them.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent  # not resolved: a venv's python is a link
DVC = BIN / "dvc"
ARMS = ("demonstrator", "base", "base_fewshot", "sft", "rl")
CAPABILITIES = (
    *("all", "tool_use", "reasoning", "planning", "memory", "self_improvement"),
    "multi_agent",
)  # of the tiny profile
STAGES = (
    *("base", "prepare", "sft", "rl"),
    *(f"evaluate@{arm}" for arm in ARMS),
    *("report", "register"),
)
LIMIT_S = 20 * 60  # of one command


def read_yaml(path: Path) -> dict[str, Any]:
    return parse_yaml(path.read_text(encoding="utf-8"))


def parse_yaml(text: str) -> dict[str, Any]:
    from ruamel.yaml import YAML

    return dict(YAML(typ="safe").load(text))


def environment(**extra: str) -> dict[str, str]:
    """This process's environment without what would lead a command out of its clone."""
    dropped = ("DVC_", "MLFLOW_", "GIT_", "FERRATA_", "PYTHONPATH", "RANK")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    return {
        **kept,
        "PATH": f"{BIN}{os.pathsep}{kept.get('PATH', '')}",
        "FERRATA_ENV": sys.prefix,
        "DVC_NO_ANALYTICS": "1",
        "DO_NOT_TRACK": "1",
        **extra,
    }


def run(*command: str | Path, cwd: Path, **extra: str) -> str:
    """Output (both streams) of a command that must succeed; after LIMIT_S it and its children
    end."""
    process = subprocess.Popen(
        [str(word) for word in command],
        cwd=cwd,
        env=environment(**extra),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    shown = " ".join(map(str, command))
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        pytest.fail(f"`{shown}` took more than {LIMIT_S} s:\n{output[-6000:]}")
    if process.returncode:
        pytest.fail(f"`{shown}` ended with {process.returncode}:\n{output[-6000:]}")
    return output


def stages_run(output: str) -> list[str]:
    """Names of the stages that DVC says it runs."""
    return re.findall(r"Running stage '(?:[^':]*:)?([^']+)'", output)


# --- The rules of dvc.yaml ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def graph() -> dict[str, dict[str, Any]]:
    """Stage -> its definition; of `evaluate` what is repeated for each arm."""
    stages = read_yaml(ROOT / "dvc.yaml")["stages"]
    return {name: entry.get("do", entry) for name, entry in stages.items()}


def test_every_stage_is_a_short_script(graph: dict[str, dict[str, Any]]) -> None:
    for name, stage in graph.items():
        found = re.search(r"stages/\w+\.py", stage["cmd"])
        assert found, f"{name}: no script in `{stage['cmd']}`"
        script = ROOT / found[0]
        assert script.is_file(), f"{name}: {found[0]} does not exist"
        lines = len(script.read_text(encoding="utf-8").splitlines())
        assert lines < 80, f"{found[0]}: {lines} lines"


def test_every_stage_depends_on_its_fingerprint(graph: dict[str, dict[str, Any]]) -> None:
    written = {path for out in graph["code"]["outs"] for path in out}
    assert written == {f"code/{name}.json" for name in graph if name != "code"}
    for name, stage in graph.items():
        fingerprints = {dep for dep in stage["deps"] if dep.startswith("code/")}
        assert fingerprints == (set() if name == "code" else {f"code/{name}.json"}), name


def test_every_version_of_env_yaml_is_a_parameter_of_a_stage(
    graph: dict[str, dict[str, Any]],
) -> None:
    used: set[str] = set()
    for stage in graph.values():
        for entry in stage.get("params", []):
            if isinstance(entry, Mapping):
                used |= set(entry.get("env.yaml", []))
    assert used == set(read_yaml(ROOT / "env.yaml"))


def test_metrics_are_committed_and_nothing_persists(graph: dict[str, dict[str, Any]]) -> None:
    metrics = 0
    for name, stage in graph.items():
        for entry in stage.get("metrics", []):
            assert isinstance(entry, Mapping), f"{name}: {entry} has no `cache: false`"
            for path, options in entry.items():
                assert options.get("cache") is False, f"{name}: {path} is cached"
                metrics += 1
    assert metrics, "no metrics at all"
    assert "persist" not in (ROOT / "dvc.yaml").read_text(encoding="utf-8")


def test_the_full_study_has_the_stages_and_plots_of_the_default(
    graph: dict[str, dict[str, Any]],
) -> None:
    text = (ROOT / "experiments" / "full" / "dvc.yaml").read_text(encoding="utf-8")
    assert text.count("../../") > 10
    study = parse_yaml(text.replace("../../", ""))
    default = read_yaml(ROOT / "dvc.yaml")
    del default["stages"]["register"]  # the default's model is the one that is registered
    assert study == default


def test_the_slow_tests_know_all_stages(graph: dict[str, dict[str, Any]]) -> None:
    arms = read_yaml(ROOT / "params.yaml")["arms"]
    assert set(arms) == set(ARMS)
    once = set(graph) - {"code", "evaluate", "rejection"}  # the default has no round of rejection
    assert once | {f"evaluate@{arm}" for arm in arms} == set(STAGES)


@pytest.mark.parametrize("pipeline", ["dvc.yaml", "experiments/full/dvc.yaml"])
def test_the_lock_is_current(pipeline: str) -> None:
    """DVC ends with 0 even when stages would run, so its output counts."""
    lock = (ROOT / pipeline).with_suffix(".lock")
    again = f"`dvc repro {pipeline}`, and commit {lock.name}, code/ and metrics/ beside it"
    if not lock.is_file():
        pytest.fail(f"{lock} is missing: {again}")
    output = run(DVC, "repro", "--allow-missing", "--dry", pipeline, cwd=ROOT)
    assert "Running stage" not in output, f"{lock} is out of date: {again}\n{output}"


# --- Complete runs of the tiny profile -----------------------------------------------------------


@dataclass(frozen=True)
class TinyRun:
    """A clone after its first `dvc repro`, with what was in it at that moment."""

    folder: Path
    output: str
    seconds: float
    metrics: dict[str, bytes]  # file under metrics/ -> content
    runs: list[Any]  # all of MLflow's
    versions: dict[str, Any]  # registered model -> its version with the alias challenger


def tiny_run(folder: Path) -> TinyRun:
    """Clone HEAD into `folder` and run the tiny profile from scratch."""
    run("git", "clone", "--quiet", "--no-hardlinks", ROOT, folder, cwd=folder.parent)
    run("git", "config", "user.name", "Ferrata's tests", cwd=folder)
    run("git", "config", "user.email", "tests@example.org", cwd=folder)
    run("git", "config", "commit.gpgsign", "false", cwd=folder)
    run(sys.executable, "-m", "ferrata.cli", "profile", "tiny", cwd=folder, PYTHONPATH="src")
    # What HEAD brings along must not pass for what this run writes.
    shutil.rmtree(folder / "metrics", ignore_errors=True)
    start = time.monotonic()
    output = run(DVC, "repro", cwd=folder)
    seconds = time.monotonic() - start
    print(f"dvc repro of the tiny profile in {folder.name}: {seconds:.0f} s")
    runs, versions = read_mlflow(folder)
    return TinyRun(folder, output, seconds, read_files(folder / "metrics"), runs, versions)


def read_files(folder: Path) -> dict[str, bytes]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def read_mlflow(folder: Path) -> tuple[list[Any], dict[str, Any]]:
    from mlflow import MlflowClient

    if not (folder / "mlflow.db").is_file():
        return [], {}
    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    experiments = [e.experiment_id for e in client.search_experiments()]
    models = client.search_registered_models()
    versions = {
        model.name: client.get_model_version_by_alias(model.name, "challenger")
        for model in models
        if "challenger" in model.aliases
    }
    return list(client.search_runs(experiments, max_results=1000)), versions


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    return tiny_run(tmp_path_factory.mktemp("tiny") / "first")


def scalars(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of a metrics file with its dotted name."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from scalars(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


@pytest.mark.slow
def test_tiny_profile_runs_every_stage(first: TinyRun) -> None:
    # `code` is left out: HEAD may bring its outputs along.
    assert set(stages_run(first.output)) - {"code"} == set(STAGES), first.output[-6000:]


@pytest.mark.slow
def test_tiny_profile_measures_every_arm(first: TinyRun) -> None:
    assert "registry.json" in first.metrics
    for name, content in first.metrics.items():
        if name.endswith(".json"):
            for key, value in scalars(json.loads(content)):
                if not isinstance(value, str):
                    assert isinstance(value, int | float) and math.isfinite(value), f"{name}: {key}"
    summary = dict(scalars(json.loads(first.metrics["summary.json"])))
    (curve,) = [text for name, text in first.metrics.items() if name.endswith("/rl.csv")]
    rows = list(csv.DictReader(curve.decode().splitlines()))
    validated = [row for row in rows if row["validation_success"]]
    assert validated[0]["step"] == "0" and len(validated) > 1
    (each,) = [text for name, text in first.metrics.items() if "rl_capabilities" in name]
    measured = {
        (row["capability"], row["step"], float(row["success"]) <= 1)
        for row in csv.DictReader(each.decode().splitlines())
        if row["measure"].startswith("greedy")
    }
    steps = [row["step"] for row in validated]
    assert measured == {(name, step, True) for name in CAPABILITIES[1:] for step in steps}
    arms = read_yaml(first.folder / "params.yaml")["arms"]
    cells = [(f"{e}.{s}", s) for e in CAPABILITIES for s in ("test", "forms", "ood")]
    for cell, split in cells:
        for arm in ARMS:
            if split not in arms[arm].get("splits", [split]):
                assert f"{cell}.{arm}.success" not in summary
                continue
            for group in (cell, f"{cell}.sampled"):
                low, value, high = (
                    summary[f"{group}.{arm}.{end}"] for end in ("low", "success", "high")
                )
                assert 0 <= low <= value <= high <= 1, f"{group}.{arm}"
        for end in ("low", "diff", "high"):
            assert -1 <= summary[f"{cell}.rl_minus_sft.{end}"] <= 1


@pytest.mark.slow
def test_tiny_profile_is_tracked_under_one_parent(first: TinyRun) -> None:
    kinds: dict[str, list[Any]] = {"pipeline": [], "stage": []}
    for made in first.runs:
        assert made.info.status == "FINISHED", f"{made.info.run_name}: {made.info.status}"
        kinds[made.data.tags["ferrata.kind"]].append(made)
    assert len(kinds["pipeline"]) == 1, [made.info.run_name for made in kinds["pipeline"]]
    parent = kinds["pipeline"][0].info.run_id
    assert sorted(made.info.run_name for made in kinds["stage"]) == sorted(STAGES)
    for made in kinds["stage"]:
        assert made.data.tags["mlflow.parentRunId"] == parent, made.info.run_name
        assert made.data.params, f"{made.info.run_name}: no parameters"


@pytest.mark.slow
def test_tiny_profile_registers_a_challenger(first: TinyRun) -> None:
    name = read_yaml(first.folder / "params.yaml")["register"]["name"]
    assert set(first.versions) == {name}
    registered = [made for made in first.runs if made.info.run_name == "register"]
    assert [made.info.run_id for made in registered] == [first.versions[name].run_id]


@pytest.mark.slow
def test_nothing_changed_nothing_runs(first: TinyRun) -> None:
    start = time.monotonic()
    output = run(DVC, "repro", cwd=first.folder)
    print(f"dvc repro with nothing changed: {time.monotonic() - start:.1f} s")
    assert stages_run(output) == []
    assert "Data and pipelines are up to date" in output, output


EASY = '''"""Any message is right: a model that has learnt nothing has successes, too."""

from ferrata.environments.base import Demonstration, Fixture, Task, ToolWorld
from ferrata.environments.splits import draw_tasks


class Easy:
    name, agents, reward_ranges = "easy", ("agent",), {"answer": (0.0, 1.0)}

    def tasks(self, split, n, seed):
        return draw_tasks(self.name, split, n, seed, self.draw)

    def draw(self, split, band, index, rng):
        text = f"{split} {index} {rng.random()}"
        return Task(text, self.name, split, band, "", 0, text, {"question": text}, "")

    def tools(self, task):
        return ()

    def start(self, task):
        return ToolWorld(task.payload["question"], (), lambda text: ({"answer": 1.0}, text))

    def demonstrate(self, task, skill, rng):
        said = [{"role": "user", "content": task.payload["question"]}]
        return Demonstration(task, [*said, {"role": "assistant", "content": "Yes."}], True)

    def fixtures(self):
        return [Fixture("any", Task("x", "easy", "sft", 1, "", 0, "", {"question": ""}, ""), "", 1)]
'''


@pytest.mark.slow
def test_a_round_of_rejection_trains_on_own_successes(first: TinyRun, tmp_path: Path) -> None:
    folder = tmp_path / "easy"
    run("git", "clone", "--quiet", "--no-hardlinks", ROOT, folder, cwd=tmp_path)
    run(sys.executable, "-m", "ferrata.cli", "profile", "tiny", cwd=folder, PYTHONPATH="src")
    (folder / "capabilities" / "easy.py").write_text(EASY)
    path = folder / "params.yaml"
    text, mixtures = re.subn(
        r"mixture: \{.*\}", "mixture: {capabilities.easy:Easy: 1.0}", path.read_text()
    )
    text, rounds = re.subn(r"rounds: \{\}", "rounds: {own: models/sft}", text)
    text, tasks = re.subn(r"tasks: 240", "tasks: 12", text)
    assert (mixtures, rounds, tasks) == (1, 1, 1)
    path.write_text(text)
    output = run(DVC, "repro", "rejection@own", cwd=folder)
    assert stages_run(output)[-1] == "rejection@own"
    made = json.loads((folder / "metrics" / "own.json").read_text())
    assert made["episodes"] == 12 * 4 and made["steps"] >= 1
    counts = ("kept", "failures", "repeated", "rewritten", "crowded")
    assert sum(made[name] for name in counts) == made["episodes"]
    rows = (folder / "data" / "own" / "train.jsonl").read_text().splitlines()
    assert len(rows) == made["kept"] > 0
    assert (folder / "models" / "own" / "model.safetensors").is_file()
    assert "didn't change, skipping" in run(DVC, "repro", "rejection@own", cwd=folder)


@pytest.mark.slow
def test_second_run_from_scratch_gives_the_same_bytes(
    first: TinyRun, tmp_path_factory: pytest.TempPathFactory
) -> None:
    second = tiny_run(tmp_path_factory.mktemp("tiny") / "second")
    assert set(second.metrics) == set(first.metrics)
    different = [name for name, content in first.metrics.items() if content != second.metrics[name]]
    assert not different, f"metrics that differ between two runs: {', '.join(different)}"
    shutil.rmtree(second.folder)


@pytest.mark.slow
def test_experiment_runs_what_reads_the_parameter(first: TinyRun) -> None:
    """Last, because it changes the first clone."""
    run("git", "add", "--all", cwd=first.folder)
    run("git", "commit", "--quiet", "--message", "Results of the tiny profile", cwd=first.folder)
    start = time.monotonic()
    output = run(DVC, "exp", "run", "-S", "rl.learning_rate=1e-5", cwd=first.folder)
    print(f"dvc exp run -S rl.learning_rate=1e-5: {time.monotonic() - start:.0f} s")
    ran = set(stages_run(output))
    assert "rl" in ran, output[-6000:]
    # Those behind rl run only if its best weights have changed.
    assert ran <= {"rl", "evaluate@rl", "report", "register"}, output[-6000:]
