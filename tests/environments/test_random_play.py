"""Ten thousand episodes of a policy that writes whatever comes into its head."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import psutil
import pytest

from ferrata.chat import Assembler
from ferrata.config.episodes import EpisodesParams
from ferrata.environments import BUILT_IN, get_environment
from ferrata.environments.base import Task
from ferrata.episodes.engine import Engine
from ferrata.episodes.policies import OnTurn, Prompt, Sampled
from ferrata.episodes.trajectory import Trajectory

EPISODES = 10_000
ROUND = 500


class Babbler:
    """Calls with words of the question, answers, broken calls and random tokens."""

    def __init__(self, assembler: Assembler, tasks: Sequence[Task], tools: Sequence[Any]) -> None:
        self._assembler = assembler
        self._rng = random.Random(0)
        self._words = [re.findall(r"\w+", task.payload["question"]) for task in tasks]
        schemas = [tool.schema()["function"] for tool in tools]
        self._tools = {s["name"]: list(s["parameters"]["properties"]) for s in schemas}

    def run(self, prompts: Sequence[Prompt], temperature: float, on_turn: OnTurn) -> None:
        for index, prompt in enumerate(prompts):
            limit: int | None = prompt.limit
            while limit is not None:
                ids = self._turn(self._words[index])[:limit]
                closed = ids[-1] == self._assembler.close_id
                going_on = on_turn(index, Sampled(ids, [0.0] * len(ids), closed))
                limit = going_on.limit if going_on else None

    def _turn(self, words: Sequence[str]) -> list[int]:
        rng, close = self._rng, self._assembler.close_id
        kind = rng.random()
        if kind < 0.1:
            vocabulary = len(self._assembler.tokenizer)
            return [rng.randrange(vocabulary) for _ in range(rng.randint(1, 40))]
        if kind < 0.2:
            text = f"Answer: {rng.choice([*words, rng.randint(-9, 99)])}"
        elif kind < 0.3 or not self._tools:
            text = " ".join(rng.choices(["[", "craft(", "))", "=", '"', *words], k=6))
        else:
            name = rng.choice(list(self._tools))
            values = [rng.choice([f'"{w}"', w]) for w in rng.choices(words, k=9)]
            pairs = zip(self._tools[name], values, strict=False)
            text = f"[{name}({', '.join(f'{k}={v}' for k, v in pairs)})]"
        return [*self._assembler.tokenizer(text, add_special_tokens=False)["input_ids"], close]


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT_IN)
def test_random_play_ends_with_a_reason_and_keeps_nothing(
    name: str, assembler: Assembler, limits: Callable[..., EpisodesParams]
) -> None:
    environment = get_environment(name)
    least = sum(low for low, _ in environment.reward_ranges.values())
    tasks = list(environment.tasks("train", ROUND, 3))
    babbler = Babbler(assembler, tasks, environment.tools(tasks[0]))
    engine = Engine(environment, assembler, babbler, limits(max_turns=8))
    stops: Counter[str] = Counter()
    used = []

    def end(episode: Trajectory) -> None:
        assert episode.stop is not None and episode.failed_calls == 0
        assert least <= episode.episode_return <= 1.0
        stops[episode.stop] += 1

    for step in range(EPISODES // ROUND):
        for episode in engine.play(tasks, temperature=1.0, seed=1, step=step):
            end(episode)
        del episode
        used.append(psutil.Process().memory_info().rss / 2**20)
    assert stops.total() == EPISODES and len(stops) >= 2, stops
    # Resident memory in MB; the first rounds fill caches (of tokens, of rendered schemas).
    assert used[-1] < used[len(used) // 2] + 8, used
