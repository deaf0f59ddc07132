from dataclasses import replace

import numpy as np

from cost.plans import small
from trivium.cost.case import case_of
from trivium.cost.rank_parameters import slice_elements
from trivium.plan.buckets import BUCKET_ELEMENTS, bucket_elements, padded


def test_among_many_sharers_buckets_are_larger_up_to_a_limit():
    sharers = np.array([1, 2, 7, 8, 15, 16, 63, 64, 65, 512, 4096])
    limits = [bucket_elements(int(n)) for n in sharers]
    assert limits == sorted(limits) and limits[1] == limits[4] < limits[5] < limits[7] == limits[-1]
    assert bucket_elements(sharers).tolist() == limits


def test_a_slice_is_a_sharers_part_of_the_padded_bucket_and_without_zero_the_bucket():
    sharers, elements = np.arange(1, 14), np.array([[1], [8], [103], [BUCKET_ELEMENTS]])
    case = replace(case_of(small()), data=sharers, context=1)
    expected = [[padded(int(e), int(n)) // n for n in sharers] for (e,) in elements]
    assert slice_elements(replace(case, zero=1), elements).tolist() == expected
    whole = [[padded(int(e))] * len(sharers) for (e,) in elements]
    assert slice_elements(replace(case, zero=0), elements).tolist() == whole
