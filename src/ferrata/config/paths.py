"""Where the project is."""

from __future__ import annotations

import os
from pathlib import Path

from ferrata.errors import FerrataError


def _nearest() -> Path | None:
    here = Path.cwd().resolve()
    for folder in (here, *here.parents):
        if (folder / "dvc.yaml").is_file() and (folder / "params.yaml").is_file():
            return folder
    return None


def project_root() -> Path:
    """The project's root.

    That is DVC_ROOT, which DVC sets for a stage, else the nearest parent with dvc.yaml and
    params.yaml.

    Raises:
        FerrataError: there is none.
    """
    if root := os.environ.get("DVC_ROOT"):
        return Path(root).resolve()
    if nearest := _nearest():
        return nearest
    raise FerrataError(
        "no Ferrata project here",
        found=f"no dvc.yaml and params.yaml in {Path.cwd()} or above",
        hint="change into the project's folder",
    )


def params_folder() -> Path:
    """The folder whose params.yaml counts: the pipeline we are in, else the project's root.

    A larger study is a pipeline of its own inside the project, with its own params.yaml, while
    DVC_ROOT names the project.

    Raises:
        FerrataError: there is no project.
    """
    root = project_root()
    nearest = _nearest()
    return nearest if nearest and nearest.is_relative_to(root) else root
