"""Texts that join and leave a batch between two tokens have the scores of texts that are read alone."""

import pytest
import torch

from model.generation_test import GREEDY, SHAPES, alone, model_of, prompts
from trivium.model.generate import Batch, Draft, _choose
from trivium.model.rows import Rows
from trivium.seeds import generator_for


def logits_after(model, text):
    return model.logits([text])[0, -1]


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_that_join_and_leave_have_the_logits_of_full_texts(shape):
    model = model_of(SHAPES[shape])
    rows, texts, draw = Rows(model), [], generator_for(7, shape)
    lengths = iter([5, 3, 9, 1, 14, 2, 6, 4])
    for step in range(9):
        if step in (0, 3, 4, 7):  # two texts join, one of them twice
            new = prompts(model.model, [next(lengths), next(lengths)])
            found = rows.prefill(new, [0, 1, 1], 9)
            texts += [list(new[n]) for n in (0, 1, 1)]
            torch.testing.assert_close(
                found, torch.stack([logits_after(model, t) for t in texts[-3:]]), rtol=1e-10, atol=1e-10
            )
        elif step in (2, 6):
            kept = sorted(draw.permutation(len(texts))[: len(texts) // 2].tolist()) if step == 2 else []
            rows.keep(kept)
            texts = [texts[n] for n in kept]
        if not texts:
            continue
        ids = draw.integers(0, model.model.vocabulary, len(texts)).tolist()
        found = rows.decode(ids)
        texts = [[*text, token] for text, token in zip(texts, ids, strict=True)]
        assert rows.lengths == [len(text) for text in texts]
        expected = torch.stack([logits_after(model, text) for text in texts])
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shape", ["gpt", "window in gpt"])
def test_text_that_joins_late_is_written_as_if_alone(shape):
    model = model_of({**SHAPES[shape], "sequence": 12})
    texts = prompts(model.model, (4, 7, 2))
    limits = (9, 6, 8)  # the second one ends as the sequence is full
    drafts = [Draft(t, GREEDY, lambda drawn: False, limit) for t, limit in zip(texts, limits, strict=True)]
    batch = Batch(Rows(model), lambda logits, some: _choose(model, logits, some))
    batch.join(drafts[:1])
    for draft in drafts[1:]:
        batch.step()
        batch.step()
        batch.join([draft])
    while batch.texts:
        batch.step()
    expected = [alone(model, Draft(t, GREEDY, lambda drawn: False, n)) for t, n in zip(texts, limits, strict=True)]
    assert [draft.drawn for draft in drafts] == expected


def test_joining_reads_only_the_new_prompt(monkeypatch):
    model, read = model_of({"sequence": 64}), []
    hidden = model.hidden
    monkeypatch.setattr(model, "hidden", lambda tokens, **more: read.append(tokens.numel()) or hidden(tokens, **more))
    drafts = [Draft(text, GREEDY, lambda drawn: False, 20) for text in prompts(model.model, (30, 3, 3))]
    batch = Batch(Rows(model), lambda logits, some: _choose(model, logits, some))
    batch.join(drafts[:1])
    batch.step()
    batch.join(drafts[1:2])
    batch.step()
    batch.join([drafts[2], Draft(drafts[2].prompt, GREEDY, lambda drawn: False, 2)])  # equal prompts are read once
    batch.step()
    assert read == [30, 1, 3, 2, 3, 4]
