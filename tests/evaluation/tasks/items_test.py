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


def test_items_come_back_as_written(tmp_path):
    assert read_items(write(tmp_path / "i.jsonl", passages(5))) == ITEMS


def test_a_passage_may_hold_whatever_ends_a_line_elsewhere(tmp_path):
    odd = {"id": "a\u2028", "document": "d\x85", "text": "one\u2029two"}
    assert read_items(write(tmp_path / "i.jsonl", [json.dumps(odd, ensure_ascii=False)])) == [Item(**odd)]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "3",
        '{"id": "a"}',
        '{"id": 1, "document": "d", "text": "t"}',
        '{"id":"a","document":"d","text":" "}',
    ],
)
def test_a_line_that_is_no_item_is_named(tmp_path, line):
    with pytest.raises(DataError, match=r"i\.jsonl, line 3"):
        read_items(write(tmp_path / "i.jsonl", [*passages(2), line]))


@pytest.mark.parametrize("name", ["id", "document", "text"])
def test_half_a_character_is_refused_by_the_name_of_its_field(tmp_path, name):
    """Without a name it ended the choice of questions."""
    line = json.dumps({"id": "i", "document": "d", "text": "Some text."} | {name: "half \ud800"})
    with pytest.raises(DataError, match=rf"i\.jsonl, line 3, {name}: '\\ud800' is half a character"):
        read_items(write(tmp_path / "i.jsonl", [*passages(2), line]))


def test_the_same_id_twice_is_refused(tmp_path):
    with pytest.raises(DataError, match="'item-0' twice"):
        read_items(write(tmp_path / "i.jsonl", [*passages(2), *passages(1)]))


def test_a_missing_empty_or_binary_file_is_refused(tmp_path):
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, message in (
        ("absent", "cannot be read"),
        ("empty", "no evaluation items"),
        ("binary", "UTF-8"),
    ):
        with pytest.raises(DataError, match=f"{name}.*{message}"):
            read_items(tmp_path / name)


@example("a b a", 3)
@example("a b cd", 3)
@example("a cd ab", 5)
@example("a bc", 2)
@given(st.text("ab  cd\n", min_size=1, max_size=80).filter(str.strip), st.integers(1, 40))
def test_cuts_keep_whole_words_and_the_limit(text, limit):
    words = text.split()
    for cut, kept in ((tail(text, limit), words[::-1]), (head(text, limit), words)):
        shown = cut.split()
        assert shown == (kept[: len(shown)][::-1] if kept is not words else kept[: len(shown)])
        assert len(shown) >= 1
        assert len(cut) <= max(limit, len(kept[0]))
        if len(shown) < len(words):  # one more word would not have fitted
            assert len(cut) + 1 + len(kept[len(shown)]) > limit


def test_the_last_sentence_is_cut_off():
    assert cut_last_sentence("One. Two is e.g. here! Three?") == ("One. Two is e.g. here!", "Three?")
    assert cut_last_sentence("Only one.") is None
