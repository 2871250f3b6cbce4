"""Does the memory of a long RL run stay flat?

    python -m benchmarks.memory

In a temporary clone of HEAD, with the tiny profile and 200 steps of RL, the resident memory of the
stage's process is read a few times a second while `dvc repro` runs it. The table has the median and
the largest value of each fifth of the time between the first and the last optimizer step. Exit
status 1 if the last fifth's median is more than 5% above the second's (in the first, pools and
caches still fill). Linux only: it reads /proc.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.kill import environment, prepare
from benchmarks.report import RESULTS, machine, save

FIFTHS = 5
GROWTH = 1.05
INTERVAL_S = 0.25


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memory", description="Resident memory over many RL steps."
    )
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps of RL")
    parser.add_argument("--output", type=Path, default=RESULTS / "memory.json", help="results")
    args = parser.parse_args()
    if args.steps < 10:
        parser.error("--steps must be at least 10")
    more = {"rl.steps": args.steps, "rl.eval_every": args.steps // 4, "rl.checkpoint_every": 50}
    with tempfile.TemporaryDirectory(prefix="ferrata-memory-") as name:
        clone = Path(name) / "clone"
        prepare(clone, more)
        subprocess.run(
            ["dvc", "repro", "--quiet", "sft"], cwd=clone, env=environment(clone), check=True
        )
        readings = watch(clone)
    if len(readings) < 10 * FIFTHS:
        print(f"only {len(readings)} readings: the run was too short (--steps)")
        return 1
    print(f"{args.steps} RL steps of the tiny profile; resident memory in MB")
    print(f"{'part of the run':<16} {'median':>8} {'largest':>8}")
    medians = []
    for part in range(FIFTHS):
        values = readings[len(readings) * part // FIFTHS : len(readings) * (part + 1) // FIFTHS]
        medians.append(statistics.median(values))
        print(f"{part + 1} of {FIFTHS:<11} {medians[-1]:>8.0f} {max(values):>8.0f}")
    growth = medians[-1] / medians[1]
    save(
        args.output,
        {
            "machine": machine(),
            "steps": args.steps,
            "median_mb": medians,
            "largest_mb": max(readings),
            "growth": growth,
        },
    )
    print(f"the last fifth to the second: {growth:.3f} ({'flat' if growth <= GROWTH else 'GROWS'})")
    return 0 if growth <= GROWTH else 1


def watch(clone: Path) -> list[float]:
    """Resident memory (MB) of the process of stage rl, from the first log of a step on."""
    log = clone / "rl.log"
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            ["dvc", "repro", "--single-item", "rl"],
            cwd=clone,
            env=environment(clone),
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    readings: list[float] = []
    while process.poll() is None:
        time.sleep(INTERVAL_S)
        if "step_time" not in log.read_text(encoding="utf-8", errors="replace"):
            continue
        if (size := resident(clone)) is not None:
            readings.append(size)
    if process.returncode:
        raise SystemExit(f"dvc repro rl failed:\n{log.read_text(encoding='utf-8')[-2000:]}")
    return readings


def resident(clone: Path) -> float | None:
    """Of the Python process that runs stages/rl.py in the clone; None if there is none."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
            if b"stages/rl.py" not in command or os.readlink(entry / "cwd") != str(clone):
                continue
            pages = int((entry / "statm").read_text().split()[1])
        except OSError:
            continue
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    return None


if __name__ == "__main__":
    sys.exit(main())
