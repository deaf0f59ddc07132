"""Parts kept for later curations: reusing them gives the bytes of a curation from scratch, whatever settings change."""

import json
import os
import shutil
from functools import partial
from pydoc_data.topics import topics
from typing import get_args

import pytest

from corpus.kills import digests, ends
from trivium.config import build, leaves, merge, to_tree
from trivium.corpus import pipeline
from trivium.corpus import work as unfinished
from trivium.corpus.config import ClassifierConfig, CurateConfig
from trivium.corpus.document import Document
from trivium.corpus.harvest.plant import html_page
from trivium.corpus.pipeline import curate
from trivium.corpus.publish.store import write_documents
from trivium.corpus.select.classifier import train
from trivium.errors import ConfigError
from trivium.seeds import generator_for

SEED = 3
# Other values of the fields that name something.
NAMED = {
    "extract.stoplist": "German",
    "language.keep": ["en", "de"],
    "filters": ["quality", "c4", "repetition"],
    "decontamination.against": ["against.jsonl"],
    "classifier.model": "other.npz",
    "classifier.threshold": 0.6,
    "dedup.quality": "quality.words",
    "dedup.priority": ["b"],
    "c4.bad_words": ["statement"],
    "blend": {"b": 2.0},
}
# Filters of every kind, loose enough that documents reach the last one.
BASE = {
    "filters": ["privacy", "language", "quality", "repetition", "c4", "gopher", "fineweb", "classifier"],
    "c4": {"sentences": 1, "line_words": 2},
    "classifier": {"model": "model.npz", "alpha": 0.1},
    "fineweb": {"short_lines": 0.9, "duplicate_characters": 0.4},
    "repetition": {"top_ngram": [0.5, 0.5, 0.5], "repeated_ngram": [0.5] * 6},
    "quality": {"short_lines": 0.9, "boilerplate_words": 0.3},
    "dedup": {"bands": 6},
    "shard_bytes": 20_000,
}
STRICTER = merge(BASE, {"quality": {"words_low": 300}})


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """A harvest of every kind: pages and texts, two languages, damage, copies, held-out and evaluation texts."""
    folder = tmp_path_factory.mktemp("kept") / "raw"
    (folder / "jsonl").mkdir(parents=True)
    generator = generator_for(1, "kept")
    pages = [text for _, text in sorted(topics.items()) if len(text) > 1500][:24]
    unwrapped = ("\n\n".join(" ".join(part.split()) for part in text.split("\n\n")) for text in pages)
    texts = [text.translate({ord(sign): None for sign in "*{}"})[:2500] for text in unwrapped]
    rows = [{"id": f"t{n}", "text": text, "source": "ab"[n % 2]} for n, text in enumerate(texts)]
    for row in rows[:6]:
        page = html_page(row["text"].split("\n\n"), title=row["id"], generator=generator)
        row.update(text=page, metadata={"raw": "html", "z": 1, "a": 2})
    rows.append({"id": "copy", "text": texts[8].replace("the", "a", 3), "source": "b"})
    rows.append({"id": "same", "text": texts[9], "source": "b"})
    rows.append({"id": "mail", "text": texts[10][:1200] + " jo@example.org +49 171 1234567 10.1.2.3", "source": "a"})
    rows.append({"id": "de", "text": "Der Hund läuft durch den Wald und die Katze schläft im Haus. " * 20})
    rows.append({"id": "empty", "text": "\u200b \n ", "source": "b"})
    lines = [json.dumps(row) for row in rows]
    lines[12:12] = ["{no line"]
    for number, part in enumerate((lines[:16], lines[16:])):
        (folder / "jsonl" / f"part-{number:05d}.jsonl").write_text("\n".join(part) + "\n")
    write_documents(folder / "heldout", [Document("h", texts[11], "a")])
    item = {"id": "i", "document": "h", "text": " ".join(texts[12].split()[60:110])}
    (folder / "evaluation_items.jsonl").write_text(json.dumps(item) + "\n")
    (folder.parent / "against.jsonl").write_text(json.dumps({"text": " ".join(texts[13].split()[30:60])}) + "\n")
    small = ClassifierConfig(bits=8, epochs=2)
    for name, good in (("model.npz", texts[:8]), ("other.npz", texts[8:16])):
        train(good, [str(row["text"]) for row in rows[16:]], small, seed=1)[0].save(folder.parent / name)
    return folder


@pytest.fixture(autouse=True)
def small_parts(monkeypatch, raw):
    monkeypatch.setattr(unfinished, "PART_BYTES", 40_000)
    monkeypatch.setattr(os, "fsync", lambda _: None)  # this machine loses no power
    monkeypatch.chdir(raw.parent)


def curated(raw, folder, tree, kept=None, work=None):
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    curate(build(CurateConfig, tree), raw, out, seed=SEED, kept=kept, work=work)
    return digests(out)


def another(path, value):
    """Another value of a field, as a tree that the config accepts."""
    candidates = [NAMED[path]] if path in NAMED else []
    if isinstance(value, bool):
        candidates.append(not value)
    elif isinstance(value, int | float):
        candidates += [2 * value + 3, value // 2] if isinstance(value, int) else [value / 2]
    elif isinstance(value, list):
        candidates.append([one / 2 for one in value if isinstance(one, float)])
    else:
        candidates += _choices(CurateConfig, path.split("."))
    for one in candidates:
        tree = one
        for name in reversed(path.split(".")):
            tree = {name: tree}
        try:
            build(CurateConfig, merge(BASE, tree))
        except ConfigError:
            continue
        if one != value:
            return tree
    pytest.fail(f"add another value of curate.{path} than {value} to NAMED")


def _choices(model, path):
    annotation = model.model_fields[path[0]].annotation
    return _choices(annotation, path[1:]) if path[1:] else get_args(annotation)


def rounds():
    """Trees that together change every field, each at most one field of a section, so that no change hides another."""
    sections = {}
    for path, value in leaves(to_tree(build(CurateConfig, BASE))):
        sections.setdefault(path.partition(".")[0], []).append(another(path, value))
    trees = []
    while any(sections.values()):
        tree = BASE
        for changes in sections.values():
            tree = merge(tree, changes.pop()) if changes else tree
        trees.append(tree)
    return trees


@pytest.mark.broad
def test_reuse_after_a_change_of_any_field_equals_a_curation_from_scratch(raw, tmp_path):
    before = curated(raw, tmp_path, BASE)
    assert curated(raw, tmp_path, BASE, tmp_path / "kept") == before
    trees = rounds()
    assert len(trees) > 10
    differ = 0
    for tree in trees:
        expected = curated(raw, tmp_path, tree)
        assert curated(raw, tmp_path, tree, tmp_path / "kept") == expected
        differ += expected != before
    assert differ > len(trees) / 2


def test_only_changed_files_are_read_again(raw, tmp_path, monkeypatch):
    kept, mine, read = tmp_path / "kept", tmp_path / "raw", []
    shutil.copytree(raw, mine)
    curated(mine, tmp_path, BASE, kept)
    real = pipeline.read_any
    monkeypatch.setattr(pipeline, "read_any", lambda path, **how: read.append(path) or real(path, **how))
    curated(mine, tmp_path, merge(BASE, {"dedup": {"threshold": 0.6}, "decontamination": {"common": 2}}), kept)
    assert not read
    changed = mine / "jsonl" / "part-00001.jsonl"
    changed.write_text(changed.read_text() + "\n")
    lines = partial(pipeline.reuse_lines, kept, mine, seed=SEED)
    assert "documents of 1 of 2 raw files;" in lines(build(CurateConfig, BASE))[0]
    again = curated(mine, tmp_path, BASE, kept)
    assert set(read) == {changed}
    assert again == curated(mine, tmp_path, BASE)
    assert "documents of 0 of 2 raw files;" in lines(build(CurateConfig, STRICTER))[0]
    monkeypatch.setattr(pipeline, "code_version", lambda: "other")
    assert "documents of 0 of 2 raw files;" in lines(build(CurateConfig, BASE))[0]


@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "some gone"])
def test_damaged_kept_parts_are_written_again(raw, tmp_path, harm):
    kept = tmp_path / "kept"
    before = curated(raw, tmp_path, BASE, kept)
    sound = {path: path.read_bytes() for path in kept.rglob("*") if path.is_file() and path.stat().st_size}
    assert len(sound) > 8
    for path, content in sorted(sound.items())[:: 2 if harm == "some gone" else 1]:
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        path.write_bytes({"flip": flipped, "cut": content[:middle]}.get(harm, b""))
        if harm == "some gone":
            path.unlink()
    assert curated(raw, tmp_path, BASE, kept) == before
    assert {path: path.read_bytes() for path in sound} == sound


@pytest.mark.broad
def test_curation_that_keeps_its_parts_resumes_after_every_kill(raw, tmp_path, monkeypatch):
    pieces = tmp_path / "pieces"
    for tree in (BASE, STRICTER):
        job = partial(curated, raw, tmp_path, tree, pieces / "kept", pieces / "work")
        kills = 0
        while not ends(job, monkeypatch, pieces, survive=4, before=bool(kills % 2)):
            kills += 1
            assert kills < 100
        assert kills > 4
        assert job() == curated(raw, tmp_path, tree)


def test_only_parts_of_the_last_curation_are_kept_and_other_files_stay(raw, tmp_path):
    kept = tmp_path / "kept"
    (kept / "mine").mkdir(parents=True)
    curated(raw, tmp_path, BASE, kept)
    names = {path.relative_to(kept) for path in kept.rglob("*")}
    for change in ({"extract": {"extractor": "resiliparse"}}, {}):
        curated(raw, tmp_path, merge(BASE, change), kept)
    assert {path.relative_to(kept) for path in kept.rglob("*")} == names
