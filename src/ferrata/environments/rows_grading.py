"""How the answers to rows are graded, and the attacks on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal

from ferrata.environments.base import Fixture, Task, fixture_task
from ferrata.environments.numbers import MARK, MAX_CLAIM, claimed_number
from ferrata.environments.rows_fixtures import FIXTURES
from ferrata.environments.rows_format import Style
from ferrata.errors import FerrataError

Reward = Callable[[Task, str], float]


class RowGrader:
    """Grades final messages; the arguments are those of `Rows`.

    Raises:
        FerrataError: a reward without attacks.
    """

    def __init__(
        self,
        name: str,
        style: Style,
        reward: Reward | None,
        attacks: Sequence[tuple[str, str, float]],
    ) -> None:
        if reward is not None and not attacks:
            raise FerrataError(
                f"rows {name}: reward",
                found="a reward of your own without attacks",
                expected="final messages that it must score as stated: attacks=[(answer, text, 0)]",
                hint="nothing may train on a grader that was not attacked",
            )
        self._name = name
        self._style = style
        self._reward = reward
        self._attacks = attacks

    def grade(self, task: Task, text: str) -> tuple[dict[str, float], str | None]:
        """The part `answer`, 0 to 1, and the marked claim.

        Raises:
            FerrataError: a reward of the user's own left this range.
        """
        claims = MARK.findall(text)
        claim = claims[-1][:MAX_CLAIM] if claims else None
        if self._reward is not None:
            score = float(self._reward(task, text))
            if not 0.0 <= score <= 1.0:
                raise FerrataError(
                    f"rows {self._name}: reward",
                    found=f"{score:g} for {text[:60]!r}",
                    expected="a number from 0 to 1",
                )
            return {"answer": score}, claim
        if self._style == "text":
            right = bool(claims) and _plain(claims[-1]) == _plain(task.answer)
            return {"answer": float(right)}, claim
        number = claimed_number(text)
        return {"answer": float(number is not None and number == Decimal(task.answer))}, claim

    def fixtures(self) -> list[Fixture]:
        """The user's attacks on a reward of their own, or those that come with the style."""
        if self._reward is not None:
            own = [(text[:40], answer, text, score) for answer, text, score in self._attacks]
        else:
            column = 3 if self._style == "text" else 2
            own = [(row[0], "24", row[1], float(row[column])) for row in FIXTURES]
        return [
            Fixture(name, fixture_task(self._name, name, answer, {"question": "?"}), text, score)
            for name, answer, text, score in own
        ]


def _plain(text: str) -> str:
    """Without case, outer white space and a full stop."""
    return " ".join(text.casefold().removesuffix(".").split())
