"""Rows of one's own: every kind of table, every kind of mistake, and graders under attack."""

from __future__ import annotations

import hashlib
import json
import random
import re
import runpy
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrata.data.checks import check_fixtures, check_leakage
from ferrata.environments.base import SPLITS, Reply, Task
from ferrata.environments.rows import Rows
from ferrata.environments.tables import File, HubSplit
from ferrata.errors import FerrataError

HERE = Path(__file__).resolve().parents[2]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("dvc.yaml", "params.yaml"):
        (tmp_path / name).write_text((HERE / name).read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def worked(n: int) -> dict[str, str]:
    """A row in GSM8K's format, with 1 to 8 lines of working."""
    lines = [f"Line {i} is {n}+{i} = <<{n}+{i}={n + i}>>{n + i}." for i in range(1 + n % 8)]
    return {"question": f"Question {n}?", "answer": "\n".join(lines) + f"\n#### {1000 + n:,}"}


def write(path: Path, rows: list[dict[str, Any]]) -> File:
    """The rows in the format of the file's name."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".csv":
        pd.DataFrame(rows).to_csv(path, index=False)
    else:
        pd.DataFrame(rows).to_parquet(path, index=False)
    return File(path.name, hashlib.sha256(path.read_bytes()).hexdigest())


def tables(project: Path, kind: str) -> tuple[Any, Any]:
    rows = [worked(n) for n in range(600)]
    if kind == "hub":
        folder = project / "dataset"
        folder.mkdir()
        write(folder / "train.jsonl", rows[:400])
        write(folder / "test.jsonl", rows[400:])
        return tuple(HubSplit(str(folder), "main", split) for split in ("train", "test"))
    return write(project / f"train.{kind}", rows[:400]), write(project / f"test.{kind}", rows[400:])


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "hub"])
def test_every_kind_of_table_gives_the_same_tasks(project: Path, kind: str) -> None:
    environment = Rows("own", *tables(project, kind))
    splits = {split: list(environment.tasks(split, 12, 3)) for split in SPLITS}
    check_leakage(splits)
    for split, tasks in splits.items():
        assert {task.band for task in tasks} <= ({4} if split == "ood" else {1, 2, 3})
        assert list(environment.tasks(split, 5, 3)) == tasks[:5]
        assert all(Task.from_row(task.to_row()) == task for task in tasks)
        for task in tasks:
            n = int(task.payload["question"][9:-1])
            assert (n >= 400) == (split in ("test", "forms", "ood"))
            assert task.answer == str(1000 + n)
            shown = environment.demonstrate(task, 0.0, random.Random(0))
            assert shown.success and "<<" not in shown.messages[1]["content"]
            assert shown.messages[1]["content"].endswith(f"{n + n % 8}.\nAnswer: {1000 + n}")
    assert list(environment.tasks("train", 12, 3)) != list(environment.tasks("train", 12, 4))


def test_columns_are_mapped(project: Path) -> None:
    rows = [
        {"q": f"Capital {n}?", "a": f"Town {n}", "level": 1 + n % 4, "why": "It is so."}
        for n in range(300)
    ]
    table = write(project / "own.parquet", rows)
    environment = Rows(
        "own", table, table, question="q", answer="a", style="text", solution="why", band="level"
    )
    for split in SPLITS:
        for task in environment.tasks(split, 8, 3):
            n = int(task.answer[5:])
            assert task.band == 1 + n % 4
            shown = environment.demonstrate(task, 1.0, random.Random(0))
            assert shown.messages[1]["content"] == f"It is so.\nAnswer: Town {n}"
    step = environment.start(task).step("agent", Reply(f"Answer: TOWN {n}."))
    assert step.success and step.answer == f"TOWN {n}."


@pytest.mark.parametrize("style", ["gsm8k", "number", "text"])
def test_the_grader_withstands_its_attacks(project: Path, style: Any) -> None:
    table = File("unread.csv", "")
    assert check_fixtures(Rows("own", table, table, style=style)) >= 15


def test_a_reward_of_ones_own(project: Path) -> None:
    def near(task: Task, text: str) -> float:
        return 1.0 if text == task.answer else 0.5 if task.answer in text else 0.0

    table = File("unread.csv", "")
    attacks = [("7", "7", 1.0), ("7", "17", 0.5), ("7", "", 0.0)]
    environment = Rows("own", table, table, reward=near, attacks=attacks)
    assert check_fixtures(environment) == 3
    with pytest.raises(FerrataError, match="without attacks"):
        Rows("own", table, table, reward=near)
    generous = Rows("own", table, table, reward=lambda task, text: 2.0, attacks=attacks)
    with pytest.raises(FerrataError, match="a number from 0 to 1"):
        check_fixtures(generous)


def test_another_file_is_named_with_both_hashes(project: Path) -> None:
    table = write(project / "train.jsonl", [worked(1)])
    (project / "train.jsonl").write_text("{}\n")
    with pytest.raises(FerrataError) as caught:
        table.rows()
    assert table.sha256 in str(caught.value) and "if the new content is meant" in str(caught.value)


ROW = {"question": "Q?", "answer": "3 + 4 = 7\n#### 7"}
WRONG: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str]] = {
    "no such column": ([ROW], {"question": "prompt"}, "row 1 of t.jsonl.*question.*column prompt"),
    "empty": ([ROW, {**ROW, "question": " "}], {}, "row 2 of t.jsonl.*nothing in question"),
    "nothing": ([{**ROW, "answer": None}], {}, "row 1 of t.jsonl.*nothing in answer"),
    "no mark": ([{**ROW, "answer": "7"}], {}, "row 1 of t.jsonl.*behind `####`"),
    "no number": ([{**ROW, "answer": "#### many"}], {}, "row 1 of t.jsonl.*'many'.*one number"),
    "not finite": ([{**ROW, "answer": "#### nan"}], {}, "row 1 of t.jsonl.*'nan'.*one number"),
    "huge": ([{**ROW, "answer": "#### 1e999999"}], {}, "row 1 of t.jsonl.*one number"),
    "band": ([{**ROW, "level": 5}], {"band": "level"}, "row 1 of t.jsonl.*level '5'.*1, 2, 3 or 4"),
    "too few": ([ROW], {}, "40 tasks for train.*rows of t.jsonl belong to it.*at least 40"),
    "style": ([ROW], {"style": "gms8k"}, "style.*'gms8k'.*gsm8k, number, text"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_row_that_does_not_fit_is_shown(project: Path, name: str) -> None:
    rows, options, message = WRONG[name]
    table = write(project / "t.jsonl", rows)
    with pytest.raises(FerrataError) as caught:
        list(Rows("own", table, table, **options).tasks("train", 40, 1))
    assert re.search(message, str(caught.value), re.DOTALL), str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.jsonl", '{"question": 1}\n[2]\n', "t.jsonl, line 2.*a list"),
        ("t.jsonl", '{"question": 1}\n\n{"answ', "t.jsonl, line 3.*no JSON"),
        ("t.csv", "", "t.csv.*readable .csv"),
        ("t.parquet", "no parquet", "t.parquet.*readable .parquet"),
        ("t.txt", "x", "t.txt.*ending in '.txt'.*jsonl, .csv, .parquet"),
        ("missing.csv", None, "missing.csv.*no such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    project: Path, name: str, content: str | None, message: str
) -> None:
    if content is not None:
        (project / name).write_text(content)
    digest = hashlib.sha256((content or "").encode()).hexdigest()
    with pytest.raises(FerrataError) as caught:
        File(name, digest).rows()
    assert re.search(message, str(caught.value), re.DOTALL), str(caught.value)


def test_a_dataset_that_cannot_be_had_is_named(project: Path) -> None:
    (project / "empty").mkdir()
    with pytest.raises(FerrataError, match=r"empty \(train\)"):
        HubSplit(str(project / "empty"), "main", "train").rows()


@pytest.mark.parametrize("style", ["gsm8k", "text"])
@given(text=st.one_of(st.text(max_size=80), st.from_regex(r"Answer: ?.{0,12}")))
def test_nothing_that_can_be_written_breaks_the_grader(style: Any, text: str) -> None:
    table = File("unread.csv", "")
    environment = Rows("own", table, table, style=style)
    fixture = environment.fixtures()[0]
    step = environment.start(fixture.task).step("agent", Reply(text))
    assert step.done and step.rewards["agent"]["answer"] in (0.0, 1.0)
    assert "24" in text or not step.success


def test_readmes_tables_are_read(project: Path) -> None:
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"<!-- rows:begin -->\n```python\n(.*?)```", readme, re.DOTALL)
    (project / "capabilities").mkdir()
    for name in ("train", "test"):
        rows = [worked(n + 1000 * (name == "test")) for n in range(400)]
        table = write(project / "capabilities" / f"gsm8k_{name}.jsonl", rows)
        source = re.sub(rf'(gsm8k_{name}.jsonl",\s*)"[0-9a-f]+"', rf'\1"{table.sha256}"', source)
    (project / "capabilities" / "gsm8k.py").write_text(source)
    namespace = runpy.run_path(str(project / "capabilities" / "gsm8k.py"))
    environment = namespace["problems"]
    assert len(list(environment.tasks("sft", 20, 1))) == 20
    assert check_fixtures(environment) >= 15
