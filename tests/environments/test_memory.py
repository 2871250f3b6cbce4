"""Memory: what is forgotten, what the notepad holds, and what its demonstrator does wrong."""

from __future__ import annotations

import random

import pytest

from ferrata.environments import get_mixture
from ferrata.environments.base import Reply, Task, ToolCall
from ferrata.environments.memory import Memory
from ferrata.environments.notepad import LONGEST, NOTES, LostNotepad, Notepad
from ferrata.errors import FerrataError


def tasks(band: int, n: int = 200) -> list[Task]:
    split = "ood" if band == 4 else "train"
    return [task for task in Memory().tasks(split, n, 5) if task.band == band]  # type: ignore[arg-type]


def test_a_full_notepad_takes_no_new_name_and_loses_nothing() -> None:
    pad = Notepad()
    write, delete, read = pad.tools()
    for n in range(NOTES):
        assert write.call({"name": f"n{n}", "text": str(n)}).content == "ok"
    assert write.call({"name": "more", "text": "1"}).content == "error: full: n0, n1, n2"
    assert write.call({"name": "n1", "text": "9"}).outcome == "ok"
    assert write.call({"name": "n1", "text": "x" * (LONGEST + 1)}).outcome == "refused"
    assert delete.call({"name": "n9"}).content == "error: no such note; there are n0, n1, n2"
    assert delete.call({"name": "n0"}).outcome == "ok"
    assert read.call({}).content == "n1: 9; n2: 2"
    lost = LostNotepad()
    assert lost.write_note("a", "1") == "ok" and lost.read_notes() == "no notes"


@pytest.mark.parametrize("band", [1, 2, 3, 4])
def test_the_answer_follows_from_the_pages_and_an_expert_has_room_for_it(band: int) -> None:
    for task in tasks(band):
        where: dict[str, int] = {}
        for events in task.payload["events"]:
            for what, item, number in events:
                if what == "sold":
                    del where[item]
                elif what != "price":
                    where[item] = number
            assert len(where) <= NOTES
        assert where[task.payload["item"]] == task.answer
        assert len(task.payload["pages"]) == band


def test_every_page_is_a_context_and_the_question_comes_without_them() -> None:
    task = tasks(2)[0]
    world = Memory().start(task)
    (seen,) = world.reset().values()
    assert seen.new_context and seen.messages[0]["content"] == task.payload["pages"][0]
    step = world.step("agent", Reply("", (ToolCall("write_note", {"name": "a", "text": "1"}),)))
    assert not step.observations["agent"].new_context
    for shown in (task.payload["pages"][1], task.payload["question"]):
        (seen,) = world.step("agent", Reply("Next.")).observations.values()
        assert seen.new_context
        assert [message["content"] for message in seen.messages] == [shown]
    assert world.step("agent", Reply(f"Answer: {task.answer}")).success


def test_variants_play_the_same_tasks_under_other_conditions() -> None:
    variants = Memory().variants
    together = variants["together"].start(tasks(2)[0])
    together.reset()
    (seen,) = together.step("agent", Reply("Next.")).observations.values()
    assert not seen.new_context
    mixture = get_mixture({"reasoning": 1.0, "memory": 3.0}).variant("no_notes")
    assert list(mixture.environments) == ["memory"]
    world = mixture.start(tasks(1)[0])
    world.reset()
    world.step("agent", Reply("", (ToolCall("write_note", {"name": "a", "text": "1"}),)))
    read = world.step("agent", Reply("", (ToolCall("read_notes", {}),)))
    assert read.results[0].content == "no notes"
    with pytest.raises(FerrataError, match="one of no_notes, together"):
        get_mixture({"memory": 1.0}).variant("none")
    with pytest.raises(FerrataError, match="none: no environment"):
        get_mixture({"reasoning": 1.0}).variant("no_notes")


def test_each_habit_shows_in_what_is_noted() -> None:
    unskilled = [Memory().demonstrate(task, 0.0, random.Random(1)) for task in tasks(3)]
    calls = [
        call
        for shown in unskilled
        for message in shown.messages
        for call in message.get("tool_calls", ())
    ]
    assert not [call for call in calls if call["name"] == "delete_note"]  # it hoards
    for shown in unskilled:  # it keeps: no name is written twice
        own = [
            c["arguments"]["name"]
            for m in shown.messages
            for c in m.get("tool_calls", ())
            if c["name"] == "write_note"
        ]
        assert len(own) == len(set(own))
    priced = [
        (shown, item, number)
        for shown in unskilled
        for what, item, number in shown.task.payload["events"][0]
        if what == "price"
    ]
    assert any(
        {"name": "write_note", "arguments": {"name": item, "text": str(number)}}
        in message.get("tool_calls", ())
        for shown, item, number in priced
        for message in shown.messages
    )
    assert 0 < sum(shown.success for shown in unskilled) < len(unskilled) / 2
