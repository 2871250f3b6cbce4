"""vLLM as the policy of the episode engine, through TRL's `VLLMGeneration`.

`VLLMGeneration` is how TRL 1.16 speaks to vLLM in both of its modes: to a server over HTTP, or to
an engine in the training processes ("colocate"). It takes token ids and gives token ids with their
log-probabilities, so nothing is decoded and encoded again here either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from ferrata.episodes.policies import OnTurn, Prompt, Sampled
from ferrata.errors import FerrataError


class Generation(Protocol):
    """As much of TRL's `VLLMGeneration` as is used here. In mode `colocate` with
    tensor_parallel_size > 1 it has `tp_group`, too."""

    mode: str
    temperature: float
    max_completion_length: int
    generation_kwargs: dict[str, Any]
    tensor_parallel_size: int
    accelerator: Any

    def generate(
        self, prompts: list[list[int]], images: None, num_generations: int
    ) -> tuple[Any, list[list[int]], list[list[list[float | None]]], Any]:
        """(prompt ids, sampled ids, log-probabilities, their ids); one row per prompt, and a list
        of one log-probability per token."""
        ...

    def sync_weights(self) -> None: ...


class Trainer(Protocol):
    """As much of TRL's GRPOTrainer as is used here."""

    vllm_generation: Any
    _last_loaded_step: int


@dataclass
class _Row:
    """A context in play: `ids` is all of it, `turn` the tokens of the turn that is being sampled,
    which may have `limit`."""

    index: int
    ids: list[int]
    limit: int
    turn: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def left(self) -> int:
        return self.limit - len(self.turn)


class VllmPolicy:
    """Contexts that vLLM continues, in rounds: all live contexts of a round are sent together, each
    gets (the rest of) its turn, and the finished ones leave.

    Log-probabilities are those at the sampling temperature, and at temperature 0 those at
    temperature 1, as the engine promises everywhere: vLLM must run with
    `logprobs_mode=processed_logprobs`. TRL sets that in mode colocate; of a server,
    `ferrata.training.vllm.check_ready` asks it. One that vLLM cannot tell is NaN, which TRL's loss
    leaves uncorrected.

    What differs from `TransformersPolicy`: `Prompt.seed` is not honoured. vLLM draws from one
    stream for all requests in the order in which its scheduler runs them, so a sampled episode
    depends on what else is in the batch and is not repeated by playing it again. Greedy play
    repeats as far as the kernels do: logits of one context may differ in their last bits with the
    size of the batch.

    Where several ranks generate together (a server gathers the contexts of all of them; engines
    with tensor parallelism are one engine), every call is collective: all ranks go on until none
    has a live context, and a rank that has fewer than another fills up with a context of one token
    whose answer nobody reads, as TRL cuts the answers into equal parts.

    Args:
        close_id: token that closes a turn. It alone ends one: vLLM's own end-of-sequence tokens
            are ordinary tokens here, as they are to `TransformersPolicy`.
        longest: tokens of the longest context (prompt and answer) that the server accepts; None
            where vLLM stops there by itself. A turn that does not fit into what a round may ask for
            is sampled over several rounds, which changes nothing in it.
    """

    def __init__(self, close_id: int, longest: int | None = None) -> None:
        self._close_id = close_id
        self._longest = longest
        self._trainer: Trainer | None = None

    def attach(self, trainer: Trainer) -> None:
        """Use this trainer's vLLM. Apart from the constructor, as the trainer that makes it needs
        the policy first."""
        self._trainer = trainer

    def sync(self, step: int) -> None:
        """Give vLLM the trained weights, once per optimizer step. Collective: every rank calls it.

        TRL does it before every rollout and notes the step; the note is kept here too, so that
        validation does not send the weights once more.
        """
        trainer = self._attached()
        if trainer._last_loaded_step != step:
            trainer.vllm_generation.sync_weights()
            trainer._last_loaded_step = step

    def run(self, prompts: Sequence[Prompt], temperature: float, on_turn: OnTurn) -> None:
        """Play all prompts. temperature 0 is greedy.

        Raises:
            FerrataError: vLLM stops a context before its limit without a token.
        """
        generation: Generation = self._attached().vllm_generation
        live = [_Row(i, list(prompt.ids), prompt.limit) for i, prompt in enumerate(prompts)]
        while True:
            mine = (
                len(live),
                max((row.left for row in live), default=0),
                max((len(row.ids) for row in live), default=0),
            )
            most, tokens, length = map(max, zip(*_gather(generation, mine), strict=True))
            if not most:
                return
            if self._longest is not None:
                tokens = max(1, min(tokens, self._longest - length))
            # One number of tokens holds for all contexts of a call: what one of them gets beyond
            # its own limit is cut. Sampling left to right, that is the same as having stopped.
            contexts = [row.ids for row in live] + [[self._close_id]] * (most - len(live))
            with self._settings(generation, temperature, tokens):
                _, answers, logprobs, _ = generation.generate(contexts, None, 1)
            own = slice(len(live))  # without the fillers
            answered = zip(live, answers[own], logprobs[own], strict=True)
            live = [row for row, ids, logps in answered if self._take(row, ids, logps, on_turn)]

    def _take(
        self,
        row: _Row,
        ids: Sequence[int],
        logprobs: Sequence[Sequence[float | None]],
        on_turn: OnTurn,
    ) -> bool:
        """Add what was sampled to a context; returns whether the context goes on."""
        new = list(ids[: row.left])
        if not new:
            raise FerrataError(
                "rl.generation: vllm",
                found=f"no token behind a context of {len(row.ids)} tokens",
                expected=f"up to {row.left} tokens",
                hint="give vLLM a larger --max-model-len, or lower episodes.max_context_tokens",
            )
        row.ids += new
        row.turn += new
        row.logprobs += [
            float("nan") if value is None else float(value) for (value, *_) in logprobs[: len(new)]
        ]
        if len(row.logprobs) != len(row.turn):
            raise RuntimeError(f"{len(row.turn)} tokens and {len(row.logprobs)} log-probabilities")
        closed = row.turn[-1] == self._close_id
        if not closed and row.left:
            return True
        answer = on_turn(row.index, Sampled(row.turn, row.logprobs, closed))
        if answer is None:
            return False
        # A prompt is the whole of another context.
        row.ids = [*(() if isinstance(answer, Prompt) else row.ids), *answer.ids]
        row.limit, row.turn, row.logprobs = answer.limit, [], []
        return True

    def _attached(self) -> Trainer:
        if self._trainer is None:
            raise RuntimeError("VllmPolicy.attach was not called")
        return self._trainer

    @contextmanager
    def _settings(self, generation: Generation, temperature: float, tokens: int) -> Iterator[None]:
        """Settings of one call. `VLLMGeneration.generate` takes none: it reads them from its
        attributes, which the trainer set once, for training; so they are set here, and put back."""
        changed = {
            "temperature": temperature,
            "max_completion_length": tokens,
            "generation_kwargs": {
                **generation.generation_kwargs,
                "stop_token_ids": [self._close_id],
                "ignore_eos": True,
            },
        }
        before = {name: getattr(generation, name) for name in changed}
        for name, value in changed.items():
            setattr(generation, name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                setattr(generation, name, value)


def _gather(generation: Generation, mine: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The values of every rank that takes part in this rank's calls."""
    if generation.mode == "server":
        ranks, group = generation.accelerator.num_processes, None
    else:
        ranks = generation.tensor_parallel_size
        group = getattr(generation, "tp_group", None)
    if ranks == 1:
        return [mine]
    import torch.distributed

    gathered: list[Any] = [None] * ranks
    torch.distributed.all_gather_object(gathered, mine, group=group)
    return gathered
