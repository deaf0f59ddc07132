"""Texts generated in a batch with a cache equal texts generated one by one without a cache."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from plans import small
from ranks import on_ranks
from trivium.certify.layouts import DEEPSEEK, LATENT, ROTARY
from trivium.certify.plain import first_weights
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.model.generate import Choice, Draft, continue_drafts, penalised, pick
from trivium.model.kv_cache import KVCache
from trivium.model.whole import WholeModel
from trivium.plan.layout import Layout
from trivium.plan.model_shape import ModelShape
from trivium.plan.parameters import Box, parameters, shard_box
from trivium.seeds import generator_for

LLAMA = {**ROTARY, "kv_heads": 2, "head": "untied", "ffn": 24, "hidden": 32}
EXPERTS = {"count": 8, "chosen": 2, "shared": 6, "groups": 4, "chosen_groups": 2}
LITE = {**DEEPSEEK, "latent": LATENT, "ffn": 24}
SHAPES: dict[str, dict[str, Any]] = {
    "gpt": {},
    "llama": LLAMA,
    "window everywhere": {**LLAMA, "window": 4},
    "window": {**LLAMA, "window": 4, "pattern": [{"times": 1}, {"window": None}]},
    "experts": {**LLAMA, "feed_forward": "experts", "experts": EXPERTS},
    "latent": LITE,
    "latent of queries": {
        **LITE,
        "latent": {**LATENT, "query_rank": 6},
        "window": 4,
        "pattern": [{}, {"window": None}],
    },
    "window in gpt": {"window": 3, "first": [{"times": 1, "window": None}]},
}
GREEDY = Choice(0.0, 0, 1.0, 0)


def model_of(shape: dict[str, Any], mesh: Mesh | None = None) -> WholeModel:
    """Return a model with weights so large that the next token depends on what is attended to."""
    shape = {"layers": 3, "sequence": 24, "init_std": 0.6, **shape}
    plan = small(model=shape)
    model = WholeModel(plan.model, precision="fp64", mesh=mesh)
    values = first_weights(plan.model, 5)
    held = {name for name, _ in model.stage.named_parameters()}
    for row in parameters(plan.model):
        if row.name in held:
            box = shard_box(row, plan.model, model.mesh.layout, model.mesh.tensor.index, 0)
            whole = Box(tuple(0 for _ in row.shape), row.shape)
            model.load(row.name, values[row.name][box.within(whole)])
    return model


def prompts(model: ModelShape, lengths: Sequence[int]) -> list[list[int]]:
    draw = generator_for(3, "prompts")
    return [draw.integers(0, model.vocabulary, n).tolist() for n in lengths]


def drafts_of(model: ModelShape) -> list[Draft]:
    """Return drafts of different lengths, ending after different numbers of tokens, two by what they drew, two with one
    prompt."""
    texts = prompts(model, (3, 7, 1, 5, 9, 4))
    texts.append(texts[1])
    limits = (2, 12, 5, 1, 9, 15, 7)
    choices = (GREEDY, GREEDY, Choice(1.0, 0, 1.0, 1), GREEDY, Choice(0.7, 5, 0.9, 2), GREEDY, Choice(1.3, 0, 0.8, 3))
    return [
        Draft(text, choice, lambda drawn, n=n: n % 3 == 1 and len(drawn) >= 4 + n, limit)
        for n, (text, choice, limit) in enumerate(zip(texts, choices, limits, strict=True))
    ]


def alone(model: WholeModel, draft: Draft) -> list[int]:
    """Return the tokens of a draft, each from the logits of the full text before it, without a cache."""
    while draft.goes_on:
        logits = model.logits([draft.text[-model.model.sequence :]])[0, -1:]
        logits = penalised(logits, [draft.text], [draft.choice.repetition_penalty])[0]
        uniform = float(generator_for(draft.choice.seed, "generate", len(draft.drawn)).random())
        draft.drawn.append(pick(logits, draft.choice, uniform=uniform))
    return draft.drawn


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_that_end_at_different_times_are_written_as_if_alone(shape: str) -> None:
    model = model_of(SHAPES[shape])
    together = drafts_of(model.model)
    continue_drafts(model, together)
    expected = [alone(model, draft) for draft in drafts_of(model.model)]
    assert [d.drawn for d in together] == expected
    assert len({len(drawn) for drawn in expected}) >= 5 and len({tuple(x) for x in expected}) == len(expected)


def test_texts_that_are_all_drawn_at_temperature_1_are_those_drawn_alone() -> None:
    model = model_of({})

    def drafts() -> list[Draft]:
        texts = prompts(model.model, (3, 5, 2))
        return [Draft(text, Choice(1.0, 0, 1.0, seed), lambda drawn: False, 9) for seed, text in enumerate(texts)]

    together = drafts()
    continue_drafts(model, together)
    assert [d.drawn for d in together] == [alone(model, draft) for draft in drafts()]
    likeliest = [alone(model, Draft(d.prompt, GREEDY, d.done, 9)) for d in together]
    assert [d.drawn for d in together] != likeliest


def written_on_ranks(place: Place, shape: str, degrees: dict[str, int], expected: list[list[int]]) -> None:
    """Write the texts on ranks: every pipeline rank has all texts, and tensor ranks compute parts of each."""
    layout = Layout(**degrees)
    mesh = Mesh.connect(layout, place.rank, place.world_size)
    model = model_of(SHAPES[shape], mesh)
    drafts = drafts_of(model.model)
    continue_drafts(model, drafts)
    assert [d.drawn for d in drafts] == expected


@pytest.mark.parametrize("shape", ["window", "latent of queries"])
def test_ranks_that_share_a_model_write_what_one_process_writes(shape: str) -> None:
    one = model_of(SHAPES[shape])
    drafts = drafts_of(one.model)
    continue_drafts(one, drafts)
    expected = [d.drawn for d in drafts]
    for degrees in ({"pipeline": 2}, {"tensor": 2}):
        on_ranks(2, written_on_ranks, shape, degrees, expected)


@pytest.mark.parametrize("shape", ["gpt", "window"])
def test_texts_that_outgrow_the_sequence_go_on_with_their_last_tokens(shape: str) -> None:
    model = model_of({**SHAPES[shape], "sequence": 8})
    together = [Draft(text, GREEDY, lambda drawn: False, 11) for text in prompts(model.model, (2, 7, 8, 12))]
    continue_drafts(model, together)
    expected = [alone(model, Draft(d.prompt, GREEDY, lambda drawn: False, 11)) for d in together]
    assert [d.drawn for d in together] == expected


def test_a_penalty_counts_the_prompt_and_what_was_drawn() -> None:
    model, choice = model_of({}), Choice(0.0, 0, 1.0, 0, repetition_penalty=1.7)
    together = [Draft(text, choice, lambda drawn: False, 8) for text in prompts(model.model, (2, 6, 3))]
    continue_drafts(model, together)
    expected = [alone(model, Draft(d.prompt, choice, lambda drawn: False, 8)) for d in together]
    assert [d.drawn for d in together] == expected
    plain = [alone(model, Draft(d.prompt, GREEDY, lambda drawn: False, 8)) for d in together]
    assert plain != expected


@pytest.mark.parametrize("shape", SHAPES)
@torch.inference_mode()
def test_rows_that_stay_in_the_cache_keep_their_keys_values_and_places(shape: str) -> None:
    """Hidden states are compared, not only the likeliest tokens. Rows differ in length; the middle one ends first."""
    model = model_of(SHAPES[shape])
    texts = prompts(model.model, (3, 6, 5))
    more = prompts(model.model, (4, 4, 4))
    width, slots = 6, 10
    padded = torch.tensor([[*t, *[0] * (width - len(t))] for t in texts])
    cache = KVCache(slots)
    model.hidden(padded.T.contiguous(), cache=cache)
    cache.keep(width)
    rows = torch.arange(3)
    for step in range(4):
        if step == 2:
            rows = torch.tensor([0, 2])
            cache.only(rows)
        lengths = torch.tensor([len(texts[n]) for n in rows])
        behind = torch.arange(cache.used + 1)
        hides = (behind >= lengths[:, None]) & (behind < width)
        cache.mask = torch.zeros(hides.shape, dtype=torch.float64).masked_fill_(hides, -torch.inf)[:, None, None]
        ids = torch.tensor([more[n][step] for n in rows])
        found = model.hidden(ids[None], positions=(lengths + step)[None], cache=cache)
        cache.keep(1)
        assert found is not None
        for place, n in enumerate(rows.tolist()):
            text = torch.tensor([*texts[n], *more[n][: step + 1]])
            expected = model.hidden(text[:, None])
            assert expected is not None
            torch.testing.assert_close(found[0, place], expected[-1, 0], rtol=1e-11, atol=1e-11)
