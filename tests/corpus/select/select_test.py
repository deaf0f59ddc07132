"""Laws of selection: of a mixture whose best part is known, that part is chosen."""

from collections import Counter

import numpy as np
import pytest

from trivium.corpus.config import SelectionConfig
from trivium.corpus.select.select import gumbel, importance, inverse_document_frequency, ngram_counts, select, tf_idf
from trivium.errors import DataError
from trivium.seeds import generator_for

TOPICS = 5


def document(topic, seed):
    """Words of a topic of its own among words that all topics share."""
    generator = generator_for(seed, "selection-test", topic)
    own = [f"topic{topic}word{n}" for n in generator.integers(40, size=30)]
    shared = [f"common{n}" for n in generator.integers(60, size=60)]
    words = [*own, *shared]
    generator.shuffle(words)
    return " ".join(words)


def pool(size=100):
    topics = [n % TOPICS for n in range(size)]
    return topics, [f"d{n}" for n in range(size)], [document(topic, n) for n, topic in enumerate(topics)]


def test_transport_chooses_the_topic_the_target_has_and_the_pool_lacks():
    topics, ids, texts = pool()
    target = [document(3, 1000 + n) for n in range(40)]
    chosen, values = select(ids, texts, target, SelectionConfig(fraction=0.2), seed=1)
    assert {topics[n] for n in chosen} == {3}
    assert len(chosen) == 20
    assert values[chosen[0]] == max(values)


def test_transport_prefers_what_is_missing_to_what_is_there_in_plenty():
    """The pool holds 90 documents of topic 0 and 10 of topic 1, the target as many of each: 1 is missing."""
    topics = [0] * 90 + [1] * 10
    texts = [document(topic, n) for n, topic in enumerate(topics)]
    target = [document(n % 2, 1000 + n) for n in range(40)]
    chosen, _ = select([str(n) for n in range(100)], texts, target, SelectionConfig(fraction=0.1), seed=1)
    assert Counter(topics[n] for n in chosen) == {1: 10}


def test_importance_draws_the_mixture_of_the_target():
    topics, ids, texts = pool(1000)
    target = [document(topic, 5000 + n) for n, topic in enumerate([0] * 150 + [1] * 50)]
    config = SelectionConfig(method="importance", fraction=0.1)
    chosen, _ = select(ids, texts, target, config, seed=1)
    drawn = Counter(topics[n] for n in chosen)
    assert drawn[0] + drawn[1] >= 95


def test_the_weight_of_a_document_is_the_ratio_of_its_probabilities():
    pool_counts, target = (ngram_counts(texts, bits=10) for texts in (["a b", "b c c"], ["a a b"]))
    p, q = ((np.asarray(c.sum(axis=0)).ravel() + 1) for c in (target, pool_counts))
    logs = np.log(p / p.sum()) - np.log(q / q.sum())
    expected = [sum(count * logs[k] for k, count in enumerate(row)) for row in pool_counts.toarray()]
    np.testing.assert_allclose(importance(pool_counts, target), expected)


def test_gumbel_numbers_draw_each_document_as_often_as_it_weighs():
    ids = ["a", "b", "c"]
    weights = np.array([0.6, 0.3, 0.1])
    first = Counter(int(np.argmax(np.log(weights) + gumbel(ids, seed=seed))) for seed in range(4000))
    for n, weight in enumerate(weights):
        assert first[n] / 4000 == pytest.approx(weight, abs=0.03)


def test_the_choice_does_not_depend_on_the_order_of_the_candidates():
    _, ids, texts = pool()
    target = [document(2, 1000 + n) for n in range(20)]
    for method in ("transport", "importance"):
        config = SelectionConfig(method=method, fraction=0.3)
        forward, _ = select(ids, texts, target, config, seed=1)
        backward, _ = select(ids[::-1], texts[::-1], target, config, seed=1)
        assert {ids[n] for n in forward} == {ids[::-1][n] for n in backward}


def test_points_have_length_one_and_like_texts_are_near():
    counts = ngram_counts(["a b c", "a b d", "x y z", ""], bits=12)
    points = tf_idf(counts, inverse_document_frequency(counts))
    likeness = (points @ points.T).toarray()
    np.testing.assert_allclose(np.diag(likeness), [1, 1, 1, 0], atol=1e-12)
    assert likeness[0, 1] > likeness[0, 2] + 0.1


def test_empty_pool_is_refused():
    with pytest.raises(DataError, match="0 candidates"):
        select([], [], ["a"], SelectionConfig(), seed=1)
