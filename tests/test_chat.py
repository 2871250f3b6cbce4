"""The assembler: prefixes, masks, round trips, and turns that cannot be read."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ferrata.chat import CLOSE, OPEN, PAD, Assembler, prepare_tokenizer
from ferrata.environments.base import Message, Reply, Task, ToolCall
from ferrata.environments.tool_use import ToolUse
from ferrata.errors import FerrataError

ENVIRONMENT = ToolUse()
CALLS = (
    ToolCall("lookup", {"item": "lamp", "field": "price"}),
    ToolCall("convert", {"value": -3.25, "from_unit": "km", "to_unit": "m"}),
    ToolCall("calculator", {"expression": "-7*(2+3)"}),
    ToolCall("lookup", {"item": 'say "hi", it\'s [a] \\ (b)=c', "field": "größe 😀 日本"}),
    ToolCall("weekday", {"date": "two\nlines\tand <tags> & more"}),
    ToolCall("weather", {}),
    ToolCall("convert", {"value": -12, "from_unit": "", "to_unit": ")]"}),
)
slow = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def assistant(*calls: ToolCall, content: str = "") -> Message:
    made = [{"name": c.name, "arguments": dict(c.arguments)} for c in calls]
    return {"role": "assistant", "content": content, "tool_calls": made}


CONVERSATION: list[Message] = [
    {"role": "user", "content": "What do 3 of the lamp weigh?"},
    assistant(CALLS[0]),
    {"role": "tool", "name": "lookup", "content": "7.5"},
    assistant(CALLS[1], CALLS[2]),
    {"role": "tool", "name": "convert", "content": "-3250"},
    {"role": "tool", "name": "calculator", "content": "error: no"},
    {"role": "assistant", "content": "Let me see. 3 make 22.5"},
    {"role": "user", "content": "And in g?"},
    {"role": "assistant", "content": "Answer: 22500"},
]


def turn(assembler: Assembler, message: Message) -> list[int]:
    """The ids of a message as an assistant would sample it."""
    text, sampled = assembler.pieces([{"role": "user", "content": "x"}, message], ())[-1]
    assert sampled
    return list(assembler.tokenizer(text, add_special_tokens=False)["input_ids"])


def check_prefixes(assembler: Assembler, tools: Any) -> None:
    whole = assembler.pieces(CONVERSATION, tools)
    text = "".join(piece for piece, _ in whole)
    for k in range(1, len(CONVERSATION) + 1):
        part = assembler.pieces(CONVERSATION[:k], tools)
        following = CONVERSATION[k]["role"] if k < len(CONVERSATION) else "assistant"
        if "assistant" in (CONVERSATION[k - 1]["role"], following):
            assert part == whole[: len(part)]
        else:  # more of the environment's messages follow, so no turn is open yet
            assert text.startswith("".join(piece for piece, _ in part[:-1]))
        encoded = assembler.encode(CONVERSATION[:k], tools)
        assert len(encoded.ids) == len(encoded.mask)
    assert [sampled for _, sampled in whole] == [False, True] * 4


def check_extensions(assembler: Assembler, tools: Any) -> None:
    whole = assembler.pieces(CONVERSATION, tools)
    for messages, piece in ((CONVERSATION[2:3], 2), (CONVERSATION[4:6], 4), (CONVERSATION[7:8], 6)):
        expected = assembler.tokenizer(whole[piece][0], add_special_tokens=False)["input_ids"]
        assert assembler.extension(messages) == expected


def test_pieces_of_a_beginning_are_a_prefix(assembler: Assembler, tasks: list[Task]) -> None:
    check_prefixes(assembler, ENVIRONMENT.tools(tasks[0]))
    check_prefixes(assembler, ())


def test_an_extension_is_the_piece_of_the_whole(assembler: Assembler, tasks: list[Task]) -> None:
    check_extensions(assembler, ENVIRONMENT.tools(tasks[0]))


def test_the_mask_covers_the_assistant_and_its_closing_token(
    assembler: Assembler, tasks: list[Task]
) -> None:
    task = random.Random(4).choice([t for t in tasks if t.band == 2])
    played = ENVIRONMENT.demonstrate(task, 1.0, random.Random(4))
    encoded = assembler.encode(played.messages, ENVIRONMENT.tools(task))
    opening = assembler.tokenizer(f"{OPEN}assistant\n", add_special_tokens=False)["input_ids"]
    expected = [0] * len(encoded.ids)  # walked id by id, without the assembler's own pieces
    inside = False
    for at in range(len(encoded.ids)):
        inside = inside or encoded.ids[max(0, at - len(opening)) : at] == opening
        expected[at] = int(inside)
        inside = inside and encoded.ids[at] != assembler.close_id
    assert encoded.mask == expected
    assert encoded.mask[-1] == 1 and encoded.ids[-1] == assembler.close_id
    turns = [m for m in played.messages if m["role"] == "assistant"]
    sampled = [i for i, m in zip(encoded.ids, encoded.mask, strict=True) if m]
    assert sampled == [i for message in turns for i in turn(assembler, message)]
    assert sampled.count(assembler.close_id) == len(turns) == 3


def test_the_prompt_opens_a_turn_and_shows_the_tools(
    assembler: Assembler, tasks: list[Task]
) -> None:
    ids = assembler.prompt([{"role": "user", "content": "Hello?"}], ENVIRONMENT.tools(tasks[0]))
    text = assembler.decode(ids)
    assert text.startswith(f"{OPEN}system\n{assembler.system}\n")
    assert text.endswith(f"Hello?{CLOSE}\n{OPEN}assistant\n")
    assert "\nlookup(item, field): price, stock or weight in kg" in text
    other = assembler.prompt([{"role": "system", "content": "Z"}, CONVERSATION[0]], ())
    assert assembler.decode(other).startswith(f"{OPEN}system\nZ{CLOSE}")


def test_the_padding_token_is_not_the_closing_token(assembler: Assembler) -> None:
    assert assembler.pad_id != assembler.close_id
    assert assembler.tokenizer.eos_token == CLOSE and assembler.tokenizer.pad_token == PAD


@pytest.mark.parametrize("calls", [*((c,) for c in CALLS), CALLS[:3], CALLS], ids=len)
def test_calls_survive_the_round_trip(assembler: Assembler, calls: tuple[ToolCall, ...]) -> None:
    ids = turn(assembler, assistant(*calls))
    assert assembler.parse(ids) == Reply("", calls)
    assert assembler.parse(ids[:-1]) == Reply("", calls)  # cut before the closing token


@slow
@given(
    calls=st.lists(
        st.builds(
            ToolCall,
            st.from_regex(r"[a-z][a-z0-9_]{0,9}", fullmatch=True),
            st.dictionaries(
                st.sampled_from(["item", "value", "a_b"]),
                st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
                | st.integers(-(10**9), 10**9)
                | st.floats(-1e9, 1e9, allow_nan=False),
                max_size=3,
            ),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_any_calls_survive_the_round_trip(assembler: Assembler, calls: list[ToolCall]) -> None:
    text = repr([dict(c.arguments) for c in calls])
    if any(token in text for token in (OPEN, CLOSE, PAD)):
        return
    assert assembler.parse(turn(assembler, assistant(*calls))).calls == tuple(calls)


def test_text_survives_the_round_trip(assembler: Assembler) -> None:
    for text in ("Answer: 72", "a\nb", "größer 😀", "a list: [1, 2]"):
        message = {"role": "assistant", "content": text}
        assert assembler.parse(turn(assembler, message)) == Reply(text)


MALFORMED = (
    "[lookup(item=)]",
    '[lookup(item="lamp"',
    '[lookup(item="lamp")',
    '[lookup("lamp")]',
    '[lookup(item="lamp")] and more',
    "[lookup(item=lamp)]",
    "[lookup(item=__import__('os'))]",
    "[lookup(**{})]",
    "[lookup(a=1, a=2)]",
    "[f(x=" + "[" * 500 + "]" * 500 + ")]",
    "[f(x=" + "(" * 3000 + ")]",
    "[f(x=" + "-" * 3000 + "1)]",
    "[f(x=" + "9" * 5000 + ")]",
    "[f(x=\x00)]",
)


@pytest.mark.parametrize("text", MALFORMED, ids=lambda t: t[:20])
def test_malformed_calls_are_errors(assembler: Assembler, text: str) -> None:
    ids = assembler.tokenizer(text + CLOSE, add_special_tokens=False)["input_ids"]
    reply = assembler.parse(ids)
    assert reply.error, reply
    assert not reply.calls and reply.content == text


@pytest.mark.parametrize(
    "token",
    [
        OPEN,
        PAD,
        CLOSE,
    ],  # a tokenizer need not name OPEN as special (`base.source: scratch` does not)
)
def test_control_tokens_inside_a_turn_are_an_error(assembler: Assembler, token: str) -> None:
    text = f'[lookup(item="{token}")]{CLOSE}'
    reply = assembler.parse(assembler.tokenizer(text, add_special_tokens=False)["input_ids"])
    assert reply.error == "control tokens inside a turn" and not reply.calls


def test_an_empty_turn_is_an_empty_reply(assembler: Assembler) -> None:
    assert assembler.parse([assembler.close_id]) == Reply("")
    assert assembler.parse([]) == Reply("")


@slow
@given(text=st.text() | st.text(alphabet="[]()=,\"'ab1-.{}\\\n").map("[a(b={})]".format))
def test_parsing_never_raises_on_text(assembler: Assembler, text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    reply = assembler.parse(assembler.tokenizer(text, add_special_tokens=False)["input_ids"])
    assert reply.error is None or not reply.calls


@slow
@given(data=st.data())
def test_parsing_never_raises_on_ids(assembler: Assembler, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, len(assembler.tokenizer) - 1), max_size=30))
    reply = assembler.parse(ids)
    assert reply.error is None or not reply.calls


def own_template(tiny: tuple[Any, Any], template: str | None) -> Any:
    """A tokenizer as a model with its own template brings it."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tiny[1].backend_tokenizer,
        eos_token=CLOSE,
        pad_token=PAD,
        chat_template=template,
    )


def qwen3() -> str:
    import trl

    path = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
    return path.read_text(encoding="utf-8")


def test_a_models_own_template_is_kept_in_training_form(
    tiny: tuple[Any, Any], tasks: list[Task]
) -> None:
    tokenizer = prepare_tokenizer(own_template(tiny, qwen3()), "model")
    assert "<tool_call>" in tokenizer.chat_template
    assembler = Assembler(tokenizer, "Use tools.")
    tools = ENVIRONMENT.tools(tasks[0])
    check_prefixes(assembler, tools)
    check_extensions(assembler, tools)
    assert '"name": "lookup"' in assembler.pieces(CONVERSATION, tools)[0][0]
    for calls in (*((c,) for c in CALLS), CALLS):
        reply = assembler.parse(turn(assembler, assistant(*calls)))
        assert reply.error is None
        assert reply.calls == calls
    answer = assembler.parse(turn(assembler, CONVERSATION[-1]))
    assert answer.error is None and answer.content == "Answer: 22500"


def test_a_template_that_rewrites_earlier_text_is_refused(tiny: tuple[Any, Any]) -> None:
    tokenizer = own_template(
        tiny,
        "{{ messages|length }}{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    )
    with pytest.raises(FerrataError, match="chat template"):
        Assembler(tokenizer, "").pieces(CONVERSATION, ())


def test_templates_that_cannot_be_used_are_named(tiny: tuple[Any, Any]) -> None:
    for template in (None, "{{ messages[0].content }}"):
        with pytest.raises(FerrataError, match=r"chat\.template"):
            prepare_tokenizer(own_template(tiny, template), "model")
    same = own_template(tiny, qwen3())
    same.pad_token = CLOSE
    with pytest.raises(FerrataError, match="tokenizer"):
        prepare_tokenizer(same, "model")


def test_a_tokenizer_without_chatml_is_refused() -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    plain = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
    with pytest.raises(FerrataError, match=r"chat\.template") as caught:
        prepare_tokenizer(plain, "ferrata")
    assert OPEN in str(caught.value)
