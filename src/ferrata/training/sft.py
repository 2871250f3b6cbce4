"""Supervised fine-tuning on demonstrations, with TRL's SFTTrainer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ferrata.chat import Assembler
from ferrata.environments.base import Demonstration, Environment
from ferrata.episodes.policies import resolve_dtype
from ferrata.training.checkpoint import CheckpointFolder, resumable
from ferrata.training.head import score_labels_only
from ferrata.training.launch import from_main, processes, rank
from ferrata.training.models import (
    Best,
    load_model,
    load_tokenizer,
    lora_config,
    trained_parameters,
)
from ferrata.training.schedule import scheduled

if TYPE_CHECKING:
    from datasets import Dataset
    from trl import SFTConfig

    from ferrata.config.sft import SftParams


def to_dataset(
    demonstrations: Sequence[Demonstration], environment: Environment, assembler: Assembler
) -> Dataset:
    """Rows of `input_ids` and `assistant_masks` (equal lengths), from the one assembler; a row per
    context."""
    from datasets import Dataset

    encoded = [
        assembler.encode(messages, environment.tools(d.task))
        for d in demonstrations
        for messages in d.contexts()
    ]
    return Dataset.from_dict(
        {"input_ids": [e.ids for e in encoded], "assistant_masks": [e.mask for e in encoded]}
    )


def sft_config(
    params: SftParams, *, seed: int, max_length: int, scratch: Path, steps: int
) -> SFTConfig:
    """TRL's configuration. Every key of the section `sft` arrives here, in the adapter, or in the
    callback (tested).

    Args:
        max_length: tokens; `prepare` has refused longer rows, so nothing is cut.
        steps: total number of optimizer steps, for the warm-up.
    """
    import torch
    from trl import SFTConfig

    return SFTConfig(
        output_dir=str(scratch),
        num_train_epochs=params.epochs,
        per_device_train_batch_size=params.micro_batch_size,
        per_device_eval_batch_size=params.micro_batch_size,
        gradient_accumulation_steps=params.batch_size // (params.micro_batch_size * processes()),
        learning_rate=params.learning_rate,
        warmup_steps=round(params.warmup_ratio * steps),
        weight_decay=params.weight_decay,
        max_grad_norm=params.max_grad_norm,
        lr_scheduler_type="linear",
        eval_strategy="steps",
        eval_steps=params.eval_every,
        bf16=resolve_dtype(params.precision) == torch.bfloat16,
        max_length=max_length,
        gradient_checkpointing=False,
        save_strategy="steps" if params.checkpoint_every else "no",
        save_steps=params.checkpoint_every or 1,
        logging_steps=1,
        report_to="none",
        seed=seed,
        data_seed=seed,
        use_cpu=not torch.cuda.is_available(),
        dataset_num_proc=None,
    )


def train_sft(
    base: Path,
    target: Path,
    environment: Environment,
    assembler: Assembler,
    train: Sequence[Demonstration],
    validation: Sequence[Demonstration],
    params: SftParams,
    *,
    seed: int,
    max_length: int,
    folder: CheckpointFolder,
    callbacks: Sequence[Any] = (),
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Fine-tune `base` and leave the weights of the lowest validation loss in `target`.

    Goes on from the newest checkpoint in `folder`, with the same result as if it had never stopped.

    Returns:
        The Trainer's log history, behind: steps, best_step, loss (nats per assistant token, mean
        over steps), validation_loss (best), trained_parameters.
    """
    import math

    import torch
    from transformers import TrainerCallback
    from trl import SFTTrainer

    tokenizer = load_tokenizer(base)
    model = load_model(base, torch.float32)
    best = Best(folder.path)
    rows = to_dataset(train, environment, assembler)
    steps = math.ceil(params.epochs * math.ceil(len(rows) / params.batch_size))
    trainer = resumable(scheduled(SFTTrainer))(
        model=model,
        args=sft_config(
            params, seed=seed, max_length=max_length, scratch=folder.scratch, steps=steps
        ),
        train_dataset=rows,
        eval_dataset=to_dataset(
            validation[: params.validation_demonstrations], environment, assembler
        ),
        processing_class=tokenizer,
        peft_config=lora_config(params.lora),
        callbacks=list(callbacks),
    )

    score_labels_only(trainer.model)

    class KeepBest(TrainerCallback):
        """Offers the weights after every validation."""

        def on_evaluate(
            self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any
        ) -> None:
            best.offer(-metrics["eval_loss"], state.global_step, trainer.model, tokenizer)

    trainer.add_callback(KeepBest())
    checkpoint = from_main(folder.latest)
    if checkpoint is not None:
        best.restore(checkpoint.notes)
        print(f"sft: going on from step {checkpoint.step} of {steps}", flush=True)
    trainer.checkpoint_folder, trainer.checkpoint_notes = folder, best.notes
    trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint.folder))
    if trainer.state.global_step % params.eval_every:
        trainer.evaluate()
    if rank() == 0:
        best.publish(target)
    assert best.score is not None
    # The Trainer's own mean counts from the last resume on.
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    metrics = {
        "steps": trainer.state.global_step,
        "best_step": best.step,
        "loss": sum(losses) / len(losses),
        "validation_loss": -best.score,
        "trained_parameters": trained_parameters(trainer.model),
    }
    return metrics, trainer.state.log_history
