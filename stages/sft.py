"""Stage sft: supervised fine-tuning of the base model on the demonstrations."""

from __future__ import annotations

import sys

from ferrata.chat import Assembler
from ferrata.config.env import check_interpreter, check_versions
from ferrata.config.loader import load, project_root
from ferrata.config.paths import params_folder
from ferrata.data.store import read_demonstrations
from ferrata.environments import get_mixture
from ferrata.errors import run_main
from ferrata.tracking.callback import RunCallback
from ferrata.tracking.runs import stage_run
from ferrata.training import curves
from ferrata.training.checkpoint import checkpoints, content_key
from ferrata.training.launch import rank, relaunch
from ferrata.training.models import load_tokenizer
from ferrata.training.sft import train_sft


def main() -> int | None:
    check_interpreter()
    check_versions("torch", "transformers", "trl", "peft", "accelerate", "datasets", "tokenizers")
    params, folder, root = load(), params_folder(), project_root()
    if (status := relaunch(params.launch, __file__, folder)) is not None:
        return status
    base = folder / "models" / "base"
    data = folder / "data" / "demonstrations"
    settings = {"seed": params.seed, "sft": params.sft.model_dump()}
    inputs = [data, base, folder / "code" / "sft.json", root / "env.yaml"]
    others = {
        "chat": params.chat.model_dump(),
        "tokens": params.episodes.max_context_tokens,
        "launch": params.launch.model_dump(),
    }
    key = content_key({**settings, **others}, inputs)
    with stage_run("sft", settings, root=root) as run, checkpoints(root, "sft", key) as kept:
        metrics, history = train_sft(
            base,
            folder / "models" / "sft",
            get_mixture(params.prepare.weights),
            Assembler(load_tokenizer(base), params.chat.system),
            read_demonstrations(data / "sft.jsonl"),
            read_demonstrations(data / "validation.jsonl"),
            params.sft,
            seed=params.seed,
            max_length=params.episodes.max_context_tokens,
            folder=kept,
            callbacks=[RunCallback(run)],
        )
        if rank() != 0:
            return None
        curves.write(folder / "metrics", "sft", metrics, history)
        run.metrics(metrics)
    print(
        f"sft: validation loss {metrics['validation_loss']:.4f} at step {metrics['best_step']:.0f}"
    )
    return None


if __name__ == "__main__":
    sys.exit(run_main(main))
