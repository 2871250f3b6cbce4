"""Compares arms on the tasks they all played: success, behaviour, and paired differences.

A frame holds the episodes of one arm, one row per episode, as the stage `evaluate` writes them to
`evaluations/<arm>/trajectories.parquet`. `frames` maps an arm's name to its frame, in climb order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ferrata.config.arms import SPLITS
from ferrata.errors import FerrataError
from ferrata.evaluation.statistics import (
    Estimate,
    interval,
    mean_at_k,
    paired_difference,
    pass_at_k,
)

ALL = "all"  # every environment's tasks as one, among the keys of environments
MODES = ("greedy", "sampled")
DIFFERENCES = (
    ("rl", "sft"),
    ("rl", "demonstrator"),
    ("rejection", "sft"),
    ("rl", "rejection"),
    ("rl", "rl_together"),
    ("rl", "rl_no_notes"),
)
COUNTS = ("calls", "invalid_calls", "turns", "tokens")
COLUMNS = (
    *("environment", "split", "mode", "task_id", "task_set", "band", "sample", "success", "stop"),
    "measures",
    *COUNTS,
)

Frames = Mapping[str, pd.DataFrame]


def summarise(frames: Frames, *, resamples: int, confidence: float, seed: int) -> dict[str, Any]:
    """Success of every arm and the differences between arms, as nested finite scalars.

    Keys, with success in [0, 1], differences in [-1, 1], in the order of `frames`:

    - `<environment>.<split>.<arm>.{success,low,high}`: greedy success over all tasks;
    - `<environment>.<split>.<first>_minus_<second>.{diff,low,high,p_value}`: greedy, paired over
      the same tasks, for the pairs of DIFFERENCES where both arms are there;
    - `<environment>.<split>.sampled.<arm>.{success,low,high}`: mean@k over the sampled tasks.

    Splits that no arm played are left out, and so is an arm where it did not play or was not
    sampled. Where there are several environments, `all` is one more, which has the tasks of all,
    and of the arms those that play all: one may leave environments out, but no task of the others.

    Args:
        frames: episodes per arm, see the module.
        resamples, confidence, seed: as for `ferrata.evaluation.statistics.interval`.

    Raises:
        FerrataError: as `check`.
    """
    check(frames)
    how: dict[str, Any] = {"resamples": resamples, "confidence": confidence, "seed": seed}
    summary: dict[str, Any] = {}
    for environment, split in _cells(frames, pooled=True):
        greedy = _successes(frames, environment, split, "greedy")
        sampled = _successes(frames, environment, split, "sampled")
        cell: dict[str, Any] = {
            arm: _scalars(interval(successes_T_K[:, 0], **how))
            for arm, successes_T_K in greedy.items()
        }
        for first, second in DIFFERENCES:
            if first in greedy and second in greedy:
                paired = paired_difference(greedy[first][:, 0], greedy[second][:, 0], **how)
                cell[f"{first}_minus_{second}"] = paired._asdict()
        if sampled:
            cell["sampled"] = {
                arm: _scalars(mean_at_k(successes_T_K, **how))
                for arm, successes_T_K in sampled.items()
            }
        summary.setdefault(environment, {})[split] = cell
    return summary


def success_table(summary: Mapping[str, Any]) -> pd.DataFrame:
    """The success entries of a summary as rows, for plots.

    Returns:
        Columns environment, split, mode (greedy, sampled), arm, label (`<split> <arm>`, the name
        of a bar among the greedy ones), success, low, high.
    """
    rows: list[dict[str, Any]] = []
    for environment, splits in summary.items():
        for split, cell in splits.items():
            for mode, block in (("greedy", cell), ("sampled", cell.get("sampled", {}))):
                where = {"environment": environment, "split": split, "mode": mode}
                rows += [
                    {**where, "arm": arm, "label": f"{split} {arm}", **entry}
                    for arm, entry in block.items()
                    if "success" in entry
                ]
    return pd.DataFrame(rows)


def by_band(frames: Frames, *, resamples: int, confidence: float, seed: int) -> pd.DataFrame:
    """Success per difficulty band, one row per environment, split, band, arm and mode.

    Modes: `greedy`; `sampled` (mean@k); `pass_at_k` (at least one of the k samples is right, k
    being the samples that were drawn).

    Returns:
        Columns environment, split, band, arm, mode, success, low, high (all in [0, 1]) and tasks
        (their number), sorted by environment, split (test, forms, ood), band, arm (order of
        `frames`) and mode.

    Raises:
        FerrataError: as `check`.
    """
    check(frames)
    how: dict[str, Any] = {"resamples": resamples, "confidence": confidence, "seed": seed}
    bands = sorted({int(band) for frame in frames.values() for band in frame["band"].unique()})
    rows: list[dict[str, Any]] = []
    for environment, split in _cells(frames):
        for band in bands:
            only = {arm: frame[frame["band"] == band] for arm, frame in frames.items()}
            greedy = _successes(only, environment, split, "greedy")
            sampled = _successes(only, environment, split, "sampled")
            for arm in frames:
                estimates: dict[str, tuple[Estimate, int]] = {}
                if arm in greedy:
                    values_T = greedy[arm][:, 0]
                    estimates["greedy"] = interval(values_T, **how), values_T.size
                if arm in sampled:
                    values_T_K = sampled[arm]
                    tasks, k = values_T_K.shape
                    passes_T = np.array([pass_at_k(k, int(row.sum()), k) for row in values_T_K])
                    estimates["sampled"] = mean_at_k(values_T_K, **how), tasks
                    estimates["pass_at_k"] = interval(passes_T, **how), tasks
                where = {"environment": environment, "split": split, "band": band, "arm": arm}
                rows += [
                    {**where, "mode": mode, **_scalars(estimate), "tasks": tasks}
                    for mode, (estimate, tasks) in estimates.items()
                ]
    return pd.DataFrame(rows)


def behaviour(frames: Frames) -> dict[str, Any]:
    """What greedy episodes look like, as nested finite scalars.

    Keys `<environment>.<split>.<arm>.{calls,invalid_calls,turns,tokens}`, means per episode, and on
    the test split `<environment>.test.<arm>.stop.<reason>`, the share of episodes that ended so.
    Every reason that any arm met is listed for every arm, so that a share that falls to 0 shows
    as a change and not as a missing key. What an environment measures itself is
    `<environment>.<split>.<arm>.measures.<name>`, the mean over the episodes that have it: an arm
    without one lacks the key, as there is no such number.

    Raises:
        FerrataError: as `check`.
    """
    check(frames)
    result: dict[str, Any] = {}
    for environment, split in _cells(frames, pooled=True):
        episodes = _played(frames, environment, split, "greedy")
        reasons = sorted({str(stop) for rows in episodes.values() for stop in rows["stop"]})
        for arm, rows in episodes.items():
            cell: dict[str, Any] = {count: float(rows[count].mean()) for count in COUNTS}
            if split == "test":
                cell["stop"] = {r: float((rows["stop"] == r).mean()) for r in reasons}
            if environment != ALL and (measures := _measures(rows)):
                cell["measures"] = measures
            result.setdefault(environment, {}).setdefault(split, {})[arm] = cell
    return result


def _measures(rows: pd.DataFrame) -> dict[str, float]:
    """Means of what the environment measured, over the episodes in which it did."""
    measured: dict[str, list[float]] = {}
    for text in rows["measures"]:
        for name, value in json.loads(text).items():
            measured.setdefault(name, []).append(float(value))
    return {name: float(np.mean(values)) for name, values in sorted(measured.items())}


def rounded(value: Any, digits: int = 4) -> Any:
    """The same nested dict with its floats rounded for a committed file, and -0.0 written as 0.0.

    Raises:
        FerrataError: a number is NaN or infinite; DVC would show it as changed for ever.
    """
    if isinstance(value, Mapping):
        return {key: rounded(item, digits) for key, item in value.items()}
    if isinstance(value, float):
        if not np.isfinite(value):
            raise FerrataError("a metric is not finite", found=value, expected="a finite number")
        return round(value, digits) + 0.0
    return value


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """A nested dict of numbers as one level with dotted keys, as MLflow's metrics need it."""
    result: dict[str, float] = {}
    for key, item in value.items():
        if isinstance(item, Mapping):
            result |= flat(item, f"{prefix}{key}.")
        else:
            result[f"{prefix}{key}"] = float(item)
    return result


def check(frames: Frames) -> None:
    """Refuses frames whose comparison would say something false.

    Raises:
        FerrataError: no arm; an arm's name that collides with a key of the summary; an empty frame,
            a missing column or an empty cell in one; an unknown mode or split; one (task, sample)
            played twice; several greedy episodes of a task; an uneven number of samples; arms that
            did not play the same task set (its digest, or the ids of the tasks).
    """
    if not frames:
        raise FerrataError(
            "there is no arm to compare",
            expected="at least one entry of `arms` in params.yaml",
            hint="add an arm, then `dvc repro`",
        )
    for arm, frame in frames.items():
        _check_frame(arm, frame)
    for environment, split in _cells(frames):
        for mode in MODES:
            _check_same_tasks(frames, environment, split, mode)


def _check_frame(arm: str, frame: pd.DataFrame) -> None:
    where = f"evaluations/{arm}/trajectories.parquet"
    again = f"`dvc repro --force evaluate@{arm}`"
    if arm == "sampled" or "_minus_" in arm:
        raise FerrataError(
            f"the arm's name {arm!r} is also a key of metrics/summary.json",
            expected="another name than `sampled` or `<first>_minus_<second>`",
            hint="rename the arm under `arms` in params.yaml",
        )
    missing = [column for column in COLUMNS if column not in frame.columns]
    if missing:
        raise FerrataError(
            f"{where} lacks columns",
            found=", ".join(missing),
            expected=", ".join(COLUMNS),
            hint=again,
        )
    if frame.empty:
        raise FerrataError(f"{where} has no episodes", found="0 rows", hint=again)
    for column in COLUMNS:
        if frame[column].isna().any():
            row = int(np.flatnonzero(frame[column].isna())[0])
            raise FerrataError(f"{where}: {column} is empty in row {row}", hint=again)
    for column, known in (("mode", MODES), ("split", SPLITS)):
        unknown = sorted(set(frame[column]) - set(known))
        if unknown:
            raise FerrataError(
                f"{where}: unknown {column}", found=unknown, expected=" or ".join(known), hint=again
            )
    if not frame["success"].isin([0, 1]).all():
        raise FerrataError(f"{where}: success is no truth value", expected="true or false")
    task = ["environment", "split", "mode", "task_id"]
    twice = frame[frame.duplicated([*task, "sample"])]
    if not twice.empty:
        row = twice.iloc[0]
        raise FerrataError(
            f"{where}: one episode is there twice",
            found=f"task {row['task_id']}, {row['mode']}, sample {row['sample']}",
            expected="one row per task, mode and sample",
            hint=again,
        )
    for (environment, split, mode), rows in frame.groupby(task[:3]):
        counts = rows.groupby("task_id").size()
        expected = 1 if mode == "greedy" else int(counts.max())
        if (counts != expected).any():
            uneven = counts[counts != expected]
            raise FerrataError(
                f"{where}: {environment}, {split}, {mode}: an uneven number of episodes per task",
                found=f"{int(uneven.iloc[0])} of task {uneven.index[0]}",
                expected=f"{expected} per task",
                hint=again,
            )


def _check_same_tasks(frames: Frames, environment: str, split: str, mode: str) -> None:
    reference: tuple[str, str, set[str]] | None = None
    for arm, frame in frames.items():
        rows = _rows(frame, environment, split, mode)
        elsewhere = environment not in set(frame["environment"])
        if rows.empty and (mode == "sampled" or split != "test" or elsewhere):
            # An arm need not be sampled, nor play forms and ood, nor each environment; but who does
            # plays the same tasks.
            continue
        digests = sorted({str(digest) for digest in rows["task_set"]})
        ids = {str(task) for task in rows["task_id"]}
        what = f"arms did not play the same tasks: {environment}, {split}, {mode}"
        hint = "`dvc repro` plays the arms that are behind again"
        if len(digests) != 1:
            raise FerrataError(
                what, found=f"{arm}: task sets {digests}", expected="one task set", hint=hint
            )
        if reference is None:
            reference = arm, digests[0], ids
            continue
        first, digest, known = reference
        if digests[0] != digest:
            raise FerrataError(
                what,
                found=f"{arm}: task set {digests[0]}",
                expected=f"{first}: task set {digest}",
                hint=hint,
            )
        if ids != known:
            example = sorted(ids ^ known)[0]
            raise FerrataError(
                what,
                found=f"{arm}: {len(ids)} tasks; {example!r} is not in both arms",
                expected=f"{first}: {len(known)} tasks",
                hint=hint,
            )


def _cells(frames: Frames, pooled: bool = False) -> Iterator[tuple[str, str]]:
    """Environments and their splits; with `pooled` also all of them as one, where there are
    several."""
    played = {
        (str(environment), str(split))
        for frame in frames.values()
        for environment, split in frame[["environment", "split"]].drop_duplicates().to_numpy()
    }
    if pooled and len({environment for environment, _ in played}) > 1:
        played |= {(ALL, split) for _, split in played}
    # The pooled one first: it is what a person wants to see first.
    yield from sorted(played, key=lambda cell: (cell[0] != ALL, cell[0], SPLITS.index(cell[1])))


def _rows(frame: pd.DataFrame, environment: str, split: str, mode: str) -> pd.DataFrame:
    here = (frame["split"] == split) & (frame["mode"] == mode)
    return frame[here if environment == ALL else here & (frame["environment"] == environment)]


def _successes(
    frames: Frames, environment: str, split: str, mode: str
) -> dict[str, NDArray[np.float64]]:
    """Per arm that has episodes here, shape (T, K), tasks sorted by id: row t pairs across arms."""
    result: dict[str, NDArray[np.float64]] = {}
    for arm, rows in _played(frames, environment, split, mode).items():
        ordered = rows.sort_values(["task_id", "sample"])
        tasks = ordered["task_id"].nunique()
        result[arm] = ordered["success"].to_numpy(np.float64).reshape(tasks, -1)
    return result


def _played(frames: Frames, environment: str, split: str, mode: str) -> dict[str, pd.DataFrame]:
    """The episodes here of each arm that has any; among those of all environments, of each arm that
    left none out."""
    found = {arm: _rows(frame, environment, split, mode) for arm, frame in frames.items()}
    covers = {arm: rows["environment"].nunique() for arm, rows in found.items()}
    most = max(covers.values())
    return {arm: rows for arm, rows in found.items() if 0 < covers[arm] == most}


def _scalars(estimate: Estimate) -> dict[str, float]:
    return {"success": estimate.value, "low": estimate.low, "high": estimate.high}
