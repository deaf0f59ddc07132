"""Contamination results of evaluation questions."""

import json

import pytest
from scipy import stats

from trivium.errors import DataError
from trivium.evaluation.contamination import seen_while_curating, split_result


def test_accuracy_is_split_by_contamination():
    found = split_result([True, False, True, False, False], [True, True, False, False, True], confidence=0.9)
    assert found["n"] == 2
    for part, right, asked in (("in_corpus", 1, 2), ("clean", 2, 3)):
        exact = stats.binomtest(right, asked).proportion_ci(0.9, method="wilson")
        assert (found[part]["n"], found[part]["accuracy"]) == (asked, right / asked)
        assert found[part]["interval"] == pytest.approx([exact.low, exact.high])


@pytest.mark.parametrize(("flag", "part", "none"), [(True, "in_corpus", "clean"), (False, "clean", "in_corpus")])
def test_empty_part_has_no_accuracy(flag, part, none):
    found = split_result([flag, flag], [True, False], confidence=0.95)
    assert found["n"] == 2 * flag and found[part]["n"] == 2 and found[none] is None


def test_passages_seen_by_curation_are_read(tmp_path):
    path = tmp_path / "decontamination.json"
    path.write_text(json.dumps({"items_seen": ["b", "a", "b"], "documents": 3}))
    assert seen_while_curating(path) == {"a", "b"}
    for damaged in ("{", "{}", '{"items_seen": 3}'):
        path.write_text(damaged)
        with pytest.raises(DataError, match=r"decontamination\.json cannot be read .*curate the corpus again"):
            seen_while_curating(path)
