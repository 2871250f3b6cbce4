"""Parquet files into frames, without pyarrow's threads.

A process that ends soon after `pandas.read_parquet` is aborted now and then ("terminate called
without an active exception", status -6): the threads of pyarrow's pool outlive the interpreter
(github.com/apache/arrow, issues 34314 and 50482). The frames here are small, so that one thread
costs nothing. pyarrow has to open the file itself: through the handle that pandas opens, threads
are started in spite of `use_threads=False` (a test counts them both ways).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def read_parquet(path: Path) -> pd.DataFrame:
    """The whole file, as `pandas.read_parquet` gives it.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no Parquet file (pyarrow's ArrowInvalid is one).
    """
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, pre_buffer=False) as file:
        return file.read(use_threads=False).to_pandas(use_threads=False)
