import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.errors import DataError
from trivium.tokens.blend import Blend, rounded

MT_NLG = {  # MT-NLG, table 2
    "Books3": 14.3, "OpenWebText2": 19.3, "Stack Exchange": 5.7, "PubMed Abstracts": 2.9, "Wikipedia": 4.8,
    "Gutenberg": 0.9, "BookCorpus2": 1.0, "NIH ExPorter": 0.2, "ArXiv": 1.4, "GitHub": 1.6, "Pile-CC": 9.4,
    "CC-2020-50": 13.0, "CC-2021-04": 15.7, "RealNews": 9.0, "CC-Stories": 0.9,
}  # fmt: skip


def largest_deficit(shares, samples):
    """Apply the rule in exact fractions, one sample after another."""
    total = sum(shares)
    counts = [0] * len(shares)
    chosen = []
    for n in range(samples):
        deficits = [Fraction(w, total) * (n + 1) - c for w, c in zip(shares, counts, strict=True)]
        source = deficits.index(max(deficits))
        counts[source] += 1
        chosen.append(source)
    return chosen


@pytest.mark.broad
@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_blend_follows_largest_deficit_and_repeats(shares):
    blend = Blend({f"s{k}": float(w) for k, w in enumerate(shares)})
    shares_used = list(blend.shares.values())
    n = min(300, 3 * blend.period)
    assert blend.source(np.arange(n)).tolist() == largest_deficit(shares_used, n)


def test_counts_and_ordinals_are_exact():
    blend = Blend({"a": 0.5, "b": 0.3, "c": 0.2})
    counts = dict.fromkeys(blend.sources, 0)
    n = np.arange(1000)
    for k, (source, ordinal) in enumerate(zip(blend.source(n), blend.ordinal(n), strict=True)):
        assert blend.counts_after(k) == counts
        assert ordinal == counts[blend.sources[source]]
        counts[blend.sources[source]] += 1


def test_place_is_inverse_of_ordinal():
    blend = Blend({"a": 0.5, "b": 0.3, "c": 0.2})
    n = np.arange(10**9, 10**9 + 2 * blend.period, 977)
    for sample, source, ordinal in zip(n, blend.source(n), blend.ordinal(n), strict=True):
        assert blend.place(source, ordinal) == sample


def test_samples_repeat_with_the_period():
    blend = Blend(MT_NLG)
    far = 131_835_937  # 270 billion tokens in samples of 2048
    counts = blend.counts_after(far)
    assert sum(counts.values()) == far
    for source, weight in MT_NLG.items():
        assert abs(counts[source] / far - weight / sum(MT_NLG.values())) < 1 / 65536


def test_counts_stay_within_one_sample_of_weights():
    blend = Blend(MT_NLG)
    shares = np.asarray(list(blend.shares.values())) / blend.period
    n = 5000
    counts = np.cumsum(np.eye(len(shares))[blend.source(np.arange(n))], axis=0)
    behind = shares * np.arange(1, n + 1)[:, None] - counts
    assert behind.min() > -1
    assert behind.max() < 2


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.floats(1e-9, 1e9), min_size=1, max_size=20))
def test_rounded_shares_are_within_one_65536th(weights):
    shares = rounded(weights)
    total, period = sum(weights.values()), sum(shares.values())
    assert set(shares) == set(weights)
    assert period <= 65536 and min(shares.values()) >= 1
    for source, weight in weights.items():
        slack = len(weights) if min(weights.values()) / total < 1 / 65536 else 1
        assert abs(shares[source] / period - weight / total) <= slack / 65536 + 1e-12


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(4, 99), min_size=1, max_size=12))
def test_shares_are_the_closest_to_the_weights(weights):
    shares = rounded({f"s{k:02d}": float(w) for k, w in enumerate(weights)}, 1024)
    scale, rest = divmod(1024, sum(shares.values()))
    assert rest == 0 and math.gcd(*shares.values()) == 1
    above = [scale * s - Fraction(1024 * w, sum(weights)) for s, w in zip(shares.values(), weights, strict=True)]
    assert max(above) - min(above) <= 1  # otherwise moving one share would be closer


def test_number_of_sources_is_limited_by_resolution():
    assert set(rounded({f"s{k}": k + 1.0 for k in range(8)}, 8).values()) == {1}
    with pytest.raises(DataError, match="9 sources cannot be blended; at most 8"):
        rounded({f"s{k}": k + 1.0 for k in range(9)}, 8)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=30))
def test_surplus_is_taken_from_largest_share(large):
    weights = {f"s{k:02d}": float(w) for k, w in enumerate(large)}
    # this number of sources makes the minimum exceed the rounded-down remainder
    weights |= {f"{s}-": 1e-9 for s in weights}
    total = sum(w for _, w in sorted(weights.items()))
    shares = {s: max(1, int(w / total * 64)) for s, w in sorted(weights.items())}
    while sum(shares.values()) > 64:
        shares[max(shares, key=shares.get)] -= 1
    divisor = math.gcd(*shares.values())
    assert rounded(weights, 64) == {s: share // divisor for s, share in shares.items()}


@pytest.mark.timeout(60)  # searching for the largest share each time would take minutes
def test_rounding_many_sources_is_fast():
    shares = rounded({f"s{k:05d}": 1e9 if k == 7 else 1.0 for k in range(65_000)})
    assert shares.pop("s00007") == 65_536 - 64_999 and set(shares.values()) == {1}


def test_source_of_weight_zero_is_never_chosen():
    assert Blend({"a": 1.0, "b": 0.0}).sources == ("a",)


@pytest.mark.parametrize("weights", [{}, {"a": 0.0}, {"a": -1.0, "b": 2.0}, {"a": float("nan")}, {"a": float("inf")}])
def test_invalid_weights_are_rejected_with_values(weights):
    with pytest.raises(DataError, match="weights must be 0 or more"):
        Blend(weights)


def test_order_of_weights_changes_no_sample():
    named = dict(reversed(MT_NLG.items()))
    blend, n = Blend(MT_NLG), np.arange(1000)
    assert Blend(named).sources == blend.sources == tuple(sorted(MT_NLG))
    assert Blend(named).source(n).tolist() == blend.source(n).tolist()
