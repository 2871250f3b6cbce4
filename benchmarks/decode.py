"""Time of a decode step: the engine's policy against transformers' `generate`, on the same prompts.

    PYTHONPATH=src python -m benchmarks.decode --model models/base

The time of one new token is subtracted from that of `steps` + 1 tokens, so that prefill does not
count. Each figure is the fastest of the repeats: other load on the machine can only slow one down.
Both sides run in the same dtype with the same attention, and no sequence ends early.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main() -> None:
    args = _arguments()
    import torch

    from ferrata.episodes.policies import resolve_dtype
    from ferrata.training.models import load_model, load_tokenizer

    tokenizer = load_tokenizer(args.model)
    model = load_model(args.model, resolve_dtype(args.precision)).eval()
    # Nothing may end before the last step, or the batches would differ in size.
    model.generation_config.eos_token_id = None
    print(
        f"{args.model}: {model.num_parameters():,} parameters, {model.dtype}, {model.device}, "
        f"{torch.get_num_threads()} threads; prompts of {args.prompt} tokens, {args.steps} steps, "
        f"temperature {args.temperature:g}, best of {args.repeat}"
    )
    print(f"{'batch':>5}  {'engine':>12}  {'generate':>12}  {'ratio':>6}")
    for size in args.batch:
        prompts = _prompts(size, args.prompt, model.config.vocab_size)
        pad = tokenizer.pad_token_id or 0
        ours = _per_step(_engine(model, prompts, args.temperature), args.steps, args.repeat)
        theirs = _per_step(
            _generate(model, prompts, pad, args.temperature), args.steps, args.repeat
        )
        print(f"{size:>5}  {ours:>9.2f} ms  {theirs:>9.2f} ms  {theirs / ours:>5.2f}x", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.decode",
        description="Milliseconds per decode step: the engine's policy against generate.",
    )
    parser.add_argument("--model", type=Path, default=Path("models/base"), help="model folder")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 64], help="batch sizes")
    parser.add_argument("--prompt", type=int, default=128, help="tokens per prompt")
    parser.add_argument("--steps", type=int, default=32, help="decode steps that are timed")
    parser.add_argument("--repeat", type=int, default=3, help="repeats; the fastest counts")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    parser.add_argument("--precision", default="auto", choices=("auto", "float32", "bfloat16"))
    args = parser.parse_args()
    if min(args.prompt, args.steps, args.repeat, *args.batch) < 1:
        parser.error("--batch, --prompt, --steps and --repeat must be at least 1")
    return args


def _prompts(size: int, length: int, vocabulary: int) -> list[list[int]]:
    """Different prompts: equal ones are prefilled once by the engine."""
    rng = random.Random(0)
    return [[rng.randrange(vocabulary) for _ in range(length)] for _ in range(size)]


def _engine(model: Any, prompts: list[list[int]], temperature: float) -> Callable[[int], None]:
    from ferrata.episodes.policies import Prompt, TransformersPolicy

    # No token has the id -1, so no turn is closed before its limit.
    policy = TransformersPolicy(model, close_id=-1, batch_size=len(prompts))

    def run(tokens: int) -> None:
        asked = [Prompt(ids, tokens, (0, row)) for row, ids in enumerate(prompts)]
        policy.run(asked, temperature, lambda place, turn: None)

    return run


def _generate(
    model: Any, prompts: list[list[int]], pad: int, temperature: float
) -> Callable[[int], None]:
    import torch

    ids_BL = torch.tensor(prompts, device=model.device)
    how: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        how = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}

    def run(tokens: int) -> None:
        with torch.inference_mode():
            made = model.generate(
                ids_BL,
                attention_mask=torch.ones_like(ids_BL),
                max_new_tokens=tokens,
                pad_token_id=pad,
                **how,
            )
        if made.shape[1] != ids_BL.shape[1] + tokens:
            raise RuntimeError("generate ended early: the comparison would not be fair")

    return run


def _per_step(run: Callable[[int], None], steps: int, repeat: int) -> float:
    """Milliseconds of one step, prefill taken off."""
    run(2)  # warm-up
    first = min(_seconds(run, 1) for _ in range(repeat))
    whole = min(_seconds(run, steps + 1) for _ in range(repeat))
    return 1000 * (whole - first) / steps


def _seconds(run: Callable[[int], None], tokens: int) -> float:
    start = time.perf_counter()
    run(tokens)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
