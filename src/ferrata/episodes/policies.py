"""Policies: what produces the next assistant turn from token ids."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ferrata.episodes.beginnings import beginnings
from ferrata.episodes.packed import pack
from ferrata.episodes.slots import Piece, SlotCache, forward, use_slots

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

ROWS = 16  # of logits that are turned into choices at a time: 3 MB for SmolLM2
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


OnTurn = Callable[[int, Sampled], Continuation | Prompt | None]
"""Called with a prompt's position and its finished turn; returns how the context goes on; or a
prompt, where another context is played in its place (a new one, or one that waited for another
agent); or None at the end."""

_Answered = Callable[[int, Sampled], Continuation | None]  # with other contexts put in line


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
class _Member:
    """A context among those that a row plays. `random` is None where the choice is greedy."""

    index: int
    random: np.random.Generator | None


@dataclass
class _Row:
    """Contexts that have been alike so far: one slot, one pass for all of them. `pending` is what
    the next pass appends, from `position` on; ids and logprobs are of the turn in play; `beginning`
    is which of the cache's."""

    members: list[_Member]
    slot: int
    position: int
    pending: list[int]
    limit: int
    beginning: int | None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class TransformersPolicy:
    """A transformers model in this process.

    Every pass appends to each live context what it has waiting (the token just sampled, a tool
    result behind it, a whole new prompt) and samples its next token, so no context ever waits for
    another. Keys and values live as long as the context; a finished context's slot goes to the
    next prompt, and slots that nobody needs are dropped. What many prompts begin with is computed
    once. Equal prompts that start together (a group) are one row, which is computed once and forks
    where their samples, or the answers to these, differ.

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
        pack(model)
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
        waiting: deque[tuple[int, Prompt]] = deque(enumerate(prompts))
        admitted = {tuple(prompt.ids) for prompt in prompts[: self._batch_size]}
        cache = SlotCache(len(admitted))
        shared = self._begin([prompt.ids for prompt in prompts], cache)
        rows: list[_Row] = []

        def turned(index: int, turn: Sampled) -> Continuation | None:
            answer = on_turn(index, turn)
            if isinstance(answer, Prompt):  # first in line: its episode is under way
                waiting.appendleft((index, answer))
                return None
            return answer

        while waiting or rows:
            room = self._batch_size - sum(len(row.members) for row in rows)
            fresh: dict[tuple[int, ...], _Row] = {}
            for _ in range(min(room, len(waiting))):
                index, prompt = waiting.popleft()
                member = _Member(index, uniforms(prompt.seed) if temperature > 0 else None)
                key = (prompt.limit, *prompt.ids)
                if key not in fresh:
                    which = _beginning(shared, prompt.ids)
                    done = cache.length(which)
                    rest = list(prompt.ids[done:])
                    fresh[key] = _Row([], -1, done, rest, prompt.limit, which)
                fresh[key].members.append(member)
            for row, slot in zip(fresh.values(), _free(cache, rows, len(fresh)), strict=True):
                row.slot = slot
            rows = self._pass([*rows, *fresh.values()], cache, temperature, turned)
            if not waiting and rows and len(rows) <= KEEP * cache.slots:
                rows.sort(key=lambda row: row.slot)
                cache.keep([row.slot for row in rows])
                for slot, row in enumerate(rows):
                    row.slot = slot

    def _begin(
        self, contexts: Sequence[Sequence[int]], cache: SlotCache
    ) -> dict[tuple[int, ...], int]:
        """Compute what many contexts begin with; returns the cache's number of each beginning."""
        shared: dict[tuple[int, ...], int] = {}
        for length, group in beginnings(contexts):
            ids = tuple(contexts[group[0]][:length])
            if length and ids not in shared:
                forward(self.model, [Piece(0, 0, ids)], cache)
                shared[ids] = cache.share(length)
        return shared

    def _pass(
        self,
        rows: list[_Row],
        cache: SlotCache,
        temperature: float,
        on_turn: _Answered,
    ) -> list[_Row]:
        """Append what is pending, sample the next token of every context; returns the rows that go
        on."""
        rows.sort(key=lambda row: row.slot)
        pieces = [Piece(row.slot, row.position, row.pending, row.beginning) for row in rows]
        logits_BV = forward(self.model, pieces, cache)
        chosen = choose(logits_BV, [[m.random for m in row.members] for row in rows], temperature)
        going_on: list[_Row] = []
        forks: list[tuple[int, _Row]] = []  # slot that a new row continues
        for row, picks in zip(rows, chosen, strict=True):
            row.position += len(row.pending)
            for nth, successor in enumerate(self._successors(row, picks, on_turn)):
                going_on.append(successor)
                if nth:
                    forks.append((row.slot, successor))
        if forks:
            slots = _free(cache, [row for row in going_on if row.slot >= 0], len(forks))
            for slot, (_, row) in zip(slots, forks, strict=True):
                row.slot = slot
            cache.copy([source for source, _ in forks], slots)
        return going_on

    def _successors(
        self, row: _Row, picks: Sequence[tuple[int, float]], on_turn: _Answered
    ) -> list[_Row]:
        """The rows that a row becomes when its members have picked (token, log-probability); the
        first keeps its slot, the others have slot -1."""
        alike: dict[Any, _Row] = {}
        for member, (token, logprob) in zip(row.members, picks, strict=True):
            ids, logprobs = [*row.ids, token], [*row.logprobs, logprob]
            pending, limit = [token], row.limit
            closed = token == self._close_id
            if closed or len(ids) >= row.limit:
                answer = on_turn(member.index, Sampled(ids, logprobs, closed))
                if answer is None:
                    continue
                pending, limit = [token, *answer.ids], answer.limit
                ids, logprobs = [], []
            key = (limit, *pending)
            if key not in alike:
                slot = -1 if alike else row.slot
                alike[key] = _Row(
                    [], slot, row.position, pending, limit, row.beginning, ids, logprobs
                )
            alike[key].members.append(member)
        return list(alike.values())


def _beginning(shared: Mapping[tuple[int, ...], int], ids: Sequence[int]) -> int | None:
    """The longest beginning that leaves a token of `ids` behind it; None: there is none."""
    lengths = sorted({len(beginning) for beginning in shared}, reverse=True)
    starts = (tuple(ids[:length]) for length in lengths if length < len(ids))
    return next((shared[start] for start in starts if start in shared), None)


def _free(cache: SlotCache, rows: Sequence[_Row], n: int) -> list[int]:
    """n slots that no row uses; the cache grows if it has fewer (by more than that, since each time
    copies it)."""
    used = {row.slot for row in rows}
    short = n + len(used) - cache.slots
    if short > 0:
        cache.grow(max(short, cache.slots // 4))
    return [slot for slot in range(cache.slots) if slot not in used][:n]


def choose(
    logits_BV: Tensor,
    random: Sequence[Sequence[np.random.Generator | None]],
    temperature: float,
) -> list[list[tuple[int, float]]]:
    """The next token of every context and its log-probability at this temperature; sampled by
    inversion of the cumulative distribution with one number of the context's own generator.

    Args:
        logits_BV: per row.
        random: per row, the generators of its members.

    Returns:
        Per row and member (token, log-probability).
    """
    picks: list[list[tuple[int, float]]] = []
    # On a processor a few rows at a time: all of them in float32 would be fresh memory in every
    # pass. A GPU would wait for each piece.
    step = ROWS if logits_BV.device.type == "cpu" else len(random)
    for first in range(0, len(random), step):
        rows = slice(first, first + step)
        picks += _choose(logits_BV[rows].float(), random[rows], temperature)
    return picks


def _choose(
    logits_BV: Tensor,
    random: Sequence[Sequence[np.random.Generator | None]],
    temperature: float,
) -> list[list[tuple[int, float]]]:
    import torch

    if temperature == 0:
        most, ids_B = logits_BV.max(-1)
        logprobs_B = most - logits_BV.logsumexp(-1)
        pairs = zip(ids_B.tolist(), logprobs_B.tolist(), strict=True)
        return [[pair] * len(generators) for pair, generators in zip(pairs, random, strict=True)]
    logprobs_BV = torch.log_softmax(logits_BV / temperature, -1)
    cumulative_BV = logprobs_BV.exp().cumsum(-1)
    draws_BM = torch.zeros(len(random), max(len(generators) for generators in random))
    for row, generators in enumerate(random):
        for column, generator in enumerate(generators):
            assert generator is not None
            draws_BM[row, column] = generator.random()
    targets_BM = draws_BM.to(cumulative_BV.device) * cumulative_BV[:, -1:]
    ids_BM = torch.searchsorted(cumulative_BV, targets_BM, right=True)
    ids_BM = ids_BM.clamp_(max=logits_BV.shape[-1] - 1)
    picked_BM = logprobs_BV.gather(1, ids_BM)
    return [
        list(zip(ids, logprobs, strict=True))[: len(generators)]
        for ids, logprobs, generators in zip(
            ids_BM.tolist(), picked_BM.tolist(), random, strict=True
        )
    ]
