"""The one loop that plays episodes, for RL, evaluation and chat alike."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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
    trajectory: Trajectory
    world: World
    agent: str


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
            world = self._environment.start(task)
            ((agent, observation),) = world.reset().items()
            trajectory = Trajectory(task, sample, messages=list(observation.messages))
            shots = self._shots.get(task.environment, ())
            ids = self._assembler.prompt([*shots, *observation.messages], observation.tools)
            limit = self._limit(len(ids))
            if limit < 1:
                raise FerrataError(
                    f"task {task.id}",
                    found=f"a prompt of {len(ids)} tokens",
                    expected=f"fewer than {self._budgets.max_context_tokens} tokens",
                    hint="raise episodes.max_context_tokens, or lower the arm's shots",
                )
            trajectory.contexts.append(
                Context(agent, ids, [0] * len(ids), [0.0] * len(ids), len(ids))
            )
            live.append(_Live(trajectory, world, agent))
            prompts.append(
                Prompt(list(ids), limit, (seed, step, zlib.crc32(task.id.encode()), sample))
            )
            for message in observation.messages:
                self._observe(len(live) - 1, message)

        def on_turn(index: int, turn: Sampled) -> Continuation | None:
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

    def _turn(self, index: int, episode: _Live, turn: Sampled) -> Continuation | None:
        """Record a sampled turn, let the world answer it, and say how the context goes on."""
        record = episode.trajectory
        context = record.contexts[-1]
        context.ids += turn.ids
        context.mask += [1] * len(turn.ids)
        context.logprobs += turn.logprobs
        record.turns += 1
        reply = self._assembler.parse(turn.ids)
        message = _message(reply)
        record.messages.append(message)
        self._observe(index, message)
        self._charge(record, self._budgets.token_cost * len(turn.ids))
        if not turn.closed:
            return self._stop(record, StopReason.OUT_OF_TOKENS)
        step = self._step(episode, reply)
        self._charge(record, self._budgets.call_cost * len(step.results))
        if step.rewards:
            record.rewards.append(dict(step.rewards[episode.agent]))
        record.measures |= step.measures
        record.calls += len(step.results)
        invalid = sum(r.outcome in ("invalid", "refused") for r in step.results)
        record.invalid_calls += invalid
        if invalid and self._budgets.invalid_call_cost:
            record.rewards.append({INVALID: -self._budgets.invalid_call_cost * invalid})
        record.failed_calls += sum(r.outcome == "failed" for r in step.results)
        if step.done:
            record.answer, record.success = step.answer, step.success
            return self._stop(record, StopReason.ENDED if reply.calls else StopReason.ANSWERED)
        answers = [self._cut(m) for m in step.observations[episode.agent].messages]
        record.messages += answers
        for answer in answers:
            self._observe(index, answer)
        ids = self._assembler.extension(answers)
        context.ids += ids
        context.mask += [0] * len(ids)
        context.logprobs += [0.0] * len(ids)
        stop = self._exhausted(record, len(context.ids))
        if stop is not None:
            return self._stop(record, stop)
        return Continuation(ids, self._limit(len(context.ids)))

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
        if len(text) <= self._budgets.max_result_chars:
            return message
        return {**message, "content": text[: self._budgets.max_result_chars] + CUT}

    @staticmethod
    def _charge(record: Trajectory, cost: float) -> None:
        if cost:
            record.rewards.append({COST: -cost})

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
