"""Policies: what produces the next assistant turn from token ids."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ferrata.episodes.slots import Piece, SlotCache, forward, use_slots

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

KEEP = 0.75  # slots are dropped when at most this share is in use and nobody waits


@dataclass(frozen=True)
class Prompt:
    """A context to be continued.

    ids: the context so far, ending in an opened assistant turn.
    limit: most tokens that the next turn may have, closing token included; >= 1.
    seed: words that key the random numbers of this context, whatever else is in the batch.
    """

    ids: Sequence[int]
    limit: int
    seed: tuple[int, ...] = ()


@dataclass(frozen=True)
class Sampled:
    """One turn: ids and log-probabilities of equal length; closed if the last id is the closing
    token."""

    ids: list[int]
    logprobs: list[float]
    closed: bool


@dataclass(frozen=True)
class Continuation:
    """What the environment appends behind a turn (ending in an opened turn), and the limit of the
    turn to come."""

    ids: Sequence[int]
    limit: int


OnTurn = Callable[[int, Sampled], Continuation | None]
"""Called with a prompt's position and its finished turn; returns how the context goes on, or None
at its end."""


class Policy(Protocol):
    """Plays contexts to their ends. Turns of one context come in order; contexts advance
    independently."""

    def run(self, prompts: Sequence[Prompt], temperature: float, on_turn: OnTurn) -> None:
        """Play all prompts. temperature 0 is greedy."""
        ...


def uniforms(seed: tuple[int, ...]) -> np.random.Generator:
    """The random numbers of one context: counter-based, keyed by (seed, step, task, sample), never
    by what ran before."""
    import numpy as np

    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))


def resolve_dtype(precision: str) -> torch.dtype:
    """`float32`, `bfloat16`, or `auto`: bfloat16 where the processor or GPU multiplies it fast."""
    import torch

    if precision != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[precision]
    if torch.cuda.is_available():
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    flags = cpu_flags()
    fast = "avx512_bf16" in flags or "amx_bf16" in flags
    return torch.bfloat16 if fast else torch.float32


def cpu_flags() -> frozenset[str]:
    """Features of the processor as Linux names them; empty where it does not say."""
    if not os.path.exists("/proc/cpuinfo"):
        return frozenset()
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("flags"):
                return frozenset(line.split(":", 1)[1].split())
    return frozenset()


@dataclass
class _Row:
    """A context in play. `pending` is what the next pass appends, from `position` on."""

    index: int
    slot: int
    position: int
    pending: list[int]
    limit: int
    random: np.random.Generator | None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class TransformersPolicy:
    """A transformers model in this process.

    Every pass appends to each live context what it has waiting (the token just sampled, a tool
    result behind it, a whole new prompt) and samples its next token, so no context ever waits for
    another. Keys and values live as long as the context; a finished context's slot goes to the
    next prompt, and slots that nobody needs are dropped. The prompts' common beginning is computed
    once, and equal prompts that start together (a group) are computed once.

    Args:
        model: on its device and in its dtype; put in eval mode here. Full attention only (no
            sliding windows).
        close_id: token that closes a turn.
        batch_size: contexts played at the same time.
    """

    def __init__(self, model: PreTrainedModel, close_id: int, batch_size: int = 64) -> None:
        window = getattr(model.config, "sliding_window", None)
        if window is not None and getattr(model.config, "use_sliding_window", True):
            from ferrata.errors import FerrataError

            raise FerrataError(
                "base model",
                found=f"attention with a sliding window of {window} tokens",
                expected="full attention: contexts of any length share one cache",
                hint="use a model with full attention",
            )
        use_slots(model)
        self.model = model.eval()
        self._close_id = close_id
        self._batch_size = batch_size

    def run(self, prompts: Sequence[Prompt], temperature: float, on_turn: OnTurn) -> None:
        import torch

        if not prompts:
            return
        with torch.inference_mode():
            self._play(prompts, temperature, on_turn)

    def _play(self, prompts: Sequence[Prompt], temperature: float, on_turn: OnTurn) -> None:
        waiting = deque(enumerate(prompts))
        free = list(range(min(self._batch_size, len(prompts))))
        cache = SlotCache(len(free))
        prefix = shared_prefix([prompt.ids for prompt in prompts])
        if prefix:  # it stays in its slot when the slot goes to another prompt
            forward(self.model, [Piece(0, 0, prefix)], cache)
            cache.copy(0, free[1:], len(prefix))
        live: list[_Row] = []
        while waiting or live:
            leader_of: dict[tuple[int, ...], _Row] = {}
            followers: list[tuple[_Row, _Row]] = []
            while waiting and free:
                index, prompt = waiting.popleft()
                row = _Row(
                    index,
                    free.pop(0),
                    len(prefix),
                    list(prompt.ids[len(prefix) :]),
                    prompt.limit,
                    uniforms(prompt.seed) if temperature > 0 else None,
                )
                leader = leader_of.setdefault(tuple(prompt.ids), row)
                if leader is row:
                    live.append(row)
                else:
                    followers.append((row, leader))
            live = self._pass(live, followers, cache, temperature, on_turn)
            used = {row.slot for row in live}
            free = [slot for slot in range(cache.slots) if slot not in used]
            if not waiting and live and len(live) <= KEEP * cache.slots:
                live.sort(key=lambda row: row.slot)
                cache.keep([row.slot for row in live])
                for slot, row in enumerate(live):
                    row.slot = slot
                free = []

    def _pass(
        self,
        rows: list[_Row],
        followers: list[tuple[_Row, _Row]],
        cache: SlotCache,
        temperature: float,
        on_turn: OnTurn,
    ) -> list[_Row]:
        """Append what is pending, sample the next token of every row; returns the rows that go
        on. Followers have the same prompt as their leader and take over its keys and logits."""
        rows.sort(key=lambda row: row.slot)
        place_of = {id(row): place for place, row in enumerate(rows)}
        logits_BV = forward(
            self.model, [Piece(row.slot, row.position, row.pending) for row in rows], cache
        )
        for row in rows:
            row.position += len(row.pending)
        if followers:
            for row, leader in followers:
                row.position = leader.position
                cache.copy(leader.slot, [row.slot], row.position)
            places = [place_of[id(leader)] for _, leader in followers]
            logits_BV = logits_BV[[*range(len(rows)), *places]]
            rows = [*rows, *(row for row, _ in followers)]
        tokens, logprobs = choose(logits_BV, [row.random for row in rows], temperature)
        going_on = []
        for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
            row.pending = [token]
            row.ids.append(token)
            row.logprobs.append(logprob)
            closed = token == self._close_id
            if closed or len(row.ids) >= row.limit:
                answer = on_turn(row.index, Sampled(row.ids, row.logprobs, closed))
                if answer is None:
                    continue
                row.pending += answer.ids
                row.limit = answer.limit
                row.ids, row.logprobs = [], []
            going_on.append(row)
        return going_on


def shared_prefix(contexts: Sequence[Sequence[int]]) -> list[int]:
    """What all contexts begin with; at least one token of each is left over."""
    low, high = min(contexts, key=list), max(contexts, key=list)  # what these share, all share
    most = min(len(ids) for ids in contexts) - 1
    shared = next((i for i in range(most) if low[i] != high[i]), most)
    return list(low[:shared])


def choose(
    logits_BV: Tensor, random: Sequence[np.random.Generator | None], temperature: float
) -> tuple[list[int], list[float]]:
    """The next token of every row and its log-probability at this temperature; sampled by
    inversion of the cumulative distribution with one number of the row's own generator."""
    import torch

    logits_BV = logits_BV.float()
    if temperature > 0:
        logits_BV = logits_BV / temperature
    logprobs_BV = torch.log_softmax(logits_BV, -1)
    if temperature == 0:
        ids_B = logits_BV.argmax(-1)
    else:
        cumulative_BV = logprobs_BV.exp().cumsum(-1)
        draws = [generator.random() for generator in random if generator is not None]
        targets_B = torch.tensor(draws, device=cumulative_BV.device, dtype=cumulative_BV.dtype)
        targets_B = targets_B * cumulative_BV[:, -1]
        ids_B = torch.searchsorted(cumulative_BV, targets_B[:, None], right=True)[:, 0]
        ids_B = ids_B.clamp_(max=logits_BV.shape[-1] - 1)
    return ids_B.tolist(), logprobs_BV.gather(1, ids_B[:, None])[:, 0].tolist()
