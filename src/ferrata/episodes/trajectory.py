"""The exact record of an episode."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ferrata.environments.base import Message, Task


class StopReason(StrEnum):
    """Why an episode ended. Every episode has exactly one."""

    ANSWERED = "answered"  # a message without a call, which the environment graded
    OUT_OF_TURNS = "out_of_turns"  # episodes.max_turns assistant turns were played
    OUT_OF_TOKENS = "out_of_tokens"  # a turn or the context reached its limit
    INVALID_CALLS = "invalid_calls"  # more than episodes.max_invalid_calls calls could not be run
    TOOL_FAILURE = "tool_failure"  # a tool itself broke more often than that
    ENDED = "ended"  # the environment ended the episode after a call


@dataclass
class Context:
    """One unbroken token sequence that an agent saw and wrote.

    ids, mask and logprobs have equal length T. mask is 1 exactly on sampled tokens (the closing
    token included); logprobs are those of the sampling distribution (temperature applied), and 0
    where mask is 0.
    """

    agent: str
    ids: list[int]
    mask: list[int]
    logprobs: list[float]
    prompt_length: int

    def append(self, ids: Sequence[int], logprobs: Sequence[float] | None = None) -> None:
        """Add what the agent sampled (with its log-probabilities), or what it was told."""
        self.ids += ids
        self.mask += [int(logprobs is not None)] * len(ids)
        self.logprobs += [0.0] * len(ids) if logprobs is None else logprobs


@dataclass
class Trajectory:
    """An episode as it happened.

    Attributes:
        sample: which of several episodes of the same task this is.
        contexts: in the order in which they were opened.
        messages: the conversation in words as it went, system message left out; `context` says of
            which context a message is, where that is not the first.
        rewards: named parts, in the order in which they were earned.
        returns: undiscounted sum of the parts of each agent that earned any.
        calls, invalid_calls, failed_calls: tool calls made; could not be run (the model's fault);
            broke (the tool's).
        answer: what the grader read as the claimed answer, or None.
        success: whether the environment called the episode solved.
        measures: what the environment measured beside it, by name; a name that comes again counts
            with its last value.
    """

    task: Task
    sample: int
    contexts: list[Context] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    rewards: list[dict[str, float]] = field(default_factory=list)
    returns: dict[str, float] = field(default_factory=dict)
    stop: StopReason | None = None
    turns: int = 0
    calls: int = 0
    invalid_calls: int = 0
    failed_calls: int = 0
    answer: str | None = None
    success: bool = False
    measures: dict[str, float] = field(default_factory=dict)

    def earn(self, agent: str, parts: Mapping[str, float]) -> None:
        """Add reward parts of an agent."""
        self.rewards.append(dict(parts))
        self.returns[agent] = self.returns.get(agent, 0.0) + sum(parts.values())

    @property
    def episode_return(self) -> float:
        """Undiscounted sum of the reward parts of the agent who began: what several agents share
        would count twice, what one wins and another loses would vanish."""
        began = self.contexts[0].agent if self.contexts else next(iter(self.returns), "")
        return self.returns.get(began, 0.0)

    @property
    def tokens(self) -> int:
        """Number of sampled tokens."""
        return sum(sum(context.mask) for context in self.contexts)

    def to_row(self) -> dict[str, Any]:
        """A flat row for Parquet; the columns that evaluation and report read."""
        return {
            "split": self.task.split,
            "environment": self.task.environment,
            "task_id": self.task.id,
            "band": self.task.band,
            "form": self.task.form,
            "sample": self.sample,
            "success": self.success,
            "return": self.episode_return,
            "stop": str(self.stop),
            "calls": self.calls,
            "invalid_calls": self.invalid_calls,
            "turns": self.turns,
            "tokens": self.tokens,
            "measures": json.dumps(self.measures),
            "question": self.task.payload.get("question", ""),
            "expected": str(self.task.payload.get("goal", self.task.answer)),
            "answer": self.answer,
            "messages": json.dumps(self.messages, ensure_ascii=False),
            "contexts": [
                {"agent": c.agent, "token_ids": c.ids, "mask": c.mask, "logprobs": c.logprobs}
                for c in self.contexts
            ],
        }


def render(messages: list[Message]) -> str:
    """A conversation as plain text for terminals and reports: one line per turn, calls as the model
    writes them."""
    lines = []
    context = 0
    for message in messages:
        if message.get("context", 0) != context:
            context = message.get("context", 0)
            lines.append(f"{'':>9}  --- {message.get('agent', 'context')} {context + 1} ---")
        calls = [call.get("function", call) for call in message.get("tool_calls", ())]
        text = str(message.get("content") or "")
        for call in calls:
            arguments = ", ".join(f"{k}={json.dumps(v)}" for k, v in call["arguments"].items())
            text += f"[{call['name']}({arguments})]"
        lines.append(f"{message['role']:>9}  {text.strip() or '(nothing)'}")
    return "\n".join(lines)
