"""Write documents with weights as a token folder, packed into bins that are the windows of a training.

A bin has exactly `sequence` ids, and bins follow one another, so that the windows of `TokenDataset` are the bins, and
the order of training, its resumption and its lineage need nothing more. What is left of a bin is a document called
PADDING, whose ids have weight 0. One more such id ends the shard, for the last target of the last window.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trivium.corpus.document import PIECE
from trivium.errors import DataError
from trivium.progress import Progress, silent
from trivium.provenance import LOCK, file_sha256
from trivium.seeds import seed_for
from trivium.tokens.chat.conversation import Conversation
from trivium.tokens.chat.encode import encode_conversations
from trivium.tokens.chat.pack import pack
from trivium.tokens.chat.template import ChatTemplate
from trivium.tokens.config import TokensConfig
from trivium.tokens.encode import write_tokens_manifest
from trivium.tokens.lineage import LineageWriter
from trivium.tokens.manifest import MANIFEST, SPLITS, TOKENIZER
from trivium.tokens.shards import ShardWriter
from trivium.tokens.split import TRAIN, VALIDATION
from trivium.tokens.tokenizer import Tokenizer

PADDING = "padding"  # the document of ids that fill bins
SOURCE = "conversations"
_BINS_PER_WRITE = 512
_REPORTED = 1000  # conversations between two reports of progress


class Document(NamedTuple):
    """Ids with the weight of each as a target. name: in the lineage; of: the document that it is a piece of."""

    name: str
    ids: NDArray[np.integer]
    weights: NDArray[Any]
    of: str | None = None


class PackSettings(NamedTuple):
    """How conversations are packed.

    sequence: tokens of a bin. validation_fraction: of the conversations. too_long: what is done with conversations of
    more than `sequence` tokens: they lose their end, or become pieces that begin with the last token of the one before.
    """

    sequence: int
    seed: int
    validation_fraction: float = 0.03
    too_long: Literal["truncate", "split"] = "truncate"


Group = Sequence[Document]  # documents that are in one bin, such as the two answers of a preference pair


def write_conversations(
    conversations: Iterable[Conversation],
    out: Path,
    template: ChatTemplate,
    tokenizer: Tokenizer,
    settings: PackSettings,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Encode and pack conversations into the existing folder `out`, and return the manifest.

    The manifest says in `packed` for each split how many conversations, answers, bins and counted tokens there are, and
    how many conversations were too long. A plan needs plan.model.documents = apart and plan.model.sequence =
    `sequence`. Raises DataError if there are fewer than two conversations with a target, one of which validates.
    """
    documents = _documents(conversations, template, tokenizer)
    found = (
        ([document], [text for turn in one.turns for text in (turn.role, turn.content)]) for one, document in documents
    )
    return write_split(
        found, out, template, tokenizer, settings, progress, fit=_fit, told=("conversations", "an answer")
    )


def write_split(
    found: Iterable[tuple[Group, Sequence[str]]],
    out: Path,
    template: ChatTemplate,
    tokenizer: Tokenizer,
    settings: PackSettings,
    progress: Progress,
    *,
    fit: Callable[[Group, PackSettings, Counter[str]], list[Group]],
    told: tuple[str, str],
) -> dict[str, Any]:
    """Hold some groups out for validation, pack all into the existing folder `out`, and return the manifest.

    found: groups, and the texts by which it is drawn whether one validates. fit: returns what of a group fits into
    bins, and counts what was done. told: what the groups are and must have, for messages. Raises DataError if nothing
    is left of either split.
    """
    groups: list[Group] = []
    draws: list[float] = []
    for done, (group, texts) in enumerate(found):
        if done % _REPORTED == 0:
            progress(done, None, f"encoding {told[0]}")
        groups.append(group)
        draws.append(seed_for(settings.seed, "validation", *texts) / 2**63)
    splits: dict[str, list[Group]] = {split: [] for split in SPLITS}
    counts = {split: Counter[str]() for split in SPLITS}
    for group, validates in zip(groups, validating(draws, settings.validation_fraction), strict=True):
        split = VALIDATION if validates else TRAIN
        splits[split] += fit(group, settings, counts[split])
    for split in SPLITS:
        if not splits[split]:
            raise DataError(
                f"there are {len(groups)} {told[0]}, and none for {split} has {told[1]} within {settings.sequence} "
                "tokens; give at least two, or a larger plan.model.sequence"
            )
    template.save(out)
    return write_packed(
        splits, out, tokenizer, sequence=settings.sequence, seed=settings.seed, counts=counts, progress=progress
    )


def write_packed(
    splits: Mapping[str, Sequence[Group]],
    out: Path,
    tokenizer: Tokenizer,
    *,
    sequence: int,
    seed: int,
    weights: Literal["uint8", "float32"] = "uint8",
    counts: Mapping[str, Mapping[str, int]] | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Pack groups of documents into bins, write them into the existing folder `out`, and return the manifest.

    splits: groups for "train" and "validation". weights: the dtype of the weights. counts: further numbers of each
    split for the manifest. Raises DataError for a group of more than `sequence` tokens.
    """
    dtype = TokensConfig().shard_dtype(tokenizer.vocabulary)
    said: dict[str, Any] = {"sequence": sequence}
    entries, unigrams = {}, {}
    for split in SPLITS:
        bins = _bins(splits[split], sequence)
        progress(0, len(bins), f"writing {split}")
        name = f"{split}-{SOURCE}"
        shard = ShardWriter(out / name, dtype=dtype, weights=weights)
        lineage = LineageWriter(out / f"documents-{name}.parquet")
        unigrams[split] = np.zeros(tokenizer.vocabulary, np.int64)
        counted, left = 0, iter(_filled(splits[split], bins, sequence, tokenizer.end_of_text))
        while documents := list(islice(left, _BINS_PER_WRITE)):
            lengths = np.array([len(one.ids) for one in documents], np.int64)
            ids = np.concatenate([one.ids for one in documents])
            own = np.concatenate([one.weights for one in documents])
            own[np.cumsum(lengths) - lengths] = 0  # nothing predicts the first token of a document
            shard.append(ids, lengths, own)
            lineage.append([one.name for one in documents], [one.of for one in documents], lengths)
            counted += int((own > 0).sum())
            unigrams[split] += np.bincount(ids[own > 0], minlength=tokenizer.vocabulary)
        lengths = shard.close()
        lineage.close()
        tokens = int(lengths.sum())
        entries[split] = {"prefix": name, "documents": len(lengths), "tokens": tokens, "weights": weights}
        padding = tokens - sum(len(one.ids) for group in splits[split] for one in group)
        said[split] = {"bins": len(bins), "counted": counted, "padding": padding, **(counts or {}).get(split, {})}
    tokenizer.save(out / TOKENIZER)
    return write_tokens_manifest(
        out,
        tokenizer,
        {SOURCE: {"weight": 1.0, **entries}},
        unigrams,
        dtype=dtype,
        seed=seed,
        validation="whole conversations",
        packed=said,
        files={p.name: file_sha256(p) for p in sorted(out.iterdir()) if p.is_file() and p.name not in (LOCK, MANIFEST)},
    )


def _documents(
    conversations: Iterable[Conversation], template: ChatTemplate, tokenizer: Tokenizer
) -> Iterator[tuple[Conversation, Document]]:
    """Yield each conversation with its document. Ids take the least memory that holds them."""
    dtype = np.min_scalar_type(tokenizer.vocabulary)
    waiting: list[Conversation] = []

    def passed() -> Iterator[Conversation]:
        for one in conversations:
            waiting.append(one)
            yield one

    for encoded in encode_conversations(passed(), template, tokenizer):
        one = waiting.pop(0)
        yield one, Document(one.name, encoded.ids.astype(dtype), encoded.counted)


def validating(draws: Sequence[float], fraction: float) -> list[bool]:
    """Return which conversations validate: those whose draw is below `fraction`, but at least one and never all."""
    order = sorted(range(len(draws)), key=lambda n: draws[n])
    below = sum(draw < fraction for draw in draws)
    held = set(order[: min(max(below, 1), len(draws) - 1)] if draws else [])
    return [n in held for n in range(len(draws))]


def _fit(group: Group, settings: PackSettings, counts: Counter[str]) -> list[Group]:
    """Return a conversation cut to the length of a bin, and count what was done."""
    (document,), sequence = group, settings.sequence
    counts["conversations"] += 1
    pieces = [document]
    if len(document.ids) > sequence:
        counts["too_long"] += 1
        if settings.too_long == "split":
            pieces = list(_pieces(document, sequence))
        else:
            pieces = [document._replace(ids=document.ids[:sequence], weights=document.weights[:sequence])]
            counts["counted_cut_off"] += int(document.weights[sequence:].sum())
    kept = [piece for piece in pieces if piece.weights[1:].any()]
    counts["answers"] += sum(int((np.diff(piece.weights.astype(np.int8)) > 0).sum()) for piece in kept)
    counts["pieces"] += len(kept)
    counts["without_targets"] += not kept
    return [[piece] for piece in kept]


def _pieces(document: Document, sequence: int) -> Iterator[Document]:
    """Yield pieces of at most `sequence` tokens, each of which begins with the last token of the one before."""
    for number, at in enumerate(range(0, len(document.ids) - 1, sequence - 1)):
        here = slice(at, at + sequence)
        name = f"{document.name}{PIECE}{number}"
        yield Document(name, document.ids[here], document.weights[here], document.name)


def _bins(groups: Sequence[Group], sequence: int) -> list[list[int]]:
    """Return bins of group numbers."""
    lengths = [sum(len(one.ids) for one in group) for group in groups]
    for group, length in zip(groups, lengths, strict=True):
        if length > sequence:
            raise DataError(
                f"{group[0].name} has {length} tokens, more than the {sequence} of a bin; give a larger "
                "plan.model.sequence, or leave it out"
            )
    return pack(lengths, sequence)


def _filled(groups: Sequence[Group], bins: Sequence[Sequence[int]], sequence: int, fill: int) -> Iterator[Document]:
    """Yield the documents of the bins in order, with one that fills each bin, and the one that ends the shard."""
    for numbers in bins:
        documents = [document for number in numbers for document in groups[number]]
        yield from documents
        if lacks := sequence - sum(len(one.ids) for one in documents):
            yield _padding(lacks, fill)
    yield _padding(1, fill)


def _padding(size: int, fill: int) -> Document:
    return Document(PADDING, np.full(size, fill), np.zeros(size, np.uint8))
