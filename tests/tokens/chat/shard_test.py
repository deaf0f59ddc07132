"""Packed conversations on disk: bins are windows, and each token leads to its conversation."""

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokens.chat.conversations import bare, conversation
from trivium.errors import ConfigError, DataError
from trivium.plan.model_shape import ModelShape
from trivium.tokens.chat.conversation import Conversation
from trivium.tokens.chat.encode import encode_conversation
from trivium.tokens.chat.pack import pack
from trivium.tokens.chat.shard import PADDING, Document, PackSettings, write_conversations, write_packed
from trivium.tokens.chat.template import read_template
from trivium.tokens.lineage import Span
from trivium.tokens.manifest import open_shards, read_tokens_manifest, verify_tokens
from trivium.tokens.samples import TokenDataset
from trivium.training.verified_tokens import refuse_other_ids

SEQUENCE = 64
TEMPLATE = read_template(None, bare())


def many(count: int, seed: int = 1) -> list[Conversation]:
    """Conversations of various lengths, all within SEQUENCE tokens."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 12, (count, 2)).tolist()
    return [conversation("a" * a + f" {n}", "yes " * b, name=f"x.jsonl:{n + 1}") for n, (a, b) in enumerate(sizes)]


def written(out: Path, found: list[Conversation], **more: Any) -> dict[str, Any]:
    out.mkdir(exist_ok=True)
    settings = PackSettings(**{"sequence": SEQUENCE, "seed": 7, "validation_fraction": 0.2, **more})
    return write_conversations(found, out, TEMPLATE, bare(), settings)


def test_each_bin_is_a_window_and_holds_whole_conversations(tmp_path: Path) -> None:
    found = many(60)
    manifest = written(tmp_path, found)
    verify_tokens(tmp_path)
    expected = {one.name: encode_conversation(one, TEMPLATE, bare()) for one in found}
    seen: list[str] = []
    for split in ("train", "validation"):
        data = TokenDataset.open(tmp_path, split, sequence=SEQUENCE, seed=3)
        assert data.num_samples == manifest["packed"][split]["bins"]
        for sample in range(data.num_samples):
            rows, spans = data.rows(sample, 1), data.documents_of(sample)
            assert rows.starts is not None
            assert np.flatnonzero(rows.starts[0]).tolist() == [span.offset for span in spans]
            assert sum(span.length for span in spans) == SEQUENCE
            for span in spans:
                here = slice(span.offset, span.offset + span.length)
                if span.document == PADDING:
                    assert not rows.weights[0][max(span.offset - 1, 0) : span.offset + span.length].any()
                    continue
                own = expected[span.document]
                assert data.sample(sample)[here].tolist() == own.ids.tolist()
                # The target of a position is the next token, so the weights are one position ahead of the mask.
                assert rows.weights[0][here][:-1].tolist() == own.counted[1:].tolist()
                assert rows.weights[0][here][-1] == 0
                seen.append(span.document)
    assert sorted(seen) == sorted(expected)
    counts = manifest["packed"]
    assert sum(counts[s]["counted"] for s in ("train", "validation")) == sum(
        int(e.counted.sum()) for e in expected.values()
    )
    assert counts["train"]["conversations"] + counts["validation"]["conversations"] == 60
    assert 6 <= counts["validation"]["conversations"] <= 20


def test_the_folder_is_the_same_every_time_and_another_seed_moves_only_validation(tmp_path: Path) -> None:
    files = [
        written(tmp_path / name, many(40), **more)["files"] for name, more in (("a", {}), ("b", {}), ("c", {"seed": 8}))
    ]
    assert files[0] == files[1] != files[2]


def test_a_conversation_is_found_by_file_and_line(tmp_path: Path) -> None:
    written(tmp_path, many(40))
    data = TokenDataset.open(tmp_path, "train", sequence=SEQUENCE, seed=3)
    found = [one for n in range(1, 41) for one in data.find(f"x.jsonl:{n}")]
    assert len(found) > 20
    samples = 2 * data.num_samples
    for one in found:
        assert [sighting.epoch for sighting in data.sightings(one, samples)] == [0, 1]
    backward = [
        (seen.sample, Span(one.document, seen.offset, seen.length, seen.begin))
        for one in data.documents()
        for seen in data.sightings(one, samples)
    ]
    assert sorted(backward) == sorted((s, span) for s in range(samples) for span in data.documents_of(s))


@pytest.mark.parametrize("too_long", ["truncate", "split"])
def test_longer_conversations_are_truncated_or_split_and_counted(tmp_path: Path, too_long: str) -> None:
    long = conversation("a " * 10, "yes " * 200, name="x.jsonl:41")
    late = conversation("a " * 200, "yes", name="x.jsonl:42")
    counts = written(tmp_path, [*many(40), long, late], too_long=too_long, validation_fraction=0.01)["packed"]
    encoded = {one.name: encode_conversation(one, TEMPLATE, bare()) for one in (long, late)}
    both = {key: sum(counts[s].get(key, 0) for s in ("train", "validation")) for key in counts["train"]}
    assert both["conversations"] == 42
    assert both["too_long"] == 2
    assert both["answers"] == 41 + (too_long == "split")  # the second question fills a bin
    opened = [TokenDataset.open(tmp_path, split, sequence=SEQUENCE, seed=3) for split in ("train", "validation")]
    data = next(one for one in opened if one.find(long.name))
    if too_long == "truncate":
        lost = sum(int(one.counted[SEQUENCE:].sum()) for one in encoded.values())
        assert both["counted_cut_off"] == lost > 0
        assert both["without_targets"] == 1  # the question alone fills a bin
        assert [one.stop - one.start for one in data.find(long.name)] == [SEQUENCE]
        assert [one.find(late.name) for one in opened] == [[], []]
    else:
        assert both["without_targets"] == 0
        ids = encoded[long.name].ids
        pieces = data.find(long.name)
        assert len(pieces) == -(-(len(ids) - 1) // (SEQUENCE - 1))
        starts = {
            one.document: n * (SEQUENCE - 1)
            for n, one in enumerate(sorted(pieces, key=lambda p: int(p.document.rpartition("#")[2])))
        }
        assert {one.document for one in pieces} == {f"x.jsonl:41#{n}" for n in range(len(pieces))}
        total = sum(
            int(data.rows(s, 1).weights[0][span.offset : span.offset + span.length - 1].sum())
            for s in range(data.num_samples)
            for span in data.documents_of(s)
            if span.document in starts
        )
        assert total == int(encoded[long.name].counted.sum())  # no target is lost


def test_equal_conversations_are_never_in_both_splits(tmp_path: Path) -> None:
    twice = [one._replace(name=f"{file}:{n}") for file in ("x", "y") for n, one in enumerate(many(30))]
    written(tmp_path, twice, validation_fraction=0.4)
    opened = [TokenDataset.open(tmp_path, split, sequence=SEQUENCE, seed=3) for split in ("train", "validation")]
    numbers = [{one.document.split(":")[-1] for one in data.documents()} - {PADDING} for data in opened]
    assert len(numbers[0]) + len(numbers[1]) == 30
    assert not numbers[0] & numbers[1]


def test_too_few_conversations_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there are 1 conversations, and none for validation.*give at least two"):
        written(tmp_path, many(1))


def test_groups_stay_in_one_bin(tmp_path: Path) -> None:
    def group(n: int, size: int) -> list[Document]:
        ids = np.arange(size) % 50 + 1
        return [Document(f"x:{n}/{side}", ids, np.full(size, 0.5, np.float32)) for side in ("chosen", "rejected")]

    groups = [group(n, 3 + n % 13) for n in range(40)]
    splits = {"train": groups[1:], "validation": groups[:1]}
    manifest = write_packed(splits, tmp_path, bare(), sequence=SEQUENCE, seed=1, weights="float32")
    data = TokenDataset.open(tmp_path, "train", sequence=SEQUENCE, seed=3)
    together = 0
    for sample in range(data.num_samples):
        names = [span.document for span in data.documents_of(sample) if span.document != PADDING]
        assert all(a.split("/")[0] == b.split("/")[0] for a, b in zip(names[::2], names[1::2], strict=True))
        together += len(names)
        assert set(data.rows(sample, 1).weights[0].tolist()) <= {0, 0.5}
    assert together == 78
    shard = open_shards(tmp_path, "train")["conversations"]
    assert shard.weights is not None
    assert not shard.weights[shard.document_starts[:-1]].any()
    assert int((shard.weights > 0).sum()) == manifest["packed"]["train"]["counted"]
    assert manifest["packed"]["train"]["bins"] == len(pack([2 * (3 + n % 13) for n in range(1, 40)], SEQUENCE))
    with pytest.raises(DataError, match="x:1/chosen has 66 tokens, more than the 64 of a bin"):
        write_packed({**splits, "train": [group(1, 33)]}, tmp_path, bare(), sequence=SEQUENCE, seed=1)


def test_costs_are_the_sums_of_squared_lengths(tmp_path: Path) -> None:
    written(tmp_path, many(60))
    data = TokenDataset.open(tmp_path, "train", sequence=SEQUENCE, seed=3)
    costs = data.costs(0, 2 * data.num_samples)
    assert costs is not None
    for sample, cost in enumerate(costs.tolist()):
        edges = [*np.flatnonzero(data.rows(sample, 1).starts[0]).tolist(), SEQUENCE]
        assert cost == sum((b - a) ** 2 for a, b in pairwise(edges))


def test_a_plan_that_would_join_or_cut_the_bins_is_refused(tmp_path: Path) -> None:
    written(tmp_path, many(30))
    manifest = read_tokens_manifest(tmp_path)
    fits = {"layers": 1, "hidden": 8, "heads": 1, "vocabulary": 512, "sequence": SEQUENCE, "documents": "apart"}
    refuse_other_ids(manifest, ModelShape(**fits), tmp_path)
    with pytest.raises(ConfigError, match=r"documents is joined; give --set plan\.model\.documents=apart$"):
        refuse_other_ids(manifest, ModelShape(**{**fits, "documents": "joined"}), tmp_path)
    with pytest.raises(ConfigError, match=r"sequence is 32; give --set plan\.model\.sequence=64$"):
        refuse_other_ids(manifest, ModelShape(**{**fits, "sequence": 32}), tmp_path)


@pytest.mark.broad
def test_a_hundred_thousand_conversations_are_packed_in_seconds() -> None:
    lengths = np.random.default_rng(1).integers(5, 2048, 100_000).tolist()
    begin = time.thread_time()
    bins = pack(lengths, 2048)
    assert time.thread_time() - begin < 5
    assert sum(lengths) / (2048 * len(bins)) > 0.99
