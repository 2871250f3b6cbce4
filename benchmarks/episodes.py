"""Episodes per second and time of a whole RL step: this project against stock TRL.

    PYTHONPATH=src python -m benchmarks.episodes --model models/sft

Stock is TRL's `GRPOTrainer` with `environment_factory`: a class around the same environment whose
public typed methods are the tools, with TRL's own generation and its own loss. Both sides have the
same model, tasks, prompts (compared token by token), chat template, response parser, temperature,
budgets per turn and in turns, and the same `GRPOConfig`. The tasks are those that one look-up
answers and nothing else can, so an episode is about a call and an answer; how many turns and tokens
were really played is printed for both sides.

Measured is one optimizer step at a time, by a Trainer callback on both sides: all of it (rollout,
rewards, forward and backward passes, optimizer), and within it `GRPOTrainer._generate`, the rollout
with its tools. Ours includes copying the weights into the policy, stock's reading the replies. The
first step of each process is a warm-up and does not count. The learning rate is next to nothing, so
that all steps play the same policy.

Stock gets its best configuration. Attention (eager, sdpa) and dtype of the weights are probed with
half of the episodes, then half of the micro-batch with the best of them. Measured in full are the
fastest probe in rollout, the fastest in whole steps, and the fastest with float32 weights, which is
what we train (a bfloat16 copy plays our episodes). The headline ratios are to the fastest stock of
each measure, whatever its weights; those to float32 weights are printed, too.

Two exact shortcuts are ours alone and count: equal prompts of a group are computed once, and groups
with equal returns train nothing. How many groups those are is luck, so a second row of ours trains
on every group.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.measure import Record, in_fresh_process
from benchmarks.report import RESULTS, Ratio, Spread, describe, machine, quiet, save, table
from benchmarks.sides import Setup, Sizes, ours, stock
from ferrata.config.loader import load
from ferrata.environments.base import Task
from ferrata.environments.tool_use import KINDS, ToolUse

TARGET_EPISODES, TARGET_STEP = 4.0, 2.5
PROBE_STEPS = 1
STILL = 1e-12  # a learning rate that moves nothing
OURS, EVERY = "ours", "ours, every group"
MEANS = ("turns", "tokens", "called", "right", "equal_groups")


def main() -> None:
    args = _arguments()
    from tqdm import tqdm

    where = machine()
    sizes = _sizes(args, args.episodes, 1 + args.repeat)
    probe = _sizes(
        args, max(args.group, args.episodes // 2 // args.group * args.group), PROBE_STEPS
    )
    bfloat16 = _bfloat16(sizes)
    print(
        f"{describe(where)}\n{args.model}; {args.episodes} episodes: "
        f"{sizes.params.tasks_per_step} tasks x {args.group}; temperature {args.temperature:g}; "
        f"{sizes.budgets.max_turn_tokens} tokens a turn; {'bfloat16' if bfloat16 else 'float32'}; "
        f"{args.repeat} repeats"
    )
    micro = sizes.params.micro_batch_size
    dtypes = ("float32", "bfloat16") if bfloat16 else ("float32",)
    setups = [Setup(how, dtype, micro) for dtype in dtypes for how in ("sdpa", "eager")]
    setups = setups[: args.setups]
    steps = 1 + args.repeat
    # Which setups are measured in full shows itself later; the bar's total is corrected then.
    with tqdm(total=PROBE_STEPS * (len(setups) + 1) + 4 * steps, unit="step") as bar:
        mine: dict[str, list[Record]] = {}
        for name, every_row in ((OURS, False), (EVERY, True)):
            bar.set_description(name)
            mine[name] = in_fresh_process(ours, sizes, every_row, progress=bar)[1:]
        probes: dict[Setup, Record] = {}
        for setup in setups:
            _probe(setup, probe, probes, bar)
        best = min(probes, key=lambda s: probes[s]["seconds"])
        other = micro // 2 if micro > 1 else 2
        if probe.episodes % other == 0 and sizes.episodes % other == 0:
            _probe(Setup(best.attention, best.weights, other), probe, probes, bar)
        chosen = _choose(probes)
        bar.total = bar.n + len(chosen) * steps
        theirs: dict[Setup, list[Record]] = {}
        for setup in chosen:
            bar.set_description(setup.name)
            theirs[setup] = in_fresh_process(stock, setup, sizes, progress=bar)[1:]
    results = _results(args, where, sizes, probes, mine, theirs)
    _show(results, probe.episodes)
    save(args.output, results)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.episodes",
        description="Episodes per second and RL step time: this project against stock TRL.",
    )
    parser.add_argument("--model", type=Path, default=Path("models/sft"), help="model folder")
    parser.add_argument("--episodes", type=int, default=32, help="episodes of a step")
    parser.add_argument("--group", type=int, default=8, help="episodes of one task")
    parser.add_argument("--micro-batch", type=int, help="rows per pass; default from params.yaml")
    parser.add_argument("--repeat", type=int, default=3, help="steps that count, per side")
    parser.add_argument("--temperature", type=float, default=1.0, help="of sampling")
    parser.add_argument("--precision", default="auto", choices=("auto", "float32", "bfloat16"))
    parser.add_argument(
        "--setups", type=int, default=4, help="stock setups to probe; 4 is all, less is a try-out"
    )
    parser.add_argument("--output", type=Path, default=RESULTS / "episodes.json", help="results")
    args = parser.parse_args()
    if not (args.model / "config.json").is_file():
        parser.error(f"no model in {args.model}; run `dvc repro`, or name another with --model")
    if args.group < 2 or args.episodes < args.group or args.episodes % args.group:
        parser.error("--group must be at least 2, and --episodes a multiple of it")
    if args.repeat < 1 or args.setups < 1:
        parser.error("--repeat and --setups must be at least 1")
    return args


def _sizes(args: argparse.Namespace, episodes: int, steps: int) -> Sizes:
    params = load()
    micro = args.micro_batch or min(params.rl.micro_batch_size, episodes)
    rl = params.rl.model_validate(
        params.rl.model_dump()
        | {
            "steps": steps,
            "warmup_steps": 0,
            "eval_every": steps,
            "checkpoint_every": 0,  # writing them is no part of a step
            "learning_rate": STILL,
            "beta": 0.0,  # TRL's default; a KL term would cost stock a reference model in float32
            "tasks_per_step": episodes // args.group,
            "group_size": args.group,
            "micro_batch_size": min(micro, episodes),
            "temperature": args.temperature,
            "precision": args.precision,
        }
    )
    tasks = _tasks(rl.tasks_per_step, params.seed)
    return Sizes(args.model, tasks, rl, params.episodes, params.chat.system, params.seed)


def _tasks(n: int, seed: int) -> tuple[Task, ...]:
    """Training tasks that one look-up answers, and nothing else can: two turns."""
    drawn = ToolUse().tasks("train", 30 * n + 60, seed)
    fitting = [t for t in drawn if [c[0] for c in KINDS[t.payload["kind"]].calls] == ["lookup"]]
    if len(fitting) < n:
        raise SystemExit(f"found {len(fitting)} tasks of two turns, expected {n}")
    return tuple(fitting[:n])


def _bfloat16(sizes: Sizes) -> bool:
    import torch

    from ferrata.episodes.policies import resolve_dtype

    return resolve_dtype(sizes.params.precision) == torch.bfloat16


def _probe(setup: Setup, sizes: Sizes, probes: dict[Setup, Record], bar: Any) -> None:
    bar.set_description(f"probe of {setup.name}")
    probes[setup] = in_fresh_process(stock, setup, sizes, progress=bar)[-1]


def _choose(probes: dict[Setup, Record]) -> list[Setup]:
    """The fastest in rollout, in whole steps, and in whole steps with float32 weights."""
    same = [setup for setup in probes if setup.weights == "float32"]
    best = [
        min(probes, key=lambda s: probes[s]["rollout"]),
        min(probes, key=lambda s: probes[s]["seconds"]),
        min(same, key=lambda s: probes[s]["seconds"]),
    ]
    return list(dict.fromkeys(best))


def _side(records: list[Record], episodes: int) -> dict[str, Any]:
    return {
        "episodes_per_second": Spread.of([episodes / r["rollout"] for r in records]),
        "rollout_seconds": Spread.of([r["rollout"] for r in records]),
        "step_seconds": Spread.of([r["seconds"] for r in records]),
        "steps_per_second": Spread.of([1 / r["seconds"] for r in records]),
        **{name: sum(r[name] for r in records) / len(records) for name in MEANS},
        "records": records,
    }


def _results(
    args: argparse.Namespace,
    where: dict[str, Any],
    sizes: Sizes,
    probes: dict[Setup, Record],
    mine: dict[str, list[Record]],
    theirs: dict[Setup, list[Record]],
) -> dict[str, Any]:
    rows = [*mine.items(), *((setup.name, records) for setup, records in theirs.items())]
    sides = {name: _side(records, sizes.episodes) for name, records in rows}

    def ratio(us: str, measure: str, target: float | None, weights: str = "") -> Ratio:
        rivals = [sides[s.name][measure] for s in theirs if weights in ("", s.weights)]
        fastest = max(rivals, key=lambda spread: spread.median)
        return Ratio.of(sides[us][measure], fastest, target)

    return {
        "benchmark": "episodes",
        "machine": where,
        "model": str(args.model),
        "episodes": sizes.episodes,
        "tasks": [task.id for task in sizes.tasks],
        "rl": sizes.params.model_dump(exclude_none=True),
        "budgets": sizes.budgets.model_dump(),
        "repeat": args.repeat,
        "probes": {setup.name: record for setup, record in probes.items()},
        "sides": sides,
        "ratios": {
            "episodes/s": ratio(OURS, "episodes_per_second", TARGET_EPISODES),
            "whole step": ratio(OURS, "steps_per_second", TARGET_STEP),
            "whole step, every group": ratio(EVERY, "steps_per_second", TARGET_STEP),
            "episodes/s, to float32": ratio(OURS, "episodes_per_second", None, "float32"),
            "whole step, to float32": ratio(OURS, "steps_per_second", None, "float32"),
        },
    }


def _show(results: dict[str, Any], probed: int) -> None:
    probes = [
        [name, f"{record['rollout']:.2f}", f"{record['seconds']:.2f}"]
        for name, record in results["probes"].items()
    ]
    print()
    print(table([f"stock, probed with {probed} episodes; one step", "rollout s", "step s"], probes))
    rows = [
        [
            name,
            side["episodes_per_second"].text(1),
            side["step_seconds"].text(1),
            f"{side['turns']:.2f}",
            f"{side['tokens']:.1f}",
            f"{side['called']:.0%}",
            f"{side['right']:.0%}",
            f"{side['equal_groups']:.0%}",
        ]
        for name, side in results["sides"].items()
    ]
    head = ["side", "episodes/s", "whole step s", "turns", "tokens", "called", "right", "equal"]
    print()
    print(table(head, rows))
    print(
        "median (least-most); per episode: turns, sampled tokens; shares: a call that a tool "
        "served,\nright answers, groups with equal returns (which train nothing)"
    )
    print("\nours to the fastest stock, and to the fastest with float32 weights:")
    for name, ratio in results["ratios"].items():
        print(f"  {name:<24} {ratio.text()}")
    records = [r for side in results["sides"].values() for r in side["records"]]
    if warning := quiet(records, results["machine"]["threads"]):
        print(warning)


if __name__ == "__main__":
    main()
