from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ferrata.errors import FerrataError
from ferrata.tracking import lineage, registry, store
from ferrata.tracking.registry import Registered, load_registered, model_hash, register_model
from ferrata.tracking.runs import stage_run
from ferrata.tracking.store import TrackingUnreachable


def register(project: Path, folder: Path, alias: str = "challenger") -> Registered:
    with stage_run("register", {}, root=project) as run:
        return register_model(
            folder,
            name="agent",
            alias=alias,
            model_hash=model_hash(folder),
            scores={"tool_use.test.rl.success": 0.5},
            run=run,
            root=project,
        )


def test_hash_is_of_names_and_contents(tmp_path: Path) -> None:
    folder, other = tmp_path / "a", tmp_path / "b"
    (folder / "sub").mkdir(parents=True)
    (folder / "x").write_text("1")
    (folder / "sub" / "y").write_text("2")
    shutil.copytree(folder, other)
    assert model_hash(folder) == model_hash(other)
    (other / "x").rename(other / "z")
    assert model_hash(folder) != model_hash(other)
    with pytest.raises(FerrataError, match="no model to hash"):
        model_hash(tmp_path / "missing")


def test_once_per_hash_alias_moves_and_model_comes_back(
    project: Path,
    model_dir: Path,
    make_model: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    monkeypatch.chdir(tmp_path)
    first = register(project, model_dir)
    assert first == Registered("1", created=True)
    assert list(tmp_path.iterdir()) == [], "mlflow left something in the working directory"

    model, tokenizer = load_registered("agent", "challenger", root=project)
    original = AutoModelForCausalLM.from_pretrained(model_dir, dtype="auto")
    assert registry.weights_digest(model) == registry.weights_digest(original)
    folder_tokenizer = AutoTokenizer.from_pretrained(model_dir)
    assert tokenizer.chat_template == folder_tokenizer.chat_template
    assert "im_start" in tokenizer.chat_template
    assert tokenizer.padding_side == folder_tokenizer.padding_side == "right"
    messages = [{"role": "user", "content": "Two pens?"}]
    assert tokenizer.apply_chat_template(messages) == folder_tokenizer.apply_chat_template(messages)
    ids = tokenizer("Two pens", return_tensors="pt")["input_ids"]
    assert model.generate(ids, max_new_tokens=2, do_sample=False).shape[1] == ids.shape[1] + 2

    second_dir = tmp_path / "second"
    make_model(second_dir, seed=1)
    assert register(project, second_dir) == Registered("2", created=True)
    client = store.connect(project)[0]
    assert str(client.get_model_version_by_alias("agent", "challenger").version) == "2"

    assert register(project, model_dir) == Registered("1", created=False)
    assert str(client.get_model_version_by_alias("agent", "challenger").version) == "1"
    assert len(client.search_model_versions("name = 'agent'")) == 2

    version = client.get_model_version("agent", "1")
    assert version.tags["ferrata.model_hash"] == model_hash(model_dir)
    assert version.tags["ferrata.score.tool_use.test.rl.success"] == "0.5"
    assert version.tags["ferrata.commit"] == lineage.git_commit(project)
    assert version.tags["ferrata.stage"] == "register"

    requirements = next(project.glob("mlartifacts/**/requirements.txt")).read_text().split()
    assert {line.split("==")[0] for line in requirements} == {"mlflow", *registry.REQUIREMENTS}
    assert not any("+" in line for line in requirements)
    written = {path.name for path in project.glob("mlartifacts/models/*/artifacts/*")}
    assert {"MLmodel", "input_example.json"} <= written
    shown = capfd.readouterr()
    assert "WARNING" not in shown.err and "huggingface" not in shown.err, shown.err


def test_a_changed_model_does_not_get_the_alias(project: Path, model_dir: Path) -> None:
    loaded = registry._load_folder(model_dir)
    changed = registry._load_folder(model_dir)
    changed[1].chat_template = "other"
    next(changed[0].parameters()).data.add_(1)
    registry._check_same(loaded, registry._load_folder(model_dir), "agent")
    with pytest.raises(FerrataError, match="weights, chat template"):
        registry._check_same(loaded, changed, "agent")


def test_unknown_names_and_aliases_are_told(project: Path) -> None:
    with stage_run("register", {}, root=project):
        pass
    with pytest.raises(FerrataError, match="no registered model nobody@champion"):
        load_registered("nobody", "champion", root=project)


def test_an_unreachable_registry_is_told(
    tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(TrackingUnreachable, match=r"127\.0\.0\.1:9"):
        register(tmp_path, model_dir)
    with pytest.raises(TrackingUnreachable):
        load_registered("agent", "challenger", root=tmp_path)
