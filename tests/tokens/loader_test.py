import numpy as np
import pytest

from tokens.curated import curated, documents
from trivium.tokens.config import TokensConfig
from trivium.tokens.encode import tokenize
from trivium.tokens.samples import TokenDataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    root = tmp_path_factory.mktemp("loader")
    source = curated(root / "curated", documents({"a": 20, "b": 10}), {"a": 2, "b": 1})
    (root / "tokens").mkdir()
    tokenize(TokensConfig(vocabulary=300), source, root / "tokens", seed=3)
    return TokenDataset.open(root / "tokens", "train", sequence=24, seed=5)


def test_targets_are_inputs_shifted_by_one(dataset):
    tokens, targets, weights, *_ = dataset.rows(3, 8)
    assert tokens.shape == targets.shape == weights.shape == (8, 24)
    assert tokens.dtype == targets.dtype == np.int64 and weights.dtype == np.float32
    assert np.array_equal(tokens[:, 1:], targets[:, :-1])
    assert targets[2, -1] == dataset.sample(5)[-1]
    assert (weights == 1).all()


@pytest.mark.parametrize(("replicas", "micro"), [(1, 12), (2, 3), (3, 2), (4, 1), (12, 1)])
def test_batch_does_not_depend_on_its_division(dataset, replicas, micro):
    whole = dataset.rows(24, 12)
    parts = [dataset.rows(24 + k, micro) for k in range(0, 12, micro)]
    assert np.array_equal(np.concatenate([p.tokens for p in parts]), whole.tokens)
    assert np.array_equal(np.concatenate([p.targets for p in parts]), whole.targets)
