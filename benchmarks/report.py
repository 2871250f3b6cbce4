"""What the benchmarks share: the machine in words, medians with their spread, tables, results.

A timing means nothing without the machine and the versions that gave it, so both go into every
results file.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "transformers", "trl", "accelerate")
FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
BUSY = 0.6  # share of the threads that a step keeps busy at least when nothing else runs


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest of some repeats."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def text(self, digits: int) -> str:
        """`median (low-high)`"""
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}-{self.high:.{digits}f})"


@dataclass(frozen=True)
class Ratio:
    """How many times better we are: of the medians, and at the ends of both spreads."""

    value: float
    least: float
    most: float
    target: float | None = None

    @classmethod
    def of(cls, better: Spread, worse: Spread, target: float | None = None) -> Ratio:
        """Args are rates: more is better."""
        return cls(
            better.median / worse.median, better.low / worse.high, better.high / worse.low, target
        )

    def text(self) -> str:
        words = f"{self.value:.2f}x ({self.least:.2f}-{self.most:.2f})"
        if self.target is None:
            return words
        verdict = "reached" if self.value >= self.target else "MISSED"
        return f"{words}, target {self.target:g}x {verdict}"


def machine() -> dict[str, Any]:
    """Processor, threads, versions, commit and date."""
    import torch

    from ferrata.episodes.policies import cpu_flags

    flags = cpu_flags()
    return {
        "processor": _processor(),
        "cores": _cores(),
        "flags": [flag for flag in FLAGS if flag in flags],
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _git(*words: str) -> str:
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def quiet(records: Sequence[dict[str, Any]], threads: int) -> str:
    """A warning where a step got less of the processor than it would use, or nothing.

    Another process took it, or ours was paused: the wall clock ran on.
    """
    least = min(record["cores"] for record in records)
    if least >= BUSY * threads:
        return ""
    return (
        f"WARNING: a step had {least:.1f} of {threads} cores; was the machine quiet? Run it again."
    )


def describe(where: dict[str, Any]) -> str:
    """The machine in two lines."""
    versions = ", ".join(f"{name} {number}" for name, number in where["versions"].items())
    device = where["gpu"] or f"{where['processor']}, {where['cores']} cores"
    return f"{device} ({' '.join(where['flags'])}), {where['threads']} threads\n{versions}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        first = cells[0].ljust(widths[0])
        return "  ".join(
            [first, *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True))]
        ).rstrip()

    return "\n".join([line(head), "  ".join("-" * width for width in widths), *map(line, rows)])


def save(path: Path, results: dict[str, Any]) -> None:
    """Write results as JSON; dataclasses become objects."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results, indent=1, default=_plain)
    path.write_text(text + "\n", encoding="utf-8")
    print(f"saved in {path}")


def _plain(value: Any) -> Any:
    return asdict(value) if hasattr(value, "__dataclass_fields__") else str(value)
