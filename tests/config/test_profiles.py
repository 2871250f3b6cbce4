"""Profiles: valid on top of the default, reversible to the byte, never half written."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from ferrata.config.loader import load, parse_yaml
from ferrata.config.profiles import apply_profile, available, merge
from ferrata.errors import FerrataError

ROOT = Path(__file__).parents[2]
PROFILES = available(ROOT)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the profiles and params.yaml in its default state."""
    shutil.copytree(ROOT / "profiles", tmp_path / "profiles")
    shutil.copy(ROOT / "params.yaml", tmp_path)
    apply_profile("default", tmp_path)
    return tmp_path


def test_shipped() -> None:
    assert {"default", "tiny"} <= set(PROFILES)


@pytest.mark.parametrize("name", PROFILES)
def test_profile_is_valid_and_default_undoes_it(project: Path, name: str) -> None:
    path = project / "params.yaml"
    original = path.read_bytes()
    apply_profile(name, project)
    load(root=project)
    again = path.read_bytes()
    assert apply_profile(name, project) == []
    assert path.read_bytes() == again
    apply_profile("default", project)
    assert path.read_bytes() == original


def test_committed_params_are_the_default() -> None:
    text = (ROOT / "params.yaml").read_text(encoding="utf-8")
    default = (ROOT / "profiles" / "default.yaml").read_text(encoding="utf-8")
    if parse_yaml(text, "params.yaml")["base"]["source"] == "scratch":
        pytest.skip("another profile is written into params.yaml at the moment")
    assert merge(text, default) == text


def test_tiny_values_and_report(project: Path) -> None:
    before = load(project).rl.steps
    changes = apply_profile("tiny", project)
    assert ("rl.steps", str(before), "3") in changes
    assert ("base.source", "wheel", "scratch") in changes
    p = load(root=project)
    assert p.base.scratch is not None
    assert p.base.scratch.layers == 2
    assert p.base.wheel is None
    assert p.evaluate.precision == "float32"


def test_own_keys_and_comments_stay(project: Path) -> None:
    path = project / "params.yaml"
    text = path.read_text(encoding="utf-8")
    own = "  weight_decay: 0.0123 # mine"  # a key that no profile sets
    mine = re.sub(r"^  weight_decay:.*$", own, text, flags=re.MULTILINE)
    assert own in mine
    path.write_text(mine, encoding="utf-8")
    apply_profile("tiny", project)
    changed = path.read_text(encoding="utf-8")
    assert own in changed
    line = "  steps: 3                    # optimizer steps\n"
    assert line in changed


def test_profile_does_not_depend_on_the_one_before(project: Path) -> None:
    (project / "profiles" / "other.yaml").write_text("report: {bootstrap: 50}\n", encoding="utf-8")
    apply_profile("other", project)
    once = (project / "params.yaml").read_bytes()
    apply_profile("tiny", project)
    apply_profile("other", project)
    assert (project / "params.yaml").read_bytes() == once


@pytest.mark.parametrize("bad", ["rl: {stepz: 3}\n", "rl: {steps: 0}\n", "rl: [\n", "arms: {}\n"])
def test_invalid_profile_writes_nothing(project: Path, bad: str) -> None:
    if bad.startswith("arms"):  # an empty mapping adds nothing, so take away what is needed
        bad = "register: null\n"
    (project / "profiles" / "bad.yaml").write_text(bad, encoding="utf-8")
    before = (project / "params.yaml").read_bytes()
    with pytest.raises(FerrataError):
        apply_profile("bad", project)
    assert (project / "params.yaml").read_bytes() == before
    assert sorted(p.name for p in project.iterdir()) == ["params.yaml", "profiles"]


def test_unknown_profile_lists_names(project: Path) -> None:
    with pytest.raises(FerrataError) as caught:
        apply_profile("tyny", project)
    assert "default, tiny" in str(caught.value)
    assert "ferrata profile tiny" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "overrides", "expected"),
    [
        ("a: 1   # x\n", "a: 22\n", "a: 22  # x\n"),
        ("a: 1 # x\n", "a: 22\n", "a: 22 # x\n"),
        ("a: {b: 1, c: 2}\n", "a: {c: 3}\n", "a: {b: 1, c: 3}\n"),
        ("a:\n  b: 1\n\nc: 2\n", "a:\n    d: 4\n", "a:\n  b: 1\n  d: 4\n\nc: 2\n"),
        ("a:\n  b: 1\n  d: 2\nc: 2\n", "a: {b: null}\n", "a:\n  d: 2\nc: 2\n"),
        ("a: null # x\nc: 2\n", "a:\n  b: 1\n", "a:\n  b: 1\nc: 2\n"),
        ("a:\n- 1\n- 2\nc: 2\n", "a: [3]\n", "a: [3]\nc: 2\n"),
        ("a: 1", "b: 2", "a: 1\nb: 2\n"),
        ("a:\n  x: 1\n", "a:\n  x: null\n  y: 2\n", "a:\n  y: 2\n"),
    ],
)
def test_merge_keeps_the_rest(text: str, overrides: str, expected: str) -> None:
    assert merge(text, overrides) == expected
