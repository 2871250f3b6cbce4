"""Comparison of arms on small synthetic episodes whose results can be counted by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import pandas as pd
import pytest

from ferrata.errors import FerrataError
from ferrata.evaluation.compare import (
    behaviour,
    by_band,
    flat,
    rounded,
    success_table,
    summarise,
)

HOW: dict[str, Any] = {"resamples": 500, "confidence": 0.95, "seed": 17}


def frame(right: dict[str, int], sampled: list[int] | None = None, tasks: int = 20) -> pd.DataFrame:
    """The first `right[split]` tasks are solved; `sampled[t]` of 4 samples of test task t."""
    rows = []
    for split, solved in right.items():
        played = [("greedy", t, 0, t < solved) for t in range(tasks)]
        if split == "test":
            played += [
                ("sampled", t, k, k < hits)
                for t, hits in enumerate(sampled or [])
                for k in range(4)
            ]
        rows += [
            {
                "environment": "tool_use",
                "split": split,
                "mode": mode,
                "task_id": f"{split}-{t:03d}",
                "task_set": f"digest of {split}",
                "band": 4 if split == "ood" else 1 + t % 2,
                "sample": sample,
                "success": success,
                "stop": "answered" if success else "out_of_turns",
                "calls": 2,
                "invalid_calls": int(not success),
                "measures": '{"calls_over_shortest": 1.5}' if success else "{}",
                "turns": 3,
                "tokens": 40 + t,
            }
            for mode, t, sample, success in played
        ]
    return pd.DataFrame(rows)


def three() -> dict[str, pd.DataFrame]:
    return {
        "demonstrator": frame({"test": 10, "ood": 5}),
        "sft": frame({"test": 8, "ood": 2}, sampled=[2] * 10),
        "rl": frame({"test": 18, "ood": 12}, sampled=[4, 3] * 5),
    }


def test_summary_has_exactly_these_keys_in_climb_order() -> None:
    summary = summarise(three(), **HOW)
    assert list(summary) == ["tool_use"]
    assert list(summary["tool_use"]) == ["test", "ood"]
    arms = ["demonstrator", "sft", "rl"]
    pairs = ["rl_minus_sft", "rl_minus_demonstrator"]
    assert list(summary["tool_use"]["test"]) == [*arms, *pairs, "sampled"]
    assert list(summary["tool_use"]["ood"]) == [*arms, *pairs]
    assert list(summary["tool_use"]["test"]["sampled"]) == ["sft", "rl"]
    assert list(summary["tool_use"]["test"]["rl"]) == ["success", "low", "high"]
    assert list(summary["tool_use"]["ood"]["rl_minus_sft"]) == ["diff", "low", "high", "p_value"]


def test_summary_counts() -> None:
    test = summarise(three(), **HOW)["tool_use"]["test"]
    assert [test[arm]["success"] for arm in three()] == [0.5, 0.4, 0.9]
    assert test["sampled"]["sft"]["success"] == 0.5
    assert test["sampled"]["rl"]["success"] == 0.875
    # 10 of 20 tasks gained, none lost; McNemar, exact: 2 / 2^10
    difference = test["rl_minus_sft"]
    assert difference["diff"] == pytest.approx(0.5)
    assert difference["p_value"] == pytest.approx(2 / 2**10)
    assert 0.2 < difference["low"] < 0.5 < difference["high"] < 0.8


def test_summary_is_finite_scalars_that_survive_json_and_do_not_depend_on_row_order() -> None:
    summary = summarise(three(), **HOW)
    assert all(math.isfinite(value) for value in flat(summary).values())
    text = json.dumps(rounded(summary), allow_nan=False)
    shuffled = {arm: rows.sample(frac=1, random_state=3) for arm, rows in three().items()}
    assert json.dumps(rounded(summarise(shuffled, **HOW))) == text


def test_an_arm_that_is_removed_takes_only_its_own_keys_along() -> None:
    every = flat(summarise(three(), **HOW))
    frames = three()
    del frames["demonstrator"]
    fewer = flat(summarise(frames, **HOW))
    assert fewer == {key: value for key, value in every.items() if "demonstrator" not in key}


def test_pairs_follow_the_task_and_not_the_row() -> None:
    frames = three()
    frames["rl"] = frames["rl"].iloc[::-1]
    assert summarise(frames, **HOW) == summarise(three(), **HOW)


def test_bands() -> None:
    table = by_band(three(), **HOW)
    columns = ["environment", "split", "band", "arm", "mode", "success", "low", "high", "tasks"]
    assert list(table.columns) == columns
    assert list(table["split"].unique()) == ["test", "ood"]
    where = table.set_index(["split", "band", "arm", "mode"])
    # Test tasks 0..17 are solved by rl; odd ones have band 2: 9 of 10.
    assert where.loc[("test", 2, "rl", "greedy"), "success"] == 0.9
    assert where.loc[("test", 2, "rl", "greedy"), "tasks"] == 10
    # The sampled tasks of band 2 have 3 of 4 right each, so one of four always is.
    assert where.loc[("test", 2, "rl", "sampled"), "success"] == 0.75
    assert where.loc[("test", 2, "rl", "pass_at_k"), "success"] == 1.0
    assert where.loc[("test", 2, "rl", "sampled"), "tasks"] == 5
    assert where.loc[("ood", 4, "sft", "greedy"), "success"] == 0.1
    assert not table.isna().any().any()


def test_behaviour() -> None:
    acts = behaviour(three())["tool_use"]
    assert acts["test"]["rl"]["calls"] == 2.0
    assert acts["test"]["rl"]["invalid_calls"] == pytest.approx(0.1)
    assert acts["test"]["rl"]["tokens"] == pytest.approx(49.5)  # greedy only
    assert acts["test"]["rl"]["stop"] == pytest.approx({"answered": 0.9, "out_of_turns": 0.1})
    assert "stop" not in acts["ood"]["rl"]
    assert acts["test"]["rl"]["measures"] == {"calls_over_shortest": 1.5}  # of solved episodes


def test_a_stop_reason_of_one_arm_is_listed_for_all() -> None:
    frames = three()
    frames["sft"].loc[0, "stop"] = "out_of_tokens"
    acts = behaviour(frames)["tool_use"]["test"]
    assert acts["rl"]["stop"]["out_of_tokens"] == 0.0
    assert acts["sft"]["stop"]["out_of_tokens"] == pytest.approx(1 / 20)


def test_success_table_is_tidy() -> None:
    table = success_table(summarise(three(), **HOW))
    assert len(table) == 3 + 2 + 3
    assert table["label"].iloc[0] == "test demonstrator"
    assert not table.isna().any().any()


def test_rounding() -> None:
    assert rounded({"a": {"b": 0.123456}, "n": 3}) == {"a": {"b": 0.1235}, "n": 3}
    assert str(rounded({"a": -0.00001})["a"]) == "0.0"
    with pytest.raises(FerrataError, match="not finite"):
        rounded({"a": math.nan})


def other_digest(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(task_set="another")


def other_tasks(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(task_id=rows["task_id"].str.replace("test-003", "test-999"))


def fewer_tasks(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["task_id"] != "test-019"]


def no_test(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["split"] != "test"]


def test_an_arm_may_leave_forms_and_ood_out() -> None:
    frames = three()
    whole = summarise(frames, **HOW)["tool_use"]
    frames["demonstrator"] = frames["demonstrator"][frames["demonstrator"]["split"] == "test"]
    cells = summarise(frames, **HOW)["tool_use"]
    assert cells["test"] == whole["test"]
    assert "demonstrator" in whole["ood"] and "rl_minus_demonstrator" in whole["ood"]
    assert set(whole["ood"]) - set(cells["ood"]) == {"demonstrator", "rl_minus_demonstrator"}
    assert cells["ood"]["rl_minus_sft"] == whole["ood"]["rl_minus_sft"]
    assert "demonstrator" not in behaviour(frames)["tool_use"]["ood"]
    bands = by_band(frames, **HOW)
    assert set(bands[bands["split"] == "ood"]["arm"]) == {"sft", "rl"}


def test_an_arm_may_leave_an_environment_out_but_is_then_not_among_the_pooled() -> None:
    def memory(right: int) -> pd.DataFrame:
        rows = frame({"test": right})
        return rows.assign(environment="memory", task_id="memory-" + rows["task_id"])

    frames = {
        "sft": pd.concat([frame({"test": 8}), memory(5)]),
        "rl": pd.concat([frame({"test": 18}), memory(12)]),
        "rl_no_notes": memory(1),
    }
    summary = summarise(frames, **HOW)
    assert list(summary["all"]["test"]) == ["sft", "rl", "rl_minus_sft"]
    assert list(summary["tool_use"]["test"]) == ["sft", "rl", "rl_minus_sft"]
    assert summary["all"]["test"]["rl"]["success"] == pytest.approx(30 / 40)
    assert summary["memory"]["test"]["rl_no_notes"]["success"] == pytest.approx(1 / 20)
    assert summary["memory"]["test"]["rl_minus_rl_no_notes"]["diff"] == pytest.approx(11 / 20)
    assert set(behaviour(frames)["all"]["test"]) == {"sft", "rl"}
    frames["rl_no_notes"] = frames["rl_no_notes"].iloc[:-1]
    with pytest.raises(FerrataError, match="did not play the same tasks: memory"):
        summarise(frames, **HOW)


@pytest.mark.parametrize("spoil", [other_digest, other_tasks, fewer_tasks, no_test])
def test_arms_of_other_tasks_are_refused(spoil: Any) -> None:
    frames = three()
    frames["rl"] = spoil(frames["rl"])
    for compare in (lambda: summarise(frames, **HOW), lambda: behaviour(frames)):
        with pytest.raises(FerrataError, match="did not play the same tasks") as error:
            compare()
        assert "rl" in str(error.value)


def test_sampled_tasks_must_be_the_same_too() -> None:
    frames = three()
    frames["rl"] = frame({"test": 18, "ood": 12}, sampled=[4] * 9)
    with pytest.raises(FerrataError, match="did not play the same tasks: tool_use, test, sampled"):
        summarise(frames, **HOW)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda rows: rows.iloc[:0], "evaluations/rl/trajectories.parquet has no episodes"),
        (lambda rows: rows.drop(columns="band"), "lacks columns"),
        (lambda rows: rows.assign(success=None), "success is empty in row 0"),
        (lambda rows: rows.assign(success=0.5), "success is no truth value"),
        (lambda rows: rows.assign(split="train"), "unknown split"),
        (lambda rows: rows.assign(mode="beam"), "unknown mode"),
        (lambda rows: pd.concat([rows, rows.iloc[:1]]), "one episode is there twice"),
        (lambda rows: pd.concat([rows, rows.iloc[:1].assign(sample=1)]), "an uneven number"),
        (lambda rows: rows.drop(rows[rows["mode"] == "sampled"].index[-1]), "an uneven number"),
    ],
)
def test_a_broken_frame_is_refused_by_name(spoil: Any, message: str) -> None:
    frames = three()
    frames["rl"] = spoil(frames["rl"])
    with pytest.raises(FerrataError, match=message):
        summarise(frames, **HOW)


def test_no_arms_and_reserved_names() -> None:
    with pytest.raises(FerrataError, match="no arm to compare"):
        summarise({}, **HOW)
    with pytest.raises(FerrataError, match="'sampled'"):
        summarise({"sampled": three()["rl"]}, **HOW)
