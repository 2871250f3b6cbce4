"""One rank of `test_ranks_go_on_until_none_has_a_live_context`: URL, meeting file, result file."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from accelerate import Accelerator
from trl.generation import vllm_client, vllm_generation

from ferrata.episodes.policies import Continuation, Prompt, Sampled
from ferrata.episodes.vllm import VllmPolicy


def main(url: str, meeting: str, result: str) -> None:
    rank = int(os.environ["RANK"])
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=2
    )
    modules: tuple[Any, ...] = (vllm_client, vllm_generation)
    for module in modules:
        module.is_vllm_available = lambda *_: True
    client: Any = vllm_client.VLLMClient
    client.init_communicator = lambda *_, **__: None
    nothing: Any = None
    generation = vllm_generation.VLLMGeneration(
        nothing, Accelerator(cpu=True), nothing, mode="server", server_base_url=url
    )
    assert generation.accelerator.num_processes == 2
    policy = VllmPolicy(399, 2048)  # a closing token that the tiny model does not say here
    policy.attach(SimpleNamespace(vllm_generation=generation, _last_loaded_step=0))
    ids = list(range(40, 60))
    limits, more = ([2, 9, 5], [0, 0, 1]) if rank == 0 else ([4], [3])
    turns: dict[int, list[list[int]]] = {}

    def on_turn(index: int, turn: Sampled) -> Continuation | None:
        turns.setdefault(index, []).append(turn.ids)
        return Continuation([7], 3) if len(turns[index]) <= more[index] else None

    policy.run([Prompt(ids, limit) for limit in limits], 0, on_turn)
    # and once more with nothing to play on one of them
    policy.run([Prompt(ids, 2)] if rank else [], 0, lambda _, turn: None)
    Path(result).write_text(json.dumps(turns))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
