"""Reinforcement learning by acting: TRL's GRPOTrainer, with the episode engine as its
`rollout_func`.

What is experimental in TRL (`rollout_func`, the `env_mask` field) is used in this file alone.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ferrata.chat import Assembler
from ferrata.environments.base import Environment, Task
from ferrata.episodes.engine import Engine
from ferrata.episodes.policies import TransformersPolicy, resolve_dtype
from ferrata.episodes.trajectory import StopReason, Trajectory
from ferrata.episodes.vllm import VllmPolicy
from ferrata.training.checkpoint import CheckpointFolder, resumable
from ferrata.training.compact import make_trainer_class
from ferrata.training.curriculum import Curriculum, Played
from ferrata.training.draw import Drawn, draw
from ferrata.training.head import score_labels_only
from ferrata.training.launch import from_main, gather, processes, rank
from ferrata.training.models import (
    Best,
    load_model,
    load_tokenizer,
    lora_config,
    merged_state,
    trained_parameters,
)
from ferrata.training.schedule import scheduled
from ferrata.training.vllm import check_ready, vllm_settings

if TYPE_CHECKING:
    from trl import GRPOConfig

    from ferrata.config.episodes import EpisodesParams
    from ferrata.config.rl import RlParams

VALIDATION_BATCH = 64  # contexts played together when the validation tasks are played


def rl_config(params: RlParams, *, seed: int, max_completion: int, scratch: Path) -> GRPOConfig:
    """TRL's configuration. Every key of the section `rl` arrives here, in the adapter, or in the
    callback (tested).

    One generation serves `updates_per_batch` optimizer steps over all its episodes, so with 1 the
    update is on-policy.

    Args:
        max_completion: tokens; the engine keeps to its own budgets, TRL uses it as the constant of
            `dr_grpo`.
    """
    import torch
    from trl import GRPOConfig

    episodes = params.tasks_per_step * params.group_size
    return GRPOConfig(
        output_dir=str(scratch),
        max_steps=params.steps,
        per_device_train_batch_size=params.micro_batch_size,
        gradient_accumulation_steps=episodes // (params.micro_batch_size * processes()),
        num_generations=params.group_size,
        num_iterations=params.updates_per_batch,
        max_completion_length=max_completion,
        learning_rate=params.learning_rate,
        warmup_steps=params.warmup_steps,
        lr_scheduler_type=params.lr_scheduler,
        weight_decay=params.weight_decay,
        max_grad_norm=params.max_grad_norm,
        temperature=params.temperature,
        loss_type=params.loss_type,
        scale_rewards=params.scale_rewards,
        epsilon=params.epsilon,
        epsilon_high=params.epsilon_high,
        beta=params.beta,
        bf16=resolve_dtype(params.precision) == torch.bfloat16,
        gradient_checkpointing=False,
        save_strategy="steps" if params.checkpoint_every else "no",
        save_steps=params.checkpoint_every or 1,
        shuffle_dataset=False,  # the rows come in the order of `draw_order`
        logging_steps=1,
        report_to="none",
        seed=seed,
        data_seed=seed,
        use_cpu=not torch.cuda.is_available(),
        **vllm_settings(params.vllm, max_completion),
    )


def episode_return(prompts: list[str], returns: list[float], **_: Any) -> list[float]:
    """TRL's reward function: the return that the environment gave, carried through by the
    rollout."""
    return returns


class Rollout:
    """Plays the tasks that TRL asks for. TRL passes prompts only, so a prompt is a task's id.

    The weights are played from a copy in the rollout's dtype (merged, where adapters are trained),
    refreshed whenever the optimizer has moved them. vLLM has the copy, where it generates.

    Args:
        tasks: those that may be asked for; a prompt is a task's id.
        engine: plays with `policy`.
        policy: holds the copy of the weights.
        temperature, seed: of sampling; with step, task and sample they key its random numbers.
        curriculum: says what is played instead of a task that is too hard yet; None: nothing.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        engine: Engine,
        policy: TransformersPolicy | VllmPolicy,
        temperature: float,
        seed: int,
        curriculum: Curriculum | None = None,
    ) -> None:
        self._tasks = {task.id: task for task in tasks}
        self._engine = engine
        self._policy = policy
        self._temperature = temperature
        self._seed = seed
        self._curriculum = curriculum
        self._synced: int | None = None

    def sync(self, model: Any, step: int) -> None:
        """Copy the weights that are being trained into the policy, once per optimizer step."""
        if self._synced == step:
            return
        if isinstance(self._policy, VllmPolicy):
            self._policy.sync(step)
            self._synced = step
            return
        state = merged_state(model)
        own = self._policy.model.state_dict()
        missing = own.keys() - state.keys()
        if missing:
            raise RuntimeError(
                f"weights that the trained model does not have: {sorted(missing)[:3]}"
            )
        for name, value in own.items():
            value.copy_(state[name])
        self._synced = step

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        """TRL's `rollout_func`: prompts come repeated `num_generations` times in group order."""
        step = trainer.state.global_step
        self.sync(trainer.accelerator.unwrap_model(trainer.model), step)
        seen: Counter[str] = Counter()
        samples = []
        for task_id in prompts:
            samples.append(seen[task_id])
            seen[task_id] += 1
        tasks = [self._tasks[task_id] for task_id in prompts]
        if self._curriculum is not None:
            tasks = [self._curriculum.choose(task, step) for task in tasks]
            for name, level in self._curriculum.levels.items():
                trainer._metrics["train"][f"curriculum/{name}"].append(level)
        played = self._engine.play(
            tasks,
            temperature=self._temperature,
            seed=self._seed,
            step=step,
            samples=samples,
        )
        shares = gather([behaviour(played)])  # every process plays equally many
        for name in shares[0]:
            value = sum(share[name] for share in shares) / len(shares)
            trainer._metrics["train"][f"episodes/{name}"].append(value)
        for name, value in success_of_each(gather(played_success(played))).items():
            trainer._metrics["train"][f"episodes/success/{name}"].append(value)
        drawn = draw(played, seed=self._seed, step=step)
        trainer.row_weights = [row.weight for row in drawn]
        return to_trl(drawn)


def to_trl(drawn: Sequence[Drawn]) -> dict[str, list[Any]]:
    """Contexts in TRL's terms: what comes behind the prompt is the completion, `env_mask` is 1 on
    sampled tokens."""
    contexts = [row.context for row in drawn]
    return {
        "prompt_ids": [c.ids[: c.prompt_length] for c in contexts],
        "completion_ids": [c.ids[c.prompt_length :] for c in contexts],
        "logprobs": [c.logprobs[c.prompt_length :] for c in contexts],
        "env_mask": [c.mask[c.prompt_length :] for c in contexts],
        "returns": [row.value for row in drawn],
    }


def behaviour(played: Sequence[Trajectory]) -> dict[str, float]:
    """Means over episodes, and the share of each stop reason."""
    n = len(played)
    stops = Counter(trajectory.stop for trajectory in played)
    return {
        "success": sum(t.success for t in played) / n,
        "calls": sum(t.calls for t in played) / n,
        "invalid_calls": sum(t.invalid_calls for t in played) / n,
        "failed_calls": sum(t.failed_calls for t in played) / n,
        "turns": sum(t.turns for t in played) / n,
        "tokens": sum(t.tokens for t in played) / n,
        **{f"stop/{reason}": stops[reason] / n for reason in StopReason},
    }


def played_success(played: Sequence[Trajectory]) -> list[Played]:
    """What each episode says of its capability."""
    return [Played(t.task.environment, t.task.band, t.success) for t in played]


def success_of_each(played: Sequence[Played]) -> dict[str, float]:
    """Share of successes per capability."""
    names = sorted({p.environment for p in played})
    groups = {name: [p.success for p in played if p.environment == name] for name in names}
    return {name: sum(group) / len(group) for name, group in groups.items()}


def draw_order(tasks: Sequence[Task], rows: int, seed: int) -> list[str]:
    """Ids of the tasks in the order in which RL draws them: all in a shuffled order, then all in
    another, until there are `rows`. One pass of the trainer goes over the list: with several, its
    sampler would have to be brought back to the epoch of a checkpoint."""
    order: list[str] = []
    while len(order) < rows:
        epoch = random.Random(f"{seed}/{len(order) // len(tasks)}").sample(tasks, len(tasks))
        order += [task.id for task in epoch]
    return order[:rows]


def train_rl(
    start: Path,
    target: Path,
    environment: Environment,
    train: Sequence[Task],
    validation: Sequence[Task],
    params: RlParams,
    budgets: EpisodesParams,
    *,
    system: str,
    seed: int,
    folder: CheckpointFolder,
    callbacks: Sequence[Any] = (),
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Train the model of `start` and leave the weights that solved most validation tasks (greedily)
    in `target`.

    The starting weights are a candidate too: training that only harms leaves them. Goes on from
    the newest checkpoint in `folder`, with the same result as if it had never stopped.

    Returns:
        The Trainer's log history (validation_success at its steps), behind: steps, best_step,
        validation_success (best), validation_success_start, episodes, trained_parameters.
    """
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback

    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    tokenizer = load_tokenizer(start)
    assembler = Assembler(tokenizer, system)
    policy: TransformersPolicy | VllmPolicy
    if params.vllm is None:
        copy = load_model(start, resolve_dtype(params.precision))
        size = max(params.tasks_per_step * params.group_size, VALIDATION_BATCH)
        policy = TransformersPolicy(copy, assembler.close_id, size)
    else:
        longest = check_ready(params.vllm, budgets.max_context_tokens)
        policy = VllmPolicy(assembler.close_id, longest)
    engine = Engine(environment, assembler, policy, budgets)
    curriculum = None
    if params.curriculum is not None:
        curriculum = Curriculum(train, params.curriculum.threshold, seed)
    rollout = Rollout(train, engine, policy, params.temperature, seed, curriculum)
    best = Best(folder.path)
    wanted = params.tasks_per_step * -(-params.steps // params.updates_per_batch)
    trainer = resumable(scheduled(make_trainer_class()))(
        model=load_model(start, torch.float32),
        reward_funcs=[episode_return],
        args=rl_config(
            params, seed=seed, max_completion=budgets.max_context_tokens, scratch=folder.scratch
        ),
        train_dataset=Dataset.from_dict({"prompt": draw_order(train, wanted, seed)}),
        processing_class=tokenizer,
        rollout_func=rollout,
        peft_config=lora_config(params.lora),
        callbacks=list(callbacks),
    )
    if isinstance(policy, VllmPolicy):
        policy.attach(trainer)

    score_labels_only(trainer.model, params.temperature)
    if trainer.ref_model is not None:
        # TRL scores with it outside of autocast: in float32 that takes five times as long.
        trainer.ref_model.to(resolve_dtype(params.precision))
        score_labels_only(trainer.ref_model, params.temperature)

    def validate(step: int) -> dict[str, float]:
        rollout.sync(trainer.accelerator.unwrap_model(trainer.model), step)
        own = validation[rank() :: processes()]
        played = gather(played_success(engine.play(own, temperature=0.0, seed=seed)))
        success = sum(p.success for p in played) / len(played)
        if curriculum is not None:
            curriculum.update(played)
        values = {"validation_success": success}
        for name, share in success_of_each(played).items():
            values[f"validation_success/{name}"] = share
        best.offer(success, step, trainer.accelerator.unwrap_model(trainer.model), tokenizer)
        return values

    class Validate(TrainerCallback):
        """Plays the validation tasks every `eval_every` steps, and after the last."""

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % params.eval_every == 0 or state.global_step == params.steps:
                # Not `trainer.log`: the Trainer would then leave out its own entry of this step.
                for name, value in validate(state.global_step).items():
                    trainer._metrics["train"][name].append(value)

    trainer.add_callback(Validate())
    checkpoint = from_main(folder.latest)
    if checkpoint is None:
        first = validate(0)
        trainer.log(first)
    else:
        first = checkpoint.notes["validation_start"]
        best.restore(checkpoint.notes)
        if curriculum is not None:
            curriculum.restore(checkpoint.notes["curriculum"])
        print(f"rl: going on from step {checkpoint.step} of {params.steps}", flush=True)
    trainer.checkpoint_folder = folder
    trainer.checkpoint_notes = lambda: {
        **best.notes(),
        "validation_start": first,
        **({"curriculum": curriculum.levels} if curriculum else {}),
    }
    trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint.folder))
    history = [{"step": 0, **first}, *trainer.state.log_history]
    if rank() == 0:
        best.publish(target)
    assert best.score is not None
    steps = trainer.state.global_step
    metrics = {
        "steps": steps,
        "best_step": best.step,
        "validation_success": best.score,
        "validation_success_start": first["validation_success"],
        "episodes": steps * params.tasks_per_step * params.group_size // params.updates_per_batch,
        "trained_parameters": trained_parameters(trainer.model),
    }
    return metrics, history
