"""Rows: questions and answers of your own, from a file or a hub dataset; GSM8K's format is known.

The train table gives the demonstrations, the tasks of RL and those of validation; the test table
gives the rest. A row's question alone decides which, so that no question is in two splits. Bands
are the steps of a worked answer (1-2, 3-4, 5-6, more), or a column; rows of band 4 are never
trained on, and those of the test table are out of distribution. Where a table knows no band 4 or no
other forms, `ood` and `forms` are further parts of the test table. The demonstrator is the table
itself: it writes what the row says, whatever its skill.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import ClassVar

from ferrata.environments.base import (
    Demonstration,
    Fixture,
    Split,
    Task,
    Tool,
    ToolWorld,
    fixture_task,
)
from ferrata.environments.numbers import MARK, MAX_CLAIM, claimed_number
from ferrata.environments.rows_fixtures import FIXTURES
from ferrata.environments.rows_format import HARD, RowFormat, Style
from ferrata.environments.splits import bucket
from ferrata.environments.tables import Table
from ferrata.errors import FerrataError

PARTS: Mapping[str, range] = {  # share (%) of a table's questions
    "sft": range(45),
    "train": range(45, 90),
    "validation": range(90, 100),
    "test": range(60),
    "forms": range(60, 80),
    "ood": range(80, 100),
}
TRAINED = ("sft", "train", "validation")


class Rows:
    """An environment made of tables; name an instance in `prepare.mixture`.

    Args:
        name: of the capability.
        train, test: where the rows are.
        question, answer: names of the columns.
        style: `gsm8k`: the answer column holds the working and, behind `####`, a number; `number`;
            or `text`, compared without regard to case.
        solution: column with a worked answer to show before the final line; None: there is none.
        band: column with the difficulty, 1 to 4; None: the steps of a worked answer, or 1.
        reward: your own, from (task, final message) to 0..1; 1 is solved. It needs `attacks`.
        attacks: (answer, final message, reward) that your reward must give.

    Raises:
        FerrataError: the arguments do not fit together.
    """

    agents: ClassVar[tuple[str, ...]] = ("agent",)
    reward_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {"answer": (0.0, 1.0)}

    def __init__(
        self,
        name: str,
        train: Table,
        test: Table,
        *,
        question: str = "question",
        answer: str = "answer",
        style: Style = "gsm8k",
        solution: str | None = None,
        band: str | None = None,
        reward: Callable[[Task, str], float] | None = None,
        attacks: Sequence[tuple[str, str, float]] = (),
    ) -> None:
        if reward is not None and not attacks:
            raise FerrataError(
                f"rows {name}: reward",
                found="a reward of your own without attacks",
                expected="final messages that it must score as stated: attacks=[(answer, text, 0)]",
                hint="nothing may train on a grader that was not attacked",
            )
        self.name = name
        self._tables = {"train": train, "test": test}
        self._style = style
        self._reward = reward
        self._attacks = attacks
        form = RowFormat(name, style, question, answer, solution, band)
        self._read = lru_cache(maxsize=None)(
            lambda table: form.parse(str(self._tables[table]), self._tables[table].rows())
        )

    def tasks(self, split: Split, n: int, seed: int) -> Iterator[Task]:
        """Raises FerrataError: the table has fewer rows for the split."""
        table = "train" if split in TRAINED else "test"
        rows = self._read(table)
        hard = [row for row in rows if row.band >= HARD]
        if split == "ood" and hard:
            pool = list(hard)
        else:
            pool = [
                row for row in rows if row.band < HARD and bucket(row.signature) in PARTS[split]
            ]
        if len(pool) < n:
            raise FerrataError(
                f"rows {self.name}: {n} tasks for {split}",
                found=f"{len(pool)} rows of {self._tables[table]} belong to it",
                expected=f"at least {n}",
                hint="ask for fewer tasks in the section prepare, or give the capability less "
                "weight",
            )
        random.Random(f"{self.name}/{split}/{seed}").shuffle(pool)
        for index, row in enumerate(pool[:n]):
            yield Task(
                id=f"{self.name}-{split}-{index:05d}",
                environment=self.name,
                split=split,
                band=row.band,
                form="row",
                seed=seed,
                signature=row.signature,
                payload={"question": row.question, "kind": "row", "shown": row.shown},
                answer=row.answer,
            )

    def tools(self, task: Task) -> Sequence[Tool]:
        return ()

    def start(self, task: Task) -> ToolWorld:
        return ToolWorld(task.payload["question"], (), lambda text: self._grade(task, text))

    def demonstrate(self, task: Task, skill: float, rng: random.Random) -> Demonstration:
        messages = [
            {"role": "user", "content": task.payload["question"]},
            {"role": "assistant", "content": task.payload["shown"]},
        ]
        parts, _ = self._grade(task, messages[-1]["content"])
        return Demonstration(task, messages, success=parts["answer"] >= 1.0)

    def fixtures(self) -> list[Fixture]:
        if self._reward is not None:
            own = [(text[:40], answer, text, score) for answer, text, score in self._attacks]
        else:
            column = 3 if self._style == "text" else 2
            own = [(row[0], "24", row[1], float(row[column])) for row in FIXTURES]
        return [
            Fixture(name, fixture_task(self.name, name, answer, {"question": "?"}), text, score)
            for name, answer, text, score in own
        ]

    def _grade(self, task: Task, text: str) -> tuple[dict[str, float], str | None]:
        claims = MARK.findall(text)
        claim = claims[-1][:MAX_CLAIM] if claims else None
        if self._reward is not None:
            score = float(self._reward(task, text))
            if not 0.0 <= score <= 1.0:
                raise FerrataError(
                    f"rows {self.name}: reward",
                    found=f"{score:g} for {text[:60]!r}",
                    expected="a number from 0 to 1",
                )
            return {"answer": score}, claim
        if self._style == "text":
            right = bool(claims) and _plain(claims[-1]) == _plain(task.answer)
            return {"answer": float(right)}, claim
        number = claimed_number(text)
        return {"answer": float(number is not None and number == Decimal(task.answer))}, claim


def _plain(text: str) -> str:
    """Without case, outer white space and a full stop."""
    return " ".join(text.casefold().removesuffix(".").split())
