"""Stage register: put the chosen arm's model into MLflow's registry, load it back, ask it a
task.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from ferrata.config.loader import load, project_root
from ferrata.config.paths import params_folder
from ferrata.errors import FerrataError, run_main
from ferrata.tracking.registry import load_registered, model_hash, register_model
from ferrata.tracking.runs import stage_run
from ferrata.tracking.store import TrackingUnreachable


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """All finite numbers of a nested metrics file, as `a.b.c`."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        elif isinstance(value, (int, float)) and math.isfinite(value):
            yield f"{prefix}{key}", float(value)


def main() -> None:
    params = load()
    chosen, arm = params.register, params.arms[params.register.arm]
    root, folder = project_root(), params_folder()
    summary = folder / "metrics" / "summary.json"
    if not summary.is_file():
        raise FerrataError("no scores", found=f"no file {summary}", hint="dvc repro report")
    scores = {
        key: value
        for key, value in flat(json.loads(summary.read_text(encoding="utf-8")))
        if chosen.arm in key.split(".")
    }
    digest = model_hash(folder / arm.model)

    with stage_run("register", {"register": chosen.model_dump()}, root=root) as run:
        try:
            done = register_model(
                folder / arm.model,
                name=chosen.name,
                alias=chosen.alias,
                model_hash=digest,
                scores=scores,
                run=run,
                root=root,
            )
        except TrackingUnreachable as error:
            print(f"registration put off: {error}", file=sys.stderr)
        else:
            what = "registered" if done.created else "already registered, alias moved"
            print(f"{what}: {chosen.name} version {done.version}, alias {chosen.alias}")
            from ferrata.serving.ask import ask_one

            model, tokenizer = load_registered(chosen.name, chosen.alias, root=root)
            print(f"loaded back and asked:\n{ask_one(model, tokenizer, params, folder)}")
            print(f"see it: make ui, then Models > {chosen.name}")
        # Only what does not depend on this machine's database: every clone writes the same file.
        candidate: dict[str, str | float] = {"arm": chosen.arm, "hash": digest}
        for key, value in scores.items():
            parts = [part for part in key.split(".") if part != chosen.arm]
            if parts[-1] == "success":  # tool_use.test.rl.success -> tool_use_test_success
                candidate["_".join(parts)] = value
        target = folder / "metrics" / "registry.json"
        text = json.dumps({"candidate": candidate}, indent=2, sort_keys=True)
        target.write_text(text + "\n", encoding="utf-8")
        run.metrics({key.replace(".", "/"): value for key, value in scores.items()})


if __name__ == "__main__":
    sys.exit(run_main(main))
