import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokens.curated import curated, documents, prose
from trivium.corpus.document import Document
from trivium.corpus.publish.store import write_documents
from trivium.errors import ConfigError, DataError, MachineError
from trivium.provenance import file_sha256
from trivium.seeds import generator_for
from trivium.tokens import encode, pieces
from trivium.tokens.config import TokensConfig
from trivium.tokens.encode import blend_weights, entropy, file_stems, tokenize, unigram_entropy
from trivium.tokens.lineage import Lineage, lineage_file
from trivium.tokens.manifest import open_shards
from trivium.tokens.pieces import ShardSet
from trivium.tokens.shards import TokenShard
from trivium.tokens.split import survey
from trivium.tokens.tokenizer import load_tokenizer, train_tokenizer

CONFIG = TokensConfig(vocabulary=400, validation_fraction=0.1)


def run(tmp_path, docs, weights, config=CONFIG, name="tokens", **options):
    source = curated(tmp_path / f"curated-{name}", docs, weights)
    out = tmp_path / name
    out.mkdir()
    return tokenize(config, source, out, seed=3, **options), out


def test_every_document_is_in_the_shards_once(tmp_path):
    docs = documents({"prose": 60, "pages": 25}) + [Document("odd", "", "pages"), Document("ů🦄", "ů🦄\x00", "pages")]
    manifest, out = run(tmp_path, docs, {"prose": 0.7, "pages": 0.3})
    tokenizer = load_tokenizer(out / "tokenizer.json")
    found = {}
    for split in ("train", "validation"):
        for source, shard in open_shards(out, split).items():
            ids = Lineage(out / f"documents-{split}-{source}.parquet", shard)
            for k, document in enumerate(ids):
                assert shard[k][-1] == tokenizer.end_of_text
                assert tokenizer.end_of_text not in shard[k][:-1]
                assert document not in found
                found[document] = (source, tokenizer.decode(shard[k][:-1]))
    assert found == {d.id: (d.source, d.text) for d in docs}


def test_manifest_counts_match_files(tmp_path):
    docs = documents({"prose": 60, "pages": 25})
    manifest, out = run(tmp_path, docs, {"prose": 3, "pages": 1, "absent": 4})
    assert json.loads((out / "manifest.json").read_text()) == manifest
    assert manifest["format"] == "trivium-tokens-1"
    assert manifest["dtype"] == "uint16"
    assert manifest["vocabulary"] == load_tokenizer(out / "tokenizer.json").vocabulary
    assert manifest["tokenizer_sha256"] == file_sha256(out / "tokenizer.json")
    assert {s: e["weight"] for s, e in manifest["sources"].items()} == {"pages": 0.25, "prose": 0.75}
    assert manifest["files"] == {p.name: file_sha256(p) for p in out.iterdir() if p.name != "manifest.json"}
    for split in ("train", "validation"):
        shards = open_shards(out, split)
        assert manifest["totals"][split]["tokens"] == sum(len(s.tokens) for s in shards.values())
        assert manifest["totals"][split]["documents"] == sum(map(len, shards.values()))
    assert sum(t["documents"] for t in manifest["totals"].values()) == len(docs)
    assert sum(t["text_bytes"] for t in manifest["totals"].values()) == sum(d.text_bytes for d in docs)
    assert 0 < manifest["validation_entropy"] <= manifest["unigram_entropy"] < np.log(manifest["vocabulary"])


def test_equal_corpus_and_seed_give_equal_bytes(tmp_path):
    docs = documents({"prose": 30})
    first, _ = run(tmp_path, docs, {"prose": 1.0}, name="one")
    second, _ = run(tmp_path, docs, {"prose": 1.0}, name="two")
    assert first == second


class Killed(BaseException):
    """A BaseException, which is not caught, like a kill."""


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_BYTES", 20_000)


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_workers_and_piece_size_change_no_byte(tmp_path, monkeypatch):
    docs = documents({"prose": 300, "pages": 120})
    _, one = run(tmp_path, docs, {"prose": 1, "pages": 1}, name="one")
    monkeypatch.setattr(pieces, "PIECE_BYTES", 30_000)
    _, three = run(tmp_path, docs, {"prose": 1, "pages": 1}, name="three", workers=3)
    lineage = [name for name in bytes_of(one) if name.startswith("documents-")]
    first, other = bytes_of(one), bytes_of(three)
    assert first.keys() == other.keys() and len(lineage) == 4
    for name in first.keys() - {*lineage, "manifest.json"}:
        assert first[name] == other[name]
    _, again = run(tmp_path, docs, {"prose": 1, "pages": 1}, name="again", workers=1)
    assert bytes_of(again) == other


@pytest.mark.usefixtures("small_pieces")
def test_killed_run_resumes_to_equal_bytes(tmp_path, monkeypatch):
    docs = documents({"prose": 300})
    _, whole = run(tmp_path, docs, {"prose": 1.0}, name="whole")
    source, out, work = tmp_path / "curated-whole", tmp_path / "out", tmp_path / "work"
    out.mkdir()
    real, encoded, kills = pieces.encode_piece, [], 0

    def dying(job, path, table, first):
        if encoded and encoded[-1] == "kill":
            encoded.pop()
            raise Killed
        encoded.extend([path.name, "kill"])
        return real(job, path, table, first)

    with monkeypatch.context() as patch:
        patch.setattr(pieces, "encode_piece", dying)
        while True:
            try:
                tokenize(CONFIG, source, out, seed=3, work=work)
                break
            except Killed:
                kills += 1
    names = [name for name in encoded if name != "kill"]
    assert kills >= 4 and len(names) == len(set(names)) == kills + 1
    assert bytes_of(out) == bytes_of(whole)
    shutil.rmtree(out)  # an output may be lost before it gets its name
    out.mkdir()
    monkeypatch.setattr(pieces, "encode_piece", None)
    monkeypatch.setattr(encode, "train_tokenizer", None)
    tokenize(CONFIG, source, out, seed=3, work=work)
    assert bytes_of(out) == bytes_of(whole)


@pytest.mark.usefixtures("small_pieces")
def test_pieces_of_other_seed_or_corpus_are_not_used(tmp_path, monkeypatch):
    docs = documents({"prose": 100})
    _, whole = run(tmp_path, docs, {"prose": 1.0}, name="whole")
    work, out = tmp_path / "work", tmp_path / "out"
    out.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr("trivium.tokens.encode.ShardSet", lambda *_, **__: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            tokenize(CONFIG, tmp_path / "curated-whole", out, seed=4, work=work)
    assert any(work.glob("piece-*"))
    tokenize(CONFIG, tmp_path / "curated-whole", out, seed=3, work=work)
    assert bytes_of(out) == bytes_of(whole)


def test_foreign_folder_is_not_taken_for_pieces(tmp_path):
    run(tmp_path, documents({"prose": 20}), {"prose": 1.0}, name="whole")
    work, out = tmp_path / "work", tmp_path / "out"
    for folder in (work, out):
        folder.mkdir()
    (work / "letter").write_text("dear")
    with pytest.raises(MachineError, match="work is the folder .* did not create; move it"):
        tokenize(CONFIG, tmp_path / "curated-whole", out, seed=3, work=work)
    assert [path.name for path in work.iterdir()] == ["letter"]


@pytest.mark.parametrize("form", ["file", "folder"])
def test_given_tokenizer_is_used_unchanged(tmp_path, form):
    given = train_tokenizer([prose(7, 900)], 350)
    given.save(tmp_path / "tokenizer.json")
    place = tmp_path / "tokenizer.json" if form == "file" else tmp_path
    config = TokensConfig(vocabulary=given.vocabulary, tokenizer=str(place))
    manifest, out = run(tmp_path, documents({"prose": 30}), {"prose": 1.0}, config)
    assert manifest["tokenizer_sha256"] == given.sha256 == load_tokenizer(out / "tokenizer.json").sha256
    with pytest.raises(ConfigError, match=rf"tokens\.vocabulary \(2048\) must be the {given.vocabulary} ids"):
        run(tmp_path, documents({"prose": 3}), {"prose": 1.0}, TokensConfig(tokenizer=str(place)), "other")
    with pytest.raises(DataError, match="does not exist"):
        run(tmp_path, documents({"p": 3}), {"p": 1.0}, TokensConfig(tokenizer=str(tmp_path / "x")), "third")


def test_tail_of_single_text_is_held_out(tmp_path):
    text = prose(1, 3000)
    config = CONFIG.model_copy(update={"validation_fraction": 0.05})
    manifest, out = run(tmp_path, [Document("book", text, "book")], {"book": 1.0}, config)
    tokenizer = load_tokenizer(out / "tokenizer.json")
    train = tokenizer.decode(open_shards(out, "train")["book"][0][:-1])
    validation = tokenizer.decode(open_shards(out, "validation")["book"][0][:-1])
    assert train + validation == text
    assert 0.04 < len(validation) / len(text) < 0.06
    assert validation.startswith(" ")
    assert manifest["validation"] == "tail of one document"


def test_validation_text_never_trains_the_tokenizer(tmp_path):
    docs = documents({"prose": 40})
    marked = [Document(d.id, f"{d.id} " + "zyxzyx " * 50, d.source) for d in docs]
    write_documents(tmp_path / "store", marked)
    chosen = survey(tmp_path / "store", seed=3).draws < 0.1  # independently of the other texts
    texts = [one if held else d for one, d, held in zip(marked, docs, chosen, strict=True)]
    _, out = run(tmp_path, texts, {"prose": 1.0})
    assert chosen.any()
    assert not any("zyx" in word for word in load_tokenizer(out / "tokenizer.json").words)


def test_pieces_are_divided_into_shards_in_order(tmp_path):
    generator = generator_for(1, "gather")
    rows = [
        {
            "document": f"d{n}",
            "of": f"w{n}" if n % 7 == 0 else None,
            "source": f"s{generator.integers(20)}",
            "split": str(generator.choice(["train", "validation"])),
            "text_bytes": n,
            "ids": generator.integers(300, size=generator.integers(1, 5)).tolist(),
        }
        for n in range(800)
    ]
    shards = ShardSet(tmp_path, {f"s{k}": f"s{k}" for k in range(20)}, dtype="uint16", vocabulary=300)
    for first in range(0, len(rows), 200):
        shards.append(pa.Table.from_pylist(rows[first : first + 200], schema=pieces.PIECE_SCHEMA))
    entries = shards.close()
    for source, split in {(row["source"], row["split"]) for row in rows}:
        mine = [row for row in rows if (row["source"], row["split"]) == (source, split)]
        shard = TokenShard.open(tmp_path / entries[source][split]["prefix"])
        assert [shard[k].tolist() for k in range(len(shard))] == [row["ids"] for row in mine]
        beside = pq.read_table(lineage_file(shard)).to_pylist()
        assert beside == [{"document": r["document"], "of": r["of"], "tokens": len(r["ids"])} for r in mine]
        assert entries[source][split]["text_bytes"] == sum(row["text_bytes"] for row in mine)
    for split, counts in shards.counts.items():
        ids = [i for row in rows if row["split"] == split for i in row["ids"]]
        assert counts.tolist() == np.bincount(ids, minlength=300).tolist()


@pytest.mark.parametrize("limit", [1000, 3000, 10_000])
def test_tokenizer_reads_exactly_the_limit(tmp_path, monkeypatch, limit):
    """Any of a few large documents may be drawn first. The last one is cut between two-byte characters."""
    read = []

    def watched(texts, *rest):
        texts = list(texts)
        read.append(texts)
        return train_tokenizer(["short"], *rest)  # learning a word of a thousand characters takes seconds

    monkeypatch.setattr(encode, "train_tokenizer", watched)
    docs = [Document(str(n), f"{n} a" + "é" * 1000, "s") for n in range(10)]
    source = curated(tmp_path / "curated", docs, {"s": 1.0})
    config = CONFIG.model_copy(update={"tokenizer_bytes": limit})
    chosen = set()
    for seed in range(12):
        (tmp_path / str(seed)).mkdir()
        tokenize(config, source, tmp_path / str(seed), seed=seed)
        texts = read.pop()
        assert limit - 1 <= sum(len(text.encode()) for text in texts) <= limit
        assert sum(text not in {d.text for d in docs} for text in texts) <= 1
        assert all(any(d.text.startswith(text) for d in docs) for text in texts)
        chosen.add(tuple(text[:2] for text in texts))
    assert len(chosen) > 5


def test_file_stems_are_safe_and_unique():
    stems = file_stems(["a/b", "a b", "Pile-CC", "pile-cc", "../up", "plain", "x" * 300])
    assert stems["plain"] == "plain"
    assert len({s.lower() for s in stems.values()}) == len(stems)
    assert all("/" not in s and " " not in s and len(s) < 100 for s in stems.values())


def test_sources_with_unsafe_names_are_tokenized(tmp_path):
    docs = documents({"a/b": 10, "a b": 10})
    manifest, out = run(tmp_path, docs, {"a/b": 1, "a b": 1})
    assert set(open_shards(out, "train")) == {"a/b", "a b"}


@pytest.mark.parametrize("docs", [[], [Document("empty", "", "s")]])
def test_empty_corpus_is_rejected(tmp_path, docs):
    with pytest.raises(DataError, match="holds no text"):
        run(tmp_path, docs, {"s": 1.0})


def test_uncurated_corpus_is_rejected_with_command(tmp_path):
    with pytest.raises(DataError, match="trivium corpus curate"):
        tokenize(CONFIG, tmp_path / "absent", tmp_path, seed=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "does not say"),
        ("[]", "does not say"),
        ('{"s": 1}', "does not say"),
        ('{"s": {"weight": "x"}}', "does not say"),
        ("{}", "no weight to s"),
        ('{"s": {"weight": -1}}', "0 or more"),
        ('{"s": {"weight": 0}}', "above 0"),
        ('{"s": {"weight": NaN}}', "0 or more"),
        ('{"s": {"weight": Infinity}}', "0 or more"),
    ],
)
def test_unusable_blend_is_rejected_naming_file(tmp_path, text, message):
    path = tmp_path / "blend.json"
    path.write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        blend_weights(path, {"s"})
    assert "blend.json" in str(caught.value)


def test_missing_blend_names_the_command(tmp_path):
    write_documents(tmp_path / "c" / "documents", documents({"s": 3}))
    with pytest.raises(DataError, match=r"blend\.json.*curate"):
        tokenize(CONFIG, tmp_path / "c", tmp_path, seed=1)


def test_progress_is_monotonic_and_complete(tmp_path):
    seen = []
    source = curated(tmp_path / "c", documents({"s": 20}), {"s": 1.0})
    (tmp_path / "out").mkdir()
    tokenize(CONFIG, source, tmp_path / "out", seed=1, progress=lambda done, total, note: seen.append((done, total)))
    done = [d for d, _ in seen]
    assert done == sorted(done) and seen[-1][0] == seen[-1][1] > 0


def test_lineage_names_originals_of_cut_documents(tmp_path):
    cuts = {"a#1": {"decontamination": {"of": "a"}}, "b": {"decontamination": {"of": "b"}}}
    docs = [
        Document(name, prose(n, 60), "web", cuts.get(name, {})) for n, name in enumerate(["a#0", "a#1", "b", "b#7"])
    ]
    _, out = run(tmp_path, docs, {"web": 1.0})
    table = pa.concat_tables(pq.read_table(path) for path in sorted(out.glob("documents-*.parquet")))
    said = {row["document"]: row["of"] for row in table.to_pylist()}
    assert said == {"a#0": None, "a#1": "a", "b": None, "b#7": None}


def test_entropies_are_mean_surprise():
    counts, text = np.asarray([7, 0, 2]), [0, 0, 1, 2]
    expected = -sum(np.log((counts[t] + 1) / 12) for t in text) / 4
    assert unigram_entropy(counts, np.bincount(text)) == pytest.approx(expected)
    text = [0, 0, 3, 4]
    expected = -sum(np.log(text.count(t) / 4) for t in text) / 4
    assert entropy(np.bincount(text, minlength=9)) == pytest.approx(expected)


@pytest.mark.parametrize(("vocabulary", "dtype"), [(2048, "uint16"), (65499, "uint16"), (65500, "int32")])
def test_shards_use_two_bytes_if_ids_fit(vocabulary, dtype):
    assert TokensConfig().shard_dtype(vocabulary) == dtype
    assert TokensConfig(dtype="int32").shard_dtype(vocabulary) == "int32"
