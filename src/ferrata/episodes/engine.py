"""The one loop that plays episodes, for RL, evaluation and chat alike."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ferrata.chat import Assembler
from ferrata.config.episodes import EpisodesParams
from ferrata.environments.base import (
    Environment,
    Message,
    Observation,
    Reply,
    Step,
    Task,
    ToolResult,
    World,
)
from ferrata.episodes.policies import Continuation, Policy, Prompt, Sampled
from ferrata.episodes.trajectory import Context, StopReason, Trajectory
from ferrata.errors import FerrataError

CUT = " ...[cut]"
INVALID = "invalid_calls"  # reward part: a cost, whatever the environment
COST = "cost"  # reward part: of calls and tokens, where params.yaml gives them one


@dataclass
class _Live:
    """An episode in play. `open` has the position, in the trajectory, of each agent's context; the
    agent who acts is `agent`."""

    trajectory: Trajectory
    world: World
    seed: tuple[int, ...]
    agent: str = ""
    open: dict[str, int] = field(default_factory=dict)

    @property
    def context(self) -> Context:
        return self.trajectory.contexts[self.open[self.agent]]


class Engine:
    """Plays tasks of an environment with a policy, within the budgets of `episodes` in params.yaml.

    Args:
        shots: per environment, messages put before each of its questions, for a model that has not
            been trained on the format.
        observer: called with (position of the task, message) for every new message, as it happens.
    """

    def __init__(
        self,
        environment: Environment,
        assembler: Assembler,
        policy: Policy,
        budgets: EpisodesParams,
        *,
        shots: Mapping[str, Sequence[Message]] | None = None,
        observer: Callable[[int, Message], None] | None = None,
    ) -> None:
        self._environment = environment
        self._assembler = assembler
        self._policy = policy
        self._budgets = budgets
        self._shots = shots or {}
        self._observer = observer

    def play(
        self,
        tasks: Sequence[Task],
        *,
        temperature: float,
        seed: int,
        step: int = 0,
        samples: Sequence[int] | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> list[Trajectory]:
        """Play one episode per entry of `tasks`; trajectories come back in the same order.

        Args:
            temperature: 0 is greedy.
            seed, step: with the task's id and the sample they key the random numbers of an episode.
            samples: which sample of its task each entry is; default 0.
            progress: called with 1 whenever an episode has ended.

        Raises:
            FerrataError: a task's prompt does not fit into the context budget.
        """
        samples = [0] * len(tasks) if samples is None else samples
        live: list[_Live] = []
        prompts: list[Prompt] = []
        for task, sample in zip(tasks, samples, strict=True):
            key = (seed, step, zlib.crc32(task.id.encode()), sample)
            episode = _Live(Trajectory(task, sample), self._environment.start(task), key)
            live.append(episode)
            going_on = self._show(len(live) - 1, episode, episode.world.reset())
            if not isinstance(going_on, Prompt):
                raise FerrataError(
                    f"task {task.id}",
                    found=f"a prompt of {len(episode.context.ids)} tokens",
                    expected=f"fewer than {self._budgets.max_context_tokens} tokens",
                    hint="raise episodes.max_context_tokens, or lower the arm's shots",
                )
            prompts.append(going_on)

        def on_turn(index: int, turn: Sampled) -> Continuation | Prompt | None:
            going_on = self._turn(index, live[index], turn)
            if going_on is None and progress is not None:
                progress(1)
            return going_on

        self._policy.run(prompts, temperature, on_turn)
        return [episode.trajectory for episode in live]

    def _limit(self, used: int) -> int:
        return min(self._budgets.max_turn_tokens, self._budgets.max_context_tokens - used)

    def _observe(self, index: int, message: Message) -> None:
        if self._observer is not None:
            self._observer(index, message)

    def _turn(self, index: int, episode: _Live, turn: Sampled) -> Continuation | Prompt | None:
        """Record a sampled turn, let the world answer it, and say how the episode goes on."""
        record = episode.trajectory
        episode.context.append(turn.ids, turn.logprobs)
        record.turns += 1
        reply = self._assembler.parse(turn.ids)
        self._tell(index, episode, [_message(reply)])
        self._charge(episode, self._budgets.token_cost * len(turn.ids))
        if not turn.closed:
            return self._stop(record, StopReason.OUT_OF_TOKENS)
        step = self._step(episode, reply)
        self._charge(episode, self._budgets.call_cost * len(step.results))
        for agent, parts in step.rewards.items():
            record.earn(agent, parts)
        record.measures |= step.measures
        record.calls += len(step.results)
        invalid = sum(r.outcome in ("invalid", "refused") for r in step.results)
        record.invalid_calls += invalid
        if invalid and self._budgets.invalid_call_cost:
            record.earn(episode.agent, {INVALID: -self._budgets.invalid_call_cost * invalid})
        record.failed_calls += sum(r.outcome == "failed" for r in step.results)
        if step.done:
            record.answer, record.success = step.answer, step.success
            return self._stop(record, StopReason.ENDED if reply.calls else StopReason.ANSWERED)
        return self._show(index, episode, step.observations)

    def _show(
        self, index: int, episode: _Live, observations: Mapping[str, Observation]
    ) -> Continuation | Prompt | None:
        """Let the agent who acts next see what the world shows it."""
        record, before = episode.trajectory, episode.agent
        ((episode.agent, observation),) = observations.items()
        opens = observation.new_context or episode.agent not in episode.open
        if opens:
            shots = self._shots.get(record.task.environment, ())
            ids = self._assembler.prompt([*shots, *observation.messages], observation.tools)
            episode.open[episode.agent] = len(record.contexts)
            record.contexts.append(Context(episode.agent, [], [], [], len(ids)))
            shown = list(observation.messages)
        else:
            shown = [self._cut(message) for message in observation.messages]
            ids = self._assembler.extension(shown)
        episode.context.append(ids)
        self._tell(index, episode, shown)
        stop = self._exhausted(record, len(episode.context.ids))
        if stop is not None:
            return self._stop(record, stop)
        limit = self._limit(len(episode.context.ids))
        if not opens and episode.agent == before:
            return Continuation(ids, limit)
        # Turns are counted into the key where a context comes back, so that no number comes twice.
        key = (*episode.seed, record.turns) if record.turns else episode.seed
        return Prompt(list(episode.context.ids), limit, key)

    def _tell(self, index: int, episode: _Live, messages: Sequence[Message]) -> None:
        """Write messages down as those of the agent's context."""
        which = episode.open[episode.agent]
        several = {"context": which, "agent": episode.agent} if which else {}
        for message in messages:
            marked = {**message, **several}
            episode.trajectory.messages.append(marked)
            self._observe(index, marked)

    def _step(self, episode: _Live, reply: Reply) -> Step:
        """The world's answer; a turn that could not be read is answered here, the same for every
        environment."""
        if reply.error is None:
            return episode.world.step(episode.agent, reply)
        text = f"error: not a call ({reply.error}); write [name(key=value)]"
        message = {"role": "tool", "name": "parser", "content": text}
        return Step(
            observations={episode.agent: Observation([message])},
            results=[ToolResult("parser", text, "invalid")],
        )

    def _exhausted(self, record: Trajectory, used: int) -> StopReason | None:
        if record.failed_calls > self._budgets.max_invalid_calls:
            return StopReason.TOOL_FAILURE
        if record.invalid_calls > self._budgets.max_invalid_calls:
            return StopReason.INVALID_CALLS
        if record.turns >= self._budgets.max_turns:
            return StopReason.OUT_OF_TURNS
        return StopReason.OUT_OF_TOKENS if self._limit(used) < 1 else None

    def _cut(self, message: Message) -> Message:
        text = str(message["content"])
        if message["role"] != "tool" or len(text) <= self._budgets.max_result_chars:
            return message
        return {**message, "content": text[: self._budgets.max_result_chars] + CUT}

    @staticmethod
    def _charge(episode: _Live, cost: float) -> None:
        if cost:
            episode.trajectory.earn(episode.agent, {COST: -cost})

    @staticmethod
    def _stop(record: Trajectory, reason: StopReason) -> None:
        record.stop = reason


def _message(reply: Reply) -> Message:
    message: Message = {"role": "assistant", "content": reply.content}
    if reply.calls:
        message["tool_calls"] = [
            {"name": c.name, "arguments": dict(c.arguments)} for c in reply.calls
        ]
    return message
