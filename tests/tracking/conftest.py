"""A real sqlite store per module (it takes seconds), a real git project, a tiny real model."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferrata.tracking import store

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for key in list(os.environ):
        if key.startswith(("MLFLOW_", "DVC_")) or key == "RANK":
            monkeypatch.delenv(key)
    store.prepare_environment()  # through os.environ, so undone below
    yield
    for key in list(os.environ):
        if key.startswith("MLFLOW_"):
            del os.environ[key]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    (root / "params.yaml").write_text("seed: 1\n")
    (root / "dvc.yaml").write_text("stages:\n  sft:\n    cmd: x\n    deps: [data/a, src/b]\n")
    (root / "dvc.lock").write_text(
        "stages:\n"
        "  prepare:\n    outs:\n    - {path: data/a, md5: '0123'}\n"
        "  sft:\n    deps:\n    - {path: data/a, md5: stale}\n"
        "    outs:\n    - {path: models/sft, md5: old}\n"
    )
    (root / ".gitignore").write_text("/mlflow.db*\n/mlartifacts/\n/.mlflow-offline/\n/models/\n")
    git = ["git", "-C", str(root), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "start"], check=True)
    return root


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "rl"
    write_model(folder, seed=0)
    return folder


@pytest.fixture
def make_model() -> Callable[..., None]:
    return write_model


def write_model(folder: Path, *, seed: int) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = make_tokenizer()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model: Any = LlamaForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    raw.train_from_iterator(["What do two pens at 3.50 cost? Answer: 7.00 " * 5], trainer)
    wrap: Any = PreTrainedTokenizerFast
    return wrap(
        tokenizer_object=raw,
        pad_token=special[0],
        bos_token=special[1],
        eos_token=special[2],
        chat_template=TEMPLATE,
        padding_side="right",
    )
