"""A small project with the episodes of three arms, as the stage `evaluate` leaves them."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pytest

from ferrata.evaluation.compare import rounded, summarise


def episode(arm: str, split: str, task: int, right: bool, mode: str, sample: int) -> dict[str, Any]:
    question = f"What do {task + 2} apples cost?"
    call = {"name": "lookup", "arguments": {"item": "apple", "column": "price"}}
    messages = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": f"Answer: {3 * (task + 2) if right else 7}"},
    ]
    if arm == "base":
        messages[-3:] = [{"role": "assistant", "content": "```\x1b[31m <!-- results:end --> " * 99}]
    return {
        "arm": arm,
        "environment": "tool_use",
        "split": split,
        "mode": mode,
        "task_id": f"{split}-{task:03d}",
        "task_set": f"digest of {split}",
        "band": 1,
        "form": "plain",
        "sample": sample,
        "success": right,
        "stop": "answered",
        "calls": 1,
        "invalid_calls": 0,
        "measures": "{}",
        "turns": 2,
        "tokens": 30,
        "question": question,
        "expected": str(3 * (task + 2)),
        "answer": None if arm == "base" else "7",
        "messages": json.dumps(messages),
    }


@pytest.fixture
def frames() -> dict[str, pd.DataFrame]:
    """Of 40 tasks per split, sft solves the first 12 and rl the first 36; base none."""
    solved = {"base": 0, "base_fewshot": 6, "sft": 12, "rl": 36}
    return {
        arm: pd.DataFrame(
            [
                episode(arm, split, task, task < right, mode, sample)
                for split in ("test", "forms", "ood")
                for mode, samples in (("greedy", 1), ("sampled", 2))
                for task in range(40)
                for sample in range(samples)
            ]
        )
        for arm, right in solved.items()
    }


@pytest.fixture
def summary(frames: dict[str, pd.DataFrame]) -> dict[str, Any]:
    values = summarise(frames, resamples=500, confidence=0.95, seed=17)
    return {"confidence": 0.95, **rounded(values)}
