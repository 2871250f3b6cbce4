"""Loading models for training, adapters, and keeping the best weights."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ferrata.errors import FerrataError
from ferrata.training.checkpoint import link_tree
from ferrata.training.launch import rank

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ferrata.config.section import Lora


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder, with its templates. Raises FerrataError if there is none."""
    from transformers import AutoTokenizer

    if not (folder / "tokenizer_config.json").is_file():
        raise FerrataError(str(folder), found="no tokenizer", hint="run `dvc repro` or `dvc pull`")
    return AutoTokenizer.from_pretrained(folder)


def load_model(folder: Path, dtype: torch.dtype, attention: str = "sdpa") -> PreTrainedModel:
    """A model folder in a dtype, on the accelerator where there is one."""
    import torch
    from transformers import AutoModelForCausalLM

    if not (folder / "config.json").is_file():
        raise FerrataError(str(folder), found="no model", hint="run `dvc repro` or `dvc pull`")
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation=attention
    )
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def lora_config(lora: Lora | None) -> Any | None:
    """The peft configuration of a section `lora`, or None for full fine-tuning."""
    if lora is None:
        return None
    from peft import LoraConfig

    targets = lora.target_modules
    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type="CAUSAL_LM",
    )


def merged_state(model: Any) -> dict[str, torch.Tensor]:
    """The weights of a model as a plain transformers model has them; adapters are added in, the
    model is unchanged. (peft's merge and unmerge would leave rounding errors in the base weights,
    more with every call.)"""
    import torch

    if not hasattr(model, "merge_adapter"):
        return dict(model.state_dict())
    from peft.tuners.lora import LoraLayer

    plain = {
        name.removeprefix("base_model.model.").replace(".base_layer", ""): value
        for name, value in model.state_dict().items()
        if "lora_" not in name
    }
    with torch.no_grad():
        for name, module in model.get_base_model().named_modules():
            if isinstance(module, LoraLayer):
                layer: Any = module  # its kinds (linear, embedding) share this method, not a type
                for adapter in layer.active_adapters:
                    weight = f"{name}.weight"
                    plain[weight] = plain[weight] + layer.get_delta_weight(adapter)
    return plain


def save_model(model: Any, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a complete folder (weights with adapters merged, tokenizer, templates): first aside,
    then renamed."""
    aside = folder.with_name(folder.name + ".partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.parent.mkdir(parents=True, exist_ok=True)
    plain = model.get_base_model() if hasattr(model, "merge_adapter") else model
    state = merged_state(model)
    if plain.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    plain.save_pretrained(aside, state_dict=state)
    tokenizer.save_pretrained(aside)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(aside, folder)


class Best:
    """Keeps the weights of the best validation score so far; higher is better, ties keep the first.

    Each best lies in a folder `best-<step>` of its own: a run that goes on from an older checkpoint
    needs the one that was best then. The checkpoints remove those that none of them names.

    Args:
        folder: git-ignored place for the weights while training runs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.score: float | None = None
        self.step = 0

    def offer(
        self, score: float, step: int, model: Any, tokenizer: PreTrainedTokenizerBase
    ) -> bool:
        """Save the weights if the score beats the best so far; returns whether it did."""
        if self.score is not None and score <= self.score:
            return False
        if rank() == 0:  # all processes have the same score
            save_model(model, tokenizer, self.folder / f"best-{step}")
        self.score, self.step = score, step
        return True

    def notes(self) -> dict[str, Any]:
        """What a checkpoint must say so that `restore` can go on from it."""
        return {"best": f"best-{self.step}", "best_score": self.score, "best_step": self.step}

    def restore(self, notes: Mapping[str, Any]) -> None:
        """Go on from the notes of a checkpoint."""
        self.score, self.step = notes["best_score"], notes["best_step"]

    def publish(self, target: Path) -> None:
        """Put the best weights where the stage's output lies; they stay in the folder too, for the
        case that the stage does not come to its end. Raises FerrataError if there was no score."""
        if self.score is None:
            raise FerrataError(
                "training",
                found="no validation score",
                expected="at least one",
                hint="lower eval_every",
            )
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        link_tree(self.folder / f"best-{self.step}", target)


def trained_parameters(model: Any) -> int:
    """Number of weights that the optimizer moves."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
