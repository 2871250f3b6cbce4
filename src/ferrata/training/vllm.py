"""vLLM for training: TRL's settings, and whether it can work, asked before anything is loaded."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from importlib.util import find_spec
from typing import Any

from ferrata.config.vllm import VllmParams
from ferrata.errors import FerrataError

WAIT_S = 240.0  # for a server that is still starting; what TRL waits, too
POLL_S = 2.0
SEE = "docs/vllm.md has the server's command"


def vllm_settings(params: VllmParams | None, max_context_tokens: int) -> dict[str, Any]:
    """The part of TRL's GRPOConfig that is about vLLM; nothing without the section."""
    if params is None:
        return {}
    settings: dict[str, Any] = {
        "use_vllm": True,
        "vllm_mode": params.mode,
        "vllm_importance_sampling_correction": params.correction != "none",
    }
    if params.correction != "none":
        settings["vllm_importance_sampling_mode"] = params.correction
    if params.mode == "server":
        settings["vllm_server_base_url"] = params.base_url
    else:
        settings["vllm_gpu_memory_utilization"] = params.gpu_memory_utilization
        settings["vllm_tensor_parallel_size"] = params.tensor_parallel_size
        settings["vllm_max_model_length"] = max_context_tokens
    return settings


def check_ready(
    params: VllmParams, max_context_tokens: int, *, wait_s: float = WAIT_S
) -> int | None:
    """Ask whether vLLM can generate as parameters say.

    Args:
        max_context_tokens: tokens that a context may reach.
        wait_s: seconds that a server has to come up.

    Returns:
        Tokens of the longest context that the server accepts; None in mode colocate.

    Raises:
        FerrataError: vLLM is not installed; there is no CUDA device to send weights from; the
            server does not answer, or runs without what training needs.
    """
    if find_spec("vllm") is None:
        raise FerrataError(
            "rl.generation",
            found="vllm, which is not installed in this environment",
            expected="transformers, or an environment with vLLM",
            hint="set rl.generation: transformers, or install vLLM as docs/vllm.md says",
        )
    if params.mode == "colocate":
        return None
    import torch

    if not torch.cuda.is_available():
        raise FerrataError(
            "rl.vllm.mode",
            found="server, and no CUDA device in this process",
            expected="a CUDA device: weights go to the server through NCCL",
            hint="train on a GPU, or set rl.generation: transformers",
        )
    assert params.base_url is not None
    return check_server(params.base_url, max_context_tokens, wait_s=wait_s)


def check_server(base_url: str, max_context_tokens: int, *, wait_s: float) -> int:
    """Ask a server for its configuration; arguments, result and errors as of `check_ready`."""
    base_url = base_url.rstrip("/")
    _wait(f"{base_url}/health", base_url, wait_s)
    try:
        with urllib.request.urlopen(f"{base_url}/server_info?config_format=json") as response:
            config = json.load(response)["vllm_config"]
    except urllib.error.HTTPError as error:
        raise FerrataError(
            "rl.vllm.base_url",
            found=f"a server that does not show its configuration (status {error.code})",
            expected="a vLLM server with VLLM_SERVER_DEV_MODE=1 in its environment",
            hint=f"start it with that variable; {SEE}",
        ) from error
    if config["weight_transfer_config"] is None:
        raise FerrataError(
            "rl.vllm.base_url",
            found="a server that takes no weights",
            expected="""--weight-transfer-config '{"backend": "nccl"}'""",
            hint=f"start it with that option; {SEE}",
        )
    model = config["model_config"]
    if model["logprobs_mode"] != "processed_logprobs":
        raise FerrataError(
            "rl.vllm.base_url",
            found=f"a server with --logprobs-mode {model['logprobs_mode']}",
            expected="processed_logprobs: those of the distribution that was sampled from",
            hint=f"start it with that option; {SEE}",
        )
    longest = int(model["max_model_len"])
    if longest < max_context_tokens:
        raise FerrataError(
            "episodes.max_context_tokens",
            found=f"{max_context_tokens}, and a server that takes {longest}",
            expected=f"at most {longest} tokens",
            hint=f"start the server with --max-model-len {max_context_tokens}, or lower the budget",
        )
    return longest


def _wait(url: str, base_url: str, wait_s: float) -> None:
    end = time.monotonic() + wait_s
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10):
                return
        except OSError as error:  # refused, unknown host, time-out, error status: not up yet
            if time.monotonic() >= end:
                raise FerrataError(
                    "rl.vllm.base_url",
                    found=f"no vLLM server at {base_url} after {wait_s:.0f} s ({error})",
                    expected="a running server",
                    hint=f"start it, or correct the address; {SEE}",
                ) from error
        time.sleep(min(POLL_S, max(0.0, end - time.monotonic())))
