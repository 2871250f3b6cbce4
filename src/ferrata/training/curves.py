"""Training curves and end results as files that DVC reads: no timings, no dates, so that runs
compare byte for byte."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# what people look at, by TRL's name; other entries of its log stay in MLflow
COLUMNS = {
    "loss": "loss",
    "eval_loss": "validation_loss",
    "validation_success": "validation_success",
    "reward": "reward",
    "reward_std": "reward_std",
    "frac_reward_zero_std": "zero_variance_share",
    "entropy": "entropy",
    "kl": "kl",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "mean_token_accuracy": "token_accuracy",
    "completions/mean_length": "sampled_tokens",
    "episodes/turns": "turns",
    "episodes/calls": "calls",
    "episodes/invalid_calls": "invalid_calls",
    "episodes/failed_calls": "failed_calls",
    "episodes/stop/answered": "answered",
}


# of each capability: `episodes/success/planning`
OF_EACH = {
    "validation_success/": "greedy, validation tasks",
    "episodes/success/": "sampled, training tasks",
}


def curve(history: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """One row per step: the known columns of a Trainer's log history, entries of a step merged."""
    steps: dict[int, dict[str, float]] = {}
    for entry in history:
        row = steps.setdefault(int(entry["step"]), {})
        for key, name in COLUMNS.items():
            if key in entry and math.isfinite(float(entry[key])):
                row[name] = float(f"{float(entry[key]):.6g}")
        for key, value in entry.items():
            if key.startswith("curriculum/"):
                row[f"band_{key.removeprefix('curriculum/')}"] = float(value)
    return [{"step": step, **row} for step, row in sorted(steps.items()) if row]


def of_each(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The success of each capability: rows of step, capability, measure and success."""
    return [
        {
            "step": int(entry["step"]),
            "capability": key.removeprefix(prefix),
            "measure": measure,
            "success": float(f"{float(value):.6g}"),
        }
        for prefix, measure in OF_EACH.items()
        for entry in history
        for key, value in entry.items()
        if key.startswith(prefix)
    ]


def write(
    folder: Path, stage: str, metrics: Mapping[str, float], history: Sequence[Mapping[str, Any]]
) -> None:
    """Write `<stage>.json` (finite scalars) and `plots/<stage>.csv` (one row per step) into a
    metrics folder, and `plots/<stage>_capabilities.csv` where the history tells them apart."""
    import pandas as pd

    (folder / "plots").mkdir(parents=True, exist_ok=True)
    scalars = {key: float(f"{value:.6g}") for key, value in metrics.items() if math.isfinite(value)}
    (folder / f"{stage}.json").write_text(json.dumps(scalars, indent=2) + "\n", encoding="utf-8")
    rows = curve(history)
    present = [name for name in ("step", *COLUMNS.values()) if any(name in row for row in rows)]
    present += sorted({name for row in rows for name in row} - set(present))
    tables = {stage: pd.DataFrame(rows, columns=present)}
    if each := of_each(history):
        tables[f"{stage}_capabilities"] = pd.DataFrame(each)
    for name, table in tables.items():
        table.to_csv(folder / "plots" / f"{name}.csv", index=False, lineterminator="\n")
