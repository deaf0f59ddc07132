"""Documents as mean hidden states: those of transformers, whatever is read in the same batch."""

import numpy as np
import pytest
import torch

from evaluation.models import TEXTS, TOKENIZER, plan_of, scorer_of, write_checkpoint
from trivium.checkpoint.load import Checkpoint
from trivium.evaluation import embedding
from trivium.evaluation.embedding import mean_hidden_states, opened_encoder
from trivium.interchange.export import export_hf


@pytest.mark.parametrize("family", ["gpt", "llama", "mistral"])
def test_vectors_do_not_depend_on_the_batch(monkeypatch, family):
    model = scorer_of(plan_of(family)).model
    rows = [ids[: 3 + 5 * n] for n, ids in enumerate(TOKENIZER.encode_batch(TEXTS[:8]))]
    together = mean_hidden_states(model, rows)
    alone = np.concatenate([mean_hidden_states(model, [row]) for row in rows])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert np.abs(together[0] - together[1]).max() > 0.01


def test_text_without_tokens_is_the_zero_vector():
    model = scorer_of(plan_of()).model
    vectors = mean_hidden_states(model, [[], [1, 2, 3], []])
    assert not vectors[[0, 2]].any() and vectors[1].any()


@pytest.mark.broad
@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_vectors_are_the_means_of_the_last_hidden_states_of_transformers(tmp_path, monkeypatch, family):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    plan = plan_of(family, model={"vocabulary_multiple": 1, "rope_scaling": None} if family == "llama" else {})
    (tmp_path / "run").mkdir()
    checkpoint = write_checkpoint(tmp_path / "run", plan)
    export_hf(Checkpoint.open(checkpoint), tmp_path / "hf", tokenizer=tmp_path / "run" / "tokenizer.json")
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "hf").eval()
    texts = [*TEXTS[:6], TEXTS[7] * 5]
    expected = []
    for ids in TOKENIZER.encode_prompts(texts):
        with torch.no_grad():
            states = theirs(torch.tensor([ids[: plan.model.sequence]])).last_hidden_state[0]
        expected.append(states.mean(0).numpy())
    monkeypatch.setattr(embedding, "_TOKENIZED_AT_ONCE", 3)
    for place in (tmp_path / "run" / "checkpoints", tmp_path / "hf"):
        with opened_encoder(place) as encode:
            np.testing.assert_allclose(encode(texts), expected, atol=1e-4)
