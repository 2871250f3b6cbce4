"""SIGKILL at random moments of sft and rl: does `dvc repro` end with the same bytes?

    python -m benchmarks.kill

In a temporary clone of HEAD, with the tiny profile and a few more steps, each stage runs once
undisturbed. Then, as often as asked: the stage is started by `dvc repro`, its whole process group
gets SIGKILL at a random moment of its time, `dvc repro` runs again, and metrics, curves and the
hash of the model are compared with the undisturbed run's. Exit status 1 if anything differs.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import RESULTS, machine, save

ROOT = Path(__file__).resolve().parents[1]
STAGES = ("sft", "rl")
MORE_STEPS = {  # so that training, not starting Python, takes most of a stage's time
    "sft.epochs": 4.0,
    "rl.steps": 24,
    "rl.checkpoint_every": 2,
}


@dataclass(frozen=True)
class Trial:
    """One kill: `moment` in seconds after the start, `resumed` the step that the second run went on
    from (0: from the beginning), `differing` the outputs that are not the undisturbed run's."""

    stage: str
    moment: float
    resumed: int
    differing: tuple[str, ...]
    seconds: float


def main() -> int:
    args = _arguments()
    deadline = time.monotonic() + 60 * args.minutes
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory(prefix="ferrata-kill-") as name:
        clone = Path(name) / "clone"
        prepare(clone, MORE_STEPS)
        expected, seconds = {}, {}
        for stage in STAGES:
            start = time.monotonic()
            _repro(clone, stage)
            seconds[stage] = time.monotonic() - start
            expected[stage] = _results(clone, stage)
        print(
            f"undisturbed: sft {seconds['sft']:.0f} s, rl {seconds['rl']:.0f} s\n\n"
            f"{'kill':>4}  {'stage':<5}  {'at':>7}  {'took':>6}  {'went on from':<14}  results"
        )
        trials: list[Trial] = []
        while len(trials) < args.times and time.monotonic() < deadline:
            stage = STAGES[len(trials) % len(STAGES)]
            trial = _trial(clone, stage, rng.uniform(0, seconds[stage]), expected[stage])
            trials.append(trial)
            origin = f"step {trial.resumed}" if trial.resumed else "the beginning"
            outcome = f"DIFFERENT: {', '.join(trial.differing)}" if trial.differing else "the same"
            print(
                f"{len(trials):>4}  {stage:<5}  {trial.moment:>5.1f} s  {trial.seconds:>4.0f} s  "
                f"{origin:<14}  {outcome}",
                flush=True,
            )
    save(args.output, {"machine": machine(), "undisturbed_seconds": seconds, "trials": trials})
    same = sum(not trial.differing for trial in trials)
    resumed = sum(trial.resumed > 0 for trial in trials)
    print(f"\n{same} of {len(trials)} the same bytes; {resumed} went on from a checkpoint")
    if len(trials) < args.times:
        print(f"stopped after {args.minutes:g} minutes, before {args.times} kills (--minutes)")
    return 0 if trials and same == len(trials) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kill",
        description="Kills sft and rl at random moments and compares what dvc repro ends with.",
    )
    parser.add_argument("--times", type=int, default=20, help="kills")
    parser.add_argument("--minutes", type=float, default=25, help="no new kill after this time")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--output", type=Path, default=RESULTS / "kill.json", help="results")
    args = parser.parse_args()
    if args.times < 1 or args.minutes <= 0:
        parser.error("--times must be at least 1 and --minutes more than 0")
    return args


def prepare(clone: Path, more: dict[str, float]) -> None:
    """A clone of HEAD with the tiny profile and `more` changed parameters, up to the data."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    _run(clone, sys.executable, "-m", "ferrata.cli", "profile", "tiny")
    from ruamel.yaml import YAML

    yaml = YAML()
    path = clone / "params.yaml"
    params = yaml.load(path.read_text(encoding="utf-8"))
    for name, value in more.items():
        section, key = name.split(".")
        params[section][key] = value
    with path.open("w", encoding="utf-8") as file:
        yaml.dump(params, file)
    _run(clone, "dvc", "repro", "--quiet", "prepare")


def environment(clone: Path) -> dict[str, str]:
    """The variables that commands in the clone get: its code, this environment, nothing else."""
    dropped = ("DVC_", "MLFLOW_", "GIT_", "FERRATA_", "PYTHONPATH")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    return {
        **kept,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}",
        "PYTHONPATH": str(clone / "src"),
        "FERRATA_ENV": sys.prefix,
        "DVC_NO_ANALYTICS": "1",
        "DO_NOT_TRACK": "1",
    }


def _run(clone: Path, *command: str) -> str:
    done = subprocess.run(
        command, cwd=clone, env=environment(clone), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout + done.stderr


def _repro(clone: Path, stage: str) -> str:
    # Forced: DVC would otherwise take the results of the undisturbed run from its cache.
    return _run(clone, "dvc", "repro", "--force", "--single-item", stage)


def _results(clone: Path, stage: str) -> dict[str, str]:
    """Everything that must not differ: the metrics files, and DVC's hashes of all outputs."""
    from ruamel.yaml import YAML

    lock = YAML(typ="safe").load((clone / "dvc.lock").read_text(encoding="utf-8"))
    outs = {out["path"]: out["md5"] for out in lock["stages"][stage]["outs"]}
    files = (f"metrics/{stage}.json", f"metrics/plots/{stage}.csv")
    return {**outs, **{name: (clone / name).read_text(encoding="utf-8") for name in files}}


def _trial(clone: Path, stage: str, moment: float, expected: dict[str, str]) -> Trial:
    start = time.monotonic()
    process = subprocess.Popen(
        ["dvc", "repro", "--force", "--single-item", stage],
        cwd=clone,
        env=environment(clone),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    time.sleep(moment)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    said = _repro(clone, stage)
    match = re.search(rf"{stage}: going on from step (\d+)", said)
    found = _results(clone, stage)
    differing = tuple(name for name in expected if found[name] != expected[name])
    seconds = time.monotonic() - start
    return Trial(stage, moment, int(match.group(1)) if match else 0, differing, seconds)


if __name__ == "__main__":
    sys.exit(main())
