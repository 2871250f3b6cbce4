"""What the columns of a row mean, checked row by row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from ferrata.errors import FerrataError

Style = Literal["gsm8k", "number", "text"]
STYLES = ("gsm8k", "number", "text")
DIGITS = 30  # before or behind the point: 1e999999999 is no answer
HARD = 4  # the band that is never trained on
NOTE = re.compile(r"<<[^<>]*>>")  # GSM8K's marks for a calculator


@dataclass(frozen=True)
class Question:
    """A row that was understood; `shown` is what a demonstrator writes."""

    question: str
    answer: str
    band: int
    shown: str

    @property
    def signature(self) -> str:
        """The same for questions that differ in case and white space alone."""
        return " ".join(self.question.casefold().split())


class RowFormat:
    """Reads rows; the arguments are those of `Rows`. Raises FerrataError for an unknown style."""

    def __init__(
        self,
        name: str,
        style: Style,
        question: str,
        answer: str,
        solution: str | None,
        band: str | None,
    ) -> None:
        if style not in STYLES:
            raise FerrataError(
                f"rows {name}: style", found=repr(style), expected=f"one of {', '.join(STYLES)}"
            )
        self._name = name
        self._style = style
        self._columns = {"question": question, "answer": answer}
        self._columns |= {"solution": solution} if solution else {}
        self._columns |= {"band": band} if band else {}

    def parse(self, table: str, rows: Sequence[dict[str, Any]]) -> list[Question]:
        """All rows of a table.

        Raises:
            FerrataError: a row does not fit; with the row, and what was expected of it.
        """
        return [self._row(f"row {n} of {table}", row) for n, row in enumerate(rows, start=1)]

    def _row(self, where: str, row: dict[str, Any]) -> Question:
        def wrong(found: str, expected: str) -> FerrataError:
            hint = f"correct the row, or the arguments of Rows({self._name!r}, ...)"
            what = f"rows {self._name}: {where}"
            return FerrataError(what, found=found, expected=expected, hint=hint)

        missing = [name for name in self._columns.values() if name not in row]
        if missing:
            raise wrong(f"the columns {', '.join(row)}", f"a column {' and '.join(missing)}")
        cells = {
            part: "" if row[name] is None else str(row[name]).strip()
            for part, name in self._columns.items()
        }
        shown = repr({name: str(value)[:60] for name, value in row.items()})
        empty = [self._columns[part] for part, cell in cells.items() if not cell]
        if empty:
            raise wrong(f"nothing in {', '.join(empty)}: {shown}", "text in every column")
        answer, working = cells["answer"], cells.get("solution", "")
        if self._style == "gsm8k":
            text, mark, answer = answer.rpartition("####")
            if not mark:
                raise wrong(shown, "the answer behind `####` (style gsm8k)")
            working = working or NOTE.sub("", text).strip()
        if self._style != "text":
            number = _number(answer)
            if number is None:
                raise wrong(f"the answer {answer.strip()[:60]!r}: {shown}", "one number")
            answer = number
        steps = sum(bool(line.strip()) for line in working.splitlines())
        band = cells.get("band", str(min(HARD, max(1, (steps + 1) // 2))))
        if band not in ("1", "2", "3", "4"):
            raise wrong(f"{self._columns['band']} {band!r}: {shown}", "1, 2, 3 or 4")
        told = f"{working}\nAnswer: {answer}" if working else f"Answer: {answer}"
        return Question(cells["question"], answer, int(band), told)


def _number(text: str) -> str | None:
    """A finite number without thousands separators, or None."""
    try:
        number = Decimal(text.strip().replace(",", ""))
    except InvalidOperation:
        return None
    sensible = number.is_finite() and abs(number.adjusted()) <= DIGITS
    return format(number, "f") if sensible else None
