"""Compares the arms of params.yaml: tables, plots and one trajectory each, from their episodes.

Reads evaluations/<arm>/trajectories.parquet of exactly these arms, writes metrics/summary.json,
metrics/behaviour.json, metrics/plots/{success,bands}.csv and metrics/trajectories.md.
"""

from __future__ import annotations

import json
import shutil
import sys
from typing import Any

import pandas as pd

from ferrata.config.loader import load, project_root
from ferrata.config.paths import params_folder
from ferrata.errors import run_main
from ferrata.evaluation.compare import behaviour, by_band, flat, rounded, success_table, summarise
from ferrata.evaluation.stored import read_arms
from ferrata.reporting.summary import print_summary, trajectories_text
from ferrata.tracking.runs import stage_run


def main() -> None:
    # A larger study is a pipeline of its own in a folder of the project; MLflow's store is shared.
    root, params = params_folder(), load()
    settings: dict[str, Any] = {
        "resamples": params.report.bootstrap,
        "confidence": params.report.confidence,
        "seed": params.seed,
    }
    for folder in sorted((root / "evaluations").glob("*")):
        if folder.name not in params.arms:  # a removed arm leaves nothing behind
            print(f"removing {folder.relative_to(root)}: not an arm of params.yaml")
            shutil.rmtree(folder)
    with stage_run("report", settings, root=project_root()) as run:
        frames = read_arms(root, params.arms)
        summary = rounded(summarise(frames, **settings))
        acts = rounded(behaviour(frames))
        bands = by_band(frames, **settings)
        head = {"confidence": params.report.confidence}
        texts = {
            "summary.json": json.dumps({**head, **summary}, indent=2) + "\n",
            "behaviour.json": json.dumps(acts, indent=2) + "\n",
            "plots/success.csv": _csv(success_table(summary)),
            "plots/bands.csv": _csv(bands),
            "trajectories.md": trajectories_text(frames),
        }
        for name, text in texts.items():
            path = root / "metrics" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
            run.artifact(path)
        run.metrics(flat(summary) | flat(acts, "behaviour."))
    print_summary(root)


def _csv(table: pd.DataFrame) -> str:
    return str(table.to_csv(index=False, float_format="%.4f", lineterminator="\n"))


if __name__ == "__main__":
    sys.exit(run_main(main))
