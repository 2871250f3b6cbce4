"""README's new capability: the very text is a file that is trained on, checked and tracked."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ferrata.config.fingerprint import closure, write_fingerprints
from ferrata.data.checks import check_fixtures, check_leakage
from ferrata.data.generate import make_tasks
from ferrata.environments import get_mixture

ROOT = Path(__file__).resolve().parents[2]
NAME = "capabilities.letters:Letters"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder with the file that README shows, and Python ready to import it."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = readme.partition("<!-- capability:begin -->")[2].partition("<!-- capability:end -->")[0]
    (source,) = re.findall(r"```python\n(.*?)```", block, re.DOTALL)
    (tmp_path / "capabilities").mkdir()
    (tmp_path / "capabilities" / "__init__.py").write_text("")
    (tmp_path / "capabilities" / "letters.py").write_text(source, encoding="utf-8")
    for name in ("dvc.yaml", "params.yaml"):
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    for name in [n for n in sys.modules if n.partition(".")[0] == "capabilities"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(ROOT))])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_is_played_and_checked_like_the_others(project: Path, prepare_params: Any) -> None:
    mixture = get_mixture({"tool_use": 1.0, NAME: 1.0})
    assert check_fixtures(mixture) > 5
    splits = make_tasks(mixture, prepare_params, seed=3)
    check_leakage(splits)
    own = [task for task in splits["train"] if task.environment == "letters"]
    assert len(own) == len(splits["train"]) // 2
    right = [mixture.demonstrate(t, 1.0, random.Random(0)).success for t in own]
    wrong = [mixture.demonstrate(t, 0.0, random.Random(0)).success for t in own]
    assert all(right) and 0 < sum(wrong) < len(wrong)


def test_its_file_counts_as_code_of_the_stages(project: Path) -> None:
    (project / "stages").mkdir()
    for name in ("sft", "report"):
        (project / "stages" / f"{name}.py").write_text("print()\n")
    path = project / "capabilities" / "letters.py"
    assert path in closure(project / "stages" / "sft.py", project, [NAME])
    assert path not in closure(project / "stages" / "sft.py", project)
    write_fingerprints(project, project / "code", [NAME])
    path.write_text(path.read_text().replace("[:8]", "[:9]"))
    assert write_fingerprints(project, project / "code", [NAME]) == ["sft"]


def test_it_can_be_played(project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ferrata.cli", "play", NAME, "--policy", "expert"],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "How many a are in" in done.stdout and "right (expected" in done.stdout
