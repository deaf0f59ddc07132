"""A curated corpus becomes a tokenizer, shards per source and split, their lineage, and a manifest."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trivium.corpus.document import Document
from trivium.corpus.store import read_documents
from trivium.errors import DataError
from trivium.progress import Progress, silent
from trivium.provenance import file_sha256, fingerprint, write_json
from trivium.seeds import seed_for
from trivium.tokens.config import TokensConfig
from trivium.tokens.entropy import entropy, unigram_entropy
from trivium.tokens.lineage import write_lineage
from trivium.tokens.manifest import FORMAT, MANIFEST, SPLITS, TOKENIZER, open_shards, token_counts
from trivium.tokens.shards import ShardWriter
from trivium.tokens.tokenizer import Tokenizer, train_tokenizer

_CHUNK_BYTES = 1 << 20  # text encoded at once: enough to keep every core busy, little enough to hold


class Entry(NamedTuple):
    """What choosing the split needs to know of a document."""

    id: str
    source: str
    text_bytes: int


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Which text validates: whole documents, or, when no source has two documents, the end of one."""

    documents: frozenset[str]
    tail_of: str | None = None
    tail_fraction: float = 0.0


@dataclass(slots=True)
class _Output:
    """One shard being written, and what its manifest entry and lineage need."""

    writer: ShardWriter
    documents: list[str] = field(default_factory=list)
    text_bytes: int = 0


def tokenize(
    config: TokensConfig, source: Path, out: Path, *, seed: int, progress: Progress = silent
) -> dict[str, Any]:
    """Tokenize the curated corpus in `source` into the existing directory `out`; returns the manifest.

    Reads `source/documents` (a document store) and `source/blend.json` (weights by source).
    Raises DataError when the corpus is empty, damaged, or has a source without a weight.
    """
    store = source / "documents"
    entries = [Entry(d.id, d.source, d.text_bytes) for d in read_documents(store)]
    if not any(e.text_bytes for e in entries):
        raise DataError(f"{store} holds no text: curation left nothing; look at its funnel, or add text")
    weights = blend_weights(source / "blend.json", {e.source for e in entries})
    held_out = choose_held_out(entries, fraction=config.validation_fraction, seed=seed)
    total = sum(e.text_bytes for e in entries)

    progress(0, total, "training the tokenizer")
    share = min(1.0, config.tokenizer_bytes / total)
    tokenizer = train_tokenizer(_training_texts(store, held_out, share=share, seed=seed), config.vocabulary)
    tokenizer.save(out / TOKENIZER)

    dtype = config.shard_dtype(tokenizer.vocabulary)
    documents = split_documents(read_documents(store, verify=False), held_out)
    stems = file_stems(weights)
    outputs = _encode(documents, tokenizer, stems=stems, out=out, dtype=dtype, total=total, progress=progress)
    sources = {
        name: {"weight": weights[name]}
        | {s: _finish(out, outputs[name, s]) for s in SPLITS if (name, s) in outputs}
        for name in weights
    }
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "tokenizer_sha256": tokenizer.sha256,
        "vocabulary": tokenizer.vocabulary,
        "end_of_text": tokenizer.end_of_text,
        "dtype": dtype,
        "seed": seed,
        "validation": "tail of one document" if held_out.tail_of else "whole documents",
        "sources": sources,
        "totals": {split: _totals(sources.values(), split) for split in SPLITS},
        "files": {p.name: file_sha256(p) for p in sorted(out.iterdir()) if p.is_file()},
    }
    write_json(out / MANIFEST, manifest)  # what follows reads the shards through it
    manifest |= _entropies(out)
    write_json(out / MANIFEST, manifest)
    progress(total, total, f"{manifest['totals']['train']['tokens']} training tokens")
    return manifest


def blend_weights(path: Path, sources: Iterable[str]) -> dict[str, float]:
    """Weight of each source that has documents, scaled to sum to 1; `blend.json` is {source: {"weight": number, …}}."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        entries = [(source, entry["weight"]) for source, entry in tree.items()]
        weights = {str(s): float(w) for s, w in entries}
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); run `trivium corpus curate`") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise DataError(
            f'{path} does not say {{source: {{"weight": number}}}}; curate the corpus again'
        ) from None
    present = sorted(sources)
    missing = [s for s in present if s not in weights]
    if missing:
        raise DataError(f"{path} gives no weight to {', '.join(missing)}; curate the corpus again, or add it")
    total = sum(weights[s] for s in present)
    if not (total > 0 and all(0 <= weights[s] < float("inf") for s in present)):
        raise DataError(f"{path}: weights must be 0 or more, and one above 0; found {weights}")
    return {s: weights[s] / total for s in present}


def choose_held_out(entries: Sequence[Entry], *, fraction: float, seed: int) -> HeldOut:
    """Documents whose keyed hash falls below `fraction`, but never all documents of a source.

    Where their text is less than half that fraction of all (few documents, or short ones were drawn), those of the
    next lowest hashes too; when no source has several documents, the last `fraction` of the longest document.
    """
    draws = {e.id: seed_for(seed, "validation", e.id) / 2**63 for e in entries}
    by_source: dict[str, list[str]] = {}
    for e in entries:
        by_source.setdefault(e.source, []).append(e.id)
    chosen: set[str] = set()
    for ids in by_source.values():
        below = {i for i in ids if draws[i] < fraction}
        chosen |= below if len(below) < len(set(ids)) else set()
    sizes = {e.id: e.text_bytes for e in entries}
    wanted = fraction * sum(sizes.values())
    enough = wanted / 2 <= sum(sizes[i] for i in chosen)
    left = {source: len(set(ids) - chosen) for source, ids in by_source.items()}
    for e in sorted(entries, key=lambda e: (draws[e.id], e.id)):
        if chosen and (enough or sum(sizes[i] for i in chosen) >= wanted):
            break
        if e.id not in chosen and left[e.source] > 1:
            chosen.add(e.id)
            left[e.source] -= 1
    if chosen:
        return HeldOut(frozenset(chosen))
    longest = max(entries, key=lambda e: (e.text_bytes, e.id))
    return HeldOut(frozenset(), tail_of=longest.id, tail_fraction=fraction)


def split_documents(documents: Iterable[Document], held_out: HeldOut) -> Iterator[tuple[str, Document]]:
    """Each document with its split; a document whose tail is held out comes twice, cut at a space."""
    for document in documents:
        if document.id == held_out.tail_of:
            cut = round(len(document.text) * (1 - held_out.tail_fraction))
            space = re.compile(r"\s").search(document.text, cut)
            cut = space.start() if space else cut
            yield "train", replace(document, text=document.text[:cut])
            yield "validation", replace(document, text=document.text[cut:])
        else:
            yield "validation" if document.id in held_out.documents else "train", document


def file_stems(sources: Iterable[str]) -> dict[str, str]:
    """Each source's name as part of a file name: unsafe characters become '-', a hash parts what would collide."""
    slugs = {s: re.sub(r"[^A-Za-z0-9._-]+", "-", s)[:80] for s in sources}
    crowd = Counter(slug.lower() for slug in slugs.values())
    return {
        source: slug if crowd[slug.lower()] == 1 else f"{slug}-{fingerprint(source)[:8]}"
        for source, slug in slugs.items()
    }


def _training_texts(store: Path, held_out: HeldOut, *, share: float, seed: int) -> Iterator[str]:
    for split, document in split_documents(read_documents(store, verify=False), held_out):
        if split == "train" and seed_for(seed, "tokenizer", document.id) / 2**63 < share:
            yield document.text


def _encode(
    documents: Iterable[tuple[str, Document]],
    tokenizer: Tokenizer,
    *,
    stems: Mapping[str, str],
    out: Path,
    dtype: str,
    total: int,
    progress: Progress,
) -> dict[tuple[str, str], _Output]:
    outputs: dict[tuple[str, str], _Output] = {}
    done = 0
    for chunk in _chunks(documents):
        encoded = tokenizer.encode_batch([d.text for _, d in chunk])
        for (split, document), ids in zip(chunk, encoded, strict=True):
            key = (document.source, split)
            if key not in outputs:
                outputs[key] = _Output(ShardWriter(out / f"{split}-{stems[document.source]}", dtype=dtype))
            outputs[key].writer.append([[*ids, tokenizer.end_of_text]])
            outputs[key].documents.append(document.id)
            outputs[key].text_bytes += document.text_bytes
            done += document.text_bytes
        progress(done, total, "encoding")
    return outputs


def _chunks(documents: Iterable[tuple[str, Document]]) -> Iterator[list[tuple[str, Document]]]:
    chunk: list[tuple[str, Document]] = []
    size = 0
    for split, document in documents:
        chunk.append((split, document))
        size += document.text_bytes
        if size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _finish(out: Path, output: _Output) -> dict[str, Any]:
    lengths = output.writer.close()
    prefix = output.writer.prefix.name
    write_lineage(out / f"documents-{prefix}.parquet", output.documents, lengths)
    return {
        "prefix": prefix,
        "documents": len(lengths),
        "tokens": int(lengths.sum()),
        "text_bytes": output.text_bytes,
    }


def _totals(sources: Iterable[Mapping[str, Any]], split: str) -> dict[str, int]:
    totals: Counter[str] = Counter({"documents": 0, "tokens": 0, "text_bytes": 0})
    for entry in sources:
        totals.update({k: v for k, v in entry.get(split, {}).items() if k != "prefix"})
    return dict(totals)


def _entropies(out: Path) -> dict[str, float]:
    validation = [np.asarray(s.tokens, dtype=np.int64) for s in open_shards(out, "validation").values()]
    return {
        "unigram_entropy": unigram_entropy(token_counts(out, "train"), np.concatenate(validation)),
        "validation_entropy": entropy(token_counts(out, "validation")),
    }
