"""Seconds and peak memory of every stage of the graph's last complete run.

    python -m benchmarks.stages

Nothing is run here: every stage writes both into its MLflow run (the largest resident memory as
the tag `ferrata.peak_memory_gb`), and this reads them. Only a run without cache hits says what the
graph costs, so every stage must have its run, and none may have begun before the first stage's.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS, describe, machine, save, table
from ferrata.config.loader import load, project_root

PEAK = "tags.ferrata.peak_memory_gb"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.stages",
        description="Seconds and peak memory of each stage of the last complete `dvc repro`.",
    )
    parser.add_argument("--output", type=Path, default=RESULTS / "stages.json", help="results")
    args = parser.parse_args()
    where = machine()
    names = ["base", "prepare", "sft", "rl"]
    names += [f"evaluate@{arm}" for arm in load().arms] + ["report", "register"]
    stages, total = measured(project_root(), names)
    print(describe(where), end="\n\n")
    rows = [[n, f"{s['seconds']:.0f}", f"{s['peak_memory_gb']:.1f}"] for n, s in stages.items()]
    print(table(["stage", "seconds", "peak memory, GB"], rows))
    print(f"\nfrom the first stage's start to the last one's end: {total:.0f} s")
    save(args.output, {"machine": where, "stages": stages, "seconds": total})


def measured(root: Path, names: list[str]) -> tuple[dict[str, dict[str, float]], float]:
    """The last finished run of each stage, and the seconds from the first start to the last end,
    the starts of the processes and DVC's own work between them included."""
    from ferrata.tracking.store import prepare_environment, tracking_uri

    prepare_environment()
    import mlflow

    mlflow.set_tracking_uri(tracking_uri(root))
    frame: Any = mlflow.search_runs(
        search_all_experiments=True,
        filter_string="attributes.status = 'FINISHED'",
        order_by=["attributes.start_time DESC"],
    )
    found: dict[str, Any] = {}
    for name in names:
        runs = frame[frame["tags.mlflow.runName"] == name] if len(frame) else frame
        if runs.empty or not str(runs.iloc[0][PEAK]).replace(".", "").isdigit():
            raise SystemExit(f"no finished run of stage {name} in MLflow; run `dvc repro` first")
        found[name] = runs.iloc[0]
    first = found[names[0]]["start_time"]
    older = [name for name, run in found.items() if run["start_time"] < first]
    if older:
        raise SystemExit(
            f"{', '.join(older)} came from the cache in the last run, so the graph's time is not "
            "known; run `dvc repro --force`"
        )
    stages = {
        name: {
            "seconds": (run["end_time"] - run["start_time"]).total_seconds(),
            "peak_memory_gb": float(run[PEAK]),
        }
        for name, run in found.items()
    }
    last = max(run["end_time"] for run in found.values())
    return stages, (last - first).total_seconds()


if __name__ == "__main__":
    main()
