import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evaluation.scorers import passages
from trivium.errors import DataError
from trivium.evaluation.tasks.items import Item, cut_last_sentence, head, read_items, tail

ITEMS = [Item(**i) for i in passages(5)]


def write(path, lines):
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines) + "\n")
    return path


def test_items_round_trip(tmp_path):
    assert read_items(write(tmp_path / "i.jsonl", passages(5))) == ITEMS


def test_passages_may_contain_unicode_line_ends(tmp_path):
    odd = {"id": "a\u2028", "document": "d\x85", "text": "one\u2029two"}
    assert read_items(write(tmp_path / "i.jsonl", [json.dumps(odd, ensure_ascii=False)])) == [Item(**odd)]


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "3", '{"id": "a"}', '{"id": 1, "document": "d", "text": "t"}', '{"id":"a","document":"d","text":" "}'],
)
def test_invalid_line_is_named(tmp_path, line):
    with pytest.raises(DataError, match=r"i\.jsonl, line 3"):
        read_items(write(tmp_path / "i.jsonl", [*passages(2), line]))


@pytest.mark.parametrize("name", ["id", "document", "text"])
def test_lone_surrogate_is_rejected_naming_field(tmp_path, name):
    """A surrogate that is not rejected here would fail later without a name."""
    line = json.dumps({"id": "i", "document": "d", "text": "Some text."} | {name: "half \ud800"})
    with pytest.raises(DataError, match=rf"i\.jsonl, line 3, {name}: '\\ud800' is a lone surrogate"):
        read_items(write(tmp_path / "i.jsonl", [*passages(2), line]))


def test_duplicate_id_is_rejected(tmp_path):
    with pytest.raises(DataError, match="'item-0' twice"):
        read_items(write(tmp_path / "i.jsonl", [*passages(2), *passages(1)]))


def test_missing_empty_or_binary_file_is_rejected(tmp_path):
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, message in (("absent", "cannot be read"), ("empty", "no evaluation items"), ("binary", "UTF-8")):
        with pytest.raises(DataError, match=f"{name}.*{message}"):
            read_items(tmp_path / name)


@example("a b a", 3)
@example("a b cd", 3)
@example("a cd ab", 5)
@example("a bc", 2)
@given(st.text("ab  cd\n", min_size=1, max_size=80).filter(str.strip), st.integers(1, 40))
def test_cuts_keep_full_words_within_limit(text, limit):
    words = text.split()
    for cut, kept in ((tail(text, limit), words[::-1]), (head(text, limit), words)):
        shown = cut.split()
        assert shown == (kept[: len(shown)][::-1] if kept is not words else kept[: len(shown)])
        assert len(shown) >= 1
        assert len(cut) <= max(limit, len(kept[0]))
        if len(shown) < len(words):  # one more word would exceed the limit
            assert len(cut) + 1 + len(kept[len(shown)]) > limit


def test_last_sentence_is_cut_off():
    assert cut_last_sentence("One. Two is e.g. here! Three?") == ("One. Two is e.g. here!", "Three?")
    assert cut_last_sentence("Only one.") is None
