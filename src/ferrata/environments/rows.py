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
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import ClassVar

from ferrata.environments.base import Demonstration, Fixture, Split, Task, Tool, ToolWorld
from ferrata.environments.rows_format import HARD, RowFormat, Style
from ferrata.environments.rows_grading import Reward, RowGrader
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
        reward: Reward | None = None,
        attacks: Sequence[tuple[str, str, float]] = (),
    ) -> None:
        self.name = name
        self._tables = {"train": train, "test": test}
        self._grader = RowGrader(name, style, reward, attacks)
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
        return ToolWorld(task.payload["question"], (), lambda text: self._grader.grade(task, text))

    def demonstrate(self, task: Task, skill: float, rng: random.Random) -> Demonstration:
        messages = [
            {"role": "user", "content": task.payload["question"]},
            {"role": "assistant", "content": task.payload["shown"]},
        ]
        parts, _ = self._grader.grade(task, messages[-1]["content"])
        return Demonstration(task, messages, success=parts["answer"] >= 1.0)

    def fixtures(self) -> list[Fixture]:
        return self._grader.fixtures()
