"""Stage evaluate, once per arm: play the held-out tasks, greedily and sampled, and store every
trajectory."""

from __future__ import annotations

import sys

from ferrata.config.env import check_interpreter, check_versions
from ferrata.config.loader import load, project_root
from ferrata.config.paths import params_folder
from ferrata.data.store import read_tasks
from ferrata.errors import FerrataError, run_main
from ferrata.evaluation.play import demonstrator_rows, model_rows, to_frame
from ferrata.tracking.runs import stage_run


def main() -> None:
    check_interpreter()
    check_versions("torch", "transformers", "tokenizers")
    params, folder = load(), params_folder()
    if len(sys.argv) != 2 or sys.argv[1] not in params.arms:
        raise FerrataError(
            "stages/evaluate.py",
            found=" ".join(sys.argv[1:]) or "no arm",
            expected=f"one of {', '.join(params.arms)}",
            hint="dvc repro evaluate@ARM",
        )
    name = sys.argv[1]
    arm = params.arms[name]
    splits = {split: read_tasks(folder / "data" / "tasks", split) for split in arm.splits}
    settings = {"arm": {name: arm.model_dump()}, "evaluate": params.evaluate.model_dump()}
    with stage_run("evaluate", settings, root=project_root(), name=f"evaluate@{name}") as run:
        if arm.policy == "demonstrator":
            rows = demonstrator_rows(folder / arm.model, splits, params)
        else:
            examples = read_tasks(folder / "data" / "tasks", "sft")
            rows = model_rows(folder / arm.model, splits, examples, params, name)
        frame = to_frame(rows, name, splits)
        target = folder / "evaluations" / name
        target.mkdir(parents=True, exist_ok=True)
        frame.to_parquet(target / "trajectories.parquet", index=False)
        greedy = frame[frame["mode"] == "greedy"]
        means = greedy.groupby("split", sort=False)["success"].mean()
        run.metrics({f"{split}/success": float(value) for split, value in means.items()})
    print(
        f"{name}: "
        + ", ".join(f"{split} {value:.1%}" for split, value in means.items())
        + " (greedy)"
    )


if __name__ == "__main__":
    sys.exit(run_main(main))
