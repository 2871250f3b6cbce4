"""Several capabilities as one environment."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from ferrata.environments import get_mixture
from ferrata.environments.base import Reply
from ferrata.errors import FerrataError


def test_shares_are_exact_and_any_beginning_has_them() -> None:
    mixture = get_mixture({"tool_use": 2.0, "reasoning": 1.0, "planning": 1.0})
    tasks = list(mixture.tasks("train", 43, 5))
    assert Counter(t.environment for t in tasks) == mixture.sizes(43)
    assert sum(mixture.sizes(43).values()) == 43 and mixture.sizes(43)["tool_use"] in (21, 22)
    first = Counter(task.environment for task in tasks[:8])
    assert first == {"tool_use": 4, "reasoning": 2, "planning": 2}
    assert len({task.id for task in tasks}) == 43


def test_every_task_goes_to_its_own_environment() -> None:
    mixture = get_mixture({"tool_use": 1.0, "planning": 1.0})
    for task in mixture.tasks("validation", 12, 5):
        own = mixture.environments[task.environment]
        assert [t.name for t in mixture.tools(task)] == [t.name for t in own.tools(task)]
        assert mixture.demonstrate(task, 1.0, random.Random(0)) == own.demonstrate(
            task, 1.0, random.Random(0)
        )
        assert mixture.start(task).step("agent", Reply("")).done
    assert len(mixture.fixtures()) == sum(len(e.fixtures()) for e in mixture.environments.values())


def test_one_capability_alone_is_what_it_was() -> None:
    mixture = get_mixture({"reasoning": 1.0})
    own = mixture.environments["reasoning"]
    assert list(mixture.tasks("test", 20, 5)) == list(own.tasks("test", 20, 5))


def test_a_capability_without_a_task_is_refused() -> None:
    mixture = get_mixture({"tool_use": 1.0, "reasoning": 1.0, "planning": 1.0})
    with pytest.raises(FerrataError, match="2 tasks of a split") as caught:
        list(mixture.tasks("ood", 2, 5))
    assert "none of them for" in str(caught.value)


def test_a_name_that_the_summary_needs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from ferrata.environments.reasoning import Reasoning

    monkeypatch.setattr(Reasoning, "name", "all")
    with pytest.raises(FerrataError, match="an environment with the name 'all'"):
        get_mixture({"reasoning": 1.0})


def test_two_environments_of_one_name_are_refused() -> None:
    same = {"reasoning": 1.0, "ferrata.environments.reasoning:Reasoning": 1.0}
    with pytest.raises(FerrataError, match="a second environment with the name 'reasoning'"):
        get_mixture(same)
