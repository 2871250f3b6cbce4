"""The draw of a context, against the gradient that can be counted."""

from __future__ import annotations

import copy
import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ferrata.environments.base import Task
from ferrata.episodes.trajectory import Context, Trajectory
from ferrata.training.draw import Drawn, draw


def task(name: str, agents: list[str] | None = None) -> Task:
    payload = {"question": "?"} if agents is None else {"question": "?", "agents": agents}
    return Task(name, "toy", "train", 1, "trained", 0, name, payload, 1)


def episode(of: Task, agents: list[str], sample: int = 0) -> Trajectory:
    contexts = [Context(agent, [n], [1], [0.0], 0) for n, agent in enumerate(agents)]
    played = Trajectory(of, sample, contexts)
    for number, agent in enumerate(dict.fromkeys(agents), start=1):
        played.earn(agent, {"answer": float(number)})
    return played


def test_one_context_is_what_it_always_was() -> None:
    (row,) = draw([episode(task("a"), ["agent"])], seed=1, step=2)
    assert (row.context.ids, row.value, row.weight) == ([0], 1.0, 1.0)


def test_a_group_never_mixes_agents_and_every_agent_and_context_has_its_turn() -> None:
    seen: Counter[str] = Counter()
    which: Counter[int] = Counter()
    for name in range(400):
        of = task(str(name), ["a", "b"])
        rows = draw([episode(of, ["a", "b", "a"], k) for k in range(6)], seed=3, step=1)
        (agent,) = {row.context.agent for row in rows}
        seen[agent] += 1
        if agent == "a":
            which.update(row.context.ids[0] for row in rows)
        assert {row.value for row in rows} == {1.0 if agent == "a" else 2.0}
        assert {row.weight for row in rows} == {4.0 if agent == "a" else 2.0}
    assert 160 < seen["a"] < 240
    assert which.keys() == {0, 2} and 0.8 < which[0] / which[2] < 1.25
    assert draw([episode(of, ["a", "b", "a"])], seed=3, step=1)[0] == rows[0]


def test_an_agent_who_never_spoke_counts_in_the_mean_alone() -> None:
    for name in range(50):
        of = task(str(name), ["a", "b"])
        whole, cut = draw([episode(of, ["a", "b"], 0), episode(of, ["a"], 1)], seed=3, step=1)
        if whole.context.agent == "b":
            assert (cut.weight, cut.value) == (0.0, 0.0)
            return
    pytest.fail("b was never drawn")


def test_the_estimate_is_the_gradient_of_the_expected_return() -> None:
    # A policy of one number: each turn it says 1 with probability p. A first context; if it says 1,
    # a second one follows, else the episode has one context only. The return depends on both.
    def p(theta: float) -> float:
        return 1 / (1 + math.exp(-theta))

    def returned(said: tuple[int, ...]) -> float:
        return {(0,): 0.3, (1, 0): 0.1, (1, 1): 1.0}[said]

    outcomes = [(0,), (1, 0), (1, 1)]

    def chance(said: tuple[int, ...], theta: float) -> float:
        return float(np.prod([p(theta) if one else 1 - p(theta) for one in said]))

    def expected(theta: float) -> float:
        return sum(chance(said, theta) * returned(said) for said in outcomes)

    theta, h = 0.4, 1e-6
    exact = (expected(theta + h) - expected(theta - h)) / (2 * h)
    scores = {1: 1 - p(theta), 0: -p(theta)}  # d log p / d theta

    def estimate(weigh_the_return: bool = False, weighted: bool = True) -> float:
        """Mean over all pairs of episodes (a group) and over many draws of their contexts; the
        baseline is the other episode's return, so that it is independent."""
        total = 0.0
        for one, other in itertools.product(outcomes, repeat=2):
            # Every context of `one` comes up in K of many draws; count them over many task names.
            drawn: Counter[int] = Counter()
            names = 600
            weight = 1.0
            for name in range(names):
                played = Trajectory(
                    task(f"{one}{name}"), 0, [Context("agent", [s], [1], [0.0], 0) for s in one]
                )
                (row,) = draw([played], seed=5, step=0)
                drawn[row.context.ids[0] if len(set(one)) > 1 else one[0]] += 1
                weight = row.weight
            k = weight if weighted else 1.0
            if weigh_the_return:
                advantage = k * returned(one) - len(other) * returned(other)
            else:
                advantage = k * (returned(one) - returned(other))
            mean_score = sum(scores[s] * n / names for s, n in drawn.items())
            total += chance(one, theta) * chance(other, theta) * advantage * mean_score
        return total

    assert estimate() == pytest.approx(exact, rel=0.05)
    assert estimate(weighted=False) != pytest.approx(exact, rel=0.3)
    # The return in its place: the others' weights come into the baseline, and do not cancel.
    assert estimate(weigh_the_return=True) != pytest.approx(exact, rel=0.1)


@pytest.mark.parametrize("scale", ["group", "none"])
def test_trls_trainer_weighs_the_advantages_and_not_the_returns(
    tiny: Any, tmp_path: Path, scale: str
) -> None:
    from datasets import Dataset
    from trl import GRPOConfig

    from ferrata.training.compact import make_trainer_class
    from ferrata.training.rl import episode_return, to_trl

    weights: list[float] = [1.0, 3.0, 0.0, 2.0]

    def rollout(prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        contexts = [Context("agent", [5, 6, 7 + n], [0, 1, 1], [0.0] * 3, 1) for n in range(4)]
        rows = [Drawn(c, v, w) for c, v, w in zip(contexts, [0, 1, 0, 1.0], weights, strict=True)]
        trainer.row_weights = [row.weight for row in rows]
        return to_trl(rows)

    trainer = make_trainer_class()(
        model=copy.deepcopy(tiny[0]),
        reward_funcs=[episode_return],
        args=GRPOConfig(
            output_dir=str(tmp_path),
            per_device_train_batch_size=4,
            num_generations=4,
            loss_type="dr_grpo",
            scale_rewards=scale,
            report_to="none",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["a", "b"]}),
        processing_class=tiny[1],
        rollout_func=rollout,
    )
    scored = trainer._generate_and_score_completions([{"prompt": "a"} for _ in range(4)])
    one = 0.5 if scale == "none" else 0.5 / np.std([0, 1, 0, 1], ddof=1)
    expected = [-one, 3 * one, 0.0, 2 * one]
    assert scored["advantages"].tolist() == pytest.approx(expected, rel=1e-3)
