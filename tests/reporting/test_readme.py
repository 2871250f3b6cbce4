"""README.md says what the metrics say, and nothing else changes in it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ferrata.errors import FerrataError
from ferrata.reporting.readme import results, update
from ferrata.reporting.summary import claim, trajectories_text

README = """# Ferrata

Before.

<!-- results:begin -->
old
<!-- results:end -->

Between.

<!-- trajectories:begin --><!-- trajectories:end -->
After.
"""


@pytest.fixture
def root(tmp_path: Path, summary: dict[str, Any], frames: dict[str, pd.DataFrame]) -> Path:
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "metrics" / "behaviour.json").write_text("{}")
    (tmp_path / "metrics" / "trajectories.md").write_text(trajectories_text(frames))
    (tmp_path / "README.md").write_text(README)
    return tmp_path


def test_update_replaces_the_blocks_alone_and_is_idempotent(root: Path) -> None:
    assert update(root) is True
    once = (root / "README.md").read_bytes()
    text = once.decode()
    assert text.startswith("# Ferrata\n\nBefore.\n\n<!-- results:begin -->\n")
    assert (
        "<!-- results:end -->\n\nBetween.\n\n<!-- trajectories:begin -->\nTask `test-012`" in text
    )
    assert text.endswith("<!-- trajectories:end -->\nAfter.\n")
    assert "old" not in text
    assert update(root) is False
    assert update(root, check=True) is False
    assert (root / "README.md").read_bytes() == once


def test_check_fails_on_a_changed_number_and_writes_nothing(root: Path) -> None:
    update(root)
    path = root / "README.md"
    path.write_text(path.read_text().replace("| `rl` | 0.90", "| `rl` | 0.99"))
    before = path.read_bytes()
    with pytest.raises(FerrataError, match="does not say what metrics/ say") as error:
        update(root, check=True)
    assert "0.99" in str(error.value)
    assert path.read_bytes() == before


def test_check_fails_when_the_metrics_move_on(root: Path, summary: dict[str, Any]) -> None:
    update(root)
    summary["tool_use"]["test"]["rl"]["success"] = 0.5
    (root / "metrics" / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(FerrataError, match="does not say"):
        update(root, check=True)


@pytest.mark.parametrize("name", ["results", "trajectories"])
@pytest.mark.parametrize("side", ["begin", "end"])
def test_a_missing_or_doubled_marker_is_named(root: Path, name: str, side: str) -> None:
    marker = f"<!-- {name}:{side} -->"
    for text in (README.replace(marker, ""), README + marker):
        (root / "README.md").write_text(text)
        with pytest.raises(FerrataError, match=marker):
            update(root)
        assert (root / "README.md").read_text() == text


def test_markers_in_the_wrong_order(root: Path) -> None:
    begin, end = "<!-- results:begin -->", "<!-- results:end -->"
    swapped = README.replace(begin, "X").replace(end, begin).replace("X", end)
    (root / "README.md").write_text(swapped)
    with pytest.raises(FerrataError, match="before"):
        update(root)


@pytest.mark.parametrize("name", ["README.md", "metrics/summary.json", "metrics/trajectories.md"])
def test_a_missing_file_is_named(root: Path, name: str) -> None:
    (root / name).unlink()
    with pytest.raises(FerrataError, match=f"{name} is missing"):
        update(root)


def test_results(summary: dict[str, Any]) -> None:
    acts = {
        "tool_use": {
            "test": {
                "sft": {"calls": 1.0, "measures": {"recovered": 0.25}},
                "rl": {"calls": 1.0, "measures": {"recovered": 0.5, "harmed_at_all": 0.125}},
                "base": {"calls": 0.0},
            }
        }
    }
    text = results(summary, acts)
    table = ["| arm | harmed at all | recovered |", "| --- | ---: | ---: |"]
    assert "\n".join([*table, "| `sft` | - | 0.25 |", "| `rl` | 0.12 | 0.50 |"]) in text
    assert "| arm | test | forms | ood | test, sampled |\n| --- | ---: |" in text
    assert "| `rl` | 0.90 [0.77, 0.96] | 0.90 [0.77, 0.96] |" in text
    assert "its 95% interval over tasks" in text
    assert "| rl minus sft | +0.60 [" in text
    assert "p < 0.0001" in text
    assert "- RL improves on SFT on the test tasks: the interval excludes 0." in text
    summary["tool_use"]["ood"]["rl_minus_sft"] |= {"diff": 0.01, "low": -0.1, "high": 0.1}
    text = results(summary, {})
    assert "Measured beside" not in text
    assert "RL improves on SFT on the harder, out-of-distribution tasks" not in text
    assert "out-of-distribution tasks: the interval includes 0." in text


def test_of_several_capabilities_the_pool_comes_first_and_each_is_a_line_and_folded(
    summary: dict[str, Any],
) -> None:
    cells = summary.pop("tool_use")
    memory = copy.deepcopy(cells)
    memory["test"]["rl_no_notes"] = memory["test"]["sft"] | {"success": 0.0}
    memory["test"]["rl_minus_sft"] |= {"diff": -0.01, "low": -0.1, "high": 0.1}
    text = results(summary | {"all": cells, "memory": memory, "tool_use": cells}, {})
    pooled, _, rest = text.partition("Each capability, greedy success on its test tasks")
    assert pooled.count("**all**") == 1 and "<details>" not in pooled
    assert "not corrected for looking at 2:" in rest
    head, *lines = [line for line in rest.splitlines() if line.startswith("|")][:4]
    assert head.endswith("| `rl_no_notes` | rl minus sft |")
    assert lines[1].startswith("| memory |") and lines[1].endswith("| 0.00 | -0.01 [-0.10, 0.10] |")
    assert lines[2].startswith("| tool_use |") and "| - | +0.60 [" in lines[2]
    for name in ("memory", "tool_use"):
        # A blank line behind the summary: without it GitHub shows the tables as they are written.
        assert f"<details>\n<summary>{name}</summary>\n\n**{name}**: greedy" in rest
    assert rest.count("</details>") == 2
    assert "<details>" not in results(summary | {"all": cells}, {})


def test_the_full_study_is_quoted_where_readme_has_a_place_for_it(
    root: Path, summary: dict[str, Any]
) -> None:
    path = root / "README.md"
    path.write_text(README + "<!-- full:begin --><!-- full:end -->\n")
    with pytest.raises(FerrataError, match=r"metrics/summary\.json is missing"):
        update(root)
    (root / "experiments" / "full" / "metrics").mkdir(parents=True)
    summary["tool_use"]["test"]["rl"]["success"] = 0.4321
    (root / "experiments" / "full" / "metrics" / "summary.json").write_text(json.dumps(summary))
    (root / "experiments" / "full" / "metrics" / "behaviour.json").write_text("{}")
    assert update(root) is True
    before, _, after = path.read_text().partition("<!-- full:begin -->")
    assert "| `rl` | 0.43 [" in after and "| `rl` | 0.43 [" not in before
    assert "from `experiments/full/metrics/summary.json`" in after
    assert update(root, check=True) is False


def test_an_interval_without_a_p_value_below_it_is_no_claim() -> None:
    few = {"diff": 0.04, "low": 0.01, "high": 0.08, "p_value": 0.0625}
    for entry in (few, {**few, "low": -0.08, "high": -0.01}):
        assert claim("rl_minus_sft", "test", entry).startswith("No difference between RL and SFT")
    assert claim("rl_minus_sft", "test", {**few, "p_value": 0.03}).startswith("RL improves on SFT")


def benchmark_files(root: Path) -> None:
    def spread(median: float) -> dict[str, float]:
        return {"median": median, "low": median - 1, "high": median + 1}

    machine = {
        "gpu": None,
        "processor": "Some CPU",
        "cores": 2,
        "flags": ["avx2"],
        "versions": {"torch": "2.13.0"},
    }
    side = {
        "episodes_per_second": spread(8.04),
        "step_seconds": spread(12.5),
        "turns": 2.0,
        "tokens": 25.25,
    }
    ratio = {"value": 4.5, "least": 4.1, "most": 5.0, "target": 4.0}
    episodes = {
        "machine": machine,
        "episodes": 32,
        "sides": {"ours": side},
        "ratios": {"episodes/s": ratio, "to float32": {**ratio, "target": None}},
    }
    share = {"share_of_peak": spread(0.61), "executed_share_of_peak": spread(0.4)}
    sft = {"sides": {"ours": {"tokens_per_second": spread(400.2), **share}}}
    stages = {"stages": {"rl": {"seconds": 180.4, "peak_memory_gb": 8.96}}, "seconds": 701.2}
    memory = {"steps": 200, "median_mb": [900.4, 910.0]}
    trials = [
        {"resumed": 0, "differing": []},
        {"resumed": 9, "differing": []},
        {"resumed": 7, "differing": ["models/rl"]},
    ]
    folder = root / "benchmarks" / "results"
    folder.mkdir(parents=True)
    results = {"stages": stages, "episodes": episodes, "sft": sft, "memory": memory}
    for name, content in {**results, "kill": {"trials": trials}}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def test_benchmarks_are_quoted_where_readme_has_a_place_for_them(root: Path) -> None:
    path = root / "README.md"
    path.write_text(README + "<!-- benchmarks:begin --><!-- benchmarks:end -->\n")
    with pytest.raises(FerrataError, match=r"python -m benchmarks\.stages"):
        update(root)
    benchmark_files(root)
    assert update(root) is True
    text = path.read_text()
    assert "The default graph, 11 min 41 s behind the installation:" in text
    assert "| rl | 180 | 9.0 |" in text
    assert "over 200 RL steps of the tiny profile, median of each fifth: 900, 910 MB." in text
    assert "2 of 3 runs ended with the bytes of the undisturbed run, 1 of them from" in text
    assert "| ours | 8.0 (7.0-9.0) | 12.5 (11.5-13.5) | 2.00 | 25.2 |" in text
    assert "- episodes/s: 4.50x (4.10-5.00), the goal is 4x\n- to float32: 4.50x" in text
    assert "| ours | 400 (399-401) | 61% | 40% |" in text
    assert update(root, check=True) is False
    path.write_text(text.replace("4.50x", "9.99x"))
    with pytest.raises(FerrataError, match=r"README\.md does not say"):
        update(root, check=True)
