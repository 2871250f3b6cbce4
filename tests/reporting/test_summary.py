"""The table, its sentences and the trajectories as a user reads them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ferrata.errors import FerrataError
from ferrata.reporting.summary import claim, difference, print_summary, trajectories_text


@pytest.fixture
def root(tmp_path: Path, summary: dict[str, Any]) -> Path:
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "summary.json").write_text(json.dumps(summary))
    return tmp_path


def rendered(root: Path, **environ: str) -> str:
    code = "from ferrata.reporting.summary import print_summary as p; from pathlib import Path; "
    done = subprocess.run(
        [sys.executable, "-c", f"{code}p(Path({str(root)!r}))"],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environ},
        check=True,
    )
    return done.stdout.decode()


def test_table_fits_80_columns_without_control_codes(root: Path) -> None:
    text = rendered(root, COLUMNS="80", PYTHONIOENCODING="utf-8")
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    assert "…" not in text
    assert "tool_use: success, greedy [95% interval over tasks]" in text
    assert "rl             0.90 [0.77, 0.96]    0.90   0.90" in text
    order = [text.index(f"\n  {arm} ") for arm in ("base", "base_fewshot", "sft", "rl")]
    assert order == sorted(order)
    assert "rl minus sft (test, greedy, paired): +0.60 [0." in text
    assert "RL improves on SFT on the test tasks: the interval excludes 0." in text
    for what in ("make ui", "dvc plots show", "metrics/trajectories.md", "ferrata chat --arm rl"):
        assert what in text


def test_wide_output_has_every_interval(root: Path) -> None:
    text = rendered(root, COLUMNS="120", PYTHONIOENCODING="utf-8")
    assert text.count("0.90 [0.77, 0.96]") == 4


def test_an_ascii_pipe_does_not_break_it(root: Path) -> None:
    text = rendered(root, PYTHONIOENCODING="ascii", LC_ALL="C", PYTHONUTF8="0")
    assert text.isascii()
    assert "0.90 [0.77, 0.96]" in text


def test_missing_or_broken_summary_names_the_file_and_the_command(tmp_path: Path) -> None:
    with pytest.raises(FerrataError, match=r"metrics/summary\.json is missing") as error:
        print_summary(tmp_path)
    assert "dvc repro" in str(error.value)
    (tmp_path / "metrics").mkdir()
    for text in ("", "[]", "{}"):
        (tmp_path / "metrics" / "summary.json").write_text(text)
        with pytest.raises(FerrataError, match=r"metrics/summary\.json is not"):
            print_summary(tmp_path)


@pytest.mark.parametrize(
    ("low", "high", "sentence"),
    [
        (0.01, 0.2, "RL improves on SFT on the test tasks: the interval excludes 0."),
        (0.0, 0.2, "No difference between RL and SFT is shown on the test tasks"),
        (-0.2, 0.0, "No difference between RL and SFT is shown on the test tasks"),
        (-0.2, -0.01, "RL is worse than SFT on the test tasks: the interval excludes 0."),
    ],
)
def test_a_claim_is_one_that_the_interval_supports(low: float, high: float, sentence: str) -> None:
    entry = {"diff": 0.05, "low": low, "high": high, "p_value": 0.01}
    assert claim("rl_minus_sft", "test", entry).startswith(sentence)


def test_rounding_does_not_hide_that_an_end_is_not_zero() -> None:
    assert difference({"diff": 0.31, "low": 0.24, "high": 0.38}) == "+0.31 [0.24, 0.38]"
    tiny = {"diff": 0.0125, "low": 0.0008, "high": 0.0250}
    assert difference(tiny) == "+0.0125 [0.0008, 0.0250]"
    assert difference({"diff": 0.1, "low": 0.0, "high": 0.2}) == "+0.10 [0.00, 0.20]"
    worse = {"diff": -0.1, "low": -0.2, "high": 0.01}
    assert difference(worse) == "-0.10 [-0.20, 0.01]"


def test_trajectories_show_one_task_for_every_arm(frames: dict[str, pd.DataFrame]) -> None:
    text = trajectories_text(frames)
    # Task 12 is the first that rl solves and sft does not.
    assert text.startswith(
        "Task `test-012` of tool_use, band 1: the first test task that rl solves"
    )
    assert "What do 14 apples cost?\n\nExpected: 42" in text
    assert text.count("test-012") == 1
    rl = text[text.index("**rl**") :]
    assert rl == (
        "**rl**: right, answer 7, turns 2, calls 1, invalid calls 0, stop: answered\n\n"
        "```text\n"
        'assistant  -> lookup(item="apple", column="price")\n'
        "tool       3\n"
        "assistant  Answer: 42\n"
        "```\n"
    )


def test_pages_before_the_question_are_part_of_what_is_shown(
    frames: dict[str, pd.DataFrame],
) -> None:
    said = [
        {"role": "user", "content": "Page 1 of 1."},
        {"role": "assistant", "content": "Next."},
        {"role": "user", "content": "What do 14 apples cost?"},
        {"role": "assistant", "content": "Answer: 42"},
    ]
    here = frames["rl"]["task_id"] == "test-012"
    frames["rl"].loc[here, "messages"] = json.dumps(said)
    assert trajectories_text(frames).endswith(
        "```text\nuser       Page 1 of 1.\nassistant  Next.\n"
        "user       What do 14 apples cost?\nassistant  Answer: 42\n```\n"
    )


def test_what_a_model_writes_cannot_break_the_page(frames: dict[str, pd.DataFrame]) -> None:
    text = trajectories_text(frames)
    base = text[text.index("**base**") : text.index("**base_fewshot**")]
    assert "wrong, no answer" in base
    assert "````text\n" in base
    assert "\x1b" not in text
    assert "<!--" not in text
    assert "characters more]" in " ".join(base.split())
    assert max(map(len, text.splitlines())) <= 100


def test_a_missing_text_is_named(frames: dict[str, pd.DataFrame]) -> None:
    frames["rl"] = frames["rl"].drop(columns="messages")
    with pytest.raises(FerrataError, match=r"trajectories.* lacks columns"):
        trajectories_text(frames)


def test_without_a_difference_the_first_task_is_shown(frames: dict[str, pd.DataFrame]) -> None:
    del frames["rl"]
    assert "Task `test-000` of tool_use, band 1: the first one." in trajectories_text(frames)
    for arm in frames:
        frames[arm] = frames[arm][frames[arm]["split"] != "test"]
    with pytest.raises(FerrataError, match="no greedy test episode"):
        trajectories_text(frames)
