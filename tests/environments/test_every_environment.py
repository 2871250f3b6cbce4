"""What holds for every capability: splits, demonstrators, and graders under attack."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrata.environments import BUILT_IN, get_environment
from ferrata.environments.base import SPLITS, Fixture, Reply, Task, ToolCall

ENVIRONMENTS = {name: get_environment(name) for name in BUILT_IN}
TASKS = {
    name: {split: list(e.tasks(split, 90, 17)) for split in SPLITS}
    for name, e in ENVIRONMENTS.items()
}
FIXTURES = [(name, f) for name, e in ENVIRONMENTS.items() for f in e.fixtures()]
every = pytest.mark.parametrize("name", BUILT_IN)


def play(name: str, task: Task, replies: list[Reply]) -> float:
    """The return of some turns, which must stay within the stated ranges."""
    environment = ENVIRONMENTS[name]
    world = environment.start(task)
    ((agent, _),) = world.reset().items()
    totals = dict.fromkeys(environment.reward_ranges, 0.0)
    for reply in replies:
        step = world.step(agent, reply)
        for part, value in step.rewards.get(agent, {}).items():
            totals[part] += value
        if step.done:
            break
    for part, (low, high) in environment.reward_ranges.items():
        assert low - 1e-9 <= totals[part] <= high + 1e-9, part
    return sum(totals.values())


@pytest.mark.parametrize(("name", "fixture"), FIXTURES, ids=[f"{n}-{f.name}" for n, f in FIXTURES])
def test_a_fixture_scores_as_stated(name: str, fixture: Fixture) -> None:
    assert fixture.play(ENVIRONMENTS[name].start(fixture.task)) == fixture.reward


@every
def test_there_are_enough_attacks(name: str) -> None:
    fixtures = ENVIRONMENTS[name].fixtures()
    assert len(fixtures) >= 15
    assert len({f.name for f in fixtures}) == len(fixtures)
    assert {f.reward for f in fixtures} == {0.0, 1.0}


@every
def test_tasks_depend_on_the_seed_alone_and_survive_a_file(name: str) -> None:
    environment = ENVIRONMENTS[name]
    assert list(environment.tasks("train", 30, 5)) == list(
        get_environment(name).tasks("train", 30, 5)
    )
    assert list(environment.tasks("train", 30, 5)) != list(environment.tasks("train", 30, 6))
    assert list(environment.tasks("train", 30, 5))[:10] == list(environment.tasks("train", 10, 5))
    for tasks in TASKS[name].values():
        assert all(Task.from_row(task.to_row()) == task for task in tasks)


@every
def test_splits_share_no_problem_and_have_their_bands(name: str) -> None:
    splits = TASKS[name]
    ids = [task.id for tasks in splits.values() for task in tasks]
    assert len(ids) == len(set(ids))
    seen = {split: {task.signature for task in tasks} for split, tasks in splits.items()}
    for first in SPLITS:
        for second in SPLITS:
            assert first == second or not seen[first] & seen[second], (first, second)
    for split, tasks in splits.items():
        assert {task.band for task in tasks} == ({4} if split == "ood" else {1, 2, 3})
        assert len(seen[split]) > 0.8 * len(tasks), split  # hardly any problem twice
    trained = {task.form for split in ("sft", "train", "test") for task in splits[split]}
    assert not trained & {task.form for task in splits["forms"]}


@every
def test_an_expert_is_right_and_a_fallible_demonstrator_less_often(name: str) -> None:
    environment = ENVIRONMENTS[name]
    rates: dict[int, list[bool]] = {}
    for task in (*TASKS[name]["train"], *TASKS[name]["ood"]):
        assert environment.demonstrate(task, 1.0, random.Random(0)).success, task
        for sample in range(3):
            played = environment.demonstrate(task, 0.4, random.Random(f"{task.id}/{sample}"))
            rates.setdefault(task.band, []).append(played.success)
    shares = {band: sum(values) / len(values) for band, values in rates.items()}
    assert min(shares.values()) > 0.05 and sum(shares.values()) / len(shares) < 0.8, shares


@every
def test_a_demonstration_earns_in_the_world_what_it_says(name: str) -> None:
    environment = ENVIRONMENTS[name]
    for task in TASKS[name]["validation"]:
        for skill in (0.0, 0.5, 1.0):
            shown = environment.demonstrate(task, skill, random.Random(f"{task.id}/{skill}"))
            steps = shown.play(environment.start(task))
            assert steps[-1].done and steps[-1].success == shown.success
            (first,) = environment.start(task).reset()  # the episode's return is its own
            paid = sum(sum(s.rewards.get(first, {}).values()) for s in steps)
            assert paid == float(shown.success)


@every
def test_repeating_the_question_or_the_tools_earns_nothing(name: str) -> None:
    environment = ENVIRONMENTS[name]
    for tasks in TASKS[name].values():
        for task in tasks:
            question = task.payload["question"]
            tools = "\n".join(f"{t.signature()}: {t.description}" for t in environment.tools(task))
            for text in (question, f"Answer: {question}", tools, f"Answer: {tools}"):
                assert play(name, task, [Reply(text)]) == 0.0, text


@every
def test_constant_answers_and_copied_numbers_hardly_ever_pay(name: str) -> None:
    tasks = [task for split in ("train", "ood") for task in TASKS[name][split]]
    for answer in ("0", "1", "2", "10", "12", "100", "done", "yes"):
        assert sum(play(name, t, [Reply(f"Answer: {answer}")]) for t in tasks) < 0.1 * len(tasks)
    for which in (0, -1):  # the first and the last number of the question
        numbers = [re.findall(r"\d+", task.payload["question"]) or ["0"] for task in tasks]
        paid = sum(
            play(name, task, [Reply(f"Answer: {found[which]}")])
            for task, found in zip(tasks, numbers, strict=True)
        )
        assert paid < 0.1 * len(tasks), (which, paid)


TEXTS = st.text() | st.text(alphabet="Answer: 0123456789.,-+=()\n").map("Answer: {}".format)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(
    ["craft", "undo", "calculator", "lookup", "convert", "none", "", "__init__"]
)
CALLS = st.builds(
    ToolCall,
    NAMES,
    st.dictionaries(st.sampled_from(["item", "expression", "field", "value", "x"]), VALUES),
)


@every
@settings(max_examples=60, deadline=None)
@given(
    number=st.integers(0, 89),
    calls=st.lists(st.lists(CALLS, min_size=1, max_size=3), max_size=4),
    text=TEXTS,
)
def test_nothing_a_model_writes_raises_or_pays_more_than_the_maximum(
    name: str, number: int, calls: list[list[ToolCall]], text: str
) -> None:
    task = TASKS[name]["train"][number]
    replies = [*(Reply("", tuple(turn)) for turn in calls), Reply(text)]
    assert 0.0 <= play(name, task, replies) <= 1.0


def test_an_unknown_environment_is_named() -> None:
    from ferrata.errors import FerrataError

    for wrong, part in (
        ("tool_usr", "unknown environment"),
        ("capabilities.nowhere:Thing", "module 'capabilities.nowhere'"),
        ("ferrata.environments.reasoning:Reasonin", "no 'Reasonin'"),
        ("ferrata.environments.base:Task", "cannot be made without arguments"),
        ("ferrata.environments.base:ToolError", "an object without name, agents"),
    ):
        with pytest.raises(FerrataError, match=re.escape(part)):
            get_environment(wrong)
