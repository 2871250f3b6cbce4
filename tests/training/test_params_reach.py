"""Every key of the sections `sft` and `rl` reaches the object that it claims to set.

Each key is changed alone. The tables must cover all keys, so a new one fails here until it has a
place to arrive.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ferrata.config.rl import RlParams
from ferrata.config.section import Lora
from ferrata.config.sft import SftParams
from ferrata.config.vllm import VllmParams
from ferrata.training import rl, sft
from ferrata.training.checkpoint import CheckpointFolder
from ferrata.training.models import lora_config

Table = Mapping[str, tuple[Any, Callable[[Any], Any]]]  # key -> changed value, where it is read

STEPS = 20  # of SFT, for the warm-up

LORA = {"rank": 4, "alpha": 8, "dropout": 0.0, "target_modules": "all-linear"}

SFT = {
    "tuning": "full",
    "epochs": 1.0,
    "batch_size": 16,
    "micro_batch_size": 16,
    "learning_rate": 2e-4,
    "warmup_ratio": 0.1,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "eval_every": 14,
    "checkpoint_every": 14,
    "validation_demonstrations": 32,
    "precision": "float32",
}

RL = {
    "tuning": "full",
    "generation": "transformers",
    "steps": 12,
    "tasks_per_step": 4,
    "group_size": 8,
    "micro_batch_size": 16,
    "learning_rate": 2e-5,
    "warmup_steps": 0,
    "lr_scheduler": "constant",
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "temperature": 1.0,
    "loss_type": "dapo",
    "scale_rewards": "group",
    "epsilon": 0.2,
    "epsilon_high": 0.3,
    "beta": 0.0,
    "curriculum": None,
    "updates_per_batch": 1,
    "eval_every": 4,
    "checkpoint_every": 4,
    "precision": "float32",
}


def precision_of(config: Any) -> str:
    assert not config.fp16
    return "bfloat16" if config.bf16 else "float32"


SFT_KEYS: Table = {
    "epochs": (2.5, lambda c: c.num_train_epochs),
    "batch_size": (32, lambda c: c.per_device_train_batch_size * c.gradient_accumulation_steps),
    "micro_batch_size": (4, lambda c: c.per_device_train_batch_size),
    "learning_rate": (3e-5, lambda c: c.learning_rate),
    "warmup_ratio": (0.5, lambda c: c.warmup_steps / STEPS),
    "weight_decay": (0.01, lambda c: c.weight_decay),
    "max_grad_norm": (0.5, lambda c: c.max_grad_norm),
    "eval_every": (7, lambda c: c.eval_steps),
    "checkpoint_every": (7, lambda c: (c.save_strategy == "steps") * c.save_steps),
    "precision": ("bfloat16", precision_of),
}
# Tested below, where they act.
SFT_ELSEWHERE = {"tuning", "lora", "validation_demonstrations"}

RL_KEYS: Table = {
    "steps": (5, lambda c: c.max_steps),
    "tasks_per_step": (6, lambda c: c.generation_batch_size // c.num_generations),
    "group_size": (4, lambda c: c.num_generations),
    "micro_batch_size": (8, lambda c: c.per_device_train_batch_size),
    "learning_rate": (1e-6, lambda c: c.learning_rate),
    "warmup_steps": (3, lambda c: c.warmup_steps),
    "lr_scheduler": ("cosine", lambda c: c.lr_scheduler_type),
    "weight_decay": (0.01, lambda c: c.weight_decay),
    "max_grad_norm": (0.5, lambda c: c.max_grad_norm),
    "temperature": (0.7, lambda c: c.temperature),
    "loss_type": ("dr_grpo", lambda c: c.loss_type),
    "scale_rewards": ("none", lambda c: c.scale_rewards),
    "epsilon": (0.1, lambda c: c.epsilon),
    "epsilon_high": (0.4, lambda c: c.epsilon_high),
    "beta": (0.04, lambda c: c.beta),
    "updates_per_batch": (2, lambda c: c.num_iterations),
    "checkpoint_every": (6, lambda c: (c.save_strategy == "steps") * c.save_steps),
    "precision": ("bfloat16", precision_of),
}
# The curriculum acts in test_curriculum.py and in the resumed runs of test_checkpoint.py.
RL_ELSEWHERE = {"tuning", "lora", "generation", "vllm", "eval_every", "curriculum"}

SERVER = {"mode": "server", "base_url": "http://one:8000", "correction": "sequence_mask"}
COLOCATE = {
    "mode": "colocate",
    "gpu_memory_utilization": 0.3,
    "tensor_parallel_size": 1,
    "correction": "sequence_mask",
}
VLLM_KEYS: Table = {
    "base_url": ("http://two:8000", lambda c: c.vllm_server_base_url),
    "gpu_memory_utilization": (0.5, lambda c: c.vllm_gpu_memory_utilization),
    "tensor_parallel_size": (2, lambda c: c.vllm_tensor_parallel_size),
    "correction": (
        "token_truncate",
        lambda c: c.vllm_importance_sampling_correction and c.vllm_importance_sampling_mode,
    ),
}
VLLM_ELSEWHERE = {"mode"}

LORA_KEYS: Table = {
    "rank": (16, lambda c: c.r),
    "alpha": (3, lambda c: c.lora_alpha),
    "dropout": (0.25, lambda c: c.lora_dropout),
    "target_modules": (("q_proj", "v_proj"), lambda c: as_tuple(c.target_modules)),
}


def as_tuple(modules: Any) -> Any:
    """peft keeps a list of names as a set."""
    return modules if isinstance(modules, str) else tuple(sorted(modules))


def sft_params(**changed: Any) -> SftParams:
    return SftParams(**{**SFT, **changed})


def rl_params(**changed: Any) -> RlParams:
    return RlParams(**{**RL, **changed})


def test_tables_cover_every_key() -> None:
    assert set(SFT_KEYS) | SFT_ELSEWHERE == set(SftParams.model_fields)
    assert set(RL_KEYS) | RL_ELSEWHERE == set(RlParams.model_fields)
    assert set(LORA_KEYS) == set(Lora.model_fields)
    assert set(VLLM_KEYS) | VLLM_ELSEWHERE == set(VllmParams.model_fields)


@pytest.mark.parametrize("key", SFT_KEYS)
def test_sft_key_reaches_its_config(key: str, tmp_path: Path) -> None:
    value, read = SFT_KEYS[key]

    def config(params: SftParams) -> Any:
        return sft.sft_config(params, seed=5, max_length=300, scratch=tmp_path, steps=STEPS)

    assert read(config(sft_params())) == SFT[key] != value
    assert read(config(sft_params(**{key: value}))) == value


@pytest.mark.parametrize("key", RL_KEYS)
def test_rl_key_reaches_its_config(key: str, tmp_path: Path) -> None:
    value, read = RL_KEYS[key]

    def config(params: RlParams) -> Any:
        return rl.rl_config(params, seed=5, max_completion=300, scratch=tmp_path)

    assert read(config(rl_params())) == RL[key] != value
    assert read(config(rl_params(**{key: value}))) == value


@pytest.mark.parametrize("key", VLLM_KEYS)
def test_vllm_key_reaches_its_config(key: str, tmp_path: Path) -> None:
    value, read = VLLM_KEYS[key]
    section = SERVER if key in SERVER else COLOCATE

    def config(**changed: Any) -> Any:
        params = rl_params(generation="vllm", vllm={**section, **changed})
        return rl.rl_config(params, seed=5, max_completion=300, scratch=tmp_path)

    assert read(config()) == section[key] != value
    assert read(config(**{key: value})) == value


def test_generation_and_mode_reach_the_config(tmp_path: Path) -> None:
    def config(**changed: Any) -> Any:
        return rl.rl_config(rl_params(**changed), seed=5, max_completion=300, scratch=tmp_path)

    assert not config().use_vllm
    for section in (SERVER, COLOCATE):
        made = config(generation="vllm", vllm=section)
        assert made.use_vllm and made.vllm_mode == section["mode"]
        assert made.vllm_max_model_length == (300 if section is COLOCATE else None)
    off = config(generation="vllm", vllm={**SERVER, "correction": "none"})
    assert not off.vllm_importance_sampling_correction


def test_vllm_is_asked_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, int]] = []

    def ready(params: VllmParams, longest: int) -> int:
        asked.append((params.mode, longest))
        raise Seen  # before any model is loaded

    monkeypatch.setattr(rl, "check_ready", ready)
    monkeypatch.setattr(rl, "load_tokenizer", lambda folder: None)
    monkeypatch.setattr(rl, "load_model", lambda *args: pytest.fail("loaded"))
    monkeypatch.setattr(rl, "Assembler", lambda *args: SimpleNamespace(close_id=1))
    nothing: Any = None
    budgets: Any = SimpleNamespace(max_context_tokens=300)
    with pytest.raises(Seen):
        rl.train_rl(
            tmp_path,
            tmp_path / "target",
            nothing,
            [],
            [],
            rl_params(generation="vllm", vllm=SERVER),
            budgets,
            system="",
            seed=5,
            folder=CheckpointFolder(tmp_path),
        )
    assert asked == [("server", 300)]


def test_batches_are_whole_steps(tmp_path: Path) -> None:
    """Micro batches change the memory that is needed, not the size of a step."""
    for micro in (4, 8, 16):
        made: Any = sft.sft_config(
            sft_params(micro_batch_size=micro), seed=5, max_length=9, scratch=tmp_path, steps=STEPS
        )
        assert made.per_device_train_batch_size * made.gradient_accumulation_steps == 16
        assert made.per_device_eval_batch_size == micro
        made = rl.rl_config(
            rl_params(micro_batch_size=micro), seed=5, max_completion=9, scratch=tmp_path
        )
        assert made.per_device_train_batch_size * made.gradient_accumulation_steps == 32
        assert made.generation_batch_size == 32


def test_seed_and_lengths_reach_the_configs(tmp_path: Path) -> None:
    made: Any = sft.sft_config(sft_params(), seed=5, max_length=300, scratch=tmp_path, steps=STEPS)
    assert (made.seed, made.data_seed, made.max_length) == (5, 5, 300)
    made = rl.rl_config(rl_params(), seed=5, max_completion=300, scratch=tmp_path)
    assert (made.seed, made.data_seed, made.max_completion_length) == (5, 5, 300)


@pytest.mark.parametrize("key", LORA_KEYS)
def test_lora_key_reaches_the_adapter(key: str) -> None:
    value, read = LORA_KEYS[key]
    assert read(lora_config(Lora(**LORA))) == LORA[key] != value
    assert read(lora_config(Lora(**{**LORA, key: value}))) == value


def test_lora_trains_few_weights_and_full_trains_all() -> None:
    from peft import get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    from ferrata.training.models import trained_parameters

    def tiny() -> Any:
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=64,
                hidden_size=16,
                intermediate_size=32,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=2,
            )
        )

    every = sum(p.numel() for p in tiny().parameters())
    for params in (sft_params(), rl_params()):
        assert lora_config(params.lora) is None
        assert trained_parameters(tiny()) == every
    counts = {}
    for rank in (2, 4):
        for params in (
            sft_params(tuning="lora", lora={**LORA, "rank": rank}),
            rl_params(tuning="lora", lora={**LORA, "rank": rank}),
        ):
            wrapped = get_peft_model(tiny(), lora_config(params.lora))
            counts[rank] = trained_parameters(wrapped)
            assert 0 < counts[rank] < every
            trained = [name for name, p in wrapped.named_parameters() if p.requires_grad]
            assert trained and all("lora_" in name for name in trained)
    assert counts[4] == 2 * counts[2]


class Seen(Exception):
    """No error: raised in place of training, once the arguments are known."""


def test_sft_trainer_gets_adapter_and_validation_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import trl

    seen: dict[str, Any] = {}

    def trainer(**given: Any) -> None:
        seen.update(given)
        raise Seen

    monkeypatch.setattr(trl, "SFTTrainer", trainer)
    for wrapper in ("resumable", "scheduled"):
        monkeypatch.setattr(sft, wrapper, lambda trainer_class: trainer_class)
    monkeypatch.setattr(sft, "load_tokenizer", lambda folder: None)
    monkeypatch.setattr(sft, "load_model", lambda *args, **kwargs: None)
    monkeypatch.setattr(sft, "to_dataset", lambda rows, *args: list(rows))
    for asked in (3, 7):
        params = sft_params(validation_demonstrations=asked, tuning="lora", lora=LORA)
        nothing: Any = None
        with pytest.raises(Seen):
            sft.train_sft(
                tmp_path,
                tmp_path / "target",
                nothing,
                nothing,
                list(range(50)),  # type: ignore[arg-type]
                list(range(10)),  # type: ignore[arg-type]
                params,
                seed=5,
                max_length=300,
                folder=CheckpointFolder(tmp_path),
            )
        assert seen["train_dataset"] == list(range(50))
        assert seen["eval_dataset"] == list(range(asked))
        assert seen["peft_config"].r == LORA["rank"]


class FakeTrainer:
    """As much of GRPOTrainer as `train_rl` uses; its steps move nothing."""

    def __init__(self, **given: Any) -> None:
        self.given = given
        self.model, self.ref_model = object(), None
        self.accelerator = SimpleNamespace(unwrap_model=lambda model: model)
        self.state = SimpleNamespace(global_step=0, log_history=[])
        self.callbacks: list[Any] = []
        self._metrics: Any = {"train": defaultdict(list)}

    def add_callback(self, callback: Any) -> None:
        self.callbacks.append(callback)

    def log(self, values: dict[str, float]) -> None:
        pass

    def train(self, resume_from_checkpoint: str | None) -> None:
        for step in range(1, self.given["args"].max_steps + 1):
            self.state.global_step = step
            for callback in self.callbacks:
                callback.on_step_end(self.given["args"], self.state, None)


def test_rl_validates_samples_and_adapts_as_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trainers: list[FakeTrainer] = []
    synced: list[int] = []
    temperatures: list[float] = []
    dtypes: list[str] = []

    class FakeRollout:
        def __init__(
            self, tasks: Any, engine: Any, policy: Any, temperature: float, *others: Any
        ) -> None:
            temperatures.append(temperature)

        def sync(self, model: Any, step: int) -> None:
            synced.append(step)

    class FakeBest:
        score, step = 1.0, 0

        def __init__(self, folder: Path) -> None:
            pass

        def offer(self, *args: Any) -> bool:
            return False

        def publish(self, target: Path) -> None:
            pass

    def make_trainer(**given: Any) -> FakeTrainer:
        trainers.append(FakeTrainer(**given))
        return trainers[-1]

    def engine(*args: Any, **kwargs: Any) -> Any:
        return SimpleNamespace(
            play=lambda tasks, **_: [
                SimpleNamespace(success=True, task=SimpleNamespace(environment="x", band=1))
            ]
        )

    def load_model(folder: Path, dtype: Any, *args: Any) -> None:
        dtypes.append(str(dtype).removeprefix("torch."))

    monkeypatch.setattr(rl, "make_trainer_class", lambda: make_trainer)
    for wrapper in ("resumable", "scheduled"):
        monkeypatch.setattr(rl, wrapper, lambda trainer_class: trainer_class)
    monkeypatch.setattr(rl, "Rollout", FakeRollout)
    monkeypatch.setattr(rl, "Best", FakeBest)
    monkeypatch.setattr(rl, "Engine", engine)
    monkeypatch.setattr(rl, "load_model", load_model)
    monkeypatch.setattr(rl, "load_tokenizer", lambda folder: None)
    for name in ("Assembler", "TransformersPolicy"):
        monkeypatch.setattr(rl, name, lambda *args, **kwargs: SimpleNamespace(close_id=1, pad_id=0))
    monkeypatch.setattr(rl, "score_labels_only", lambda *args: None)
    monkeypatch.setattr(rl, "trained_parameters", lambda model: 1)
    nothing: Any = None
    for every, expected in ((2, [0, 2, 4, 5]), (3, [0, 3, 5])):
        synced.clear()
        params = rl_params(
            steps=5,
            eval_every=every,
            temperature=0.5 + every,
            precision="bfloat16",
            tuning="lora",
            lora=LORA,
        )
        budgets: Any = SimpleNamespace(max_context_tokens=300)
        task: Any = SimpleNamespace(id="t")
        rl.train_rl(
            tmp_path,
            tmp_path / "target",
            nothing,
            [task],
            [task],
            params,
            budgets,
            system="",
            seed=5,
            folder=CheckpointFolder(tmp_path),
        )
        assert synced == expected  # before the first step, every so many, after the last
        assert temperatures[-1] == 0.5 + every
        assert trainers[-1].given["peft_config"].r == LORA["rank"]
        assert "bfloat16" in dtypes  # the copy that plays
