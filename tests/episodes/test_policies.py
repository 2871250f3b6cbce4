"""The policy of the engine against `generate` and against full forward passes."""

from __future__ import annotations

import copy
from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch

from ferrata.episodes.policies import (
    Continuation,
    Prompt,
    Sampled,
    TransformersPolicy,
    resolve_dtype,
)
from ferrata.errors import FerrataError

PAD_ID = 0
NO_CLOSE = 10**9  # no token closes a turn, so turns end at their limit
Turns = dict[int, list[Sampled]]


def prompts(lengths: tuple[int, ...], limit: int, start: int = 0) -> list[Prompt]:
    """Contexts of these lengths that share their first five tokens."""
    made = []
    for index, length in enumerate(lengths, start=start):
        generator = torch.Generator().manual_seed(100 + index)
        own = torch.randint(10, 300, (length - 5,), generator=generator).tolist()
        made.append(Prompt([11, 12, 13, 14, 15, *own], limit, (7, index)))
    return made


def play(
    policy: TransformersPolicy,
    contexts: list[Prompt],
    temperature: float,
    extension: tuple[int, ...] = (),
    limit: int = 0,
) -> Turns:
    """One turn of every context, and a second one behind `extension`, if given."""
    turns: Turns = {index: [] for index in range(len(contexts))}

    def on_turn(index: int, turn: Sampled) -> Continuation | None:
        turns[index].append(Sampled(list(turn.ids), list(turn.logprobs), turn.closed))
        if extension and len(turns[index]) == 1:
            return Continuation(extension, limit)
        return None

    policy.run(contexts, temperature, on_turn)
    return turns


def generate(model: Any, ids: list[int], limit: int, close_id: int | None) -> list[int]:
    with torch.no_grad():
        made = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            do_sample=False,
            max_new_tokens=limit,
            eos_token_id=close_id,
            pad_token_id=PAD_ID,
        )
    return made[0, len(ids) :].tolist()


def full_logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0].float()


LENGTHS = (6, 40, 17, 17, 90, 9)
EXTENSION = (21, 22, 23, 24, 25, 26, 27)


def test_greedy_turns_equal_generate(tiny: tuple[Any, Any]) -> None:
    model = tiny[0]
    contexts = prompts(LENGTHS, 12)
    close_id = generate(model, list(contexts[1].ids), 4, None)[-1]  # so that some turns are closed
    policy = TransformersPolicy(model, close_id)
    turns = play(policy, contexts, 0.0, EXTENSION, 9)
    closed = 0
    for index, context in enumerate(contexts):
        first, second = turns[index]
        ids = list(context.ids)
        assert first.ids == generate(model, ids, 12, close_id)
        ids += [*first.ids, *EXTENSION]
        assert second.ids == generate(model, ids, 9, close_id)
        for turn in (first, second):
            assert turn.closed == (turn.ids[-1] == close_id)
            closed += turn.closed
    assert 0 < closed < 2 * len(contexts)


def test_the_rest_of_the_batch_does_not_matter(tiny: tuple[Any, Any]) -> None:
    contexts = prompts(LENGTHS, 8)
    for temperature in (0.0, 1.0):
        whole = play(TransformersPolicy(tiny[0], NO_CLOSE), contexts, temperature, EXTENSION, 5)
        parts = play(
            TransformersPolicy(tiny[0], NO_CLOSE, batch_size=2),
            contexts[::-1],
            temperature,
            EXTENSION,
            5,
        )
        for index in range(len(contexts)):
            alone = play(
                TransformersPolicy(tiny[0], NO_CLOSE),
                [contexts[index]],
                temperature,
                EXTENSION,
                5,
            )
            ids = [turn.ids for turn in whole[index]]
            assert [len(turn) for turn in ids] == [8, 5]
            assert ids == [turn.ids for turn in alone[0]]
            assert ids == [turn.ids for turn in parts[len(contexts) - 1 - index]]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_log_probs_equal_a_full_forward(tiny: tuple[Any, Any], temperature: float) -> None:
    contexts = prompts(LENGTHS, 10)
    turns = play(TransformersPolicy(tiny[0], NO_CLOSE), contexts, temperature, EXTENSION, 6)
    for index, context in enumerate(contexts):
        ids = list(context.ids)
        for turn in turns[index]:
            logits = full_logits(tiny[0], ids + turn.ids)[len(ids) - 1 : -1]
            expected = torch.log_softmax(logits / (temperature or 1.0), -1)
            expected = expected.gather(1, torch.tensor(turn.ids)[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(turn.logprobs), expected, rtol=0, atol=1e-4)
            ids += [*turn.ids, *EXTENSION]


@pytest.mark.parametrize("scores", [1, 1 << 22])
def test_a_long_common_beginning_and_scores_in_pieces_change_nothing(
    tiny: tuple[Any, Any], monkeypatch: Any, scores: int
) -> None:
    from ferrata.episodes import slots

    monkeypatch.setattr(slots, "SCORES", scores)
    shared = torch.randint(10, 300, (70,), generator=torch.Generator().manual_seed(1)).tolist()
    contexts = [Prompt([*shared, *p.ids], p.limit, p.seed) for p in prompts(LENGTHS, 9)]
    turns = play(TransformersPolicy(tiny[0], NO_CLOSE, batch_size=4), contexts, 0.0, EXTENSION, 5)
    for index, context in enumerate(contexts):
        ids = list(context.ids)
        for turn, limit in zip(turns[index], (9, 5), strict=True):
            assert turn.ids == generate(tiny[0], ids, limit, None)
            ids += [*turn.ids, *EXTENSION]


def two_kinds() -> list[Prompt]:
    """Contexts of two capabilities with beginnings of their own, and one that begins like none."""

    def draw(n: int, seed: int) -> list[int]:
        return torch.randint(10, 300, (n,), generator=torch.Generator().manual_seed(seed)).tolist()

    first, second = draw(20, 1) + draw(70, 2), draw(20, 1) + draw(110, 3)
    ids = [first + draw(5, 4), second + draw(9, 5), draw(40, 6), first + draw(12, 7)]
    ids += [second + draw(4, 8), first + draw(30, 9), second + draw(6, 10)]
    return [Prompt(context, 9, (5, index)) for index, context in enumerate(ids)]


@pytest.mark.parametrize("scores", [1, 1 << 22])
@pytest.mark.parametrize("batch_size", [3, 64])
def test_each_capability_has_a_beginning_of_its_own(
    tiny: tuple[Any, Any], monkeypatch: Any, scores: int, batch_size: int
) -> None:
    from ferrata.episodes import slots

    monkeypatch.setattr(slots, "SCORES", scores)
    contexts = two_kinds()
    fed: list[int] = []
    hook = tiny[0].register_forward_pre_hook(
        lambda module, args, kwargs: fed.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    try:
        policy = TransformersPolicy(tiny[0], NO_CLOSE, batch_size=batch_size)
        turns = play(policy, contexts, 0.0, EXTENSION, 5)
    finally:
        hook.remove()
    assert sorted(fed[:2]) == [90, 130]  # each beginning once
    if batch_size == 64:
        assert fed[2] == 5 + 9 + 40 + 12 + 4 + 30 + 6
    for index, context in enumerate(contexts):
        ids = list(context.ids)
        for turn, limit in zip(turns[index], (9, 5), strict=True):
            assert turn.ids == generate(tiny[0], ids, limit, None)
            ids += [*turn.ids, *EXTENSION]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_choices_made_in_pieces_are_the_same(monkeypatch: Any, temperature: float) -> None:
    from ferrata.episodes import policies

    logits = torch.randn(37, 50, generator=torch.Generator().manual_seed(2))

    def choices() -> Any:
        random = [
            [policies.uniforms((row, member)) for member in range(1 + row % 3)] for row in range(37)
        ]
        return policies.choose(logits, random, temperature)

    made = choices()
    assert [len(row) for row in made] == [1 + row % 3 for row in range(37)]
    if temperature == 0:
        assert [row[0][0] for row in made] == logits.argmax(-1).tolist()
    monkeypatch.setattr(policies, "ROWS", 1000)
    assert choices() == made


def test_sampling_is_keyed_by_the_seed(tiny: tuple[Any, Any]) -> None:
    policy = TransformersPolicy(tiny[0], NO_CLOSE)
    ids = prompts((20,), 10)[0].ids
    same, other = Prompt(ids, 10, (1, 0, 5, 0)), Prompt(ids, 10, (1, 0, 5, 1))
    turns = play(policy, [same, other, *prompts((8, 50), 10, start=3), same], 1.0)
    assert turns[0][0].ids == turns[4][0].ids != turns[1][0].ids
    again = play(policy, [other, same], 1.0)
    assert again[1][0].ids == turns[0][0].ids and again[0][0].ids == turns[1][0].ids


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_sampled_frequencies_match_the_softmax(tiny: tuple[Any, Any], temperature: float) -> None:
    from scipy.stats import chisquare

    n = 4000
    ids = prompts((12,), 1)[0].ids
    policy = TransformersPolicy(tiny[0], NO_CLOSE, batch_size=n)
    turns = play(policy, [Prompt(ids, 1, (3, sample)) for sample in range(n)], temperature)
    counts = Counter(turn[0].ids[0] for turn in turns.values())
    expected = torch.softmax(full_logits(tiny[0], list(ids))[-1].double() / temperature, -1) * n
    common = [token for token in range(len(expected)) if expected[token] >= 8]
    assert len(common) > 5
    seen = [counts[token] for token in common]
    wanted = expected[common].tolist()
    rest = n - sum(wanted)
    if rest > 0:
        seen.append(n - sum(seen))
        wanted.append(rest)
    assert chisquare(seen, wanted).pvalue > 1e-3


def test_in_bfloat16_turns_differ_at_near_ties_only(tiny: tuple[Any, Any]) -> None:
    model = copy.deepcopy(tiny[0]).to(torch.bfloat16)
    contexts = prompts((6, 30, 17, 60, 9, 25, 44, 12), 16)
    turns = play(TransformersPolicy(model, NO_CLOSE), contexts, 0.0)
    equal = 0
    for index, context in enumerate(contexts):
        ids, ours = list(context.ids), turns[index][0].ids
        theirs = generate(model, ids, 16, None)
        at = next((i for i in range(16) if ours[i] != theirs[i]), None)
        if at is None:
            equal += 1
            continue
        logits = full_logits(model, ids + ours[:at])[-1]
        top = logits.topk(2).values
        assert top[0] - top[1] < 0.125 * max(1.0, float(top[0].abs())), (index, at)
    assert equal > 0


def test_equal_prompts_are_computed_once(tiny: tuple[Any, Any]) -> None:
    """A group costs one prefill, and each member still goes its own way."""
    ids = prompts((30,), 6)[0].ids
    group = [Prompt(ids, 6, (9, sample)) for sample in range(6)]
    seen: list[int] = []
    hook = tiny[0].register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    try:
        turns = play(TransformersPolicy(tiny[0], NO_CLOSE), group, 1.0)
    finally:
        hook.remove()
    assert seen == [30] + [6] * 5
    assert len({tuple(turn[0].ids) for turn in turns.values()}) > 1


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_slots_go_to_the_next_prompt_and_are_dropped(tiny: tuple[Any, Any], slots: int) -> None:
    """Contexts of many lengths and limits through few slots, results of many lengths in between;
    every token and log-probability is that of a model that never heard of slots."""
    plain = copy.deepcopy(tiny[0])
    plain.set_attn_implementation("eager")
    contexts = [
        Prompt(context.ids, limit, context.seed)
        for context, limit in zip(prompts(LENGTHS, 1), (9, 2, 14, 5, 3, 7), strict=True)
    ]
    contexts += [Prompt(contexts[2].ids, 4, (1,)), Prompt(contexts[2].ids, 6, (2,))]  # a group
    results = {i: tuple(range(30, 30 + 1 + 5 * i % 17)) for i in range(len(contexts))}
    widths: list[int] = []
    turns: Turns = {index: [] for index in range(len(contexts))}

    def on_turn(index: int, turn: Sampled) -> Continuation | None:
        turns[index].append(turn)
        going_on = len(turns[index]) <= index % 3
        return Continuation(results[index], 2 + index) if going_on else None

    policy = TransformersPolicy(tiny[0], NO_CLOSE, batch_size=slots)
    hook = tiny[0].register_forward_pre_hook(
        lambda module, args, kwargs: widths.append(kwargs["slots"].last.numel()), with_kwargs=True
    )
    try:
        policy.run(contexts, 0.0, on_turn)
    finally:
        hook.remove()
    assert max(widths) <= slots
    for index, context in enumerate(contexts):
        ids = list(context.ids)
        assert len(turns[index]) == 1 + index % 3
        for turn in turns[index]:
            logits = full_logits(plain, ids + turn.ids)[len(ids) - 1 : -1]
            assert turn.ids == logits.argmax(-1).tolist()
            expected = torch.log_softmax(logits, -1).amax(-1)
            torch.testing.assert_close(torch.tensor(turn.logprobs), expected, rtol=0, atol=1e-4)
            ids += [*turn.ids, *results[index]]


def test_attention_that_slots_do_not_know_is_refused(tiny: tuple[Any, Any]) -> None:
    policy = TransformersPolicy(copy.deepcopy(tiny[0]), NO_CLOSE)
    for layer in policy.model.model.layers:
        inner = layer.self_attn.forward
        layer.self_attn.forward = partial(inner, softcap=30.0)
    with pytest.raises(FerrataError, match="softcap"):
        play(policy, prompts((6,), 1), 0.0)


def test_limits_of_one_token_and_no_prompts(tiny: tuple[Any, Any]) -> None:
    policy = TransformersPolicy(tiny[0], NO_CLOSE)
    policy.run([], 0.0, lambda index, turn: None)
    turns = play(policy, prompts((6, 9), 1), 0.0, (31,), 1)
    assert [len(turn.ids) for both in turns.values() for turn in both] == [1, 1, 1, 1]
    (only,) = play(policy, [Prompt([42], 3)], 0.0).values()
    assert only[0].ids == generate(tiny[0], [42], 3, None)


def test_sliding_windows_are_refused(tiny: tuple[Any, Any]) -> None:
    model = copy.deepcopy(tiny[0])
    model.config.sliding_window = 64
    with pytest.raises(FerrataError, match="base model"):
        TransformersPolicy(model, 1)


def test_precision_is_resolved() -> None:
    assert resolve_dtype("float32") is torch.float32
    assert resolve_dtype("bfloat16") is torch.bfloat16
    assert resolve_dtype("auto") in (torch.float32, torch.bfloat16)


def test_a_group_forks_where_samples_or_answers_differ(tiny: tuple[Any, Any]) -> None:
    """Episodes of one prompt, sampled and answered differently, are those played one by one."""
    ids = prompts((12,), 1)[0].ids
    group = [Prompt(ids, 6, (7, sample // 2)) for sample in range(10)]  # pairs draw alike
    answers = ((21, 22, 23), (21, 22, 23), (21, 24), None)

    def run(chosen: list[int], batch_size: int) -> Turns:
        policy = TransformersPolicy(copy.deepcopy(tiny[0]), NO_CLOSE, batch_size)
        turns: Turns = {index: [] for index in chosen}

        def on_turn(place: int, turn: Sampled) -> Continuation | None:
            index = chosen[place]
            turns[index].append(turn)
            answer = answers[index % len(answers)]
            return Continuation(answer, 5) if answer and len(turns[index]) < 3 else None

        policy.run([group[index] for index in chosen], 1.0, on_turn)
        return turns

    together, few_slots = run(list(range(10)), 64), run(list(range(10)), 3)
    for index in range(10):
        alone = run([index], 1)[index]
        for turns in (together[index], few_slots[index]):
            assert [turn.ids for turn in turns] == [turn.ids for turn in alone]
            for ours, theirs in zip(turns, alone, strict=True):
                assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
    assert len({tuple(together[index][0].ids) for index in range(10)}) == 5
    assert together[0][0].ids == together[1][0].ids


def test_a_group_is_one_row_until_it_forks(tiny: tuple[Any, Any], monkeypatch: Any) -> None:
    from ferrata.episodes import policies

    widths: list[int] = []
    plain = policies.forward

    def counted(model: Any, pieces: Any, cache: Any) -> Any:
        widths.append(len(pieces))
        return plain(model, pieces, cache)

    monkeypatch.setattr(policies, "forward", counted)
    group = [Prompt([11, 12, 13, 14], 8, (7, sample)) for sample in range(6)]
    policy = TransformersPolicy(copy.deepcopy(tiny[0]), NO_CLOSE)
    assert len(set(map(str, play(policy, group, 0.0).values()))) == 1
    assert max(widths) == 1
    widths.clear()
    different = {tuple(turns[0].ids) for turns in play(policy, group, 1.0).values()}
    assert widths[0] == 1 and max(widths) == len(different) == 6


def test_packed_layers_multiply_as_before_and_follow_their_weights() -> None:
    from ferrata.episodes.packed import pack

    torch.manual_seed(3)
    plain = torch.nn.Sequential(torch.nn.Linear(48, 96, bias=False), torch.nn.Linear(96, 16))
    plain = plain.to(torch.bfloat16).requires_grad_(False)
    packed = copy.deepcopy(plain)
    pack(packed)
    if torch.backends.mkldnn.is_available():
        assert "forward" in vars(packed[0])
    assert "forward" not in vars(packed[1])  # it has a bias
    x = torch.randn(1, 7, 48).to(torch.bfloat16)
    for _ in range(2):
        with torch.inference_mode():
            torch.testing.assert_close(packed(x), plain(x), rtol=0.02, atol=0.02)
        for layers in (plain, packed):
            layers[0].weight.copy_(torch.linspace(-1, 1, 96 * 48).view(96, 48))
