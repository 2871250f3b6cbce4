"""RL with vLLM: weights, a whole training, and what is asked before one, against a stand-in."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vllm_stand_in import StandIn, trainer_of

from ferrata.config.episodes import EpisodesParams
from ferrata.config.rl import RlParams
from ferrata.config.vllm import VllmParams
from ferrata.environments.base import Reply, Step, Task
from ferrata.environments.tool_use import ToolUse
from ferrata.episodes.vllm import VllmPolicy
from ferrata.errors import FerrataError
from ferrata.training.checkpoint import CheckpointFolder
from ferrata.training.rl import Rollout, train_rl
from ferrata.training.vllm import check_ready, check_server

Limits = Callable[..., EpisodesParams]


@pytest.mark.parametrize("lora", [False, True])
def test_weights_go_to_the_server_once_a_step(
    server: StandIn, tiny: tuple[Any, Any], lora: bool
) -> None:
    import torch
    from peft import LoraConfig, get_peft_model

    from ferrata.training.models import merged_state

    model = copy.deepcopy(tiny[0])
    if lora:
        model = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear"))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape) * 0.1)
    policy = VllmPolicy(5)
    policy.attach(trainer_of(model, tiny[1], mode="server", server_base_url=server.url))
    nothing: Any = None
    rollout = Rollout([], nothing, policy, 1.0, 0)
    for step in (0, 0, 1):
        rollout.sync(model, step)
    policy._attached()._last_loaded_step = 2  # TRL sent them before its rollout
    rollout.sync(model, 2)
    expected_calls = ("/start_weight_update", "/update_weights", "/finish_weight_update")
    assert all(server.calls[path] == 2 for path in (*expected_calls, "/reset_prefix_cache"))
    state = merged_state(model)
    assert any(not torch.equal(v, state[k]) for k, v in tiny[0].named_parameters())
    for name, value in server.model.named_parameters():
        assert torch.allclose(value, state[name], atol=1e-6), name


RL = {
    "tuning": "full",
    "generation": "vllm",
    "steps": 2,
    "tasks_per_step": 2,
    "group_size": 4,
    "micro_batch_size": 4,
    "learning_rate": 1e-2,
    "warmup_steps": 0,
    "lr_scheduler": "constant",
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "temperature": 1.0,
    "loss_type": "dapo",
    "scale_rewards": "group",
    "epsilon": 0.2,
    "epsilon_high": 0.2,
    "beta": 0.0,
    "curriculum": None,
    "updates_per_batch": 1,
    "eval_every": 2,
    "checkpoint_every": 0,
    "precision": "float32",
}


class Easy(ToolUse):
    """Pays for what a random model does now and then: closing its turn."""

    def start(self, task: Task) -> Any:
        world = super().start(task)

        def step(agent: str, reply: Reply) -> Step:
            return Step(observations={}, rewards={agent: {"answer": 1.0}}, done=True, success=True)

        world.step = step  # type: ignore[method-assign]
        return world


@pytest.mark.parametrize("correction", ["sequence_mask", "token_truncate", "none"])
def test_training_plays_through_the_server(
    server: StandIn,
    tiny: tuple[Any, Any],
    tasks: list[Task],
    limits: Limits,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    correction: str,
) -> None:
    import torch

    from ferrata.training import rl

    tiny[0].save_pretrained(tmp_path / "start")
    tiny[1].save_pretrained(tmp_path / "start")
    vllm = {"mode": "server", "base_url": server.url, "correction": correction}
    monkeypatch.setattr(  # without its questions about vLLM and CUDA on this side
        rl, "check_ready", lambda p, longest: check_server(p.base_url, longest, wait_s=0)
    )
    metrics, history = train_rl(
        tmp_path / "start",
        tmp_path / "target",
        Easy(),
        tasks[:4],
        tasks[4:],
        RlParams(**{**RL, "vllm": vllm}),  # type: ignore[arg-type]
        limits(max_turns=1, max_turn_tokens=60, max_context_tokens=1000),
        system="Use tools.",
        seed=3,
        folder=CheckpointFolder(tmp_path),
    )
    assert metrics["steps"] == 2
    # validation before, rollout, rollout, validation behind: the weights went once per step
    assert [ask["temperature"] for ask in server.completions] == [0, 1.0, 1.0, 0]
    assert [len(ask["prompt"]) for ask in server.completions] == [2, 8, 8, 2]
    assert server.calls["/update_weights"] == 3  # steps 0, 1 and 2
    moved = [
        not torch.equal(value, start)
        for value, start in zip(server.model.parameters(), tiny[0].parameters(), strict=True)
    ]
    assert any(moved)
    ratios = [
        row["sampling/importance_sampling_ratio/mean"]
        for row in history
        if "sampling/importance_sampling_ratio/mean" in row
    ]
    assert len(ratios) == (0 if correction == "none" else 2)
    # what the server sampled from is what is trained: nothing is there to be corrected
    assert ratios == pytest.approx([1.0] * len(ratios), abs=1e-3)


SERVER = {"mode": "server", "base_url": "http://127.0.0.1:1", "correction": "none"}


def test_without_vllm_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    import ferrata.training.vllm as module

    params = VllmParams.model_validate(SERVER)
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(FerrataError) as caught:
        check_ready(params, 100)
    text = str(caught.value)
    assert "rl.generation" in text and "not installed" in text and "docs/vllm.md" in text


def test_a_server_needs_a_cuda_device_here(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    import ferrata.training.vllm as module

    monkeypatch.setattr(module, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(FerrataError, match=r"rl\.vllm\.mode"):
        check_ready(VllmParams.model_validate(SERVER), 100)
    colocate = {
        "mode": "colocate",
        "gpu_memory_utilization": 0.3,
        "tensor_parallel_size": 1,
        "correction": "none",
    }
    assert check_ready(VllmParams.model_validate(colocate), 100) is None


def test_a_server_is_asked_before_anything_is_loaded(server: StandIn) -> None:
    def refused() -> str:
        with pytest.raises(FerrataError) as caught:
            check_server(server.url + "/", 2048, wait_s=0)
        return str(caught.value)

    assert check_server(server.url + "/", 2048, wait_s=0) == 2048
    with pytest.raises(FerrataError, match=r"episodes\.max_context_tokens"):
        check_server(server.url, 2049, wait_s=0)
    server.config["model_config"]["logprobs_mode"] = "raw_logprobs"
    assert "--logprobs-mode raw_logprobs" in refused()
    server.config["weight_transfer_config"] = None
    assert "--weight-transfer-config" in refused()
    server.developing = False
    assert "VLLM_SERVER_DEV_MODE=1" in refused()
    server.up = False
    assert "no vLLM server at http://127.0.0.1" in refused()
    threading.Timer(0.3, lambda: setattr(server, "up", True)).start()
    server.developing = True
    with pytest.raises(FerrataError, match=r"rl\.vllm\.base_url"):  # it came up, but cannot serve
        check_server(server.url, 9, wait_s=5)
