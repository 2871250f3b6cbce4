"""What an environment is: tasks, tools, demonstrations and rewards of one capability.

An environment is a *family* of tasks; `Environment.start(task)` gives the `World` of one episode,
which holds its state. The episode engine talks to worlds only, so that reinforcement learning,
evaluation and chat cannot disagree about what a call does or what an answer is worth.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol, get_type_hints

from pydantic import TypeAdapter, ValidationError

Message = dict[str, Any]
"""A chat message as OpenAI and transformers write it: role, content, tool_calls for an assistant
that calls."""

Split = Literal["sft", "train", "validation", "test", "forms", "ood"]
SPLITS: tuple[Split, ...] = ("sft", "train", "validation", "test", "forms", "ood")


@dataclass(frozen=True)
class Task:
    """One problem instance: a plain, serialisable row.

    Attributes:
        id: unique over all splits.
        band: difficulty, 1 and up; 4 is harder than anything trained on.
        form: name of the surface form of the question.
        signature: what is asked, whatever the words; equal signatures are the same problem (leakage
            check).
        payload: what the environment needs to play the task; holds `question`; `agents` where
            others than `agent` are trained on it; `goal` where the answer alone would not tell a
            person what was wanted.
        answer: the right answer.
    """

    id: str
    environment: str
    split: str
    band: int
    form: str
    seed: int
    signature: str
    payload: dict[str, Any]
    answer: Any

    def to_row(self) -> dict[str, Any]:
        """The task as a row of JSON types."""
        return asdict(self)

    @staticmethod
    def from_row(row: Mapping[str, Any]) -> Task:
        """The inverse of `to_row`. Raises TypeError on a missing or unknown column."""
        return Task(**row)


class ToolError(Exception):
    """A tool's own refusal of its arguments, in words that the model sees (an unknown item, a wrong
    unit)."""


@dataclass(frozen=True)
class ToolCall:
    """A call as the model wrote it: not validated yet."""

    name: str
    arguments: Mapping[str, Any]


Outcome = Literal["ok", "invalid", "refused", "failed"]


@dataclass(frozen=True)
class ToolResult:
    """What a call gave.

    outcome: `ok`; `invalid`: no such tool or wrong arguments; `refused`: the tool's own ToolError;
        `failed`: the
    tool itself broke, which is a fault of the environment and not of the model.
    """

    name: str
    content: str
    outcome: Outcome


class Tool:
    """A Python function that the model may call; its schema comes from type hints and docstring.

    The docstring's first line is what the model reads, so it counts as code.

    Raises:
        TypeError: a parameter without a type hint, or a function without a docstring.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name = function.__name__
        doc = inspect.getdoc(function)
        if not doc:
            raise TypeError(
                f"tool {self.name}: a docstring is needed: its first line is shown to the model"
            )
        self.description = doc.splitlines()[0].strip()
        hints = get_type_hints(function)
        self._function = function
        self._types: dict[str, TypeAdapter[Any]] = {}
        for parameter in inspect.signature(function).parameters:
            if parameter not in hints:
                raise TypeError(f"tool {self.name}: parameter {parameter} needs a type hint")
            self._types[parameter] = TypeAdapter(hints[parameter])

    def schema(self) -> dict[str, Any]:
        """The tool in the OpenAI function format, as `apply_chat_template(tools=...)` takes it."""
        properties = {name: adapter.json_schema() for name, adapter in self._types.items()}
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": {
                    "type": "object",
                    "properties": properties,
                    "required": list(properties),
                },
            },
        }

    def signature(self) -> str:
        """`name(argument, ...)`, as it stands in error messages to the model."""
        return f"{self.name}({', '.join(self._types)})"

    def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Validate and run. Never raises: whatever goes wrong becomes a result that the model
        sees."""
        wrong = [f"unknown argument {name}" for name in arguments if name not in self._types]
        wrong += [f"missing argument {name}" for name in self._types if name not in arguments]
        values: dict[str, Any] = {}
        for name, adapter in self._types.items():
            if name in arguments:
                try:
                    values[name] = adapter.validate_python(arguments[name])
                except ValidationError as error:
                    wrong.append(f"{name}: {error.errors()[0]['msg'].lower()}")
        if wrong:
            return ToolResult(self.name, f"error: {wrong[0]}; use {self.signature()}", "invalid")
        try:
            return ToolResult(self.name, str(self._function(**values)), "ok")
        except ToolError as error:
            return ToolResult(self.name, f"error: {error}", "refused")
        except Exception as error:  # a broken tool must not end a training run
            return ToolResult(
                self.name, f"error: the tool failed ({type(error).__name__})", "failed"
            )


@dataclass(frozen=True)
class Reply:
    """An assistant turn as the parser understood it.

    error: why the turn could not be read as text or calls (then there are no calls), else None.
    """

    content: str
    calls: tuple[ToolCall, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Observation:
    """What an agent sees next: messages that continue its context, or open a new one.

    tools are read when a context opens.
    """

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    new_context: bool = False


@dataclass(frozen=True)
class Step:
    """What a turn led to.

    rewards: named parts per agent, given when they are earned; each within the range that
        `World.ranges` states.
    results: one per call of the turn, in order.
    success: whether the episode that is done was solved.
    measures: named numbers of the episode for reports (a plan's length against the shortest); none
        of them is paid for.
    """

    observations: Mapping[str, Observation] = field(default_factory=dict)
    rewards: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    results: Sequence[ToolResult] = ()
    done: bool = False
    answer: str | None = None
    success: bool = False
    measures: Mapping[str, float] = field(default_factory=dict)


class World(Protocol):
    """The state of one episode."""

    def reset(self) -> dict[str, Observation]:
        """Who speaks first, with what in sight."""
        ...

    def step(self, agent: str, reply: Reply) -> Step:
        """Apply an agent's turn. Never raises on anything a model can write."""
        ...


@dataclass(frozen=True)
class Demonstration:
    """An episode as a demonstrator played it, and whether its answer is right.

    messages: of all contexts, as the episode went; `context` is the number of a message's context,
        where that is not the first.
    """

    task: Task
    messages: list[Message]
    success: bool

    def contexts(self) -> list[list[Message]]:
        """The messages of each context, in the order in which the contexts were opened."""
        return contexts(self.messages)

    def play(self, world: World) -> list[Step]:
        """What this world answers to each turn of the demonstrator, in order, up to the step that
        is done."""
        (agent,) = world.reset()
        steps: list[Step] = []
        for message in self.messages:
            if message["role"] == "assistant" and not (steps and steps[-1].done):
                calls = tuple(ToolCall(**call) for call in message.get("tool_calls", ()))
                steps.append(world.step(agent, Reply(message["content"], calls)))
                (agent,) = steps[-1].observations or (agent,)
        return steps


def contexts(messages: Sequence[Message]) -> list[list[Message]]:
    """Messages of an episode, sorted into its contexts."""
    parts: dict[int, list[Message]] = {}
    for message in messages:
        parts.setdefault(message.get("context", 0), []).append(message)
    return [parts[number] for number in sorted(parts)]


def play_out(
    world: World, act: Callable[[str, Sequence[Message]], Reply]
) -> tuple[list[Message], Step]:
    """Play a world to its end; the messages of all contexts, as a demonstration has them, and the
    step that was the last.

    Args:
        act: gives the turn of an agent who has the messages of its context before it.
    """
    played: list[Message] = []
    open_: dict[str, int] = {}
    observations: Mapping[str, Observation] = world.reset()
    while True:
        ((agent, seen),) = observations.items()
        if seen.new_context or agent not in open_:
            open_[agent] = 1 + max((m.get("context", 0) for m in played), default=-1)
        mark = {"context": open_[agent], "agent": agent} if open_[agent] else {}
        played += [{**message, **mark} for message in seen.messages]
        own = [message for message in played if message.get("context", 0) == open_[agent]]
        reply = act(agent, own)
        said: Message = {"role": "assistant", "content": reply.content, **mark}
        if reply.calls:
            said["tool_calls"] = [
                {"name": call.name, "arguments": dict(call.arguments)} for call in reply.calls
            ]
        played.append(said)
        step = world.step(agent, reply)
        if step.done:
            return played, step
        observations = step.observations


@dataclass(frozen=True)
class Fixture:
    """An episode that attacks the grader: calls, one a turn, then messages without calls (`turns`,
    and `content` as the last; as many as the episode takes), and the return that whoever begins
    must get."""

    name: str
    task: Task
    content: str
    reward: float
    calls: tuple[ToolCall, ...] = ()
    turns: tuple[str, ...] = ()

    def play(self, world: World) -> float:
        """The return that this world's grader gives."""
        (agent,) = world.reset()
        first, total, done = agent, 0.0, False
        said = (*self.turns, self.content)
        for reply in (*(Reply("", (call,)) for call in self.calls), *map(Reply, said)):
            if not done:
                step = world.step(agent, reply)
                total += sum(step.rewards.get(first, {}).values())
                done = step.done
                (agent,) = step.observations or (agent,)
        return total


def fixture_task(environment: str, name: str, answer: Any, payload: dict[str, Any]) -> Task:
    """The task of a fixture: of no split's draw, and with what its grader reads."""
    return Task(
        id=f"fixture-{name}",
        environment=environment,
        split="validation",
        band=1,
        form="fixture",
        seed=0,
        signature=f"fixture-{name}",
        payload=payload,
        answer=answer,
    )


class Environment(Protocol):
    """One capability. Instances hold no state of an episode and may be shared.

    It may have an attribute `variants` beside: environments of the same name and tasks that play
    them under other conditions, by the name that an arm's `variant` has.
    """

    # Properties, so that attributes of a class and of an instance both fit.
    @property
    def name(self) -> str:
        """Of the capability, in tasks, reports and params.yaml."""
        ...

    @property
    def agents(self) -> tuple[str, ...]:
        """Who acts; `("agent",)` for one."""
        ...

    @property
    def reward_ranges(self) -> Mapping[str, tuple[float, float]]:
        """Reward parts, and the least and the most that an episode can get of each."""
        ...

    def tasks(self, split: Split, n: int, seed: int) -> Iterator[Task]:
        """`n` tasks of a split; the same arguments give the same tasks."""
        ...

    def demonstrate(self, task: Task, skill: float, rng: random.Random) -> Demonstration:
        """Play a task as a demonstrator of this skill: 1 is an expert, less is fallible in
        systematic ways."""
        ...

    def tools(self, task: Task) -> Sequence[Tool]:
        """The tools of a task, bound to it."""
        ...

    def start(self, task: Task) -> World:
        """The world of one episode."""
        ...

    def fixtures(self) -> list[Fixture]:
        """Final messages that attack the grader, with the rewards they must get."""
        ...


class ToolWorld:
    """The usual world of one agent: calls are answered, the first message without a call is graded.

    Args:
        question: the user's message.
        tools: what may be called.
        grade: maps the final message to (named reward parts, the answer that it read or None); the
            episode is solved if the part `answer` is 1.
    """

    def __init__(
        self,
        question: str,
        tools: Sequence[Tool],
        grade: Callable[[str], tuple[dict[str, float], str | None]],
    ) -> None:
        self._question = question
        self._tools = {tool.name: tool for tool in tools}
        self._grade = grade

    def reset(self) -> dict[str, Observation]:
        messages = [{"role": "user", "content": self._question}]
        return {"agent": Observation(messages, tuple(self._tools.values()), new_context=True)}

    def step(self, agent: str, reply: Reply) -> Step:
        if not reply.calls:
            parts, answer = self._grade(reply.content)
            success = parts.get("answer", 0.0) >= 1.0
            return Step(rewards={agent: parts}, done=True, answer=answer, success=success)
        results = [self._run(call) for call in reply.calls]
        messages = [{"role": "tool", "name": r.name, "content": r.content} for r in results]
        return Step(observations={agent: Observation(messages)}, results=results)

    def _run(self, call: ToolCall) -> ToolResult:
        if call.name in self._tools:
            return self._tools[call.name].call(call.arguments)
        known = ", ".join(self._tools) or "none"
        return ToolResult(
            call.name, f"error: no tool {call.name[:40]}; there are {known}", "invalid"
        )
