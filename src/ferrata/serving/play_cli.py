"""`ferrata play`: play a task yourself in the terminal, or watch a demonstrator or a model."""

from __future__ import annotations

import ast
import inspect
import random
import sys
from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from ferrata.config.loader import load
from ferrata.config.params import Params
from ferrata.config.paths import params_folder
from ferrata.environments import get_environment
from ferrata.environments.base import (
    SPLITS,
    Environment,
    Message,
    Observation,
    Reply,
    Task,
    Tool,
    ToolCall,
    World,
)
from ferrata.episodes.trajectory import render
from ferrata.errors import FerrataError

COLOURS = {"user": "bold", "assistant": "cyan", "tool": "yellow"}


def run(
    capability: str,
    *,
    split: str = "validation",
    number: int = 0,
    band: int | None = None,
    policy: str = "you",
    arm: str | None = None,
) -> int:
    """Play one task.

    Args:
        capability: an environment's name, or `package.module:object`.
        number: which task of the split and band, from 0.
        band: only tasks of this difficulty.
        policy: `you`, `expert` (skill 1) or `demonstrator` (prepare.skill).
        arm: play with this arm's model instead.

    Raises:
        FerrataError: no such capability, split, band, task or arm.
    """
    console = Console(highlight=False)
    params = load()
    environment = get_environment(capability)
    task = find_task(environment, split, number, band, params.seed)
    console.print(about(environment), style="dim", soft_wrap=True)
    console.print(f"\n{task.id}, band {task.band}", style="dim")
    if arm is not None:
        return _watch_model(console, params, environment, task, arm)
    screen = Screen(console)
    if policy != "you":
        skill = 1.0 if policy == "expert" else params.prepare.skill
        shown = environment.demonstrate(task, skill, random.Random(f"{params.seed}/{task.id}/0"))
        for message in shown.messages:
            screen.show(message)
        _verdict(console, task, shown.success)
        return 0
    console.print(f"Told before every task: {params.chat.system}", style="dim")
    return _play(screen, environment, task, params.episodes.max_turns)


def about(environment: Environment) -> str:
    """What a capability is, in the words of its file."""
    return inspect.getdoc(inspect.getmodule(type(environment))) or environment.name


def find_task(
    environment: Environment, split: str, number: int, band: int | None, seed: int
) -> Task:
    """The task of this number among those of a split (and band). Raises FerrataError."""
    if split not in SPLITS:
        raise FerrataError("--split", found=repr(split), expected=f"one of {', '.join(SPLITS)}")
    many = 4 * (number + 1) if band is None else 16 * (number + 1)
    tasks = [t for t in environment.tasks(split, many, seed) if band is None or t.band == band]  # type: ignore[arg-type]
    if number < 0 or number >= len(tasks):
        bands = sorted({t.band for t in environment.tasks(split, 16, seed)})  # type: ignore[arg-type]
        raise FerrataError(
            "--band" if band is not None else "--task",
            found=f"{number} of band {band}" if band is not None else str(number),
            expected=f"a task of {split}, whose bands are {', '.join(map(str, bands))}",
        )
    return tasks[number]


class Screen:
    """Messages in their colours, with a line where another context begins or goes on."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._context = -1

    def show(self, message: Message) -> None:
        """One message."""
        context, agent = message.get("context", 0), message.get("agent")
        whose = f"{agent}: " if agent not in (None, "agent") else ""
        if context != self._context and (context or whose or self._context > 0):
            alone = "; of the others nothing is in sight" if self._context >= 0 else ""
            self.console.print(f"--- {whose}context {context + 1}{alone} ---", style="magenta")
        self._context = context
        plain = {key: message[key] for key in message if key not in ("context", "agent")}
        style = COLOURS.get(message["role"], "")
        self.console.print(Text(render([plain]), style=style), soft_wrap=True)


def _play(screen: Screen, environment: Environment, task: Task, max_turns: int) -> int:
    console = screen.console
    tools = list(environment.tools(task))
    if tools:
        console.print("Tools, as name(value) or name(key=value):")
        for tool in tools:
            console.print(f"  {tool.signature()}: {tool.description}")
    else:
        console.print("There are no tools. You may write several lines; an empty one sends them.")
    world: World = environment.start(task)
    observations: Mapping[str, Observation] = world.reset()
    ((first, _),) = observations.items()
    contexts: dict[str, int] = {}
    total, opened = 0.0, 0
    for _ in range(max_turns):
        ((agent, seen),) = observations.items()
        if seen.new_context or agent not in contexts:
            contexts[agent] = opened
            opened += 1
        for message in seen.messages:
            screen.show({**message, "context": contexts[agent], "agent": agent})
        text = _ask(console, several=not tools)
        if not text:
            console.print("left", style="dim")
            return 0
        try:
            reply = parse(text, tools)
        except ValueError as error:
            console.print(f"     error  {error}", style="red")
            continue
        step = world.step(agent, reply)
        total += _reward(console, step.rewards.get(first, {}))
        if step.done:
            console.print(f"    return  {total:+.2f}", style="magenta")
            _verdict(console, task, step.success)
            return 0
        observations = step.observations
    console.print(f"out of turns (episodes.max_turns is {max_turns})", style="red")
    return 0


def parse(text: str, tools: list[Tool]) -> Reply:
    """What a person typed as a turn: a call of one of the tools, or a message.

    Raises:
        ValueError: it begins like a call, and is none.
    """
    names = [tool.name for tool in tools]
    name = text.lstrip("[").partition("(")[0].strip()
    if name not in names or "(" not in text:
        return Reply(text)
    try:
        node = ast.parse(text.strip().removeprefix("[").removesuffix("]"), mode="eval").body
        if not isinstance(node, ast.Call):
            raise ValueError("not a call")
        parameters = next(tool for tool in tools if tool.name == name).schema()
        keys = list(parameters["function"]["parameters"]["properties"])
        arguments = {
            key: _value(argument) for key, argument in zip(keys, node.args, strict=False)
        } | {str(keyword.arg): _value(keyword.value) for keyword in node.keywords}
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text[:60]} is not a call: write {name}(key=value)") from error
    return Reply("", (ToolCall(name, arguments),))


def _value(node: ast.expr) -> object:
    """A literal, or a bare word as text: a person may leave the quotes out."""
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)


def _ask(console: Console, several: bool) -> str:
    lines: list[str] = []
    try:
        while True:
            line = console.input("[bold]>[/bold] ").strip()
            lines.append(line)
            if not several or not line or line.lower().startswith("answer:"):
                return "\n".join(lines).strip()
    except (EOFError, KeyboardInterrupt):
        print(file=sys.stderr)
        return ""


def _reward(console: Console, parts: Mapping[str, float]) -> float:
    """Show reward parts; their sum."""
    for name, value in parts.items():
        console.print(f"    reward  {name} {value:+.2f}", style="magenta")
    return sum(parts.values())


def _verdict(console: Console, task: Task, success: bool) -> None:
    optimum = task.payload.get("optimum")
    wanted = task.payload.get("goal", task.answer)
    expected = f"the shortest plan has {optimum} steps" if optimum else f"expected {wanted}"
    console.print(
        f"{'right' if success else 'wrong'} ({expected})", style="green" if success else "red"
    )


def _watch_model(
    console: Console, params: Params, environment: Environment, task: Task, arm: str
) -> int:
    from ferrata.serving.ask import check_arm, load_arm, play_one

    screen = Screen(console)
    model, tokenizer = load_arm(params_folder() / check_arm(arm, params), params)
    played = play_one(
        model,
        tokenizer,
        params,
        task,
        environment=environment,
        observer=lambda _, message: screen.show(message),
    )
    for parts in played.rewards:
        _reward(console, parts)
    console.print(f"    return  {played.episode_return:+.2f} ({played.stop})", style="magenta")
    _verdict(console, task, played.success)
    return 0
