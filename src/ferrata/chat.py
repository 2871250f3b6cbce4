"""From messages to tokens and back: the one assembler that SFT, RL, evaluation and chat use.

The text is cut at the borders of assistant turns, and every piece is tokenised by itself. So the
ids of an episode that was played (sampled ids, with the environment's pieces between them) and the
ids of the same conversation written down for SFT are equal by construction, and the mask is exactly
the sampled pieces, closing token included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ferrata.environments.base import Message, Reply, Tool, ToolCall
from ferrata.errors import FerrataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

OPEN, CLOSE, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"

# Tools are shown as short signatures: JSON schemas would cost 180 tokens a prompt. A call is a
# Python call list, which takes 13 tokens where a JSON call takes 32, and which transformers and
# vLLM ("pythonic") can parse.
TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.role == 'system' or (loop.first and tools) -%}"
    "{{ '<|im_start|>system\n' + (message.content if message.role == 'system' else '') }}"
    "{%- if tools and loop.first -%}"
    "{{ '\nTools, as [name(key=value)]:' }}"
    "{%- for tool in tools -%}"
    "{%- set f = tool.function -%}"
    "{{ '\n' + f.name + '(' + (f.parameters.properties.keys() | join(', ')) + '): ' }}"
    "{{ f.description }}"
    "{%- endfor -%}{%- endif -%}"
    "{{ '<|im_end|>\n' }}"
    "{%- endif -%}"
    "{%- if message.role != 'system' -%}"
    "{{ '<|im_start|>' + message.role + '\n' + (message.content or '') }}"
    "{%- if message.tool_calls -%}"
    "{{ '[' }}"
    "{%- for call in message.tool_calls -%}"
    "{%- set f = call.function if call.function is defined else call -%}"
    "{{ f.name + '(' }}"
    "{%- for key, value in f.arguments.items() -%}"
    "{{ key + '=' + (value | tojson) + (', ' if not loop.last else '') }}"
    "{%- endfor -%}"
    "{{ ')' + (', ' if not loop.last else ']') }}"
    "{%- endfor -%}"
    "{%- endif -%}"
    "{{ '<|im_end|>\n' }}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)

RESPONSE_TEMPLATE: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        # the list reaches to the end of the turn: text behind a call is malformed, not ignored
        "tool_calls": {
            "open_pattern": r"(?=\[[A-Za-z_]\w*\()",
            "close": CLOSE,
            "content": "python-call-list",
            "transform_each": True,
            "transform": {
                "type": "function",
                "function": {"name": "{name}", "arguments": "{arguments}"},
            },
        },
        "content": {"close": CLOSE, "content": "text"},
    },
}


def prepare_tokenizer(tokenizer: PreTrainedTokenizerBase, template: str) -> PreTrainedTokenizerBase:
    """Give a tokenizer the chat template, and a padding token that differs from the closing token.

    Args:
        template: `ferrata` installs the compact template; `model` keeps the tokenizer's own one,
            which must have been made for tool calls. Where TRL knows a prefix-preserving variant of
            it, that one is installed.

    Raises:
        FerrataError: special tokens are missing, or the model's own template cannot be used for
            training.
    """
    if template == "ferrata":
        vocabulary = tokenizer.get_vocab()
        missing = [token for token in (OPEN, CLOSE, PAD) if token not in vocabulary]
        if missing:
            raise FerrataError(
                "params.yaml: chat.template",
                found=f"'ferrata' with a tokenizer that lacks {', '.join(missing)}",
                expected="a tokenizer with ChatML tokens",
                hint="set chat.template to 'model' to keep the model's own template",
            )
        tokenizer.chat_template = TEMPLATE
        tokenizer.response_template = RESPONSE_TEMPLATE
        tokenizer.eos_token, tokenizer.pad_token = CLOSE, PAD
        return tokenizer
    from trl.chat_template_utils import (
        add_response_schema,
        get_training_chat_template,
        is_chat_template_prefix_preserving,
    )

    try:
        if getattr(tokenizer, "response_template", None) is None:
            tokenizer = add_response_schema(tokenizer)
        if not is_chat_template_prefix_preserving(tokenizer):
            tokenizer.chat_template = get_training_chat_template(tokenizer)
    except ValueError as error:
        raise FerrataError(
            "params.yaml: chat.template",
            found="'model', but the model's own template is not known to TRL",
            expected="a template that renders tools, keeps prefixes, and can be parsed",
            hint=f"set chat.template to 'ferrata' ({str(error).splitlines()[0][:120]})",
        ) from error
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id == tokenizer.eos_token_id:
        raise FerrataError(
            "the base model's tokenizer",
            found=f"padding token {tokenizer.pad_token!r} equal to the closing token",
            expected="a padding token of its own",
            hint="set chat.template to 'ferrata'",
        )
    return tokenizer


@dataclass(frozen=True)
class Encoded:
    """A conversation as tokens. ids and mask have equal length T; mask is 1 on assistant tokens."""

    ids: list[int]
    mask: list[int]


class Assembler:
    """Turns messages into ids and masks, and sampled ids into replies.

    Args:
        tokenizer: as `prepare_tokenizer` left it.
        system: the system message that opens every context.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, system: str) -> None:
        self.tokenizer = tokenizer
        self.system = system
        self.close_id = int(tokenizer.eos_token_id)
        self.pad_id = int(tokenizer.pad_token_id)
        self._close: str = tokenizer.eos_token
        self._control = {*tokenizer.all_special_ids, self.pad_id}
        if OPEN in tokenizer.get_vocab():  # a special token, but not always a named one
            self._control.add(tokenizer.get_vocab()[OPEN])
        self._tokens = lru_cache(maxsize=50_000)(self._tokenize)
        self._opening = self._render([{"role": "user", "content": "x"}], (), True).rpartition("x")[
            2
        ]

    def _tokenize(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _render(self, messages: Sequence[Message], tools: Sequence[Tool], opened: bool) -> str:
        text: Any = self.tokenizer.apply_chat_template(
            [_standard(m) for m in messages],
            tools=[tool.schema() for tool in tools] or None,
            add_generation_prompt=opened,
            tokenize=False,
        )
        return str(text)

    def _context(self, messages: Sequence[Message]) -> list[Message]:
        if messages and messages[0]["role"] == "system":
            return list(messages)
        return [{"role": "system", "content": self.system}, *messages]

    def pieces(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[tuple[str, bool]]:
        """The rendered conversation cut into (text, written by the assistant?) pieces.

        Raises:
            FerrataError: the template rewrites earlier text when a message follows (it is not
                prefix-preserving).
        """
        messages = self._context(messages)
        pieces: list[tuple[str, bool]] = []
        done = ""
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self._render(messages[:index], tools, True)
            after = self._render(messages[: index + 1], tools, False)
            turn, closed, _ = after[len(before) :].partition(self._close)
            if not before.startswith(done) or not after.startswith(before) or not closed:
                raise FerrataError(
                    "chat template",
                    found=f"a template that changes the text before message {index}",
                    expected="a prefix-preserving template",
                    hint="set chat.template to 'ferrata' in params.yaml",
                )
            pieces += [(before[len(done) :], False), (turn + self._close, True)]
            done = before + turn + self._close
        if messages[-1]["role"] != "assistant":
            pieces.append((self._render(messages, tools, True)[len(done) :], False))
        return pieces

    def encode(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Encoded:
        """A whole conversation; ends with the closing token of its last assistant turn, or with an
        opened turn."""
        ids: list[int] = []
        mask: list[int] = []
        for text, sampled in self.pieces(messages, tools):
            tokens = self._tokens(text)
            ids += tokens
            mask += [int(sampled)] * len(tokens)
        return Encoded(ids, mask)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """The ids of a context up to an opened assistant turn. The last message is not the
        assistant's."""
        return self.encode(messages, tools).ids

    def extension(self, messages: Sequence[Message]) -> list[int]:
        """What the environment writes behind the closing token of an assistant turn, up to the next
        opened turn.

        It depends on the new messages alone, so it is rendered behind a fixed turn.
        """
        fixed: list[Message] = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "y"},
        ]
        return list(self._tokens(self.pieces([*fixed, *messages], ())[-1][0]))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def parse(self, turn_ids: Sequence[int]) -> Reply:
        """Read one sampled turn. Never raises: what cannot be read becomes a Reply with `error`
        set."""
        from transformers.utils.chat_parsing import parse_response

        body = list(turn_ids[:-1]) if turn_ids and turn_ids[-1] == self.close_id else list(turn_ids)
        text = self.decode(body)
        if self._control.intersection(body):
            return Reply(text, error="control tokens inside a turn")
        try:
            message = parse_response(text, self.tokenizer.response_template, prefix=self._opening)
            calls = tuple(
                ToolCall(str(call["function"]["name"]), dict(call["function"]["arguments"]))
                for call in message.get("tool_calls", ())
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            return Reply(text, error=str(error).splitlines()[0].split(": ", 1)[-1].rstrip("."))
        return Reply(str(message.get("content") or ""), calls)


def _standard(message: Message) -> Message:
    """Tool calls in the nested OpenAI form that every model's template reads."""
    if not message.get("tool_calls"):
        return message
    calls = [
        call if "function" in call else {"type": "function", "function": dict(call)}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}
