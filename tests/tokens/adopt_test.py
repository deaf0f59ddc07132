"""Megatron-LM pairs are adopted in place, or rejected with a reason."""

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from plans import small
from trivium.errors import CheckpointError, ConfigError, DataError
from trivium.provenance import file_sha256
from trivium.tokens.adopt import Pairs, adopt_pairs
from trivium.tokens.manifest import MANIFEST, open_shards, read_tokens_manifest, token_counts, verify_tokens
from trivium.tokens.samples import TokenDataset
from trivium.tokens.tokenizer import Tokenizer, train_tokenizer
from trivium.training.config import TrainingConfig
from trivium.training.lineage import trace as lineage
from trivium.training.loop import TrainingJob
from trivium.training.record import read_record
from trivium.training.supervision.job import start

LETTERS = {8: "H", 4: "i", 5: "q", 1: "B"}


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    return train_tokenizer(["a parser reads each token and returns it " * 20], 270)


def megatron_pair(prefix: Path, documents: list[list[int]], *, code: int = 8, **other: int | bytes) -> Path:
    """Write a pair field by field as Megatron-LM does, independently of the code under test. other: version, or
    bytes at the `end` of the index."""
    letter = LETTERS.get(code, "q")
    prefix.with_name(f"{prefix.name}.bin").write_bytes(
        b"".join(struct.pack(f"<{len(ids)}{letter}", *ids) for ids in documents)
    )
    pointers, at = [], 0
    for ids in documents:
        pointers.append(at)
        at += len(ids) * struct.calcsize(letter)
    count = len(documents)
    prefix.with_name(f"{prefix.name}.idx").write_bytes(
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", other.get("version", 1), code, count, count + 1)
        + struct.pack(f"<{count}i", *map(len, documents))
        + struct.pack(f"<{count}q", *pointers)
        + struct.pack(f"<{count + 1}q", *range(count + 1))
        + other.get("end", b"")
    )
    return prefix


def texts(first: int, count: int, *, end: int = 0) -> list[list[int]]:
    """Return distinct documents of 5 to 11 ids, with their ends."""
    return [[*((first + 7 * n + k) % 250 + 1 for k in range(5 + n % 7)), end] for n in range(count)]


def adopted(folder: Path, words: Tokenizer, *train: Path, **how) -> Path:
    out = folder / "tokens"
    out.mkdir()
    adopt_pairs(Pairs(train, **{"fraction": 0.2} | how), out, words)
    return out


def test_training_reads_exactly_the_adopted_documents(tmp_path: Path, words: Tokenizer) -> None:
    every = {"web": texts(0, 30), "code": texts(100, 20)}
    pairs = [megatron_pair(tmp_path / "web", every["web"]), megatron_pair(tmp_path / "code", every["code"], code=4)]
    tokens = adopted(tmp_path, words, *pairs, weights=(3.0, 1.0))
    held_out = {n: e["validation"]["first"] for n, e in read_tokens_manifest(tokens)["sources"].items()}

    model = {"vocabulary": words.vocabulary, "layers": 2, "sequence": 8}
    given = small(model=model, batch={"sequences": 8, "micro": 2, "ramp": None})
    start(TrainingJob(given, TrainingConfig(steps=8, validation_samples=2), 5, tokens, tmp_path / "training"))

    record, seen = read_record(tmp_path / "training"), set()
    for step in range(1, 9):
        found = lineage.batch(record, step)
        assert found["agrees"] is True
        for row in found["rows"]:
            for one in row["documents"]:
                name, number = one["document"].split("/")
                text = every[name][int(number)]
                stop = one["offset"] + one["length"]
                assert row["tokens"][one["offset"] : stop] == text[one["begin"] : one["begin"] + one["length"]]
                seen.add((name, int(number)))
    # The last window of a source is shorter than a sample and not used.
    trained = {(name, n) for name, cut in held_out.items() for n in range(cut)}
    assert seen <= trained and len(trained - seen) <= 2
    assert lineage.round_trip(record)["agrees"]


def test_last_documents_of_each_pair_validate(tmp_path: Path, words: Tokenizer) -> None:
    documents = texts(0, 30)
    tokens = adopted(tmp_path, words, megatron_pair(tmp_path / "web", documents))
    parts = {split: open_shards(tokens, split)["web"] for split in ("train", "validation")}
    split = {name: [part[n].tolist() for n in range(len(part))] for name, part in parts.items()}
    assert split["train"] + split["validation"] == documents
    held_out, total = len(sum(split["validation"], [])), len(sum(documents, []))
    assert total * 0.2 <= held_out < total * 0.2 + 12  # the fraction, rounded up to a full document
    manifest = read_tokens_manifest(tokens)
    assert manifest["totals"]["validation"] == {"documents": len(split["validation"]), "tokens": held_out}
    assert token_counts(tokens, "validation").tolist() == [
        sum(split["validation"], []).count(n) for n in range(words.vocabulary)
    ]


def test_pair_may_be_for_validation(tmp_path: Path, words: Tokenizer) -> None:
    pairs = [megatron_pair(tmp_path / name, texts(n, 9)) for n, name in enumerate(("a", "b", "held"))]
    tokens = adopted(tmp_path, words, *pairs[:2], validation=(pairs[2],))
    assert {s: len(shard) for s, shard in open_shards(tokens, "train").items()} == {"a": 9, "b": 9}
    assert {s: len(shard) for s, shard in open_shards(tokens, "validation").items()} == {"held": 9}
    assert {s: e["weight"] for s, e in read_tokens_manifest(tokens)["sources"].items()} == {
        "a": 0.5,
        "b": 0.5,
        "held": 0,
    }


def test_pairs_are_linked_and_changes_detected(tmp_path: Path, words: Tokenizer) -> None:
    pair = megatron_pair(tmp_path / "web", texts(0, 9))
    before = {p.name: file_sha256(p) for p in tmp_path.glob("web.*")}
    tokens = adopted(tmp_path, words, pair)
    verify_tokens(tokens)
    links = {p.name: p.readlink() for p in tokens.iterdir() if p.is_symlink()}
    assert links == {name: tmp_path / name for name in ("web.bin", "web.idx")}
    assert {p.name: file_sha256(p) for p in tmp_path.glob("web.*")} == before
    assert read_tokens_manifest(tokens)["files"].items() >= before.items()
    with open(tmp_path / "web.bin", "r+b") as file:
        file.write(b"\x09")
    with pytest.raises(DataError, match=r"web\.bin is damaged or was replaced"):
        verify_tokens(tokens)
    (tmp_path / "web.bin").unlink()
    with pytest.raises(DataError, match=rf"web\.bin \(a link to {tmp_path}/web\.bin\) is missing"):
        TokenDataset.open(tokens, "train", sequence=8, seed=1)


def test_equal_names_in_two_folders_are_two_sources(tmp_path: Path, words: Tokenizer) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    pairs = [megatron_pair(tmp_path / name / "text_document", texts(n, 9)) for n, name in enumerate("ab")]
    found = open_shards(adopted(tmp_path, words, *pairs), "train")
    assert [shard[0].tolist() for shard in found.values()] == [texts(0, 1)[0], texts(1, 1)[0]]


def test_source_starting_with_empty_documents_trains_and_validates(tmp_path: Path, words: Tokenizer) -> None:
    tokens = adopted(tmp_path, words, megatron_pair(tmp_path / "web", [[], [], *texts(0, 2), []]))
    assert len(open_shards(tokens, "train")["web"].tokens) == 6
    assert len(open_shards(tokens, "validation")["web"].tokens) == 7


REFUSED = [
    ({"end": bytes(9)}, "has a mode for each of its 9 sequences.*multimodal"),
    ({"end": b"x"}, "9 sequences and 10 document marks take"),
]


@pytest.mark.parametrize(("how", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_unreadable_index_is_rejected(how: dict, says: str, tmp_path: Path, words: Tokenizer) -> None:
    with pytest.raises(DataError, match=says):
        adopted(tmp_path, words, megatron_pair(tmp_path / "web", texts(0, 9), **how))
    assert not (tmp_path / "tokens" / MANIFEST).exists()


IDS = [
    ([[1, 400, 0], [1, 0]], "holds id 400 at token 1, but the tokenizer has ids 0 to"),
    ([[1, 2, 0], [1, -1, 0]], "holds id -1 at token 4"),
    ([[1, 2, 0], [], [1, 7], [3, 0]], "document 2 of .*web ends with id 7, .*end of a text is 0.*--unended"),
    ([[1, 2, 0]], "there is no validation text.*--validation PREFIX"),
    ([[]], "web.bin holds 0 tokens; leave this pair out"),
]


@pytest.mark.parametrize(("documents", "says"), IDS, ids=[says for _, says in IDS])
def test_foreign_ids_are_rejected(documents: list[list[int]], says: str, tmp_path: Path, words: Tokenizer) -> None:
    with pytest.raises(DataError, match=says):
        adopted(tmp_path, words, megatron_pair(tmp_path / "web", documents, code=4))


def test_document_ends_are_checked_at_block_borders(
    tmp_path: Path, words: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = texts(0, 9)
    pair = megatron_pair(tmp_path / "web", documents)
    for size in range(1, 8):
        monkeypatch.setattr("trivium.tokens.adopt._BLOCK_TOKENS", size)
        (tmp_path / str(size)).mkdir()
        tokens = adopted(tmp_path / str(size), words, pair)
        verify_tokens(tokens)
        documents[4][-1] = 5
        wrong = megatron_pair(tmp_path / str(size) / "web", documents)
        documents[4][-1] = 0
        (tmp_path / str(size) / "again").mkdir()
        with pytest.raises(DataError, match="document 4 of"):
            adopted(tmp_path / str(size) / "again", words, wrong)
        assert adopt_pairs(Pairs((wrong,), fraction=0.2, ended=False), _made(tmp_path / f"{size}-unended"), words)
    first = read_tokens_manifest(tmp_path / "1" / "tokens")
    assert first == read_tokens_manifest(tmp_path / "7" / "tokens")


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_invalid_weights_and_duplicate_pairs_are_rejected(tmp_path: Path, words: Tokenizer) -> None:
    pair = megatron_pair(tmp_path / "web", texts(0, 9))
    for weights in ((0.0,), (-1.0,), (np.inf,), (1e300,), (1.0, 2.0)):
        with pytest.raises(ConfigError, match=r"WEIGHT: 1 pairs need as many weights above 0"):
            adopt_pairs(Pairs((pair,), weights, fraction=0.2), tmp_path, words)
    with pytest.raises(ConfigError, match="is named 2 times"):
        adopt_pairs(Pairs((pair,), validation=(tmp_path / "." / "web",)), tmp_path, words)


@pytest.mark.parametrize("code", [8, 4])
def test_copied_pair_is_rejected(code: int, tmp_path: Path, words: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names and dtypes may differ. Validation on a copy would measure trained text."""
    monkeypatch.setattr("trivium.tokens.adopt._BLOCK_TOKENS", 7)
    train, other = (megatron_pair(tmp_path / name, texts(n, 9)) for n, name in enumerate(("web", "books")))
    copy = megatron_pair(tmp_path / "held", texts(0, 9), code=code)
    with pytest.raises(DataError, match=r"--validation .*held: its ids are those of .*web, which trains"):
        adopted(tmp_path, words, other, train, validation=(copy,))
    (tmp_path / "again").mkdir()
    with pytest.raises(DataError, match=r"PREFIX .*held: its ids are those of .*web, and would count twice"):
        adopted(tmp_path / "again", words, other, train, copy)
    nearly = texts(0, 9)
    nearly[-1][0] = 251
    (tmp_path / "nearly").mkdir()
    assert adopted(tmp_path / "nearly", words, train, megatron_pair(tmp_path / "late", nearly, code=code))


def test_training_range_of_pair_is_part_of_the_lineage(tmp_path: Path, words: Tokenizer) -> None:
    """Equal files with another validation fraction have other samples, which no file hash shows."""
    pair = megatron_pair(tmp_path / "web", texts(0, 30))
    (tmp_path / "more").mkdir()
    few, more = adopted(tmp_path, words, pair), adopted(tmp_path / "more", words, pair, fraction=0.4)
    given = small(
        model={"vocabulary": words.vocabulary, "layers": 2, "sequence": 8},
        batch={"sequences": 8, "micro": 2, "ramp": None},
    )
    training = TrainingConfig(steps=1, checkpoint_every=1, validation_samples=2)
    jobs = [TrainingJob(given, training, 5, tokens, tmp_path / "training") for tokens in (few, more)]
    assert read_tokens_manifest(few)["files"] == read_tokens_manifest(more)["files"]
    start(jobs[0])
    with pytest.raises(CheckpointError, match=r"data\.blend\.web\.documents: \d+ -> \d+"):
        start(replace(jobs[1], training=training.model_copy(update={"steps": 2})))
