import json
import shutil

import numpy as np
import pytest

from tokens.curated import curated, documents
from trivium.errors import DataError
from trivium.provenance import write_json
from trivium.tokens import samples
from trivium.tokens.config import TokensConfig
from trivium.tokens.encode import tokenize
from trivium.tokens.lineage import Lineage
from trivium.tokens.manifest import MANIFEST, never_read, open_shards, read_tokens_manifest
from trivium.tokens.permutation import Permutation
from trivium.tokens.samples import BLOCK_SAMPLES, TokenDataset

S = 16
WEIGHTS = {"prose": 0.6, "pages": 0.3, "tiny": 0.1}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    root = tmp_path_factory.mktemp("samples")
    docs = documents({"prose": 40, "pages": 15}, words=60) + documents({"tiny": 1}, words=4)
    source = curated(root / "curated", docs, WEIGHTS)
    (root / "tokens").mkdir()
    tokenize(TokensConfig(vocabulary=300, validation_fraction=0.1), source, root / "tokens", seed=4)
    return root / "tokens"


@pytest.fixture
def train(directory):
    return TokenDataset.open(directory, "train", sequence=S, seed=5)


@pytest.fixture
def validation(directory):
    return TokenDataset.open(directory, "validation", sequence=S, seed=5)


def test_sample_is_the_window_that_where_names(train, directory):
    shards = open_shards(directory, "train")
    for i in range(300):
        source, _, start = train.where(i)
        text = np.asarray(shards[source].tokens)
        expected = [text[(start + k) % len(text)] for k in range(S + 1)]
        assert train.sample(i).dtype == np.int64
        assert train.sample(i).tolist() == expected


@pytest.mark.parametrize("sequence", [16, 500, 900, 5000])
def test_batched_lookup_equals_single_lookup(directory, sequence):
    """Compare with the definition, one sample at a time, including sources with few windows or one."""
    train = TokenDataset.open(directory, "train", sequence=sequence, seed=5)
    windows = {s: max(1, (len(shard.tokens) - 1) // sequence) for s, shard in open_shards(directory, "train").items()}
    seen = dict.fromkeys(WEIGHTS, 0)
    together = train._places(np.arange(400))
    for i in range(400):
        source = train._sources[together.source[i]]
        epoch, position = divmod(seen[source], windows[source])
        seen[source] += 1
        order = Permutation(windows[source], 5, "samples", source, epoch)
        expected = (source, epoch, int(order[np.asarray([position])][0]) * sequence)
        assert train.where(i) == expected
        assert (source, int(together.epoch[i]), int(together.start[i])) == expected


def test_single_window_source_builds_no_permutation(directory, monkeypatch):
    """A block contains thousands of epochs of a source that is no longer than a sample."""
    made = []
    monkeypatch.setattr(samples, "Permutation", lambda *args: made.append(args) or Permutation(*args))
    train = TokenDataset.open(directory, "train", sequence=100_000, seed=5)
    assert train.num_samples == len(WEIGHTS)
    assert train._places(np.arange(BLOCK_SAMPLES)).start.tolist() == [0] * BLOCK_SAMPLES
    assert not made


def test_sample_depends_on_seed_and_index_only(directory, train):
    order = np.random.default_rng(0).permutation(200)
    again = TokenDataset.open(directory, "train", sequence=S, seed=5)
    backwards = {i: again.sample(i).tolist() for i in order.tolist()}
    assert [backwards[i] for i in range(200)] == train.samples(range(200)).tolist()
    other = TokenDataset.open(directory, "train", sequence=S, seed=6)
    assert [other.where(i) for i in range(200)] != [train.where(i) for i in range(200)]


def test_every_window_is_read_once_per_epoch_in_new_order(train):
    seen = {}
    for i in range(1200):
        where = train.where(i)
        seen.setdefault((where.source, where.epoch), []).append(where.start)
    windows = {s: len(starts) for (s, e), starts in seen.items() if e == 0}
    assert train.num_samples == sum(windows.values())
    for (source, epoch), starts in seen.items():
        assert len(set(starts)) == len(starts)
        if (source, epoch + 1) in seen:  # a finished epoch
            assert sorted(starts) == [k * S for k in range(windows[source])]
    assert seen["pages", 0] != seen["pages", 1]


def test_counts_follow_samples_and_weights(train):
    counts = dict.fromkeys(WEIGHTS, 0)
    for i in range(500):
        assert train.counts_after(i) == counts
        counts[train.where(i).source] += 1
    assert counts == {"prose": 300, "pages": 150, "tiny": 50}


def test_windows_have_all_their_targets(directory):
    lengths = [len(shard.tokens) for shard in open_shards(directory, "train").values()]
    for sequence in range(1, 60):  # includes divisors of the lengths
        dataset = TokenDataset.open(directory, "train", sequence=sequence, seed=5)
        assert dataset.num_samples == sum(max(1, (n - 1) // sequence) for n in lengths)


@pytest.mark.broad
@pytest.mark.parametrize("sequence", [1, 7, 16, 23, 60])
def test_never_read_is_the_incomplete_tail(directory, sequence):
    dataset = TokenDataset.open(directory, "train", sequence=sequence, seed=5)
    read, passed, i = {}, set(), 0
    while len(passed) < dataset.num_samples:
        where = dataset.where(i)
        passed |= {where._replace(epoch=0)}
        read.setdefault(where.source, set()).update(range(where.start, where.start + sequence + 1))
        i += 1
    shards = open_shards(directory, "train")
    never = {source: len(set(range(len(shard.tokens))) - read[source]) for source, shard in shards.items()}
    assert never_read(read_tokens_manifest(directory), sequence) == never
    assert sequence == 1 or any(never.values())


def test_source_of_weight_0_is_never_read(directory):
    manifest = read_tokens_manifest(directory)
    ends = never_read(manifest, S)
    manifest["sources"]["pages"]["weight"] = 0.0
    whole = manifest["sources"]["pages"]["train"]["tokens"]
    assert never_read(manifest, S) == {**ends, "pages": whole} != ends


def test_validation_does_not_depend_on_blend(validation, directory, tmp_path):
    other = shutil.copytree(directory, tmp_path / "tokens")
    manifest = read_tokens_manifest(other)
    manifest["sources"]["pages"]["weight"] = 0.0
    write_json(other / MANIFEST, manifest)
    same = TokenDataset.open(other, "validation", sequence=S, seed=5)
    every = range(validation.num_samples)
    assert "pages" in {validation.where(i).source for i in every}
    assert same.samples(every).tolist() == validation.samples(every).tolist()


def test_short_source_repeats_within_window(train, directory):
    text = np.asarray(open_shards(directory, "train")["tiny"].tokens)
    assert 0 < len(text) < S + 1
    i = next(i for i in range(100) if train.where(i).source == "tiny")
    assert train.sample(i).tolist() == np.resize(text, S + 1).tolist()
    assert sum(span.length for span in train.documents_of(i)) == S + 1


def test_validation_targets_are_predicted_once(validation, directory):
    predicted = {}
    for i in range(validation.num_samples):
        source, epoch, start = validation.where(i)
        assert epoch == 0
        predicted.setdefault(source, {})[start] = validation.sample(i)[1:].tolist()
    for source, shard in open_shards(directory, "validation").items():
        whole = (len(shard.tokens) - 1) // S * S
        mine = predicted.get(source, {})
        assert [token for start in sorted(mine) for token in mine[start]] == shard.tokens[1 : whole + 1].tolist()
    assert validation.counts_after(validation.num_samples) == {s: len(p) for s, p in predicted.items()}


def test_prefix_of_validation_represents_every_source(directory):
    """Validation often reads few samples, which must not all come from the alphabetically first source."""
    fine = TokenDataset.open(directory, "validation", sequence=2, seed=5)
    other = TokenDataset.open(directory, "validation", sequence=2, seed=6)
    whole, some = fine.counts_after(fine.num_samples), fine.num_samples // 3
    assert len(whole) > 1 and fine.counts_after(0) == dict.fromkeys(whole, 0)
    for source, count in fine.counts_after(some).items():
        assert count == pytest.approx(whole[source] / 3, abs=3 * np.sqrt(whole[source] / 3))
    assert fine.samples(range(some)).tolist() == other.samples(range(some)).tolist()


def test_validation_counts_follow_samples(validation):
    counts = dict.fromkeys(validation.counts_after(0), 0)
    for i in range(validation.num_samples):
        assert validation.counts_after(i) == counts
        counts[validation.where(i).source] += 1
    assert len([n for n in counts.values() if n]) > 1


def test_validation_ends_after_last_sample(validation, train):
    with pytest.raises(IndexError, match=str(validation.num_samples)):
        validation.sample(validation.num_samples)
    for dataset in (validation, train):
        with pytest.raises(IndexError, match="-1"):
            dataset.sample(-1)


def test_lineage_names_the_document_of_every_token(train, validation, directory):
    for dataset in (train, validation):
        shards = open_shards(directory, dataset.split)
        names = {
            s: list(Lineage(directory / f"documents-{dataset.split}-{s}.parquet", shard)) for s, shard in shards.items()
        }
        for i in range(min(120, dataset.num_samples)):
            source, _, start = dataset.where(i)
            shard, sample, at = shards[source], dataset.sample(i), 0
            for document, offset, length, _ in dataset.documents_of(i):
                assert offset == at and length > 0
                text = shard[names[source].index(document)].tolist()
                piece = sample[offset : offset + length].tolist()
                assert any(text[k : k + length] == piece for k in range(len(text)))
                at += length
            assert at == S + 1


@pytest.mark.parametrize("first", [0, 5 * BLOCK_SAMPLES - 40])
def test_consecutive_batches_are_looked_up_together(directory, monkeypatch, first):
    dataset, asked = TokenDataset.open(directory, "train", sequence=S, seed=5), []
    look_up = dataset._places
    monkeypatch.setattr(dataset, "_places", lambda indices: asked.append(len(indices)) or look_up(indices))
    for start in range(first, first + 80, 8):
        batch = dataset.samples(range(start, start + 8))
        places = look_up(np.arange(start, start + 8))
        assert all(dataset.where(start + k).start == places.start[k] for k in range(8))
        assert batch.shape == (8, S + 1)
    assert asked.count(BLOCK_SAMPLES) == (1 if first == 0 else 2)
    assert set(asked) == {BLOCK_SAMPLES, 1}


def test_too_small_split_is_rejected_with_remedy(directory):
    with pytest.raises(DataError, match=r"100000 \+ 1.*validation_fraction"):
        TokenDataset.open(directory, "validation", sequence=100_000, seed=5)


def test_shards_that_differ_from_manifest_are_rejected(directory, tmp_path):
    for path in directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["sources"]["prose"]["train"]["tokens"] += 1
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="train-prose.*tokenize"):
        TokenDataset.open(tmp_path, "train", sequence=S, seed=5)


def test_id_outside_vocabulary_is_rejected_with_shard(directory, tmp_path):
    copied = shutil.copytree(directory, tmp_path / "tokens")
    path = copied / "train-pages.bin"
    ids = np.fromfile(path, dtype=np.uint16)
    ids[100:] = 300
    ids.tofile(path)
    train = TokenDataset.open(copied, "train", sequence=S, seed=5)
    with pytest.raises(DataError, match=r"train-pages\.bin holds id 300 at token \d+, but the vocabulary has 300"):
        train.samples(range(50))
