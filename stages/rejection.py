"""Stage rejection, once per round: SFT of a model on its own successes.

Runs in one process, whatever `launch` says: a round is short.
"""

from __future__ import annotations

import sys

from ferrata.chat import Assembler
from ferrata.config.env import check_interpreter, check_versions
from ferrata.config.loader import load, project_root
from ferrata.config.paths import params_folder
from ferrata.data.store import read_tasks, write_demonstrations
from ferrata.environments import get_mixture
from ferrata.errors import FerrataError, run_main
from ferrata.tracking.callback import RunCallback
from ferrata.tracking.runs import stage_run
from ferrata.training import curves
from ferrata.training.checkpoint import checkpoints, content_key
from ferrata.training.models import load_tokenizer
from ferrata.training.rejection import keep, sample
from ferrata.training.sft import train_sft


def main() -> None:
    check_interpreter()
    check_versions("torch", "transformers", "trl", "peft", "accelerate", "datasets", "tokenizers")
    params, folder, root = load(), params_folder(), project_root()
    chosen = params.rejection
    if len(sys.argv) != 2 or sys.argv[1] not in chosen.rounds:
        raise FerrataError(
            "stages/rejection.py",
            found=" ".join(sys.argv[1:]) or "no round",
            expected=f"one of {', '.join(chosen.rounds) or '(rejection.rounds is empty)'}",
            hint="dvc repro rejection@ROUND",
        )
    name = sys.argv[1]
    start, tasks, target = folder / chosen.rounds[name], folder / "data" / "tasks", folder / "data"
    environment = get_mixture(params.prepare.weights)
    assembler = Assembler(load_tokenizer(start), params.chat.system)
    section = {"rejection": chosen.model_dump(), "episodes": params.episodes.model_dump()}
    settings = {"seed": params.seed, "sft": params.sft.model_dump(), **section}
    inputs = [tasks, start, folder / "code" / "rejection.json", root / "env.yaml"]
    key = content_key({**settings, "chat": params.chat.model_dump()}, inputs)
    with stage_run("rejection", settings, root=root, name=f"rejection@{name}") as run:
        shown = {}
        for split in ("train", "validation"):
            played = sample(start, environment, read_tasks(tasks, split)[: chosen.tasks], params)
            kept = keep(played, environment, assembler, chosen.per_task, params.seed)
            shown[split] = kept
            write_demonstrations(target / name / f"{split}.jsonl", kept.demonstrations)
        with checkpoints(root, name, key) as state:
            metrics, history = train_sft(
                start,
                folder / "models" / name,
                environment,
                assembler,
                shown["train"].demonstrations,
                shown["validation"].demonstrations,
                params.sft.model_copy(update={"learning_rate": chosen.learning_rate}),
                seed=params.seed,
                max_length=params.episodes.max_context_tokens,
                folder=state,
                callbacks=[RunCallback(run)],
            )
        metrics |= shown["train"].metrics()
        curves.write(folder / "metrics", name, metrics, history)
        run.metrics(metrics)
    print(
        f"{name}: {metrics['kept']} own successes of {metrics['episodes']} episodes, one more SFT"
    )


if __name__ == "__main__":
    sys.exit(run_main(main))
