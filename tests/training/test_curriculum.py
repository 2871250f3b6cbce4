"""The curriculum: what is played while a capability's level is low, and when the level rises."""

from __future__ import annotations

from ferrata.environments.planning import Planning
from ferrata.environments.reasoning import Reasoning
from ferrata.training.curriculum import Curriculum, Played

TASKS = [*Reasoning().tasks("train", 30, 3), *Planning().tasks("train", 30, 3)]


def outcome(name: str, band: int, right: int, of: int = 10) -> list[Played]:
    return [Played(name, band, n < right) for n in range(of)]


def test_tasks_above_the_level_are_replaced_by_tasks_of_it() -> None:
    curriculum = Curriculum(TASKS, 0.7, seed=1)
    assert curriculum.levels == {"reasoning": 1, "planning": 1}
    for task in TASKS:
        chosen = curriculum.choose(task, step=2)
        assert (chosen.environment, chosen.band) == (task.environment, 1)
        assert (chosen == task) == (task.band == 1)
        assert chosen == curriculum.choose(task, step=2)
    hard = [task for task in TASKS if task.band == 3]
    assert any(curriculum.choose(t, 2) != curriculum.choose(t, 3) for t in hard)
    curriculum.restore({"reasoning": 3, "planning": 2})
    for task in TASKS:
        level = curriculum.levels[task.environment]
        assert curriculum.choose(task, 2).band == min(task.band, level)


def test_a_level_rises_by_one_band_where_its_own_tasks_are_solved() -> None:
    curriculum = Curriculum(TASKS, 0.7, seed=1)
    curriculum.update([*outcome("reasoning", 1, 6), *outcome("reasoning", 2, 10)])
    assert curriculum.levels == {"reasoning": 1, "planning": 1}  # band 1 alone counts
    solved = [*outcome("reasoning", 1, 7), *outcome("reasoning", 2, 0), *outcome("planning", 1, 6)]
    curriculum.update(solved)
    assert curriculum.levels == {"reasoning": 2, "planning": 1}
    for band in (2, 3, 3):
        curriculum.update(outcome("reasoning", band, 10))
    assert curriculum.levels == {"reasoning": 3, "planning": 1}  # there is no band above
    curriculum.update([])
    assert curriculum.levels == {"reasoning": 3, "planning": 1}
