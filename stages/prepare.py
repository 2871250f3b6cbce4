"""Stage prepare: make tasks and demonstrations, and check them before anything trains on them."""

from __future__ import annotations

import json
import sys

from ferrata.chat import Assembler
from ferrata.config.env import check_interpreter, check_versions
from ferrata.config.loader import load, project_root
from ferrata.config.paths import params_folder
from ferrata.data import checks, generate, store
from ferrata.environments import get_mixture
from ferrata.errors import run_main
from ferrata.tracking.runs import stage_run
from ferrata.training.models import load_tokenizer


def main() -> None:
    check_interpreter()
    check_versions("transformers", "tokenizers")
    params, folder = load(), params_folder()
    chosen = params.prepare
    environment = get_mixture(chosen.weights)
    assembler = Assembler(load_tokenizer(folder / "models" / "base"), params.chat.system)
    with stage_run(
        "prepare", {"seed": params.seed, "prepare": chosen.model_dump()}, root=project_root()
    ) as run:
        fixtures = checks.check_fixtures(environment)
        splits = generate.make_tasks(environment, chosen, params.seed)
        checks.check_leakage(splits)
        shown = {
            split: generate.demonstrate(environment, splits[split], chosen.skill, params.seed)
            for split in ("sft", "validation")
        }
        every = [task for tasks in splits.values() for task in tasks]
        longest_prompt = checks.check_prompts(environment, assembler, params.episodes, every)
        longest_row = checks.check_demonstrations(
            environment, assembler, params.episodes, [d for rows in shown.values() for d in rows]
        )
        for split, tasks in splits.items():
            store.write_rows(
                folder / "data" / "tasks" / f"{split}.jsonl", (t.to_row() for t in tasks)
            )
            run.dataset(split, store.task_set_digest(tasks), len(tasks))
        target = folder / "data" / "demonstrations"
        for name, rows in shown.items():
            store.write_demonstrations(target / f"{name}.jsonl", rows)
        demonstrator = {"skill": chosen.skill}
        (target / "demonstrator.json").write_text(json.dumps(demonstrator) + "\n", encoding="utf-8")
        right = generate.success_by_band(shown["sft"])
        metrics = {
            "tasks": {split: len(tasks) for split, tasks in splits.items()},
            "fixtures": fixtures,
            "longest_prompt_tokens": longest_prompt,
            "longest_demonstration_tokens": longest_row,
            "demonstrations_right": right,
        }
        path = folder / "metrics" / "prepare.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(metrics, indent=2) + "\n", encoding="utf-8")
        run.metrics({f"demonstrations_right/{key}": value for key, value in right.items()})
    print(
        f"{len(every)} tasks, no problem in two splits; {fixtures} attacks on the grader held off; "
        f"{len(shown['sft'])} demonstrations, {right['all']:.0%} of them right"
    )


if __name__ == "__main__":
    sys.exit(run_main(main))
