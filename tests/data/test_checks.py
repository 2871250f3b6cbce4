"""Checks that block: each names what is wrong."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ferrata.chat import Assembler
from ferrata.config.episodes import EpisodesParams
from ferrata.data.checks import (
    check_demonstrations,
    check_fixtures,
    check_leakage,
    check_prompts,
)
from ferrata.data.generate import demonstrate
from ferrata.data.store import (
    read_demonstrations,
    read_tasks,
    task_set_digest,
    write_demonstrations,
    write_rows,
)
from ferrata.environments.base import Fixture, Task
from ferrata.environments.tool_use import ToolUse
from ferrata.errors import FerrataError


class WrongFixture(ToolUse):
    def fixtures(self) -> list[Fixture]:
        first, *others = super().fixtures()
        return [replace(first, name="upside down", reward=0.0), *others]


def test_fixtures_are_played() -> None:
    assert check_fixtures(ToolUse()) == len(ToolUse().fixtures()) > 20


def test_a_wrong_fixture_is_named() -> None:
    with pytest.raises(FerrataError, match="grader of tool_use") as caught:
        check_fixtures(WrongFixture())
    assert "upside down ('Answer: 72'): 1, not 0" in str(caught.value)


def test_leakage_is_named(tasks: list[Task]) -> None:
    check_leakage({"train": tasks, "test": []})
    leaked = replace(tasks[2], id="leaked", split="test")
    with pytest.raises(FerrataError, match="leakage between train and test") as caught:
        check_leakage({"train": tasks, "test": [leaked]})
    assert tasks[2].id in str(caught.value) and "leaked" in str(caught.value)
    asked_again = replace(leaked, signature="another")
    with pytest.raises(FerrataError, match="leakage between train and test") as caught:
        check_leakage({"train": tasks, "test": [asked_again]})
    assert "question" in str(caught.value)


def test_a_too_long_prompt_is_named(
    assembler: Assembler, tasks: list[Task], limits: Callable[..., EpisodesParams]
) -> None:
    environment = ToolUse()
    longest = check_prompts(environment, assembler, limits(), tasks)
    exact = limits(max_context_tokens=longest + 120)
    assert check_prompts(environment, assembler, exact, tasks) == longest
    with pytest.raises(FerrataError, match="task tool_use-train-0000") as caught:
        check_prompts(environment, assembler, limits(max_context_tokens=longest + 119), tasks)
    assert f"a prompt of {longest} tokens" in str(caught.value)


def test_a_too_long_demonstration_is_named(
    assembler: Assembler, tasks: list[Task], limits: Callable[..., EpisodesParams]
) -> None:
    environment = ToolUse()
    played = demonstrate(environment, tasks, 1.0, seed=1)
    longest = check_demonstrations(environment, assembler, limits(), played)
    with pytest.raises(FerrataError, match="demonstration of tool_use-train-0000"):
        check_demonstrations(environment, assembler, limits(max_context_tokens=longest - 1), played)
    with pytest.raises(FerrataError, match="an assistant turn of"):
        check_demonstrations(environment, assembler, limits(max_turn_tokens=3), played)


def test_a_demonstration_that_no_policy_could_play_or_that_lies_is_named(
    assembler: Assembler, tasks: list[Task], limits: Callable[..., EpisodesParams]
) -> None:
    environment = ToolUse()
    played = demonstrate(environment, tasks, 1.0, seed=1)
    with pytest.raises(FerrataError, match=r"episodes\.max_turns = 2"):
        check_demonstrations(environment, assembler, limits(max_turns=2), played)
    lie = replace(played[0], success=False)
    with pytest.raises(FerrataError, match="grades otherwise"):
        check_demonstrations(environment, assembler, limits(), [lie])
    cut = replace(played[2], messages=played[2].messages[:-1])
    with pytest.raises(FerrataError, match="does not call done"):
        check_demonstrations(environment, assembler, limits(), [cut])


def test_what_is_written_is_read(tmp_path: Path, tasks: list[Task]) -> None:
    write_rows(tmp_path / "train.jsonl", (task.to_row() for task in tasks))
    assert read_tasks(tmp_path, "train") == tasks
    assert task_set_digest(read_tasks(tmp_path, "train")) == task_set_digest(tasks)
    assert task_set_digest(tasks[1:]) != task_set_digest(tasks)
    played = [ToolUse().demonstrate(t, 0.5, random.Random(2)) for t in tasks]
    write_demonstrations(tmp_path / "new" / "d.jsonl", played)
    assert read_demonstrations(tmp_path / "new" / "d.jsonl") == played


def test_line_separators_inside_text_are_read_back(tmp_path: Path, tasks: list[Task]) -> None:
    odd = replace(tasks[0], payload=tasks[0].payload | {"question": "a\u2028b\x85c\nd"})
    write_rows(tmp_path / "train.jsonl", [odd.to_row()])
    assert read_tasks(tmp_path, "train") == [odd]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "an empty dataset"),
        ('{"id": 1}\n{"id": \n', "line 2"),
        ('{"id": 1}\n', "line 1"),
        ("null\n", "line 1"),
        ("[1, 2]\n", "line 1"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, text: str, part: str) -> None:
    (tmp_path / "train.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(FerrataError) as caught:
        read_tasks(tmp_path, "train")
    assert str(tmp_path / "train.jsonl") in str(caught.value) and part in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FerrataError, match=r"train\.jsonl") as caught:
        read_tasks(tmp_path, "train")
    assert "dvc repro prepare" in str(caught.value)
