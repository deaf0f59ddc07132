"""Laws of the blend."""

import pytest

from trivium.config import build
from trivium.corpus.config import CurateConfig
from trivium.corpus.publish.output import blend
from trivium.errors import ConfigError, DataError

SOURCES = {"a": {"documents": 3, "text_bytes": 300}, "b": {"documents": 1, "text_bytes": 100}}


def test_without_weights_every_source_is_seen_once():
    mixed = blend(SOURCES, {})
    assert {s: m["weight"] for s, m in mixed.items()} == {"a": 0.75, "b": 0.25}
    assert {s: m["epochs"] for s, m in mixed.items()} == {"a": 1.0, "b": 1.0}


def test_weights_are_normalised_and_give_epochs():
    mixed = blend(SOURCES, {"a": 1, "b": 1})
    assert mixed["b"]["weight"] == 0.5
    assert mixed["b"]["epochs"] == 2.0
    assert sum(m["weight"] for m in mixed.values()) == pytest.approx(1)


def test_a_source_that_is_not_there_is_named():
    with pytest.raises(DataError, match="'c'.*known: a, b"):
        blend(SOURCES, {"c": 1})
    with pytest.raises(DataError, match="above 0"):
        blend(SOURCES, {"a": 0})


def test_weights_whose_sum_could_be_none_are_refused_by_their_field():
    with pytest.raises(ConfigError, match=r"blend\.b is 1e\+308; it must be less than or equal to"):
        build(CurateConfig, {"blend": {"a": 1.0, "b": 1e308}})
