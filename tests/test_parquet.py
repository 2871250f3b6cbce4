"""Reading Parquet: what pandas gives, and a process that ends well right behind it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from ferrata.parquet import read_parquet

SRC = Path(__file__).parents[1] / "src"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    frame = pd.DataFrame({"a": range(60), "b": ["word"] * 60, "c": [[1, 2]] * 60})
    frame.to_parquet(tmp_path / "table.parquet")
    return tmp_path / "table.parquet"


def test_same_frame_as_pandas(table: Path) -> None:
    pd.testing.assert_frame_equal(read_parquet(table), pd.read_parquet(table))


def threads_left(table: Path, read: str) -> int:
    """Threads more than before, in a process that has read a table."""
    script = (
        "import pathlib, sys, pandas, psutil, pyarrow.parquet\n"
        "from ferrata.parquet import read_parquet\n"
        "threads = psutil.Process().num_threads\n"
        "before = threads()\n"
        f"{read}\n"
        "print(threads() - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(table)],
        env={"PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
    )
    # pandas' way may abort behind its last line: that is what this is about.
    assert done.stdout.strip().isdigit(), done.stderr
    return int(done.stdout)


def test_no_thread_is_left_to_outlive_the_interpreter(table: Path) -> None:
    """The abort itself is rare; what it needs is a thread of arrow's pools. Once pandas leaves none
    either, `ferrata.parquet` is needed no more."""
    assert threads_left(table, "read_parquet(pathlib.Path(sys.argv[1]))") == 0
    assert threads_left(table, "pandas.read_parquet(sys.argv[1], use_threads=False)") > 0


def test_a_file_of_another_kind_is_a_value_error(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="Parquet"):
        read_parquet(path)
