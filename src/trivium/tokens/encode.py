"""Tokenize a curated corpus: tokenizer, shards per source and split, their lineage, and a manifest."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium import __version__
from trivium.config import to_tree
from trivium.corpus.publish.store import MANIFEST as STORE_MANIFEST
from trivium.corpus.publish.store import read_tables
from trivium.errors import ConfigError, DataError
from trivium.hub import is_hub_name
from trivium.progress import Progress, silent
from trivium.provenance import (
    JOB,
    LOCK,
    discard,
    file_sha256,
    fingerprint,
    partial_of,
    refuse_others_pieces,
    write_json,
)
from trivium.seeds import seed_for
from trivium.tokens.blend import rounded
from trivium.tokens.config import TokensConfig
from trivium.tokens.manifest import FORMAT, MANIFEST, SPLITS, TOKENIZER
from trivium.tokens.marks import END_OF_TEXT
from trivium.tokens.pieces import ShardSet, Work, encode_pieces, read_piece
from trivium.tokens.split import TRAIN, VALIDATION, HeldOut, Survey, choose_held_out, parts_of, survey
from trivium.tokens.tokenizer import Tokenizer, given_tokenizer, load_tokenizer, train_tokenizer
from trivium.untrusted import read_json

Counts = Mapping[str, NDArray[np.int64]]  # occurrences of each id by split [vocabulary]


def tokenize(
    config: TokensConfig,
    source: Path,
    out: Path,
    *,
    seed: int,
    progress: Progress = silent,
    workers: int = 1,
    work: Path | None = None,
) -> dict[str, Any]:
    """Tokenize the curated corpus in `source` into the existing directory `out`, and return the manifest.

    Reads `source/documents` (a document store) and `source/blend.json` (weights by source). workers: number of pieces
    encoded in parallel; it does not affect the result. work: folder of finished pieces, from which an interrupted call
    resumes; a caller that names it also deletes it. Raises DataError if the corpus is empty or damaged, or has a source
    without weight.
    """
    store = source / "documents"
    found = survey(store, seed=seed)
    total = int(found.text_bytes.sum())
    if not total:
        raise DataError(f"{store} holds no text: curation left nothing; look at its funnel, or add text")
    weights = blend_weights(source / "blend.json", found.sources)
    rounded(weights)  # raises for too many sources before any text is encoded
    held_out = choose_held_out(found, fraction=config.validation_fraction)

    progress(0, total, "training the tokenizer" if config.tokenizer is None else "reading the tokenizer")
    given = None if config.tokenizer is None else configured_tokenizer(config)
    pieces = _begin(work or out / ".work", config, store, given, seed=seed)
    tokenizer = given or _trained(pieces, config, store, found, held_out, seed=seed)
    tokenizer.save(out / TOKENIZER)
    files = encode_pieces(Work(store, tokenizer, held_out, pieces), workers=workers, total=total, progress=progress)
    dtype = config.shard_dtype(tokenizer.vocabulary)
    progress(total, total, "writing shards")
    shards = ShardSet(out, file_stems(weights), dtype=dtype, vocabulary=tokenizer.vocabulary)
    for file in files:
        shards.append(read_piece(file))
    entries = shards.close()
    sources = {name: {"weight": weights[name], **entries.get(name, {})} for name in weights}
    if work is None:
        discard(pieces)
    manifest = write_tokens_manifest(
        out,
        tokenizer,
        sources,
        shards.counts,
        dtype=dtype,
        seed=seed,
        validation="whole documents" if held_out.tail_of < 0 else "tail of one document",
        files={p.name: file_sha256(p) for p in sorted(out.iterdir()) if p.is_file() and p.name != LOCK},
    )
    progress(total, total, f"{manifest['totals']['train']['tokens']} training tokens")
    return manifest


def write_tokens_manifest(
    directory: Path, tokenizer: Tokenizer, sources: Mapping[str, Mapping[str, Any]], counts: Counts, **more: Any
) -> dict[str, Any]:
    """Write the manifest of a token directory and return it. sources: weight and splits of each source."""
    totals = {}
    for split in SPLITS:
        parts = [entry[split] for entry in sources.values() if split in entry]
        keys = [key for key in ("documents", "tokens", "text_bytes") if all(key in part for part in parts)]
        totals[split] = {key: sum(part[key] for part in parts) for key in keys}
    manifest = {
        "format": FORMAT,
        "tokenizer_sha256": tokenizer.sha256,
        "vocabulary": tokenizer.vocabulary,
        "end_of_text": tokenizer.end_of_text,
        "end_token": tokenizer.marks.end,
        "opening": tokenizer.opening,
        "sources": sources,
        "totals": totals,
        "unigram_entropy": unigram_entropy(counts[TRAIN], counts[VALIDATION]),
        "validation_entropy": entropy(counts[VALIDATION]),
        **more,
    }
    write_json(directory / MANIFEST, manifest)
    return manifest


def unigram_entropy(train_counts: NDArray[np.int64], validation_counts: NDArray[np.int64]) -> float:
    """Return nats per validation token under the training frequencies with add-one smoothing.

    A language model has to beat it. Both arguments are counts of ids [vocabulary].
    """
    nats = -np.log(add_one(train_counts))
    return float((nats * validation_counts).sum() / validation_counts.sum())


def entropy(counts: NDArray[np.int64]) -> float:
    """Return nats per token under the text's own frequencies, the minimum of any unigram prediction."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def add_one(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the probability of each id with add-one (Laplace) smoothing."""
    raised = np.asarray(counts, dtype=np.float64) + 1.0
    probabilities: NDArray[np.float64] = raised / raised.sum()
    return probabilities


def blend_weights(path: Path, sources: Iterable[str]) -> dict[str, float]:
    """Return the weights of the sources that have documents, scaled to sum to 1.

    `blend.json` is {source: {"weight": number, …}}. Raises DataError if it is unreadable or incomplete.
    """
    try:
        tree = read_json(path)
        entries = [(source, entry["weight"]) for source, entry in tree.items()]
        weights = {str(s): float(w) for s, w in entries}
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); run `trivium corpus curate`") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise DataError(f'{path} does not say {{source: {{"weight": number}}}}; curate the corpus again') from None
    present = sorted(sources)
    missing = [s for s in present if s not in weights]
    if missing:
        raise DataError(f"{path} gives no weight to {', '.join(missing)}; curate the corpus again, or add it")
    total = sum(weights[s] for s in present)
    if not (total > 0 and all(0 <= weights[s] < float("inf") for s in present)):
        raise DataError(f"{path}: weights must be 0 or more, and one above 0; found {weights}")
    return {s: weights[s] / total for s in present}


def file_stems(sources: Iterable[str]) -> dict[str, str]:
    """Return a file name part for each source. Unsafe characters become '-', and a hash separates colliding names."""
    slugs = {s: re.sub(r"[^A-Za-z0-9._-]+", "-", s)[:80] for s in sources}
    crowd = Counter(slug.lower() for slug in slugs.values())
    return {
        source: slug if crowd[slug.lower()] == 1 else f"{slug}-{fingerprint(source)[:8]}"
        for source, slug in slugs.items()
    }


def configured_tokenizer(config: TokensConfig) -> Tokenizer:
    """Return the tokenizer that `config.tokenizer` names. Raises ConfigError for another number of ids.

    A tokenizer of the Hub may have fewer ids: published models often have rows to spare.
    """
    tokenizer = given_tokenizer(str(config.tokenizer), config.end_of_text)
    spares = is_hub_name(str(config.tokenizer)) and tokenizer.vocabulary < config.vocabulary
    if tokenizer.vocabulary != config.vocabulary and not spares:
        size = tokenizer.vocabulary
        raise ConfigError(
            f"tokens.vocabulary ({config.vocabulary}) must be the {size} ids of tokens.tokenizer "
            f"({config.tokenizer}); --set tokens.vocabulary={size} --set plan.model.vocabulary={size}"
        )
    return tokenizer


def _begin(work: Path, config: TokensConfig, store: Path, given: Tokenizer | None, *, seed: int) -> Path:
    """Return the folder of pieces, after deleting those of another corpus, config, tokenizer or seed."""
    refuse_others_pieces(work)
    job = {
        "trivium": __version__,
        "config": to_tree(config),
        "documents": file_sha256(store / STORE_MANIFEST),
        "tokenizer": given.identity if given else "",
        "seed": seed,
    }
    if not (work / JOB).is_file() or read_json(work / JOB) != job:
        discard(work)
        work.mkdir(parents=True)
        write_json(work / JOB, job)
    return work


def _trained(
    work: Path, config: TokensConfig, store: Path, found: Survey, held_out: HeldOut, *, seed: int
) -> Tokenizer:
    """Return the trained tokenizer. Training is not repeated after an interruption."""
    path = work / TOKENIZER
    if path.is_file():
        return load_tokenizer(path)
    texts = _training_texts(store, found, held_out, limit=config.tokenizer_bytes, seed=seed)
    tokenizer = train_tokenizer(texts, config.vocabulary, config.end_of_text or END_OF_TEXT)
    partial = partial_of(path)
    tokenizer.save(partial)
    partial.replace(path)
    return tokenizer


def _training_texts(store: Path, found: Survey, held_out: HeldOut, *, limit: int, seed: int) -> Iterator[str]:
    """Yield text of the training split, at most `limit` bytes: full documents except for the last one drawn."""
    taken = _taken_bytes(store, found, held_out, limit=limit, seed=seed)
    first = 0
    for table in read_tables(store, ["id", "source", "text"], verify=False):
        for row in np.flatnonzero(taken[first : first + table.num_rows]).tolist():
            for part in parts_of(table.slice(row, 1), first + row, held_out):
                if part.split == TRAIN:
                    yield _beginning(part.text, int(taken[first + row]))
        first += table.num_rows


def _taken_bytes(store: Path, found: Survey, held_out: HeldOut, *, limit: int, seed: int) -> NDArray[np.int64]:
    """Return how many bytes of each document train the tokenizer.

    Documents are taken in a random order until the limit is reached. Independent draws would keep it only on average.
    """
    sizes = np.where(held_out.whole, 0, found.text_bytes)
    if sizes.sum() <= limit:
        return sizes
    names = (name for table in read_tables(store, ["id"], verify=False) for name in table["id"].to_pylist())
    draws = np.fromiter((seed_for(seed, "tokenizer", name) for name in names), np.int64, len(sizes))
    order = np.argsort(draws, kind="stable")
    before = np.cumsum(sizes[order]) - sizes[order]
    taken = np.empty_like(sizes)
    taken[order] = np.clip(limit - before, 0, sizes[order])
    return taken


def _beginning(text: str, most: int) -> str:
    """Return the beginning of a text that has at most `most` bytes, cut between characters."""
    return text if 4 * len(text) <= most else text.encode()[:most].decode("utf-8", "ignore")
