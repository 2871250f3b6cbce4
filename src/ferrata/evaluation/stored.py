"""The stored episodes of the arms, as the stage `evaluate` left them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ferrata.errors import FerrataError
from ferrata.parquet import read_parquet

if TYPE_CHECKING:
    import pandas as pd

    from ferrata.config.arms import Arm


def read_arms(root: Path, arms: Mapping[str, Arm]) -> dict[str, pd.DataFrame]:
    """Per arm, in the order of `arms`, the rows of evaluations/<arm>/trajectories.parquet.

    Raises:
        FerrataError: an arm has no episodes yet, or they are of other splits than it is to play.
    """
    return {name: _read(root, name, arm.splits) for name, arm in arms.items()}


def _read(root: Path, name: str, splits: tuple[str, ...]) -> pd.DataFrame:
    path = root / "evaluations" / name / "trajectories.parquet"
    again = f"`dvc repro evaluate@{name}` plays them"
    if not path.is_file():
        raise FerrataError(
            f"the episodes of the arm {name!r} are missing",
            expected=str(path.relative_to(root)),
            hint=again,
        )
    frame = read_parquet(path)
    # A file without the column, or without a row, has its own message in `compare.check`.
    if "split" in frame and not frame.empty and set(frame["split"]) != set(splits):
        raise FerrataError(
            f"the arm {name!r} played other splits than params.yaml asks for",
            found=", ".join(sorted(set(frame["split"]))),
            expected=", ".join(splits),
            hint=again,
        )
    return frame
