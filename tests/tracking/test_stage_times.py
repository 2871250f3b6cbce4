"""`benchmarks.stages`: the last complete run, or the reason why there is none."""

from __future__ import annotations

from pathlib import Path

import mlflow
import pytest

from benchmarks.stages import measured
from ferrata.tracking.store import tracking_uri

HOUR = 3_600_000  # ms, as MLflow counts


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    client = mlflow.MlflowClient(tracking_uri(root))
    experiment = client.create_experiment("ferrata")

    def run(name: str, start: int, end: int, peak: str = "1.5", status: str = "FINISHED") -> None:
        tags = {"mlflow.runName": name, "ferrata.peak_memory_gb": peak}
        created = client.create_run(experiment, start_time=start, tags=tags)
        client.set_terminated(created.info.run_id, status, end_time=end)

    run("base", HOUR, HOUR + 9_000)  # an earlier run of the graph
    run("sft", HOUR + 9_000, HOUR + 20_000)
    run("base", 2 * HOUR, 2 * HOUR + 4_000)
    run("sft", 2 * HOUR + 5_000, 2 * HOUR + 6_000, status="FAILED")
    run("sft", 2 * HOUR + 7_000, 2 * HOUR + 17_000, peak="6.25")
    run("rl", HOUR + 20_000, HOUR + 30_000)  # from the cache in the later run
    run("report", 2 * HOUR + 20_000, 2 * HOUR + 21_000, peak="unknown")
    return root


def test_the_last_finished_run_of_each_stage_counts(store: Path) -> None:
    stages, total = measured(store, ["base", "sft"])
    assert stages == {
        "base": {"seconds": 4.0, "peak_memory_gb": 1.5},
        "sft": {"seconds": 10.0, "peak_memory_gb": 6.25},
    }
    assert total == 17.0  # with the failed attempt between them


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["base", "rl"], "rl came from the cache in the last run"),
        (["base", "evaluate@rl"], "no finished run of stage evaluate@rl"),
        (["base", "report"], "no finished run of stage report"),
    ],
)
def test_no_number_without_a_complete_run(store: Path, names: list[str], reason: str) -> None:
    with pytest.raises(SystemExit, match=reason):
        measured(store, names)
