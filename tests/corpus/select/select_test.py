"""Laws of selection: of a mixture whose best part is known, that part is chosen."""

from collections import Counter

import numpy as np
import pytest

from trivium.corpus.config import SelectionConfig
from trivium.corpus.document import Document
from trivium.corpus.publish.store import read_documents, write_documents
from trivium.corpus.read.files import Input
from trivium.corpus.select.points import (
    encoded_by,
    inverse_document_frequency,
    ngram_counts,
    tf_idf,
    unit_rows,
    vectors_in,
    whole,
)
from trivium.corpus.select.select import (
    NOT_CHOSEN,
    OF_THE_TARGET,
    REPEATED,
    Inputs,
    choose_documents,
    gumbel,
    importance,
    rank,
    transport_gradient,
)
from trivium.corpus.select.sinkhorn import sinkhorn
from trivium.errors import DataError
from trivium.seeds import generator_for

TOPICS = 5


def select(ids, texts, target, config, **options):
    """Return the numbers of the best candidates, and the value of each candidate."""
    ranked, values = rank(ids, whole(texts), whole(target), config, seed=1, **options)
    return ranked[: round(config.fraction * len(ids))], values


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
    chosen, values = select(ids, texts, target, SelectionConfig(fraction=0.2))
    assert {topics[n] for n in chosen} == {3}
    assert len(chosen) == 20
    assert values[chosen[0]] == max(values)


def test_transport_prefers_what_is_missing_to_what_is_there_in_plenty():
    """The pool holds 90 documents of topic 0 and 10 of topic 1, the target as many of each: 1 is missing."""
    topics = [0] * 90 + [1] * 10
    texts = [document(topic, n) for n, topic in enumerate(topics)]
    target = [document(n % 2, 1000 + n) for n in range(40)]
    chosen, _ = select([str(n) for n in range(100)], texts, target, SelectionConfig(fraction=0.1))
    assert Counter(topics[n] for n in chosen) == {1: 10}


def test_importance_draws_the_mixture_of_the_target():
    topics, ids, texts = pool(1000)
    target = [document(topic, 5000 + n) for n, topic in enumerate([0] * 150 + [1] * 50)]
    config = SelectionConfig(method="importance", fraction=0.1)
    chosen, _ = select(ids, texts, target, config)
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
        forward, _ = select(ids, texts, target, config)
        backward, _ = select(ids[::-1], texts[::-1], target, config)
        assert {ids[n] for n in forward} == {ids[::-1][n] for n in backward}


def test_points_have_length_one_and_like_texts_are_near():
    counts = ngram_counts(["a b c", "a b d", "x y z", ""], bits=12)
    points = tf_idf(counts, inverse_document_frequency(counts))
    likeness = (points @ points.T).toarray()
    np.testing.assert_allclose(np.diag(likeness), [1, 1, 1, 0], atol=1e-6)
    assert likeness[0, 1] > likeness[0, 2] + 0.1


def test_empty_pool_is_refused():
    with pytest.raises(DataError, match="0 documents in candidates;"):
        select([], [], ["a"], SelectionConfig())


def test_a_target_that_distinguishes_no_candidates_is_refused():
    _, ids, texts = pool(10)
    with pytest.raises(DataError, match="all 10 candidates have the same value"):
        select(ids, texts, [""], SelectionConfig())


@pytest.mark.parametrize("epsilon", [1e-4, 1e4])
def test_the_least_and_the_largest_epsilon_give_finite_values_that_differ(epsilon):
    _, ids, texts = pool(30)
    _, values = select(ids, texts, [document(2, 1000)], SelectionConfig(epsilon=epsilon))
    assert np.isfinite(values).all() and len(set(values.tolist())) > 20


def test_transport_chooses_what_the_training_lacks_and_not_what_the_pool_lacks():
    """The pool has as much of topic 0 as of topic 1, the training nearly only topic 0, the target both."""
    topics = [n % 2 for n in range(60)]
    texts = [document(topic, n) for n, topic in enumerate(topics)]
    target = [document(n % 2, 1000 + n) for n in range(40)]
    trained_on = whole([document(int(n >= 45), 2000 + n) for n in range(50)])
    chosen, values = select(
        [str(n) for n in range(60)], texts, target, SelectionConfig(fraction=0.3), source=trained_on
    )
    assert Counter(topics[n] for n in chosen) == {1: 18}
    assert np.ptp([values[n] for n in range(60) if topics[n]]) < values[1] - values[0]


CENTRES = {"first": [1.0, 0.0, 0.0, 0.2], "second": [0.0, 1.0, 0.0, 0.2], "third": [0.0, 0.0, 1.0, -1.5]}
TRAINED_ON, WANTED = (0.70, 0.25, 0.05), (0.4, 0.3, 0.3)
SHARP = SelectionConfig(tolerance=1e-7, iterations=100_000)


def clouds(shares, size, seed, width=0.1):
    """Return points around the centres in these shares, and the topic of each."""
    topics = np.repeat(np.arange(3), [round(share * size) for share in shares])
    noise = generator_for(seed, "clouds").normal(size=(len(topics), 4)) * width
    return topics, unit_rows(np.array(list(CENTRES.values()))[topics] + noise)


def test_transport_finds_the_topic_of_a_known_optimum_and_nearest_to_the_target_does_not():
    """Most of the third topic is missing. It is far from the others, so that the mean distance to the target avoids
    it. For each topic the distance is solved anew with more of it, and the third one lowers it most."""
    topics, candidates = clouds(TRAINED_ON, 400, seed=1)
    _, target = clouds(WANTED, 100, seed=2)
    values = transport_gradient(candidates, target, candidates, SHARP)
    nearest = np.argsort((1 - candidates @ target.T).mean(axis=1))
    assert set(topics[np.argsort(values)[:20]]) == {2}
    assert 2 not in topics[nearest[:20]]

    def distance(topic):
        mass = np.full(400, 0.9 / 400) + 0.1 * (topics == topic) / (topics == topic).sum()
        return sinkhorn(1 - candidates @ target.T, mass, np.full(100, 0.01), epsilon=0.01, tolerance=1e-4).distance

    assert min(range(3), key=distance) == 2


def test_more_of_a_topic_in_the_target_never_raises_its_gradient():
    topics, candidates = clouds(TRAINED_ON, 200, seed=1)
    means = []
    for share in (0.1, 0.3, 0.6):
        _, target = clouds((0.9 - share, 0.1, share), 100, seed=2)
        means.append(transport_gradient(candidates, target, candidates, SHARP)[topics == 2].mean())
    assert means == sorted(means, reverse=True)


def test_gradient_ignores_batches_rotations_and_the_order_of_points():
    _, candidates = clouds(TRAINED_ON, 100, seed=1)
    _, target = clouds(WANTED, 40, seed=2)
    values = transport_gradient(candidates, target, candidates, SHARP)
    turn = np.linalg.qr(generator_for(4, "rotation").normal(size=(4, 4)))[0].astype(np.float32)
    order = generator_for(5, "order").permutation(100)
    turned = transport_gradient(candidates @ turn, target @ turn, candidates @ turn, SHARP)
    np.testing.assert_allclose(turned, values, atol=1e-4)
    other = transport_gradient(candidates[order], target[::-1], candidates[order], SHARP)
    np.testing.assert_allclose(other, values[order], atol=1e-4)
    for batch in (1, 7, 1000):
        found = transport_gradient(candidates, target, candidates, SHARP.model_copy(update={"batch": batch}))
        np.testing.assert_allclose(found, values, atol=1e-4)


def test_gradient_scales_with_the_spread_of_the_costs():
    """Distances between texts are all nearly 1. Points get a direction of their own, which shrinks all cosines."""
    _, candidates = clouds(TRAINED_ON, 100, seed=1)
    _, target = clouds(WANTED, 40, seed=2)
    own = np.sqrt(0.99, dtype=np.float32) * np.eye(140, dtype=np.float32)
    far = np.hstack([0.1 * candidates, own[:100]]), np.hstack([0.1 * target, own[100:]])
    values = transport_gradient(candidates, target, candidates, SHARP)
    np.testing.assert_allclose(
        100 * transport_gradient(far[0], far[1], far[0], SHARP), values, atol=1e-2 * np.ptp(values)
    )


def test_candidate_equal_to_a_point_of_the_training_has_its_gradient():
    _, source = clouds(TRAINED_ON, 100, seed=1)
    _, target = clouds(WANTED, 40, seed=2)
    whole_pool = transport_gradient(source, target, source, SHARP)
    assert whole_pool.mean() == pytest.approx(0, abs=1e-6)
    twice = transport_gradient(source[[3, 50, 3]], target, source, SHARP)
    np.testing.assert_allclose(twice, whole_pool[[3, 50, 3]], atol=1e-5)


def test_transport_of_a_sample_ranks_as_that_of_all_and_ignores_the_order_of_candidates():
    topics, points = clouds(TRAINED_ON, 2000, seed=1)
    _, target = clouds(WANTED, 200, seed=2)
    rows = {str(n): row for n, row in enumerate([*points, *target])}
    embed = encoded_by(lambda names: np.array([rows[name] for name in names]))
    ids = [str(n) for n in range(2000)]
    wanted = whole([str(2000 + n) for n in range(200)])
    config = SelectionConfig(sample=300)
    ranked, values = rank(ids, whole(ids), wanted, config, seed=1, embed=embed)
    everything = rank(ids, whole(ids), wanted, SelectionConfig(), seed=1, embed=embed)[1]
    assert set(topics[ranked[:100]]) == {2}
    assert np.corrcoef(values, everything)[0, 1] > 0.99
    back = rank(ids[::-1], whole(ids[::-1]), wanted, config, seed=1, embed=embed)[1]
    np.testing.assert_allclose(back[::-1], values, atol=1e-4)


def test_documents_of_the_target_and_repeated_texts_are_not_chosen(tmp_path):
    texts = [document(n % 2, n) for n in range(10)]
    pool = [*texts, texts[1].upper() + "!", "wanted words"]
    write_documents(tmp_path / "pool", [Document(f"d{n:02}", text, "s") for n, text in enumerate(pool)])
    wanted = ["Wanted words.", *(document(1, 1000 + n) for n in range(5))]
    write_documents(tmp_path / "target", [Document(f"t{n}", text, "s") for n, text in enumerate(wanted)])
    inputs = Inputs(Input(tmp_path / "pool"), Input(tmp_path / "target"))
    config = SelectionConfig(fraction=0.5)
    (tmp_path / "out").mkdir()
    found = choose_documents(config, inputs, tmp_path / "out", seed=1)
    chosen = [d.id for d in read_documents(tmp_path / "out" / "documents")]
    assert len(chosen) == 6 and not {"d11", "d10"} & {*chosen} | {"d01"} - {*chosen}
    dropped = found["funnel"][1]["dropped"]
    assert dropped == {NOT_CHOSEN.reason: 4, OF_THE_TARGET.reason: 1, REPEATED.reason: 1}
    assert found["characters"].keys() == {"candidates", "chosen"}


def test_vectors_of_a_file_are_those_of_the_documents_in_their_order(tmp_path):
    rows = generator_for(1, "vectors").normal(size=(9, 4))
    np.save(tmp_path / "v.npy", rows)
    parts = [whole(["a", "b"]), whole(list("cdef")), whole(list("ghi"))]
    parts[1] = parts[1]._replace(texts=["d", "f"], numbers=np.array([1, 3]))
    first, second, third = vectors_in(tmp_path / "v.npy")(parts)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    expected = rows / lengths
    np.testing.assert_allclose(np.concatenate([first, second, third]), expected[[0, 1, 3, 5, 6, 7, 8]], rtol=1e-5)


def test_file_of_vectors_that_does_not_fit_is_refused_with_the_reason(tmp_path):
    path = tmp_path / "v.npy"
    for array, why in (
        (np.ones((4, 2)), r"v.npy has 4 rows, and there are 2 \+ 3 documents; write one row"),
        (np.ones(5), r"has shape \(5,\) and type float64; save a matrix"),
        (np.array([["a", "b"]] * 5), "type <U1; save a matrix of floats"),
        (np.array([[1.0, 2.0]] * 4 + [[np.nan, 0.0]]), r"row 4 \(0-based\) has numbers that are not finite"),
        (np.array([[{}]] * 5, dtype=object), "is no .npy file: .*Python objects"),
    ):
        np.save(path, array, allow_pickle=True)
        with pytest.raises(DataError, match=why):
            vectors_in(path)([whole(["a", "b"]), whole(["c", "d", "e"])])
    path.write_bytes(path.read_bytes()[:90])
    for place in (path, tmp_path / "none.npy"):
        with pytest.raises(DataError, match="is no .npy file"):
            vectors_in(place)([whole(["a", "b"])])
