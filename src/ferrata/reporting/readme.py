"""Keeps the results in README.md equal to the committed metrics.

Two blocks are generated: `results` (tables and sentences, from `metrics/summary.json`) and
`trajectories` (from `metrics/trajectories.md`); and where README.md has their markers, `full` (from
the same file of `experiments/full`) and `benchmarks` (from `benchmarks/results/`). Each stands
between `<!-- NAME:begin -->` and `<!-- NAME:end -->`; everything outside them is left as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ferrata.config.arms import SPLITS
from ferrata.errors import FerrataError
from ferrata.evaluation.compare import ALL
from ferrata.reporting.summary import (
    SUMMARY,
    arms,
    claim,
    difference,
    differences,
    environments,
    read_summary,
    success,
)

TRAJECTORIES = "metrics/trajectories.md"
BEHAVIOUR = "metrics/behaviour.json"
BENCHMARKS = "benchmarks/results"
FULL = "experiments/full"
MEASURED = ("stages", "episodes", "sft", "memory", "kill")


def update(root: Path, check: bool = False) -> bool:
    """Writes the generated blocks of README.md; doing so twice changes nothing more.

    Args:
        root: the project's root, with README.md and metrics/.
        check: compare only, write nothing.

    Returns:
        Whether the file changed; with `check` always False.

    Raises:
        FerrataError: a file is missing, a marker is missing, doubled or in the wrong order; or,
            with `check`, README.md differs from what the metrics say.
    """
    old = _read(root / "README.md", "README.md", "add it, with its markers")
    trajectories = _read(root / TRAJECTORIES, TRAJECTORIES, "`dvc repro` makes it")
    new = _replace(old, "results", results(read_summary(root), _behaviour(root)))
    new = _replace(new, "trajectories", trajectories)
    if "<!-- full:" in old:
        full = root / FULL
        text = results(read_summary(full), _behaviour(full), f"{FULL}/{SUMMARY}")
        new = _replace(new, "full", text)
    if "<!-- benchmarks:" in old:
        measured = {}
        for name in MEASURED:
            path = f"{BENCHMARKS}/{name}.json"
            measured[name] = json.loads(
                _read(root / path, path, f"`python -m benchmarks.{name}` makes it")
            )
        new = _replace(new, "benchmarks", benchmarks(**measured))
    if new == old:
        return False
    if check:
        pairs = zip(old.splitlines(), new.splitlines(), strict=False)
        was, now = next((pair for pair in pairs if pair[0] != pair[1]), ("(its length)", ""))
        raise FerrataError(
            "README.md does not say what metrics/ say",
            found=was,
            expected=now,
            hint="generate its results again and commit README.md",
        )
    (root / "README.md").write_text(new, encoding="utf-8", newline="\n")
    return True


def results(summary: Mapping[str, Any], acts: Mapping[str, Any], source: str = SUMMARY) -> str:
    """Markdown of a summary: success per arm, differences, and the sentences they support; and what
    environments measured beside, from `metrics/behaviour.json`. Where there are several
    capabilities, all of them together come first, then each in a line, then each folded away."""
    found = environments(summary)
    level = f"{100 * summary['confidence']:.4g}%"
    parts = [f"*Generated from `{source}`; a change by hand is found by the checks.*"]
    if ALL not in found or len(found) == 1:
        for name, cells in found.items():
            parts += _environment(name, cells, acts.get(name, {}), level)
        return "\n\n".join(parts)
    parts += _environment(ALL, found.pop(ALL), acts.get(ALL, {}), level)
    parts += _overview(found, level)
    for name, cells in found.items():
        inner = _environment(name, cells, acts.get(name, {}), level)
        parts += [f"<details>\n<summary>{name}</summary>", *inner, "</details>"]
    return "\n\n".join(parts)


def _overview(found: Mapping[str, Mapping[str, Any]], level: str) -> list[str]:
    """A line per capability: greedy success of each arm on the test tasks, and RL minus SFT."""
    names = list(dict.fromkeys(name for cells in found.values() for name in arms(cells)))
    rows = []
    for capability, cells in found.items():
        test = cells.get("test", {})
        values = [f"{test[arm]['success']:.2f}" if arm in test else "-" for arm in names]
        gain = test.get("rl_minus_sft")
        rows.append([capability, *values, difference(gain) if gain else "-"])
    lead = (
        f"Each capability, greedy success on its test tasks; the difference is paired, with its "
        f"{level} interval, not corrected for looking at {len(found)}:"
    )
    head = ["capability", *(f"`{name}`" for name in names), "rl minus sft"]
    return [lead, _table(head, rows)]


def _environment(
    name: str, cells: Mapping[str, Any], acts: Mapping[str, Any], level: str
) -> list[str]:
    """The tables and sentences of one environment."""
    parts = [
        f"**{name}**: greedy success with its {level} interval over tasks; "
        "the last column samples instead."
    ]
    rows = []
    for arm in arms(cells):
        entries = [cells.get(split, {}).get(arm) for split in SPLITS]
        entries.append(cells.get("test", {}).get("sampled", {}).get(arm))
        rows.append([f"`{arm}`", *(success(entry) for entry in entries)])
    parts.append(_table(["arm", *SPLITS, "test, sampled"], rows))
    rows, sentences = [], []
    for key in differences(cells):
        row = [key.replace("_", " ")]
        for split in SPLITS:
            entry = cells.get(split, {}).get(key)
            row.append(f"{difference(entry)}, {_p(entry['p_value'])}" if entry else "-")
            if entry:
                sentences.append(f"- {claim(key, split, entry)}")
        rows.append(row)
    if rows:
        parts.append("Differences on the same tasks, greedy against greedy, paired:")
        parts.append(_table(["difference", *SPLITS], rows))
        parts.append("\n".join(sentences))
    measured = {
        arm: cell["measures"] for arm, cell in acts.get("test", {}).items() if "measures" in cell
    }
    if names := sorted({measure for values in measured.values() for measure in values}):
        rows = [
            [f"`{arm}`", *(f"{v[n]:.2f}" if n in v else "-" for n in names)]
            for arm, v in measured.items()
        ]
        parts.append("Measured beside, means over the greedy test episodes that have it:")
        parts.append(_table(["arm", *(measure.replace("_", " ") for measure in names)], rows))
    return parts


def benchmarks(
    stages: Mapping[str, Any],
    episodes: Mapping[str, Any],
    sft: Mapping[str, Any],
    memory: Mapping[str, Any],
    kill: Mapping[str, Any],
) -> str:
    """Markdown of the results that the benchmarks of these names save."""
    parts = []
    where = episodes["machine"]
    device = where["gpu"] or f"{where['processor']}, {where['cores']} cores"
    versions = ", ".join(f"{name} {number}" for name, number in where["versions"].items())
    parts.append(
        f"*Generated from `{BENCHMARKS}/`: {device} ({' '.join(where['flags'])}); {versions}; "
        "median (least-most).*"
    )
    minutes, seconds = divmod(round(stages["seconds"]), 60)
    rows = [
        [name, f"{stage['seconds']:.0f}", f"{stage['peak_memory_gb']:.1f}"]
        for name, stage in stages["stages"].items()
    ]
    parts.append(f"The default graph, {minutes} min {seconds} s behind the installation:")
    parts.append(_table(["stage", "seconds", "peak memory, GB"], rows))
    rows = [
        [
            name,
            _spread(side["episodes_per_second"], 1),
            _spread(side["step_seconds"], 1),
            f"{side['turns']:.2f}",
            f"{side['tokens']:.1f}",
        ]
        for name, side in episodes["sides"].items()
    ]
    head = ["RL step of " + f"{episodes['episodes']} episodes", "episodes/s", "whole step, s"]
    parts.append(_table([*head, "turns", "sampled tokens"], rows))
    lines = [
        f"- {name}: {ratio['value']:.2f}x ({ratio['least']:.2f}-{ratio['most']:.2f})"
        + (f", the goal is {ratio['target']:g}x" if ratio["target"] else "")
        for name, ratio in episodes["ratios"].items()
    ]
    parts.append("Ours to the fastest stock TRL:\n\n" + "\n".join(lines))
    rows = [
        [
            name,
            _spread(side["tokens_per_second"], 0),
            f"{side['share_of_peak']['median']:.0%}",
            f"{side['executed_share_of_peak']['median']:.0%}",
        ]
        for name, side in sft["sides"].items()
    ]
    head = ["SFT step", "tokens/s", "of the peak of matrix products", "of it executed"]
    parts.append(_table(head, rows))
    trials = kill["trials"]
    same = [trial for trial in trials if not trial["differing"]]
    resumed = sum(trial["resumed"] > 0 for trial in same)
    parts.append(
        f"Resident memory over {memory['steps']} RL steps of the tiny profile, median of each "
        f"fifth: {', '.join(f'{value:.0f}' for value in memory['median_mb'])} MB. "
        f"SIGKILL at random moments of `sft` and `rl`: {len(same)} of {len(trials)} runs ended "
        f"with the bytes of the undisturbed run, {resumed} of them from a checkpoint."
    )
    return "\n\n".join(parts)


def _spread(spread: Mapping[str, float], digits: int) -> str:
    low, high = (f"{spread[end]:.{digits}f}" for end in ("low", "high"))
    return f"{spread['median']:.{digits}f} ({low}-{high})"


def _behaviour(root: Path) -> dict[str, Any]:
    path = root / BEHAVIOUR
    acts: dict[str, Any] = json.loads(_read(path, BEHAVIOUR, "`dvc repro` makes it"))
    return acts


def _p(value: float) -> str:
    return "p < 0.0001" if value < 0.0001 else f"p = {value:.4f}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _read(path: Path, name: str, hint: str) -> str:
    if not path.is_file():
        raise FerrataError(f"{name} is missing", expected=str(path), hint=hint)
    return path.read_text(encoding="utf-8")


def _replace(text: str, name: str, content: str) -> str:
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    for marker in (begin, end):
        if text.count(marker) != 1:
            raise FerrataError(
                f"README.md needs the marker {marker} exactly once",
                found=f"{text.count(marker)} times",
                expected=f"{begin} ... {end}",
                hint="put both where the generated text belongs",
            )
    before, _, rest = text.partition(begin)
    if end not in rest:
        raise FerrataError(f"README.md has {end} before {begin}", expected=f"{begin} ... {end}")
    return f"{before}{begin}\n{content.strip()}\n{end}{rest.partition(end)[2]}"
