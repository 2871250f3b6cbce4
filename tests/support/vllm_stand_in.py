"""A stand-in for vLLM on a machine that has none, for TRL's own `VLLMGeneration` and `VLLMClient`.

The server speaks as much of the HTTP protocol of `vllm serve` as TRL 1.16 uses, and answers from
the tests' tiny model. What is replaced on this side is what cannot be without vLLM and a GPU: the
check that vLLM is installed, and the NCCL connection, which is a queue here. What is left untested
is vLLM itself: its kernels, its sampler, NCCL, and several GPUs.
"""

from __future__ import annotations

import copy
import json
import math
import queue
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from ferrata.episodes.vllm import VllmPolicy


def continue_context(model: Any, ids: Sequence[int], ask: Any) -> tuple[list[int], list[float]]:
    """What vLLM promises for one request: tokens, and log-probabilities after temperature."""
    import torch

    out: list[int] = []
    logprobs: list[float] = []
    cache, new = None, list(ids)
    with torch.inference_mode():
        while len(out) < ask["max_tokens"]:
            step = model(torch.tensor([new]), past_key_values=cache, use_cache=True)
            cache, logits_V = step.past_key_values, step.logits[0, -1].float()
            greedy = ask["temperature"] == 0
            logprobs_V = (logits_V if greedy else logits_V / ask["temperature"]).log_softmax(-1)
            chosen = logprobs_V.argmax() if greedy else torch.multinomial(logprobs_V.exp(), 1)[0]
            new = [int(chosen)]
            out += new
            logprobs.append(float(logprobs_V[chosen]))
            if new[0] in ask["stop_token_ids"]:
                break
    return out, logprobs


class StandIn(ThreadingHTTPServer):
    """As much of `vllm serve` as TRL's client uses."""

    daemon_threads = True

    def __init__(self, model: Any) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.model = copy.deepcopy(model).eval()
        self.longest = 2048
        self.config: dict[str, Any] = {
            "weight_transfer_config": {"backend": "nccl"},
            "model_config": {"logprobs_mode": "processed_logprobs", "max_model_len": self.longest},
        }
        self.up = self.developing = True
        self.nan = False  # whether the first log-probability of an answer is unknown
        self.completions: list[dict[str, Any]] = []
        self.calls: Counter[str] = Counter()
        self.weights: queue.Queue[tuple[str, Any]] = queue.Queue()  # in place of NCCL
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def complete(self, ask: dict[str, Any]) -> tuple[int, Any]:
        self.completions.append(ask)
        assert ask["model"] == "tiny" and ask["n"] == 1 and ask["logprobs"] == 0
        assert ask["return_token_ids"] and ask["return_tokens_as_token_ids"]
        assert (ask["top_p"], ask["top_k"], ask["min_p"]) == (1.0, 0, 0.0)
        assert ask["repetition_penalty"] == 1.0 and ask["ignore_eos"] and ask["max_tokens"] >= 1
        if not ask["prompt"]:
            return 400, {"error": "no prompt"}
        if max(map(len, ask["prompt"])) + ask["max_tokens"] > self.longest:
            return 400, {"error": "maximum context length"}
        choices = []
        for index, ids in enumerate(ask["prompt"]):
            tokens, logprobs = continue_context(self.model, ids, ask)
            if self.nan:
                logprobs[0] = math.nan
            names = [f"token_id:{token}" for token in tokens]
            tops = [{name: value} for name, value in zip(names, logprobs, strict=True)]
            choices.append(
                {
                    "index": index,
                    "prompt_token_ids": ids,
                    "token_ids": tokens,
                    "logprobs": {
                        "tokens": names,
                        "token_logprobs": logprobs,
                        "top_logprobs": tops,
                    },
                }
            )
        return 200, {"choices": choices}

    def update(self, info: dict[str, Any]) -> tuple[int, Any]:
        import torch

        own = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, dtype, shape in zip(
                info["names"], info["dtype_names"], info["shapes"], strict=True
            ):
                sent, value = self.weights.get(timeout=20)
                assert (sent, str(value.dtype), list(value.shape)) == (
                    name,
                    f"torch.{dtype}",
                    shape,
                )
                own[name].copy_(value)
        assert set(info["names"]) == set(own)
        return 200, {}


class Handler(BaseHTTPRequestHandler):
    server: StandIn

    def log_message(self, *args: Any) -> None:
        pass

    def answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        bodies = {
            "/health": {},
            "/v1/models": {"data": [{"id": "tiny"}]},
            "/server_info": {"vllm_config": self.server.config},
            "/get_world_size": {"world_size": 1},
        }
        hidden = path == "/server_info" and not self.server.developing
        status = 503 if not self.server.up else 404 if hidden or path not in bodies else 200
        self.answer(status, bodies.get(path))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        ask = json.loads(body) if body else {}
        self.server.calls[self.path] += 1
        known = ("/start_weight_update", "/finish_weight_update", "/reset_prefix_cache")
        try:
            if self.path == "/v1/completions":
                status, answer = self.server.complete(ask)
            elif self.path == "/update_weights":
                status, answer = self.server.update(ask["update_info"])
            else:
                status, answer = (200 if self.path in known else 404), {"success": True}
        except Exception as error:  # as an answer that TRL does not try again
            status, answer = 400, {"error": repr(error)}
        self.answer(status, answer)


@contextmanager
def running(model: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """A stand-in that runs, and TRL's modules as if vLLM were installed."""
    from trl.generation import vllm_client, vllm_generation

    stand_in = StandIn(model)
    thread = threading.Thread(target=stand_in.serve_forever, args=(0.02,), daemon=True)
    thread.start()

    def send(iterator: Iterator[tuple[str, Any]], trainer_args: Any) -> None:
        for name, value in iterator:
            stand_in.weights.put((name, value.detach().clone()))

    engine = SimpleNamespace(trainer_send_weights=send)
    monkeypatch.setattr(vllm_client, "NCCLWeightTransferEngine", engine, raising=False)
    monkeypatch.setattr(vllm_client, "NCCLTrainerSendWeightsArgs", SimpleNamespace, raising=False)
    monkeypatch.setattr(vllm_client, "is_vllm_available", lambda *_: True)
    monkeypatch.setattr(vllm_generation, "is_vllm_available", lambda *_: True)
    monkeypatch.setattr(vllm_client.VLLMClient, "init_communicator", lambda *_, **__: None)
    yield stand_in
    stand_in.shutdown()
    stand_in.server_close()
    thread.join()


def trainer_of(model: Any, tokenizer: Any, **settings: Any) -> Any:
    """As much of a trainer as the policy uses, around TRL's own VLLMGeneration."""
    from accelerate import Accelerator
    from trl.generation.vllm_generation import VLLMGeneration

    generation = VLLMGeneration(
        model, Accelerator(cpu=True), tokenizer, temperature=0.9, **settings
    )
    return SimpleNamespace(vllm_generation=generation, _last_loaded_step=-1)


def policy_of(server: StandIn, tiny: tuple[Any, Any], close_id: int) -> VllmPolicy:
    policy = VllmPolicy(close_id, server.longest)
    policy.attach(trainer_of(*tiny, mode="server", server_base_url=server.url))
    return policy


class LocalEngine:
    """In place of vLLM's `LLM` in mode colocate."""

    def __init__(self, model: Any) -> None:
        self.model = copy.deepcopy(model).eval()
        own = dict(self.model.named_parameters())
        runner = SimpleNamespace(
            model=SimpleNamespace(
                load_weights=lambda pairs: [own[name].data.copy_(value) for name, value in pairs]
            )
        )
        worker = SimpleNamespace(model_runner=runner)
        executor = SimpleNamespace(driver_worker=worker)
        self.llm_engine = SimpleNamespace(model_executor=executor)
        self.resets = 0

    def reset_prefix_cache(self) -> None:
        self.resets += 1

    def generate(self, prompts: Any, sampling_params: Any, use_tqdm: bool) -> list[Any]:
        outputs = []
        for prompt in prompts:
            ids, logprobs = continue_context(
                self.model, prompt["prompt_token_ids"], vars(sampling_params)
            )
            tops = [
                {token: SimpleNamespace(logprob=value, rank=3)}
                for token, value in zip(ids, logprobs, strict=True)
            ]
            one = SimpleNamespace(token_ids=ids, logprobs=tops)
            outputs.append(SimpleNamespace(prompt_token_ids=None, outputs=[one]))
        return outputs
