"""Holding out: documents do not affect each other, no source loses all, and no document is in both splits."""

import numpy as np
import pyarrow as pa
import pytest

from tokens.curated import documents
from trivium.corpus.document import Document
from trivium.corpus.publish.store import documents_table, read_documents, write_documents
from trivium.tokens.split import TRAIN, VALIDATION, HeldOut, Survey, choose_held_out, parts_of, survey


@pytest.fixture
def surveyed(tmp_path):
    def look(docs, *, seed=1):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        write_documents(folder, docs)
        return survey(folder, seed=seed)

    return look


def many(prefix, count, source="s"):
    return [Document(f"{prefix}{i}", "0123456789", source) for i in range(count)]


def chosen_ids(docs, found, fraction):
    return {d.id for d, held in zip(docs, choose_held_out(found, fraction=fraction).whole, strict=True) if held}


def test_survey_describes_the_store(surveyed):
    docs = documents({"prose": 70, "pages": 30}) + [Document("ů", "ů🦄", "odd")]
    found = surveyed(docs)
    assert [found.sources[n] for n in found.source] == [d.source for d in docs]
    assert found.text_bytes.tolist() == [d.text_bytes for d in docs]
    assert found.draws.min() >= 0 and found.draws.max() < 1
    assert len(found) == 101 and len(surveyed([])) == 0


def test_adding_documents_moves_no_other_document(surveyed):
    few, more = many("d", 400), many("d", 400) + many("e", 400)
    one = chosen_ids(few, surveyed(few), 0.1)
    both = chosen_ids(more, surveyed(more), 0.1)
    assert one == {i for i in both if i.startswith("d")}
    assert 20 < len(one) < 65
    assert one != chosen_ids(few, surveyed(few, seed=2), 0.1)


def test_only_document_of_a_source_is_not_held_out(surveyed):
    docs = [d for i in range(300) for d in many(f"d{i}-", 1, f"s{i}")] + many("a", 2, "t")
    held_out = chosen_ids(docs, surveyed(docs), 0.2)
    assert held_out and held_out < {"a0", "a1"}


def test_short_held_out_text_is_extended_by_next_draws(surveyed):
    docs = [Document(f"d{i}", "x" * (10 if i % 10 else 20_000), "s") for i in range(60)]
    found = surveyed(docs)
    chosen = choose_held_out(found, fraction=0.05).whole
    assert found.text_bytes[chosen].sum() >= 0.025 * found.text_bytes.sum()
    assert found.draws[chosen].max() < np.sort(found.draws)[chosen.sum()]


ALONE = [0, 1, 2, 3]  # each is the only document of its source


@pytest.mark.parametrize(("sources", "sizes", "draws", "chosen"), [
    # less than half of 237 was drawn, so the draws are extended
    ([0] * 4, [110, 110, 150, 2000], [0.01, 0.3, 0.4, 0.5], [0, 1, 2]),
    ([0] * 4, [110, 110, 150, 1830], [0.01, 0.3, 0.4, 0.5], [0]),  # half of 220 was drawn
    ([0] * 4, [110, 110, 150, 1830], [0.01, 0.1, 0.4, 0.5], [0]),  # 0.1 is not below 0.1
    # all of a source were drawn, so one is kept
    ([0, 0, 1, 1], [10, 10, 900, 900], [0.01, 0.02, 0.3, 0.4], [0, 2]),
    # the lowest draw is the only document of its source
    ([0, 1, 1, 1], [50, 10, 900, 900], [0.01, 0.2, 0.3, 0.4], [1, 2]),
    ([0, 0, 1, 2], [10, 10, 900, 900], [0.05, 0.2, 0.03, 0.04], [0]),  # no further document can be held out
    (ALONE, [10, 30, 20, 30], [0.01, 0.02, 0.03, 0.04], []),
])  # fmt: skip
def test_lowest_draws_are_held_out(sources, sizes, draws, chosen):
    names = tuple(f"s{k}" for k in range(max(sources) + 1))
    found = Survey(names, np.array(sources, np.int32), np.array(sizes), np.array(draws))
    held_out = choose_held_out(found, fraction=0.1)
    assert np.flatnonzero(held_out.whole).tolist() == chosen
    tail = (-1, 0.0) if chosen else (1, 0.1)  # of the longest document, the first of equals
    assert (held_out.tail_of, held_out.tail_fraction) == tail


def test_documents_are_in_one_split_only(tmp_path):
    docs = documents({"prose": 50})
    write_documents(tmp_path, docs)
    held_out = choose_held_out(survey(tmp_path, seed=3), fraction=0.2)
    parts = list(parts_of(documents_table(list(read_documents(tmp_path))), 0, held_out))
    assert [(p.document, p.source, p.text) for p in parts] == [(d.id, d.source, d.text) for d in docs]
    assert [p.split == VALIDATION for p in parts] == held_out.whole.tolist()


def test_held_out_tail_begins_at_a_space():
    table = pa.table({"id": ["a", "b"], "source": ["s", "s"], "text": ["one", "some words and more of them"]})
    held_out = HeldOut(np.zeros(9, bool), tail_of=6, tail_fraction=0.4)
    first, train, validation = parts_of(table, 5, held_out)
    assert (first.text, first.split, train.split, validation.split) == ("one", TRAIN, TRAIN, VALIDATION)
    assert train.text + validation.text == "some words and more of them"
    assert validation.text.startswith(" ")


def test_tail_without_space_begins_at_its_fraction():
    table = pa.table({"id": ["a"], "source": ["s"], "text": ["a few 0123456789"]})
    train, validation = parts_of(table, 0, HeldOut(np.zeros(1, bool), tail_of=0, tail_fraction=0.25))
    assert (train.text, validation.text) == ("a few 012345", "6789")
