"""Laws of kept work: a curation that uses it writes the bytes of one from nothing, whatever was set otherwise."""

import hashlib
import json
import os
import shutil
from functools import partial
from pydoc_data.topics import topics
from typing import get_args

import pytest

from corpus.kills import ends
from trivium.config import build, leaves, merge, to_tree
from trivium.corpus import first_pass, kept
from trivium.corpus import work as unfinished
from trivium.corpus.config import ClassifierConfig, CurateConfig
from trivium.corpus.curate import curate
from trivium.corpus.document import Document
from trivium.corpus.harvest.plant import html_page
from trivium.corpus.select.classifier import train
from trivium.corpus.store import write_documents
from trivium.errors import ConfigError
from trivium.seeds import generator_for

SEED = 3
# of fields whose other values mean nothing unless they name something
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


def _flowing(text):
    """A page of Python's documentation with a paragraph to a line, and nothing that C4 drops."""
    paragraphs = (" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    return "\n\n".join(paragraphs).translate({ord(sign): None for sign in "*{}"})


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """A harvest of every kind: pages and texts, two languages, damage, copies, held-out and evaluation texts."""
    folder = tmp_path_factory.mktemp("kept") / "raw"
    (folder / "jsonl").mkdir(parents=True)
    generator = generator_for(1, "kept")
    texts = [_flowing(text)[:2500] for _, text in sorted(topics.items()) if len(text) > 1500][:24]
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
    monkeypatch.setattr(os, "fsync", lambda _: None)  # no machine loses its power here
    monkeypatch.chdir(raw.parent)


def base():
    """Filters of every kind, loose enough that documents reach the last; some judge what others have changed."""
    return {
        "filters": ["privacy", "language", "quality", "repetition", "c4", "gopher", "fineweb", "classifier"],
        "c4": {"sentences": 1, "line_words": 2},
        "classifier": {"model": "model.npz", "alpha": 0.1},
        "fineweb": {"short_lines": 0.9, "duplicate_characters": 0.4},
        "repetition": {"top_ngram": [0.5, 0.5, 0.5], "repeated_ngram": [0.5] * 6},
        "quality": {"short_lines": 0.9, "boilerplate_words": 0.3},
        "dedup": {"bands": 6},
        "shard_bytes": 20_000,
    }


def curated(raw, folder, tree, kept_at=None, work=None):
    """The bytes of every file that a curation writes."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    curate(build(CurateConfig, tree), raw, out, seed=SEED, kept=kept_at, work=work)
    files = (path for path in sorted(out.rglob("*")) if path.is_file())
    return {path.relative_to(out): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def another(path, value):
    """Another value of a field, as a tree that the config accepts."""
    found = [NAMED[path]] if path in NAMED else []
    if isinstance(value, bool):
        found.append(not value)
    elif isinstance(value, int | float):
        found += [2 * value + 3, value // 2] if isinstance(value, int) else [value / 2]
    elif isinstance(value, list):
        found.append([one / 2 for one in value if isinstance(one, float)])
    else:
        found += _choices(CurateConfig, path.split("."))
    for one in found:
        tree = one
        for name in reversed(path.split(".")):
            tree = {name: tree}
        try:
            build(CurateConfig, merge(base(), tree))
        except ConfigError:
            continue
        if one != value:
            return tree
    pytest.fail(f"no other value of curate.{path} than {value} is known here; give one in NAMED")


def _choices(model, path):
    annotation = model.model_fields[path[0]].annotation
    return _choices(annotation, path[1:]) if path[1:] else get_args(annotation)


def rounds():
    """Changes that between them change every field, each at most one field of a section: what one field's change
    does to kept work is not hidden by another's."""
    sections = {}
    for path, value in leaves(to_tree(build(CurateConfig, base()))):
        sections.setdefault(path.partition(".")[0], []).append(another(path, value))
    found = []
    while any(sections.values()):
        tree = base()
        for changes in sections.values():
            tree = merge(tree, changes.pop()) if changes else tree
        found.append(tree)
    return found


@pytest.mark.broad
def test_every_field_may_change_and_reuse_gives_the_bytes_of_a_curation_from_nothing(raw, tmp_path):
    place = tmp_path / "kept"
    before = curated(raw, tmp_path, base())
    assert curated(raw, tmp_path, base(), place) == before
    trees = rounds()
    assert len(trees) > 10
    differ = 0
    for tree in trees:
        afresh = curated(raw, tmp_path, tree)
        assert curated(raw, tmp_path, tree, place) == afresh
        differ += afresh != before
    assert differ > len(trees) / 2
    assert curated(raw, tmp_path, base(), place) == before


def test_an_unchanged_file_is_not_read_again_nor_filtered_again_with_the_same_filters(raw, tmp_path, monkeypatch):
    place = tmp_path / "kept"
    curated(raw, tmp_path, base(), place)
    filtered = []
    monkeypatch.setattr(first_pass, "read_any", None)
    real = first_pass.named_steps
    monkeypatch.setattr(first_pass, "named_steps", lambda *a, **b: filtered.append(1) or real(*a, **b))
    curated(raw, tmp_path, merge(base(), {"dedup": {"threshold": 0.6}, "decontamination": {"common": 2}}), place)
    assert not filtered
    tree = merge(base(), {"quality": {"words_low": 300}})
    told = kept.reuse_lines(place, raw, build(CurateConfig, tree), seed=SEED)
    assert "texts of 2 of 2 raw files, and the filtered documents of 0;" in told[0]
    curated(raw, tmp_path, tree, place)
    assert filtered


def test_of_several_files_only_the_changed_one_is_read_again(raw, tmp_path, monkeypatch):
    place, mine = tmp_path / "kept", tmp_path / "raw"
    shutil.copytree(raw, mine)
    curated(mine, tmp_path, base(), place)
    changed = mine / "jsonl" / "part-00001.jsonl"
    changed.write_text(changed.read_text() + "\n")
    read, real = [], first_pass.read_any
    monkeypatch.setattr(first_pass, "read_any", lambda path, **how: read.append(path) or real(path, **how))
    again = curated(mine, tmp_path, base(), place)
    assert set(read) == {changed}
    assert again == curated(mine, tmp_path, base())


@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "some gone"])
def test_damaged_kept_work_is_done_anew(raw, tmp_path, harm):
    place = tmp_path / "kept"
    before = curated(raw, tmp_path, base(), place)
    sound = {path: path.read_bytes() for path in place.rglob("*") if path.is_file() and path.stat().st_size}
    assert len(sound) > 8
    for path, content in sorted(sound.items())[:: 2 if harm == "some gone" else 1]:
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        path.write_bytes({"flip": flipped, "cut": content[:middle]}.get(harm, b""))
        if harm == "some gone":
            path.unlink()
    assert curated(raw, tmp_path, base(), place) == before
    assert {path: path.read_bytes() for path in sound} == sound


@pytest.mark.broad
def test_a_curation_that_keeps_may_be_killed_after_every_piece_and_what_it_kept_is_whole(raw, tmp_path, monkeypatch):
    tree = merge(base(), {"quality": {"words_low": 300}})
    before, afresh = curated(raw, tmp_path, base()), curated(raw, tmp_path, tree)
    pieces = tmp_path / "pieces"
    for wanted, changed in ((before, base()), (afresh, tree)):
        job = partial(curated, raw, tmp_path, changed, pieces / "kept", pieces / "work")
        kills = 0
        while not ends(job, monkeypatch, pieces, survive=4, before=bool(kills % 2)):
            kills += 1
            assert kills < 100
        assert kills > 4
        assert job() == wanted


def test_no_more_is_kept_than_one_curation_found_and_nothing_else_is_deleted(raw, tmp_path):
    place = tmp_path / "kept"
    (place / "mine").mkdir(parents=True)
    curated(raw, tmp_path, base(), place)
    names = {path.relative_to(place) for path in place.rglob("*")}
    for change in ({"extract": {"extractor": "resiliparse"}}, {"language": {"sample": 0}}, {}):
        curated(raw, tmp_path, merge(base(), change), place)
    assert {path.relative_to(place) for path in place.rglob("*")} == names
    assert (place / "mine").is_dir()


def test_work_kept_by_other_code_is_not_used(raw, tmp_path, monkeypatch):
    place = tmp_path / "kept"
    curated(raw, tmp_path, base(), place)
    monkeypatch.setattr(kept, "code_version", lambda: "other")
    told = kept.reuse_lines(place, raw, build(CurateConfig, base()), seed=SEED)
    assert "texts of 0 of 2 raw files, and the filtered documents of 0;" in told[0]
