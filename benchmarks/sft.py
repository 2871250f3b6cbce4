"""Tokens per second of SFT, against stock TRL, and the share of the processor's peak that they are.

    PYTHONPATH=src python -m benchmarks.sft --model models/base

Measured is one optimizer step at a time, by a Trainer callback on both sides (forward and backward
passes of all micro-batches, optimizer), on the project's demonstrations: `train_sft` as the stage
calls it, and TRL's `SFTTrainer` with the same model, rows in the same order, and `SFTConfig`, once
with eager attention and once with sdpa. The first step of each process is a warm-up.

Tokens are those of the rows, padding left out: what a user wants to get through. A side may compute
more of them (padding) or fewer (a common beginning computed once); that is the column `computed`.

Model FLOPs of a step, by formula: 6 x (L x tokens + V x labels). L counts the weights of the linear
layers inside the blocks, V those of the output head, which only labelled positions need; 6 is one
multiplication and one addition in the forward pass and twice that in the backward pass. Embedding
look-ups, norms and the attention scores themselves are left out. It is the same number for all
sides. `executed` puts the tokens that were computed in its place, with the labels as before: it
says how well the processor is used, where the other says how well its user is served.

The peak is the best of matrix products measured in the same run, in the dtype of the passes: those
of the model (each of its linear layers, with as many rows as ours has tokens in a pass), weighted
by their FLOPs, and a large square one.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import Record, Send, in_fresh_process, step_clock
from benchmarks.report import RESULTS, Ratio, Spread, describe, machine, quiet, save, table
from ferrata.config.loader import load
from ferrata.config.sft import SftParams
from ferrata.environments.base import Demonstration

SQUARE = 3072  # side of the large product
GEMM_REPEATS = 5  # of each product at least,
GEMM_SECONDS = 0.5  # and for this long: small products vary


@dataclass(frozen=True)
class Sizes:
    """What both sides train on."""

    model: Path
    rows: tuple[Demonstration, ...]
    mixture: dict[str, float]
    params: SftParams
    system: str
    seed: int
    max_length: int


def main() -> None:
    args = _arguments()
    from tqdm import tqdm

    where = machine()
    sizes, source = _sizes(args)
    batch, micro = sizes.params.batch_size, sizes.params.micro_batch_size
    print(
        f"{describe(where)}\n{args.model}; steps of {batch} rows in micro-batches of {micro}; "
        f"rows of {source}; {args.repeat} repeats"
    )
    sides: dict[str, list[Record]] = {}
    with tqdm(total=3 * (1 + args.repeat) + 1, unit="step") as bar:
        bar.set_description("ours")
        sides["ours"] = in_fresh_process(ours, sizes, progress=bar)[1:]
        for attention in ("sdpa", "eager"):
            bar.set_description(f"stock {attention}")
            records = in_fresh_process(stock, attention, sizes, progress=bar)[1:]
            sides[f"stock {attention}"] = records
        passes = batch / micro
        rows = round(sum(r["computed"] for r in sides["ours"]) / args.repeat / passes)
        bar.set_description("matrix products")
        (gemm,) = in_fresh_process(peak, sizes, rows, progress=bar)
    results = _results(args, where, sizes, source, sides, gemm)
    _show(results)
    save(args.output, results)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sft",
        description="Tokens per second of SFT, against stock TRL and the processor's peak.",
    )
    parser.add_argument("--model", type=Path, default=Path("models/base"), help="model folder")
    parser.add_argument(
        "--demonstrations",
        type=Path,
        default=Path("data/demonstrations/sft.jsonl"),
        help="rows; where the file is missing they are made by the environment",
    )
    parser.add_argument("--batch", type=int, help="rows of a step; default from params.yaml")
    parser.add_argument("--micro-batch", type=int, help="rows of a pass; default from params.yaml")
    parser.add_argument("--repeat", type=int, default=3, help="steps that count, per side")
    parser.add_argument("--precision", default="auto", choices=("auto", "float32", "bfloat16"))
    parser.add_argument("--output", type=Path, default=RESULTS / "sft.json", help="results")
    args = parser.parse_args()
    if not (args.model / "config.json").is_file():
        parser.error(f"no model in {args.model}; run `dvc repro`, or name another with --model")
    if args.repeat < 1 or (args.batch or 1) < 1 or (args.micro_batch or 1) < 1:
        parser.error("--repeat, --batch and --micro-batch must be at least 1")
    return args


def _sizes(args: argparse.Namespace) -> tuple[Sizes, str]:
    """The sizes, and where the rows come from, in words."""
    from ferrata.data.generate import demonstrate
    from ferrata.data.store import read_demonstrations
    from ferrata.environments import get_mixture

    params = load()
    batch = args.batch or params.sft.batch_size
    steps = 1 + args.repeat
    sft = SftParams.model_validate(
        params.sft.model_dump()
        | {
            "epochs": 1.0,
            "batch_size": batch,
            "micro_batch_size": args.micro_batch or min(params.sft.micro_batch_size, batch),
            "eval_every": steps,
            "checkpoint_every": 0,  # writing them is no part of a step
            "validation_demonstrations": 1,
            "precision": args.precision,
        }
    )
    n, mixture = batch * steps, params.prepare.weights
    if args.demonstrations.is_file():
        rows, source = read_demonstrations(args.demonstrations), str(args.demonstrations)
        if len(rows) < n:
            raise SystemExit(f"{source} has {len(rows)} rows, expected {n}; lower --repeat")
    else:
        world = get_mixture(mixture)
        tasks = list(world.tasks("sft", n, params.seed))
        rows = demonstrate(world, tasks, params.prepare.skill, params.seed)
        source = f"{', '.join(mixture)}, made now"
    length = params.episodes.max_context_tokens
    sizes = Sizes(
        args.model, tuple(rows[:n]), mixture, sft, params.chat.system, params.seed, length
    )
    return sizes, source


class Counting:
    """Counts what goes through `SFTTrainer.compute_loss`, on either side."""

    def __init__(self) -> None:
        from trl import SFTTrainer

        from ferrata.training import head

        self._counts: Counter[str] = Counter()
        loss, pack = SFTTrainer.compute_loss, head.make_forest

        def counted(trainer: Any, model: Any, inputs: dict[str, Any], *rest: Any, **k: Any) -> Any:
            self._counts["tokens"] += int(inputs["attention_mask"].sum())
            self._counts["labels"] += int((inputs["labels"][:, 1:] != -100).sum())
            self._counts["padded"] += inputs["input_ids"].numel()
            return loss(trainer, model, inputs, *rest, **k)

        def packed(*args: Any) -> Any:
            forest = pack(*args)
            self._counts["packed"] += forest.ids_N.numel()
            return forest

        SFTTrainer.compute_loss, head.make_forest = counted, packed  # type: ignore[method-assign, assignment]

    def begin(self) -> None:
        self._counts.clear()

    def details(self) -> Record:
        """Of the step just ended: tokens without padding, labels, and tokens that were computed."""
        counts = self._counts
        computed = counts["packed"] or counts["padded"]
        return {"tokens": counts["tokens"], "labels": counts["labels"], "computed": computed}


def ours(send: Send, sizes: Sizes) -> None:
    """`train_sft` as the stage calls it; validation and saving lie outside the clock."""
    from ferrata.chat import Assembler
    from ferrata.environments import get_mixture
    from ferrata.training.checkpoint import CheckpointFolder
    from ferrata.training.models import load_tokenizer
    from ferrata.training.sft import train_sft

    counting = Counting()
    with tempfile.TemporaryDirectory() as folder:
        train_sft(
            sizes.model,
            Path(folder) / "model",
            get_mixture(sizes.mixture),
            Assembler(load_tokenizer(sizes.model), sizes.system),
            sizes.rows,
            sizes.rows[:1],
            sizes.params,
            seed=sizes.seed,
            max_length=sizes.max_length,
            folder=CheckpointFolder(Path(folder)),
            callbacks=[step_clock(send, counting.begin, counting.details)],
        )


def stock(send: Send, attention: str, sizes: Sizes) -> None:
    """TRL's SFTTrainer on the same rows."""
    import torch
    from trl import SFTTrainer

    from ferrata.chat import Assembler
    from ferrata.environments import get_mixture
    from ferrata.training.models import load_model, load_tokenizer
    from ferrata.training.sft import sft_config, to_dataset

    counting = Counting()
    tokenizer = load_tokenizer(sizes.model)
    assembler = Assembler(tokenizer, sizes.system)
    steps = math.ceil(len(sizes.rows) / sizes.params.batch_size)
    with tempfile.TemporaryDirectory() as folder:
        args = sft_config(
            sizes.params,
            seed=sizes.seed,
            max_length=sizes.max_length,
            scratch=Path(folder),
            steps=steps,
        )
        args.eval_strategy = "no"
        SFTTrainer(
            model=load_model(sizes.model, torch.float32, attention),
            args=args,
            train_dataset=to_dataset(sizes.rows, get_mixture(sizes.mixture), assembler),
            processing_class=tokenizer,
            callbacks=[step_clock(send, counting.begin, counting.details)],
        ).train()


def peak(send: Send, sizes: Sizes, rows: int) -> None:
    """FLOP/s of matrix products, and the numbers of weights that the formula needs."""
    import torch

    from ferrata.episodes.policies import resolve_dtype
    from ferrata.training.models import load_model

    dtype = resolve_dtype(sizes.params.precision)
    model = load_model(sizes.model, dtype)
    head = model.get_output_embeddings()
    linear = [m for m in model.modules() if isinstance(m, torch.nn.Linear) and m is not head]
    shapes = Counter((m.in_features, m.out_features) for m in linear)

    def seconds(m: int, k: int, n: int) -> float:
        """Of x (m, k) times the transpose of w (n, k), as a linear layer computes it; the best."""
        x = torch.randn(m, k, dtype=dtype, device=model.device)
        w = torch.randn(n, k, dtype=dtype, device=model.device)
        best, until, left = math.inf, time.perf_counter() + GEMM_SECONDS, GEMM_REPEATS
        while left > 0 or time.perf_counter() < until:
            left -= 1
            start = time.perf_counter()
            torch.nn.functional.linear(x, w)
            if model.device.type == "cuda":
                torch.cuda.synchronize()
            best = min(best, time.perf_counter() - start)
        return best

    flops = {shape: 2 * rows * math.prod(shape) for shape in shapes}
    times = {shape: seconds(rows, *shape) for shape in shapes}
    whole = sum(count * flops[shape] for shape, count in shapes.items())
    taken = sum(count * times[shape] for shape, count in shapes.items())
    send(
        {
            "dtype": str(dtype).removeprefix("torch."),
            "rows": rows,
            "layers": sum(m.weight.numel() for m in linear),
            "head": head.weight.numel(),
            "model": whole / taken,
            "square": 2 * SQUARE**3 / seconds(SQUARE, SQUARE, SQUARE),
            "shapes": {f"{k}x{n}": flops[k, n] / times[k, n] for k, n in shapes},
        }
    )


def _results(
    args: argparse.Namespace,
    where: dict[str, Any],
    sizes: Sizes,
    source: str,
    sides: dict[str, list[Record]],
    gemm: Record,
) -> dict[str, Any]:
    top = max(gemm["model"], gemm["square"])

    def work(record: Record, tokens: str) -> float:
        flops = gemm["layers"] * record[tokens] + gemm["head"] * record["labels"]
        return float(6 * flops / record["seconds"] / top)

    def side(records: list[Record]) -> dict[str, Any]:
        return {
            "tokens_per_second": Spread.of([r["tokens"] / r["seconds"] for r in records]),
            "step_seconds": Spread.of([r["seconds"] for r in records]),
            "share_of_peak": Spread.of([work(r, "tokens") for r in records]),
            "executed_share_of_peak": Spread.of([work(r, "computed") for r in records]),
            **{n: sum(r[n] for r in records) for n in ("tokens", "labels", "computed")},
            "records": records,
        }

    measured = {name: side(records) for name, records in sides.items()}
    rates = {name: one["tokens_per_second"] for name, one in measured.items()}
    fastest = max((r for n, r in rates.items() if n != "ours"), key=lambda spread: spread.median)
    tokens, labels = measured["ours"]["tokens"], measured["ours"]["labels"]
    return {
        "benchmark": "sft",
        "machine": where,
        "model": str(args.model),
        "rows": source,
        "sft": sizes.params.model_dump(exclude_none=True),
        "repeat": args.repeat,
        "gemm": gemm,
        "flops_per_token": 6 * (gemm["layers"] + gemm["head"] * labels / tokens),
        "sides": measured,
        "ratios": {"tokens_per_second": Ratio.of(rates["ours"], fastest)},
    }


def _show(results: dict[str, Any]) -> None:
    gemm, giga = results["gemm"], 1e9
    print()
    rows = [
        [f"the model's own, {gemm['rows']} rows", f"{gemm['model'] / giga:.0f}"],
        [f"{SQUARE} x {SQUARE} x {SQUARE}", f"{gemm['square'] / giga:.0f}"],
    ]
    print(table([f"matrix products, {gemm['dtype']}", "GFLOP/s"], rows))
    rows = [
        [
            name,
            side["tokens_per_second"].text(0),
            side["step_seconds"].text(2),
            f"{side['computed'] / side['tokens']:.0%}",
            f"{side['share_of_peak'].median:.0%}",
            f"{side['executed_share_of_peak'].median:.0%}",
        ]
        for name, side in results["sides"].items()
    ]
    print()
    print(table(["side", "tokens/s", "step s", "computed", "of peak", "executed"], rows))
    print(
        f"median (least-most); model FLOPs: {results['flops_per_token'] / giga:.2f} G per token; "
        "peak: the larger product;\ncomputed: tokens that went through the model, of all; "
        "executed: share of the peak by those"
    )
    ratio = results["ratios"]["tokens_per_second"]
    print(f"\ntokens/s, ours to the fastest stock: {ratio.text()}")
    records = [r for side in results["sides"].values() for r in side["records"]]
    if warning := quiet(records, results["machine"]["threads"]):
        print(warning)


if __name__ == "__main__":
    main()
