"""Written JSON is valid for every reader, also if a figure is NaN or infinite."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.corpus.document import Document
from trivium.corpus.publish.store import documents_table
from trivium.corpus.steps import reject_line
from trivium.finite import dumps, finite
from trivium.provenance import write_json
from trivium.report.embed import embedded_json
from trivium.training import metrics

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
TREES = st.recursive(LEAVES, lambda each: st.lists(each) | st.dictionaries(st.text(), each), max_leaves=12)


def refuse(token):
    raise AssertionError(f"{token} is not JSON")


def same_but_for_null(written, value):
    if isinstance(value, float) and not math.isfinite(value):
        return written is None
    if isinstance(value, dict):
        return written.keys() == value.keys() and all(same_but_for_null(written[k], value[k]) for k in value)
    if isinstance(value, list):
        return len(written) == len(value) and all(map(same_but_for_null, written, value))
    return written == value and type(written) is type(value)


@given(TREES)
def test_only_non_finite_numbers_become_null(value):
    assert same_but_for_null(json.loads(dumps(value), parse_constant=refuse), value)
    assert same_but_for_null(finite(value), value)


def test_finite_data_is_written_as_by_the_standard_library():
    value = {"b": [1.5, (2, "ů")], "a": np.float64(0.1)}
    options = {"sort_keys": True, "indent": 1, "ensure_ascii": False}
    assert dumps(value, **options) == json.dumps(value, **options)
    assert dumps({"b": (np.float64("nan"), 1)}) == '{"b": [null, 1]}'


@pytest.mark.parametrize("text", ["whole", "half a character \ud800"])
def test_rejects_of_a_corpus_have_null_for_non_finite_numbers(text):
    line = reject_line(Document("a", text, "s", {"x": math.nan, "y": [math.inf]}), "read", "why")
    assert json.loads(line, parse_constant=refuse)["metadata"] == {"x": None, "y": [None]}


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, np.float64("nan")])
def test_every_results_writer_replaces_non_finite_numbers(tmp_path, number):
    results = {"loss": number, "tasks": {"cloze": [{"0": (number, 0.5)}]}}
    expected = {"loss": None, "tasks": {"cloze": [{"0": [None, 0.5]}]}}
    write_json(tmp_path / "results.json", results)
    metrics.append(tmp_path / "metrics.jsonl", results)
    texts = [(tmp_path / "results.json").read_text(), (tmp_path / "metrics.jsonl").read_text()]
    texts += documents_table([Document("a", "text", "s", results)])["metadata"].to_pylist()
    for text in [*texts, embedded_json(results)]:
        assert json.loads(text, parse_constant=refuse) == expected
