"""Code as a dependency by meaning: what changes a stage's fingerprint and what does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ferrata.config.fingerprint import closure, write_fingerprints
from ferrata.errors import FerrataError

ROOT = Path(__file__).parents[2]

FILES = {
    "src/ferrata/__init__.py": '"""Package."""\n',
    "src/ferrata/errors.py": "class FerrataError(Exception): ...\n",
    "src/ferrata/config/__init__.py": "",
    "src/ferrata/config/loader.py": "from ferrata.config import rl\n",
    "src/ferrata/config/rl.py": "STEPS = 1\n",
    "src/ferrata/deep/__init__.py": "",
    "src/ferrata/deep/core.py": (
        '"""Core."""\n\n# a comment\ndef double(x):\n    """Twice."""\n    return 2 * x\n'
    ),
    "src/ferrata/deep/middle.py": (
        "def run():\n    from .core import double\n    return double(1)\n"
    ),
    "src/ferrata/training/sft.py": "from ferrata.deep import middle\nimport os, torch\n",
    "src/ferrata/training/rl.py": (
        "from typing import TYPE_CHECKING\nfrom ..deep.middle import run\n"
        "if TYPE_CHECKING:\n    from ferrata.only_types import T\n"
    ),
    "src/ferrata/only_types.py": "T = int\n",
    "src/ferrata/environments/__init__.py": 'REGISTRY = {"a": "ferrata.environments.a:A"}\n',
    "src/ferrata/environments/a.py": 'def tool():\n    """Says a."""\n',
    "src/ferrata/environments/b.py": "",
    "src/ferrata/tracking/runs.py": "LOG = 1\n",
    "stages/code.py": "",
    "stages/_shared.py": "X = 1\n",
    "stages/prepare.py": "import ferrata.environments\n",
    "stages/sft.py": (
        "from ferrata.training import sft\nimport ferrata.tracking.runs\n"
        "from ferrata.config.loader import load\nimport _shared\n"
    ),
    "stages/rl.py": "import ferrata.training.rl as rl\n",
    "stages/register.py": "from ferrata.tracking import runs\n",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    write_fingerprints(tmp_path, tmp_path / "code")
    return tmp_path


def change(project: Path, name: str, old: str, new: str) -> list[str]:
    """Edit a file; the stages whose fingerprint changes."""
    path = project / name
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    return write_fingerprints(project, project / "code")


def names(project: Path, stage: str) -> list[str]:
    root = project.resolve()
    found = closure(project / "stages" / f"{stage}.py", project)
    return [path.relative_to(root).as_posix() for path in found]


def test_closure(project: Path) -> None:
    assert names(project, "sft") == [
        "src/ferrata/__init__.py",
        "src/ferrata/config/__init__.py",
        "src/ferrata/deep/__init__.py",
        "src/ferrata/deep/core.py",
        "src/ferrata/deep/middle.py",
        "src/ferrata/training/sft.py",
        "stages/_shared.py",
        "stages/sft.py",
    ]
    assert "src/ferrata/only_types.py" not in names(project, "rl")
    assert "src/ferrata/environments/a.py" in names(project, "prepare")
    assert "src/ferrata/environments/b.py" not in names(project, "prepare")
    assert "src/ferrata/tracking/runs.py" in names(project, "register")


def test_modules_of_a_package_named_by_prefix(project: Path) -> None:
    (project / "stages" / "prepare.py").write_text(
        'import importlib\nm = importlib.import_module(f"ferrata.environments.{1}")\n',
        encoding="utf-8",
    )
    assert "src/ferrata/environments/b.py" in names(project, "prepare")


def test_comment_format_and_docstring_change_nothing(project: Path) -> None:
    core = "src/ferrata/deep/core.py"
    assert change(project, core, "# a comment", "# another\n\n\n") == []
    assert change(project, core, "return 2 * x", "return (2 *\n        x)") == []
    assert change(project, core, '"""Twice."""', '"""Two times."""') == []
    assert change(project, core, '    """Two times."""\n', "") == []


def test_deep_function_changes_its_importers_only(project: Path) -> None:
    assert change(project, "src/ferrata/deep/core.py", "2", "3") == ["rl", "sft"]
    assert change(project, "stages/_shared.py", "1", "2") == ["sft"]


def test_docstrings_of_environments_count(project: Path) -> None:
    assert change(project, "src/ferrata/environments/a.py", "Says a", "Says A") == ["prepare"]


def test_tracking_and_loader_do_not_reach_training(project: Path) -> None:
    assert change(project, "src/ferrata/tracking/runs.py", "1", "2") == ["register"]
    assert change(project, "src/ferrata/config/rl.py", "1", "2") == []
    assert change(project, "src/ferrata/errors.py", "...", "x = 1") == []


def test_files_on_disk(project: Path) -> None:
    assert sorted(p.name for p in (project / "code").iterdir()) == [
        "prepare.json",
        "register.json",
        "rl.json",
        "sft.json",
    ]
    text = (project / "code" / "sft.json").read_text(encoding="utf-8")
    hashes = json.loads(text)
    assert list(hashes) == sorted(hashes)
    assert text.endswith("}\n")
    assert len(text.splitlines()) == len(hashes) + 2
    (project / "stages" / "sft.py").unlink()
    assert write_fingerprints(project, project / "code") == ["sft"]
    assert not (project / "code" / "sft.json").exists()


def test_unparsable_module_is_named(project: Path) -> None:
    (project / "src/ferrata/deep/core.py").write_text("def (:\n", encoding="utf-8")
    with pytest.raises(FerrataError, match=r"src/ferrata/deep/core\.py, line 1"):
        closure(project / "stages" / "sft.py", project)


def test_stage_script(project: Path) -> None:
    env = os.environ | {"DVC_ROOT": str(project), "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-P", str(ROOT / "stages" / "code.py")]
    (project / "stages" / "rl.py").write_text("X = 1\n", encoding="utf-8")
    for name in ("params.yaml", "dvc.yaml"):
        (project / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "code changed: rl\n"


def test_this_project_parses() -> None:
    for script in (ROOT / "stages").glob("*.py"):
        assert script.resolve() in closure(script, ROOT)
