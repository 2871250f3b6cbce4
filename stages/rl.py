"""Stage rl: reinforcement learning of the sft model by acting in the environment."""

from __future__ import annotations

import sys

from ferrata.config.env import check_interpreter, check_versions
from ferrata.config.loader import load, project_root
from ferrata.config.paths import params_folder
from ferrata.data.store import read_tasks
from ferrata.environments import get_mixture
from ferrata.errors import run_main
from ferrata.tracking.callback import RunCallback
from ferrata.tracking.runs import stage_run
from ferrata.training import curves
from ferrata.training.checkpoint import checkpoints, content_key
from ferrata.training.launch import rank, relaunch
from ferrata.training.rl import train_rl


def main() -> int | None:
    check_interpreter()
    check_versions("torch", "transformers", "trl", "peft", "accelerate", "datasets", "tokenizers")
    params, folder, root = load(), params_folder(), project_root()
    if (status := relaunch(params.launch, __file__, folder)) is not None:
        return status
    tasks = folder / "data" / "tasks"
    settings = {
        "seed": params.seed,
        "rl": params.rl.model_dump(),
        "episodes": params.episodes.model_dump(),
    }
    inputs = [tasks, folder / "models" / "sft", folder / "code" / "rl.json", root / "env.yaml"]
    others = {"chat": params.chat.model_dump(), "launch": params.launch.model_dump()}
    key = content_key({**settings, **others}, inputs)
    with stage_run("rl", settings, root=root) as run, checkpoints(root, "rl", key) as kept:
        metrics, history = train_rl(
            folder / "models" / "sft",
            folder / "models" / "rl",
            get_mixture(params.prepare.weights),
            read_tasks(tasks, "train"),
            read_tasks(tasks, "validation"),
            params.rl,
            params.episodes,
            system=params.chat.system,
            seed=params.seed,
            folder=kept,
            callbacks=[RunCallback(run)],
        )
        if rank() != 0:
            return None
        curves.write(folder / "metrics", "rl", metrics, history)
        run.metrics(metrics)
    print(
        f"rl: validation success {metrics['validation_success_start']:.1%} -> "
        f"{metrics['validation_success']:.1%} (step {metrics['best_step']:.0f})"
    )
    return None


if __name__ == "__main__":
    sys.exit(run_main(main))
