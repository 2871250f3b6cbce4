"""A game of two against each other with a known optimum: take one to three stones, the last wins.

Who leaves a multiple of four wins against everybody (a one-pile subtraction game; R. Sprague 1935,
P. Grundy 1939).
"""

from __future__ import annotations

import random

from ferrata.environments.base import Observation, Reply, Step, Task
from ferrata.environments.numbers import claimed_number

PLAYERS = ("first", "second")
MOST = 3
RULES = (
    "Stones: {n} of {thing}. In turn each takes 1, 2 or 3. Who takes the last wins. Your turn.",
    "A heap, {n} of {thing}. By turns you and I take one, two or three; the last one wins. Go.",
)
TOOK = ("I took {took}. {n} are left.", "I take {took}, that leaves {n}.")


def best(stones: int) -> int:
    """A move that leaves a multiple of four, or 1 where there is none."""
    return stones % (MOST + 1) or 1


class StonesWorld:
    """Two players with a context each; or one, against a perfect opponent that the world plays.

    The winner gets 1, the loser 0. A turn that is no possible move loses.
    """

    def __init__(self, task: Task) -> None:
        self.left = task.payload["stones"]
        self._thing = task.payload["thing"]
        self._form = task.payload["wording"]
        self._alone = task.payload["alone"]
        self._question = task.payload["question"]
        self._moves = self._good = 0
        self._waiting = set(PLAYERS)

    def reset(self) -> dict[str, Observation]:
        self._waiting.discard(PLAYERS[0])
        message = {"role": "user", "content": self._question}
        return {PLAYERS[0]: Observation([message], new_context=True)}

    def step(self, agent: str, reply: Reply) -> Step:
        claimed = None if reply.calls else claimed_number(reply.content)
        other = PLAYERS[1 - PLAYERS.index(agent)]
        if claimed is None or claimed not in range(1, min(MOST, self.left) + 1):
            return self._end(other, None)
        took = int(claimed)
        if self.left % (MOST + 1):
            self._moves += 1
            self._good += (self.left - took) % (MOST + 1) == 0
        self.left -= took
        if not self.left:
            return self._end(agent, str(took))
        if self._alone:
            took = best(self.left)
            self.left -= took
            if not self.left:
                return self._end(other, None)
            return self._on(agent, TOOK[self._form].format(took=took, n=self.left))
        if other in self._waiting:
            self._waiting.discard(other)
            rules = RULES[self._form].format(n=self.left, thing=self._thing)
            return self._on(other, rules, new_context=True)
        return self._on(other, TOOK[self._form].format(took=took, n=self.left))

    def _on(self, agent: str, text: str, new_context: bool = False) -> Step:
        seen = Observation([{"role": "user", "content": text}], new_context=new_context)
        return Step({agent: seen}, measures=self._measures(won=False))

    def _end(self, winner: str, answer: str | None) -> Step:
        return Step(
            rewards={player: {"win": float(player == winner)} for player in PLAYERS},
            done=True,
            answer=answer,
            success=winner == PLAYERS[0],
            measures=self._measures(winner == PLAYERS[0]),
        )

    def _measures(self, won: bool) -> dict[str, float]:
        """stones_short_of_optimum: of who begins, who can always win; stones_perfect_moves: share
        of the moves from winning positions that kept the win, of whoever made them."""
        measures = {"stones_short_of_optimum": float(not won)}
        if self._moves:
            measures["stones_perfect_moves"] = self._good / self._moves
        return measures


def act(stones: int, hasty: bool, rng: random.Random) -> Reply:
    """A move of the demonstrator, worked out from what it wants to leave; a hasty one takes as many
    as it may until it sees the end."""
    if hasty and stones > MOST:
        return Reply(f"{stones} - {MOST} = {stones - MOST}\nAnswer: {MOST}")
    if stones % (MOST + 1) == 0:
        return Reply(f"Answer: {rng.randint(1, MOST)}")
    took = best(stones)
    return Reply(f"{stones} - {stones - took} = {took}\nAnswer: {took}")
