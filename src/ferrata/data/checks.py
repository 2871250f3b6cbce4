"""Checks that block: graders under attack, leakage between splits, lengths within the context
budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from ferrata.chat import Assembler, Encoded
from ferrata.config.episodes import EpisodesParams
from ferrata.environments.base import Demonstration, Environment, Split, Task
from ferrata.errors import FerrataError


def check_fixtures(environment: Environment) -> int:
    """Play every fixture of the grader and compare the reward with the stated one; returns their
    number.

    Raises:
        FerrataError: one scores otherwise: nothing may train on such a grader.
    """
    fixtures = environment.fixtures()
    wrong = []
    for fixture in fixtures:
        reward = fixture.play(environment.start(fixture.task))
        if reward != fixture.reward:
            wrong.append(
                f"{fixture.name} ({fixture.content[:60]!r}): {reward:g}, not {fixture.reward:g}"
            )
    if wrong:
        raise FerrataError(
            f"grader of {environment.name}",
            found="; ".join(wrong),
            expected="the stated rewards",
            hint="mend the grader or the fixture in src/ferrata/environments",
        )
    return len(fixtures)


def check_leakage(splits: Mapping[Split, list[Task]]) -> None:
    """No problem (signature) or question of one split may occur in another.

    Raises:
        FerrataError: naming the first pair of splits and tasks.
    """
    for kind in ("signature", "question"):
        seen: dict[str, Task] = {}
        for tasks in splits.values():
            for task in tasks:
                key = task.signature if kind == "signature" else task.payload["question"]
                other = seen.setdefault(key, task)
                if (
                    kind == "question"
                    and other.split != task.split
                    and other.payload != task.payload
                ):
                    continue  # the same words about another shop are another problem
                if other.split != task.split:
                    raise FerrataError(
                        f"leakage between {other.split} and {task.split}",
                        found=f"{other.id} and {task.id} share the {kind} {key!r}",
                        expected="no problem in two splits",
                        hint="change the seed in params.yaml, or the environment's split rule",
                    )


def check_prompts(
    environment: Environment, assembler: Assembler, budgets: EpisodesParams, tasks: Sequence[Task]
) -> int:
    """Every prompt leaves room for a full turn within the context; returns the longest prompt in
    tokens.

    Raises:
        FerrataError: a task is longer than the context budget.
    """
    longest = 0
    room = budgets.max_context_tokens - budgets.max_turn_tokens
    for task in tasks:
        seen = environment.start(task).reset().values()
        length = max(len(assembler.prompt(first.messages, first.tools)) for first in seen)
        if length > room:
            raise FerrataError(
                f"task {task.id}",
                found=f"a prompt of {length} tokens",
                expected=f"at most {room} (episodes.max_context_tokens - episodes.max_turn_tokens)",
                hint="raise episodes.max_context_tokens in params.yaml",
            )
        longest = max(longest, length)
    return longest


def check_demonstrations(
    environment: Environment,
    assembler: Assembler,
    budgets: EpisodesParams,
    demonstrations: Sequence[Demonstration],
) -> int:
    """Every demonstration fits into the context, has something to learn, and earns in its world
    what it says; returns the longest in tokens.

    Raises:
        FerrataError: one is too long (SFT would cut it), has no assistant token (an all-zero mask),
            has a turn or a number of turns that no policy could finish, or its world does not grade
            it as it says.
    """
    longest = 0
    for demonstration in demonstrations:
        tools = environment.tools(demonstration.task)
        for messages in demonstration.contexts():
            encoded = assembler.encode(messages, tools)
            _check_context(demonstration.task, encoded, budgets)
            longest = max(longest, len(encoded.ids))
        steps = demonstration.play(environment.start(demonstration.task))
        if len(steps) > budgets.max_turns:
            raise FerrataError(
                f"demonstration of {demonstration.task.id}",
                found=f"{len(steps)} turns",
                expected=f"at most episodes.max_turns = {budgets.max_turns}",
                hint="raise episodes.max_turns in params.yaml",
            )
        if not steps or not steps[-1].done or steps[-1].success != demonstration.success:
            raise FerrataError(
                f"demonstration of {demonstration.task.id}",
                found="an episode that its world "
                + ("grades otherwise" if steps and steps[-1].done else "does not call done"),
                expected=f"success {demonstration.success}, as the demonstration says",
                hint=f"correct `demonstrate` or the grader of {demonstration.task.environment}",
            )
    return longest


def _check_context(task: Task, encoded: Encoded, budgets: EpisodesParams) -> None:
    if len(encoded.ids) > budgets.max_context_tokens or not any(encoded.mask):
        raise FerrataError(
            f"demonstration of {task.id}",
            found=f"{len(encoded.ids)} tokens, {sum(encoded.mask)} of them the assistant's",
            expected=f"1 to episodes.max_context_tokens = {budgets.max_context_tokens}",
            hint="raise episodes.max_context_tokens in params.yaml",
        )
    turn = max(sum(run) for _, run in groupby(encoded.mask))
    if turn > budgets.max_turn_tokens:
        raise FerrataError(
            f"demonstration of {task.id}",
            found=f"an assistant turn of {turn} tokens",
            expected=f"at most episodes.max_turn_tokens = {budgets.max_turn_tokens}",
            hint="raise episodes.max_turn_tokens in params.yaml: a policy that learns such "
            "turns would be cut in each",
        )
