"""`ferrata play`: what a person types, and what the terminal shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ferrata.environments import get_environment
from ferrata.environments.base import Reply, ToolCall
from ferrata.serving.play_cli import parse

ROOT = Path(__file__).resolve().parents[2]
TOOLS = list(
    get_environment("planning").tools(next(get_environment("planning").tasks("sft", 1, 1)))
)


def ferrata(*words: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ferrata.cli", "play", *words],
        cwd=ROOT,
        input=typed,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "typed",
    ['craft("box")', "craft(box)", 'craft(item="box")', '[craft(item="box")]', "craft(item=box)"],
)
def test_a_call_may_be_typed_in_short(typed: str) -> None:
    assert parse(typed, TOOLS) == Reply("", (ToolCall("craft", {"item": "box"}),))


def test_anything_else_is_a_message() -> None:
    assert parse("Answer: 3", TOOLS) == Reply("Answer: 3")
    assert parse("craft a box", TOOLS) == Reply("craft a box")
    assert parse("open(1)", TOOLS) == Reply("open(1)")


@pytest.mark.parametrize(
    "typed", ["craft(", "craft(item=", "craft(open('x'))", "craft(1+)", "craft(" * 300]
)
def test_a_broken_call_is_named_and_never_run(typed: str) -> None:
    with pytest.raises(ValueError, match=r"is not a call: write craft\(key=value\)"):
        parse(typed, TOOLS)


def test_a_person_plays_and_sees_the_reward_parts() -> None:
    shown = ferrata("planning", "--band", "2", "--policy", "expert")
    assert shown.returncode == 0, shown.stderr
    calls = [
        line.split("[")[1].rstrip("]") for line in shown.stdout.splitlines() if "[craft" in line
    ]
    assert len(calls) == 2 and "right (the shortest plan has 2 steps)" in shown.stdout
    played = ferrata("planning", "--band", "2", typed="craft(\n" + "\n".join(calls) + "\n")
    assert played.returncode == 0, played.stderr
    assert "is not a call" in played.stdout
    assert "reward  goal +1.00" in played.stdout and "right" in played.stdout
    given_up = ferrata("planning", typed="Answer: done\n")
    assert "reward  goal +0.00" in given_up.stdout and "wrong" in given_up.stdout
    assert "left" in ferrata("planning", typed="\n").stdout


def test_several_lines_are_one_message_where_there_are_no_tools() -> None:
    played = ferrata("reasoning", typed="1+1=2\nAnswer: -1\n")
    assert "reward  answer +0.00" in played.stdout and "wrong (expected" in played.stdout


def test_pages_that_are_turned_are_gone_and_notes_stay() -> None:
    typed = "write_note(x, '7')\nturn\nread_notes()\nAnswer: -1\n"
    shown = ferrata("memory", "--band", "1", typed=typed).stdout
    page, _, later = shown.partition("--- context 2")
    assert "A message without a call turns the page" in page and "Page 1 of 1" in page
    assert "Page 1" not in later and "x: 7" in later and "shelf" in later
    assert "reward  answer +0.00" in later and "wrong (expected" in later


def test_every_agent_sees_its_own_context() -> None:
    shown = ferrata("multi_agent", typed="\n").stdout
    assert "Two games by turns" in shown and "which is meant" in shown
    assert "--- describer: context 1 ---" in shown
    both = ferrata("multi_agent", typed="big red\n\nAnswer: none\n").stdout
    assert "--- guesser: context 2" in both and '"big red"' in both
    heap = ferrata("multi_agent", "--task", "3", typed="Answer: 9\n").stdout
    assert "Stones:" in heap and "wrong (expected the last stone; who takes" in heap


def test_the_checker_says_what_is_wrong_and_the_person_tries_again() -> None:
    shown = ferrata("self_improvement", typed="Answer: 5\nAnswer: 5\nAnswer: 5\n").stdout
    assert shown.count("Wrong.") == 2 and "or another number that fits" in shown


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("plannin",), "unknown environment"),
        (("planning", "--band", "4"), "whose bands are 1, 2, 3"),
        (("planning", "--split", "tests"), "--split"),
        (("planning", "--task", "-1"), "--task"),
        (("planning", "--arm", "nobody"), "--arm"),
    ],
)
def test_a_wrong_word_is_named(words: tuple[str, ...], part: str) -> None:
    done = ferrata(*words)
    assert done.returncode == 2
    assert part in done.stderr and "Traceback" not in done.stderr
