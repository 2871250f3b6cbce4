"""Tables of rows: a file of this machine, checked by hash, or a split of a hub dataset."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ferrata.errors import FerrataError
from ferrata.parquet import read_parquet

KINDS = (".jsonl", ".csv", ".parquet")
Row = dict[str, Any]


@dataclass(frozen=True)
class File:
    """A file of rows: JSON Lines, CSV or Parquet.

    Args:
        path: relative to the project's folder.
        sha256: of the file. It stands in code, and code is what DVC follows: other content is
            another hash, and so another run.
    """

    path: str
    sha256: str

    def rows(self) -> list[Row]:
        """All rows, in order.

        Raises:
            FerrataError: the file is not there, is of another kind, has another hash, or cannot be
                read; with the line, where there are lines.
        """
        from ferrata.config.paths import project_root

        path = project_root() / self.path
        if path.suffix not in KINDS:
            raise FerrataError(
                f"table {self.path}",
                found=f"a file ending in {path.suffix!r}",
                expected=f"one of {', '.join(KINDS)}",
                hint="convert it, or rename it if it is one of these",
            )
        if not path.is_file():
            raise FerrataError(
                f"table {self.path}",
                found="no such file in the project's folder",
                expected=f"a file ending in {', '.join(KINDS)}",
                hint="put it there, or correct the path",
            )
        content = path.read_bytes()
        found = hashlib.sha256(content).hexdigest()
        if found != self.sha256:
            raise FerrataError(
                f"table {self.path}",
                found=f"a file with SHA-256 {found}",
                expected=self.sha256,
                hint="if the new content is meant, write its hash where the table is named",
            )
        if path.suffix == ".jsonl":
            return list(_lines(self.path, content))
        return _frame(path)

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True)
class HubSplit:
    """One split of a dataset of the Hugging Face hub, or of a dataset folder on this machine.

    Args:
        repo: owner/name, or a folder.
        revision: commit or tag; a moving branch cannot be rebuilt. Not read for a folder.
        split: name of the split.
        config: name of the dataset's configuration, if it has several.
    """

    repo: str
    revision: str
    split: str
    config: str | None = None

    def rows(self) -> list[Row]:
        """All rows, in order. Raises FerrataError: the dataset cannot be had."""
        from datasets import load_dataset

        local = Path(self.repo).is_dir()
        try:
            table = load_dataset(
                self.repo,
                self.config,
                split=self.split,
                revision=None if local else self.revision,
            )
        except Exception as error:  # network, names, formats: datasets raises many kinds
            raise FerrataError(
                f"table {self}",
                found=f"{type(error).__name__}: {str(error).splitlines()[0][:200]}",
                expected="a dataset that `datasets.load_dataset` can load",
                hint="check the name, the revision and the network",
            ) from error
        return [dict(row) for row in table]

    def __str__(self) -> str:
        return f"{self.repo} ({self.split})"


Table = File | HubSplit


def _lines(name: str, content: bytes) -> Iterator[Row]:
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            problem = None if isinstance(row, dict) else f"a {type(row).__name__}"
        except (ValueError, RecursionError) as error:
            problem = f"no JSON ({error})"
        if problem:
            raise FerrataError(
                f"table {name}, line {number}",
                found=f"{problem}: {line[:80].decode('utf-8', 'replace')!r}",
                expected="one JSON object per line",
                hint="correct the line",
            )
        yield row


def _frame(path: Path) -> list[Row]:
    import pandas as pd

    try:
        # Cells as they are written: a reader's guess would turn 007 into 7 and NA into nothing.
        frame = (
            pd.read_csv(path, dtype=str, keep_default_na=False)
            if path.suffix == ".csv"
            else read_parquet(path)
        )
    except (ValueError, OSError) as error:
        raise FerrataError(
            f"table {path.name}",
            found=str(error).splitlines()[0][:200],
            expected=f"a readable {path.suffix} file",
            hint="write it again",
        ) from error
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]
