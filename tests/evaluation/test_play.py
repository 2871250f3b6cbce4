"""Playing the held-out tasks: arms that are compared play the same ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ferrata.config.arms import Arm
from ferrata.config.loader import load
from ferrata.config.params import Params
from ferrata.environments import get_mixture
from ferrata.evaluation.compare import summarise
from ferrata.evaluation.play import model_rows, to_frame

WEIGHTS = {"tool_use": 1.0, "memory": 1.0}


def params(arms: dict[str, dict[str, Any]]) -> Params:
    whole = load(Path(__file__).resolve().parents[2])
    return replace(
        whole,
        arms={name: Arm.model_validate({"model": "m", **arm}) for name, arm in arms.items()},
        prepare=whole.prepare.model_copy(update={"mixture": WEIGHTS}),
        episodes=whole.episodes.model_copy(
            update={"max_turns": 2, "max_turn_tokens": 8, "max_context_tokens": 2048}
        ),
        evaluate=whole.evaluate.model_copy(
            update={"sampled_tasks": 3, "samples": 2, "precision": "float32"}
        ),
    )


def test_a_variant_is_compared_with_the_arm_that_plays_everything(
    tiny: tuple[Any, Any], tmp_path: Path
) -> None:
    model, tokenizer = tiny
    model.save_pretrained(tmp_path / "m")
    tokenizer.save_pretrained(tmp_path / "m")
    arm = {"policy": "model", "shots": 0, "splits": ["test"]}
    chosen = params({"rl": arm, "rl_no_notes": {**arm, "variant": "no_notes"}})
    splits = {"test": list(get_mixture(WEIGHTS).tasks("test", 10, 3))}
    frames = {
        name: to_frame(model_rows(tmp_path / "m", splits, [], chosen, name), name, splits)
        for name in chosen.arms
    }
    first = [task.id for task in splits["test"][:3] if task.environment == "memory"]
    assert 0 < len(first) < 3
    sampled = frames["rl_no_notes"].query("mode == 'sampled'")
    assert sorted(sampled["task_id"].unique()) == sorted(first)
    assert set(frames["rl_no_notes"]["environment"]) == {"memory"}
    cells = summarise(frames, resamples=100, confidence=0.95, seed=1)
    assert {"rl", "rl_no_notes", "rl_minus_rl_no_notes"} < set(cells["memory"]["test"])
    assert set(cells["memory"]["test"]["sampled"]) == {"rl", "rl_no_notes"}
    assert "rl_no_notes" not in cells["all"]["test"]
