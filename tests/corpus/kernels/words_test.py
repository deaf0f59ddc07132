"""Words and their hashes, compared with plain Python over all of Unicode."""

import re
import unicodedata

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from trivium.corpus.kernels.shingles import jaccard_of_pairs, shingle_sets
from trivium.corpus.kernels.texts import ALONE, LETTER_BITS, MARK, fold, fold_table, joined, texts_of, words_of
from trivium.corpus.kernels.words import BASE, _text_keys, text_keys

MASK = 2**64 - 1
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
SAMPLES = "one Two ΟΔΟΣ οδος İstanbul 日本 a日b本 ที่น้ำ ကျွန် ខ្មែរ ー naïve _x9 ¼ . \n — 😀 कि का e\u0301"
WORDY = st.lists(st.sampled_from(SAMPLES.split(" "))).map(" ".join)


def plain_mix(value):
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK
    return value ^ value >> 31


def plain_word_hash(word):
    value = 0xCBF29CE484222325
    for letter in word:
        value = (value ^ ord(letter)) * 0x100000001B3 & MASK
    return plain_mix(value)


def plain_run_hash(words):
    value = 0
    for word in words:
        value = (value * int(BASE) + plain_word_hash(word)) & MASK
    return plain_mix(value)


def plain_shingles(text, size):
    words = words_of(text)
    if not words:
        return []
    size = min(size, len(words))
    return sorted({plain_run_hash(words[i : i + size]) for i in range(len(words) - size + 1)})


@given(st.lists(st.one_of(TEXTS, WORDY), max_size=6), st.integers(1, 6))
def test_shingles_equal_plain_python(texts, size):
    sets = shingle_sets(texts_of(texts), size=size)
    for number, text in enumerate(texts):
        found = sets.hashes[sets.offsets[number] : sets.offsets[number + 1]]
        assert found.tolist() == plain_shingles(text, size)


@given(st.lists(WORDY, min_size=2, max_size=6), st.integers(1, 4))
def test_similarities_equal_plain_sets(texts, size):
    pairs = [(a, b) for a in range(len(texts)) for b in range(len(texts))]
    sets = [set(plain_shingles(text, size)) for text in texts]
    columns = shingle_sets(texts_of(texts), size=size)
    found = jaccard_of_pairs(columns, columns, np.array(pairs))
    for (a, b), similarity in zip(pairs, found, strict=True):
        assert similarity == len(sets[a] & sets[b]) / max(len(sets[a] | sets[b]), 1)


@given(st.lists(st.one_of(TEXTS, WORDY), min_size=1, max_size=6))
def test_keys_are_equal_exactly_for_equal_words(texts):
    keys = [tuple(row) for row in text_keys(texts_of(texts)).tolist()]
    for a in range(len(texts)):
        for b in range(len(texts)):
            one, other = words_of(texts[a]) or texts[a], words_of(texts[b]) or texts[b]
            assert (keys[a] == keys[b]) == (one == other)


def test_signs_and_vowels_tell_texts_apart():
    signs = ["😀😀 — !!!", "🚀🌍 … ???", "∀ ∃ ⇒ ≤", "\u2764\ufe0f", "\u2600\ufe0f", "", " ", "\x00"]
    hindi = ["कि का की", "के को कु", "क क क"]
    assert len({tuple(row) for row in text_keys(texts_of(signs + hindi)).tolist()}) == len(signs + hindi)
    assert words_of("कि का, re\u0301sume\u0301!") == ["कि", "का", "re\u0301sume\u0301"]


def test_fold_table_agrees_with_unicode():
    table = fold_table()
    for point in range(0x110000):
        letter = chr(point)
        looks = point in range(0xFE00, 0xFE10) or point in range(0xE0100, 0xE01F0)  # variation selectors
        mark = unicodedata.category(letter) in ("Mn", "Mc") and not looks
        inside = bool(re.fullmatch(r"\w", letter)) or mark
        assert (table[point] != 0) == inside, hex(point)
        if inside:
            assert table[point] & LETTER_BITS == ord(fold(letter)), hex(point)
            assert table[table[point] & LETTER_BITS] == table[point], hex(point)
            assert bool(table[point] & MARK) == mark, hex(point)
            assert bool(table[point] & ALONE) == (not mark and len(words_of(2 * letter)) == 2), hex(point)


def test_words_are_in_lower_case_whatever_their_position():
    for text in ("One, TWO;three", "Ünïcode ÄÖ", "ЯБЛОКО", "a_b 12 ¼", "한국어 Text"):
        assert words_of(text) == re.findall(r"\w+", text.lower())
    assert words_of("ΟΔΟΣ οδος") == ["οδοσ", "οδοσ"]
    assert words_of("İstanbul") == ["istanbul"]


def test_columns_of_any_type_slice_and_chunks_are_read():
    words = ["aa b", "", "ccc", "dä e"]
    whole = text_keys(texts_of(words)).tolist()
    for column in (
        pa.array(words),
        pa.array(words, pa.large_string()),
        pa.chunked_array([words[:1], words[1:]]),
        pa.array(["x", *words, "y"]).slice(1, 4),
    ):
        assert text_keys(texts_of(column)).tolist() == whole
    assert text_keys(texts_of(pa.chunked_array([], pa.string()))).shape == (0, 2)


def test_kernel_is_compiled_once_for_all_kinds_of_buffers():
    """Memory that may be written is another type to the compiler than memory that may not."""
    sent = pa.array(["aa b"]).cast(pa.large_string())
    read = pa.Array.from_buffers(
        sent.type, 1, [None, *(pa.py_buffer(part.to_pybytes()) for part in sent.buffers()[1:])]
    )
    for texts in (texts_of(["aa b"]), texts_of(sent), texts_of(read), texts_of([]), joined(["aa b"])):
        text_keys(texts)
    assert len(_text_keys.signatures) == 1


def test_letters_are_words_in_scripts_without_blanks():
    words = {
        "日本語、テキスト": list("日本語テキスト"),
        "GPT模型v2 한국어": ["gpt", "模", "型", "v2", "한국어"],
        "ที่น้ำ": ["ที่", "น้", "ำ"],
        "ខ្មែរ": ["ខ្", "មែ", "រ"],
        "မြန်မာ": ["မြ", "န်", "မာ"],
        "ພາສາ": ["ພ", "າ", "ສ", "າ"],
        "𠮷野家": ["𠮷", "野", "家"],
    }
    for text, expected in words.items():
        assert words_of(text) == expected
