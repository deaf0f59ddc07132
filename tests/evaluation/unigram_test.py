import numpy as np
import pytest

from evaluation.scorers import passages
from trivium.errors import DataError
from trivium.evaluation.requests import Request
from trivium.evaluation.unigram import unigram_scorer
from trivium.tokens.tokenizer import train_tokenizer

TEXTS = [p["text"] for p in passages(60)]
TOKENIZER = train_tokenizer(TEXTS, 320)
COUNTS = np.bincount(sum(TOKENIZER.encode_batch(TEXTS), []), minlength=TOKENIZER.vocabulary)


def test_likelihood_is_that_of_token_frequencies():
    (answer,) = unigram_scorer(TOKENIZER, COUNTS).loglikelihood([Request("whatever", " parser module")])
    ids = TOKENIZER.encode(" parser module")
    expected = sum(np.log((COUNTS[i] + 1) / (COUNTS.sum() + TOKENIZER.vocabulary)) for i in ids)
    assert answer.loglikelihood == pytest.approx(expected)
    assert (answer.tokens, answer.truncated) == (len(ids), False)


def test_context_changes_nothing():
    one, other = unigram_scorer(TOKENIZER, COUNTS).loglikelihood([Request("a", " stream"), Request("", " stream")])
    assert one == other


def test_only_most_frequent_token_is_greedy():
    top = TOKENIZER.decode([int(COUNTS.argmax())])
    scorer = unigram_scorer(TOKENIZER, COUNTS)
    assert scorer.loglikelihood([Request("", top)])[0].greedy
    assert not scorer.loglikelihood([Request("", " locale")])[0].greedy
    with_top = scorer.loglikelihood([Request("", f"{top} locale")])[0]
    assert int(COUNTS.argmax()) in TOKENIZER.encode(f"{top} locale") and not with_top.greedy


def test_probabilities_sum_to_one():
    scorer = unigram_scorer(TOKENIZER, COUNTS)
    assert np.exp(scorer._logs).sum() == pytest.approx(1.0)


def test_counts_of_other_vocabulary_are_rejected():
    with pytest.raises(DataError, match="319 token counts"):
        unigram_scorer(TOKENIZER, COUNTS[:-1])
