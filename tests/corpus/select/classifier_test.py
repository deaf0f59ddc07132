"""Laws of the quality classifier and of sampling by its score."""

from dataclasses import replace

import numpy as np
import pytest

from trivium.corpus.clean.filters import named_steps
from trivium.corpus.config import ClassifierConfig, CurateConfig
from trivium.corpus.document import Document
from trivium.corpus.harvest.plant import boilerplate_text, low_quality_text
from trivium.corpus.kernels.hashed import hashed_ngrams, logistic_epoch
from trivium.corpus.kernels.texts import texts_of, words_of
from trivium.corpus.select.classifier import Classifier, auc, is_kept, train
from trivium.corpus.steps import Drop, Keep
from trivium.errors import DataError
from trivium.seeds import generator_for

SMALL = ClassifierConfig(bits=16)


def kinds(count):
    """Prose of two registers, which share most of their words."""
    common = [f"word{n}" for n in range(200)]
    texts = []
    for marks in (["therefore", "however", "consider"], ["click", "buy", "cheap"]):
        for number in range(count):
            generator = generator_for(number, "classifier-test", marks[0])
            words = [*generator.choice(common, 60), *generator.choice(marks, 4)]
            generator.shuffle(words)
            texts.append(" ".join(words))
    return texts[:count], texts[count:]


@pytest.fixture(scope="module")
def trained():
    return train(*kinds(300), SMALL, seed=1)


def test_classifier_separates_two_registers_and_nothing_else(trained):
    _, report = trained
    assert report.held_out == 60 and report.trained_on == 540
    assert report.accuracy > 0.95
    assert report.auc > 0.99
    texts = kinds(600)[0]
    _, report = train(texts[:300], texts[300:], SMALL, seed=1)  # labels without meaning
    assert 0.3 < report.accuracy < 0.7
    assert 0.3 < report.auc < 0.7


def test_composed_junk_scores_below_prose():
    junk = [make(generator_for(n, "junk")) for n in range(100) for make in (boilerplate_text, low_quality_text)]
    prose = kinds(200)[0]
    classifier, report = train(prose, junk, SMALL, seed=1)
    assert report.auc > 0.99
    assert classifier.scores(prose).mean() > classifier.scores(junk).mean() + 0.5


def test_training_is_the_same_every_time_and_survives_the_disk(trained, tmp_path):
    classifier, _ = trained
    again, _ = train(*kinds(300), SMALL, seed=1)
    assert np.array_equal(classifier.weights, again.weights)
    assert not np.array_equal(classifier.weights, train(*kinds(300), SMALL, seed=2)[0].weights)
    classifier.save(tmp_path / "c.npz")
    loaded = Classifier.load(tmp_path / "c.npz")
    texts = kinds(5)[0]
    assert np.array_equal(loaded.scores(texts), classifier.scores(texts))


@pytest.mark.parametrize("damage", ["empty", "other", "cut", "flipped"])
def test_a_model_that_is_damaged_is_named_with_what_to_do(trained, tmp_path, damage):
    trained[0].save(tmp_path / "c.npz")
    whole = (tmp_path / "c.npz").read_bytes()
    half = len(whole) // 2
    damaged = {
        "empty": b"",
        "other": b"something else",
        "cut": whole[:half],
        "flipped": whole[:half] + bytes([whole[half] ^ 255]) + whole[half + 1 :],
    }
    (tmp_path / "c.npz").write_bytes(damaged[damage])
    with pytest.raises(DataError, match=r"c\.npz is no quality classifier: .*`trivium corpus step train-classifier`"):
        Classifier.load(tmp_path / "c.npz")


@pytest.mark.parametrize(("score", "expected"), [(0.0, 0.125), (0.5, 0.296), (0.9, 0.751), (1.0, 1.0)])
def test_documents_are_kept_as_often_as_the_pareto_rule_says(score, expected):
    """P(keep) = (2 - score)^-3 and, against numpy's own generator, the share that pareto(3) > 1 - score."""
    kept = np.mean([is_kept(str(n), score, SMALL, seed=1) for n in range(4000)])
    drawn = np.mean(generator_for(1, "pareto").pareto(3, 100_000) > 1 - score)
    assert (2 - score) ** -3 == pytest.approx(expected, abs=5e-4)
    assert kept == pytest.approx(expected, abs=0.03)
    assert drawn == pytest.approx(expected, abs=0.01)


def test_alpha_and_threshold_change_the_rule_and_a_higher_score_never_loses_a_document():
    gpt3 = ClassifierConfig(alpha=9)
    assert np.mean([is_kept(str(n), 0.5, gpt3, seed=1) for n in range(4000)]) == pytest.approx(1.5**-9, abs=0.01)
    hard = ClassifierConfig(threshold=0.5)
    assert is_kept("a", 0.5, hard, seed=1) and not is_kept("a", 0.49, hard, seed=1)
    for n in range(200):
        fates = [is_kept(str(n), score, SMALL, seed=1) for score in np.linspace(0, 1, 11)]
        assert fates == sorted(fates)


def test_filter_notes_the_score_or_drops(trained, tmp_path):
    trained[0].save(tmp_path / "c.npz")
    good, bad = (texts[0] for texts in kinds(1))
    config = SMALL.model_copy(update={"model": str(tmp_path / "c.npz"), "threshold": 0.5})
    (step,) = named_steps(CurateConfig(filters=("classifier",), classifier=config), seed=1)
    kept = step.judge(Document("a", good, "s"))
    assert isinstance(kept, Keep)
    assert kept.document.metadata["classifier_score"] > 0.5
    assert step.judge(Document("b", bad, "s")) == Drop("classified as crawl")
    assert replace(kept.document, metadata={}) == Document("a", good, "s")


def test_too_few_documents_are_refused():
    with pytest.raises(DataError, match="1 of high quality and 9 of the crawl"):
        train(["a"], ["b"] * 9, SMALL, seed=1)


def test_auc_is_the_share_of_pairs_in_order():
    generator = generator_for(3, "auc")
    scores = generator.integers(6, size=40).astype(float)
    labels = generator.integers(2, size=40).astype(np.float32)
    pairs = [(p > n) + 0.5 * (p == n) for p in scores[labels == 1] for n in scores[labels == 0]]
    assert auc(scores, labels) == pytest.approx(np.mean(pairs))


def test_buckets_are_those_of_words_and_pairs_and_of_nothing_else():
    texts = ["One two one two!", "", "two ONE", "ünïcödé 日本 two"]
    offsets, buckets = hashed_ngrams(texts_of(texts), longest=2, bits=32)
    keys = {}
    for n, text in enumerate(texts):
        words = words_of(text)
        grams = [(w,) for w in words] + list(zip(words, words[1:], strict=False))
        found = buckets[offsets[n] : offsets[n + 1]].tolist()
        assert len(found) == len(grams)
        for gram, bucket in zip(grams, found, strict=True):
            assert keys.setdefault(gram, bucket) == bucket
    assert len(set(keys.values())) == len(keys)
    short, _ = hashed_ngrams(texts_of(texts), longest=2, bits=8, most_words=2)
    assert np.diff(short).tolist() == [3, 0, 3, 3]


def test_an_epoch_is_plain_adagrad_on_the_logistic_loss():
    offsets, buckets = hashed_ngrams(texts_of(["a b", "b c d", "a"]), longest=2, bits=8)
    labels = np.array([1, 0, 1], np.float32)
    order = np.array([2, 0, 1])
    weights, squares = np.zeros(257, np.float32), np.zeros(257, np.float32)
    logistic_epoch(offsets, buckets, labels, order, weights, squares, 0.1)
    w, s = np.zeros(257), np.zeros(257)
    for text in order:
        ours = buckets[offsets[text] : offsets[text + 1]]
        x = 1 / np.sqrt(len(ours))
        error = 1 / (1 + np.exp(-(w[256] + sum(w[b] * x for b in ours)))) - labels[text]
        for b in ours:
            s[b] += (error * x) ** 2
            w[b] -= 0.1 * error * x / np.sqrt(s[b] + 1e-8)
        s[256] += error**2
        w[256] -= 0.1 * error / np.sqrt(s[256] + 1e-8)
    np.testing.assert_allclose(weights, w, atol=1e-5)
