import json

import numpy as np
import pytest

from tokens.curated import curated, documents, prose
from trivium.corpus.document import Document
from trivium.corpus.store import write_documents
from trivium.errors import DataError
from trivium.provenance import file_sha256
from trivium.tokens.config import TokensConfig
from trivium.tokens.encode import Entry, blend_weights, choose_held_out, file_stems, split_documents, tokenize
from trivium.tokens.lineage import read_lineage
from trivium.tokens.manifest import open_shards
from trivium.tokens.tokenizer import load_tokenizer

CONFIG = TokensConfig(vocabulary=400, validation_fraction=0.1)


def run(tmp_path, docs, weights, config=CONFIG, name="tokens", seed=3):
    source = curated(tmp_path / f"curated-{name}", docs, weights)
    out = tmp_path / name
    out.mkdir()
    return tokenize(config, source, out, seed=seed), out


def test_every_document_comes_back_from_the_shards_unchanged_and_once(tmp_path):
    docs = documents({"prose": 60, "pages": 25}) + [
        Document("odd", "", "pages"),
        Document("ů🦄", "ů🦄\x00", "pages"),
    ]
    manifest, out = run(tmp_path, docs, {"prose": 0.7, "pages": 0.3})
    tokenizer = load_tokenizer(out / "tokenizer.json")
    found = {}
    for split in ("train", "validation"):
        for source, shard in open_shards(out, split).items():
            ids = read_lineage(out / f"documents-{split}-{source}.parquet", shard)
            for k, document in enumerate(ids):
                assert shard[k][-1] == tokenizer.end_of_text
                assert tokenizer.end_of_text not in shard[k][:-1]
                assert document not in found
                found[document] = (source, tokenizer.decode(shard[k][:-1]))
    assert found == {d.id: (d.source, d.text) for d in docs}


def test_the_manifest_counts_what_is_on_disk(tmp_path):
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


def test_the_same_corpus_and_seed_give_the_same_bytes(tmp_path):
    docs = documents({"prose": 30})
    first, _ = run(tmp_path, docs, {"prose": 1.0}, name="one")
    second, _ = run(tmp_path, docs, {"prose": 1.0}, name="two")
    assert first == second


def test_adding_documents_moves_no_other_document_between_training_and_validation():
    few = [Entry(f"d{i}", "s", 10) for i in range(400)]
    more = few + [Entry(f"e{i}", "s", 10) for i in range(400)]
    one = choose_held_out(few, fraction=0.1, seed=1).documents
    both = choose_held_out(more, fraction=0.1, seed=1).documents
    assert one == {i for i in both if i.startswith("d")}
    assert 20 < len(one) < 65
    assert one != choose_held_out(few, fraction=0.1, seed=2).documents


def test_validation_never_takes_the_only_document_of_a_source():
    entries = [Entry(f"d{i}", f"s{i}", 10) for i in range(300)] + [Entry("a", "t", 1), Entry("b", "t", 1)]
    held_out = choose_held_out(entries, fraction=0.2, seed=1)
    assert held_out.documents and held_out.documents < {"a", "b"}


def test_one_long_text_alone_is_cut_and_its_end_held_out(tmp_path):
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
    held_out = choose_held_out(
        [Entry(d.id, d.source, d.text_bytes) for d in docs], fraction=0.1, seed=3
    ).documents
    marked = [Document(d.id, "zyxzyx " * 50 if d.id in held_out else d.text, d.source) for d in docs]
    _, out = run(tmp_path, marked, {"prose": 1.0})
    assert not any("zyx" in word for word in load_tokenizer(out / "tokenizer.json").words())


def test_whole_documents_are_never_in_both_splits():
    docs = documents({"prose": 50})
    held_out = choose_held_out([Entry(d.id, d.source, d.text_bytes) for d in docs], fraction=0.2, seed=3)
    splits = list(split_documents(docs, held_out))
    assert [d for _, d in splits] == docs
    assert {d.id for s, d in splits if s == "validation"} == held_out.documents


def test_a_limit_on_tokenizer_text_is_kept_and_still_encodes_everything(tmp_path):
    docs = documents({"prose": 60})
    _, whole = run(tmp_path, docs, {"prose": 1.0}, name="whole")
    config = CONFIG.model_copy(update={"tokenizer_bytes": 4000})
    manifest, part = run(tmp_path, docs, {"prose": 1.0}, config, name="part")
    assert load_tokenizer(whole / "tokenizer.json").sha256 != load_tokenizer(part / "tokenizer.json").sha256
    assert manifest["totals"]["train"]["documents"] + manifest["totals"]["validation"]["documents"] == 60


def test_source_names_make_safe_and_different_file_names():
    stems = file_stems(["a/b", "a b", "Pile-CC", "pile-cc", "../up", "plain", "x" * 300])
    assert stems["plain"] == "plain"
    assert len({s.lower() for s in stems.values()}) == len(stems)
    assert all("/" not in s and " " not in s and len(s) < 100 for s in stems.values())


def test_sources_with_unsafe_names_are_tokenized(tmp_path):
    docs = documents({"a/b": 10, "a b": 10})
    manifest, out = run(tmp_path, docs, {"a/b": 1, "a b": 1})
    assert set(open_shards(out, "train")) == {"a/b", "a b"}


@pytest.mark.parametrize("docs", [[], [Document("empty", "", "s")]])
def test_an_empty_corpus_is_refused(tmp_path, docs):
    with pytest.raises(DataError, match="holds no text"):
        run(tmp_path, docs, {"s": 1.0})


def test_a_corpus_that_was_never_curated_is_refused_with_the_command(tmp_path):
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
def test_a_blend_that_cannot_be_used_is_refused_naming_the_file(tmp_path, text, message):
    path = tmp_path / "blend.json"
    path.write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        blend_weights(path, {"s"})
    assert "blend.json" in str(caught.value)


def test_a_missing_blend_names_the_command(tmp_path):
    write_documents(tmp_path / "c" / "documents", documents({"s": 3}))
    with pytest.raises(DataError, match=r"blend\.json.*curate"):
        tokenize(CONFIG, tmp_path / "c", tmp_path, seed=1)


def test_progress_never_goes_back_and_ends_complete(tmp_path):
    seen = []
    source = curated(tmp_path / "c", documents({"s": 20}), {"s": 1.0})
    (tmp_path / "out").mkdir()
    tokenize(
        CONFIG,
        source,
        tmp_path / "out",
        seed=1,
        progress=lambda done, total, note: seen.append((done, total)),
    )
    done = [d for d, _ in seen]
    assert done == sorted(done) and seen[-1][0] == seen[-1][1] > 0
