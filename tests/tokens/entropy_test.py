import numpy as np
import pytest

from trivium.tokens.entropy import entropy, unigram_entropy


def test_entropies_are_mean_surprise():
    counts, text = np.asarray([7, 0, 2]), [0, 0, 1, 2]
    expected = -sum(np.log((counts[t] + 1) / 12) for t in text) / 4
    assert unigram_entropy(counts, np.bincount(text)) == pytest.approx(expected)
    text = [0, 0, 3, 4]
    expected = -sum(np.log(text.count(t) / 4) for t in text) / 4
    assert entropy(np.bincount(text, minlength=9)) == pytest.approx(expected)
