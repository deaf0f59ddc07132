import json
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokens.curated import prose
from trivium.errors import DataError
from trivium.tokens.tokenizer import END_OF_TEXT, Tokenizer, load_tokenizer, train_tokenizer

TOKENIZER = train_tokenizer([prose(i, 400) for i in range(5)], 400)


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_unicode_text_round_trips(text):
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert all(0 <= i < TOKENIZER.vocabulary for i in ids)
    assert TOKENIZER.end_of_text not in ids


def test_end_of_text_in_a_document_is_ordinary_text():
    text = f"a document about {END_OF_TEXT} tokens"
    assert TOKENIZER.end_of_text not in TOKENIZER.encode(text)
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text
    assert TOKENIZER.decode([TOKENIZER.end_of_text]) == END_OF_TEXT


def test_equal_texts_train_equal_tokenizers():
    again = train_tokenizer(iter([prose(i, 400) for i in range(5)]), 400)
    assert again.sha256 == TOKENIZER.sha256
    assert train_tokenizer(["something else entirely, " * 20], 400).sha256 != TOKENIZER.sha256


def test_saved_tokenizer_is_equal(tmp_path):
    TOKENIZER.save(tmp_path / "tokenizer.json")
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert loaded.sha256 == TOKENIZER.sha256
    assert loaded.vocabulary == TOKENIZER.vocabulary
    assert loaded.encode(f"the parser {END_OF_TEXT}") == TOKENIZER.encode(f"the parser {END_OF_TEXT}")


def test_lone_surrogate_is_rejected_with_position():
    with pytest.raises(DataError, match="position 3"):
        TOKENIZER.encode("abc\ud800")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"{}", json.dumps({"model": {}}).encode()])
def test_damaged_file_is_rejected_by_name(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        load_tokenizer(path)


@pytest.mark.parametrize(
    ("part", "damage"),
    [
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}),  # fails when it is read
        ("pre_tokenizer", {"type": "FixedLength", "length": 0}),  # fails when a text is encoded
    ],
)
def test_file_causing_panic_is_rejected_by_name(tmp_path, part, damage):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(json.loads(TOKENIZER.description) | {part: damage}))
    with pytest.raises(DataError, match=r"tokenizer\.json is not a tokenizer"):
        load_tokenizer(path)


def test_interrupt_while_reading_is_not_swallowed(tmp_path, monkeypatch):
    TOKENIZER.save(tmp_path / "tokenizer.json")
    monkeypatch.setattr("tokenizers.Tokenizer.from_str", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_tokenizer_without_end_token_is_rejected(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(TOKENIZER.description.replace(END_OF_TEXT, "<|other|>"))
    with pytest.raises(DataError, match="endoftext"):
        load_tokenizer(path)
    with pytest.raises(DataError, match="endoftext"):
        Tokenizer(path.read_text()).end_of_text


def test_missing_file_names_the_command(tmp_path):
    with pytest.raises(DataError, match="trivium tokenize"):
        load_tokenizer(tmp_path / "absent.json")
