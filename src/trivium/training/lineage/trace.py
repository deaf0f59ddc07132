"""Which document each token of each step came from, and which steps saw a document. No torch.

Steps are numbered as in metrics.jsonl, from 1; rows of a batch and positions of a row from 0.
"""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from trivium.errors import DataError
from trivium.provenance import STAMP
from trivium.tokens.lineage import Span
from trivium.tokens.samples import Sighting, TokenDataset
from trivium.training.metrics import METRICS
from trivium.training.record import Record


class Saw(NamedTuple):
    """A row of a step in which tokens [offset, offset + length) are a document's from its token `begin` on."""

    step: int
    row: int
    offset: int
    length: int
    begin: int
    epoch: int


def batch(record: Record, step: int, row: int | None = None) -> dict[str, Any]:
    """What a step consumed: every row with its ids and documents, its hash, and the hash that was logged.

    row: only this one; DataError when the batch has none of that number. counts: samples of each source up to and
    with this step.
    """
    wanted, data = record.plan.batch.at(_known(record, step) - 1), record.data
    first, count = wanted.first_sample, wanted.sequences
    if row is not None:
        _within("--row", row, count)
    logged = record.logged_of(step).get("batch_hash")
    found = str(data.digest(first, count))
    return {
        "step": step,
        "first_sample": first,
        "sequences": count,
        "hash": found,
        "logged_hash": logged,
        "agrees": None if logged is None else logged == found,
        "counts": data.counts_after(first + count),
        "rows": [_row(record, step, number) for number in (range(count) if row is None else [row])],
    }


def trace(record: Record, step: int, row: int, position: int) -> dict[str, Any]:
    """The document that one token of one step came from: its id, the token's number in it, source and epoch.

    agrees: whether the step's hash is the one that was logged, so that these are the tokens it had; None: none was.
    """
    wanted, data = record.plan.batch.at(_known(record, step) - 1), record.data
    _within("--row", row, wanted.sequences)
    _within("--position", position, data.sequence + 1)
    sample = wanted.first_sample + row
    where, tokens = data.where(sample), data.sample(sample)
    span = next(s for s in data.documents_of(sample) if s.offset <= position < s.offset + s.length)
    return {
        "step": step,
        "row": row,
        "position": position,
        "sample": sample,
        "token": int(tokens[position]),
        "document": span.document,
        "offset": span.begin + position - span.offset,
        "source": where.source,
        "epoch": where.epoch,
        "agrees": agrees(record, record.logged_of(step)),
        "in_row": [span.offset, span.offset + span.length],
        "tokens_in_row": tokens[span.offset : span.offset + span.length].tolist(),
    }


def where(record: Record, document: str) -> dict[str, Any]:
    """Every row of every step done that saw a document, or the pieces it was split into.

    agrees: whether the last step's hash is the one that was logged; None: none was. DataError when no training token
    is the document's.
    """
    data, done = record.data, record.steps_done
    pieces = data.find(document)
    if not pieces:
        raise DataError(
            f"no training token of {record.tokens} comes from a document '{document}': it was dropped by curation, "
            f"validates, is of a source of weight 0, or is none; {_who_knows(record, document)}"
        )
    samples = record.plan.batch.at(done).first_sample
    found = [(piece, [_saw(record, s) for s in data.sightings(piece, samples)]) for piece in pieces]
    return {
        "document": document,
        "steps_done": done,
        "agrees": agrees(record, record.last_logged),
        "pieces": [
            {
                "document": piece.document,
                "source": piece.source,
                "tokens": piece.stop - piece.start,
                "seen": [saw._asdict() for saw in seen],
            }
            for piece, seen in found
        ],
    }


def round_trip(record: Record) -> dict[str, Any]:
    """Both ways for everything: each step's hash, and each document's rows found forward and backward.

    forward: from every row its documents. backward: from every document its rows. The two must be the same set. No set
    is held, as a long training has more rows than fit in memory: every sighting that is found backward is looked for in
    its row, and the numbers of both must be equal.
    """
    data, wrong_hashes = record.data, list[int]()
    begun, done, forward = 0, 0, 0
    for logged in _every_step(record):
        done = logged["step"]
        begun = begun or done
        first, count = record.plan.batch.at(done - 1)
        if logged.get("batch_hash") not in (None, str(data.digest(first, count))):
            wrong_hashes.append(done)
        forward += sum(len(data.documents_of(sample)) for sample in range(first, first + count))
    samples, before = record.plan.batch.at(done).first_sample, record.plan.batch.at(begun - 1).first_sample
    documents = documents_seen = both = only_backward = 0
    for found in data.documents():
        # Of a training that began with another one's state, the samples before are the other's.
        seen = [one for one in data.sightings(found, samples) if one.sample >= before]
        confirmed = sum(_is_in_its_row(data, found.document, one) for one in seen)
        documents, documents_seen = documents + 1, documents_seen + (confirmed > 0)
        both, only_backward = both + confirmed, only_backward + len(seen) - confirmed
    return {
        "steps": done - begun + 1,
        "wrong_hashes": wrong_hashes,
        "documents": documents,
        "documents_seen": documents_seen,
        "sightings": forward,
        "only_forward": forward - both,
        "only_backward": only_backward,
        "agrees": not wrong_hashes and forward == both and only_backward == 0,
    }


def _is_in_its_row(data: TokenDataset, document: str, seen: Sighting) -> bool:
    span = Span(document, seen.offset, seen.length, seen.begin)
    return span in data.documents_of(seen.sample) and data.where(seen.sample).epoch == seen.epoch


def _every_step(record: Record) -> Iterator[dict[str, Any]]:
    """Yield what was logged of every step that was done. Raises DataError where one is missing, as what is not there
    would agree, or is there twice."""
    path, expected = record.folder / METRICS, 1
    for number, logged in enumerate(record.logged()):
        step = logged["step"]
        if number == 0 and record.training.start_with == "state":  # those before: another run's
            expected = step
        if step != expected:
            what = f"does not have step {expected}" if step > expected else f"has step {step} twice"
            raise DataError(f"{path} {what}, so it cannot be checked; restore the file")
        yield logged
        expected = step + 1
    ended = (record.folder / STAMP).is_file()
    if expected == 1 or (ended and expected <= record.training.steps):
        what = "has no step" if expected == 1 else f"does not have step {expected}"
        raise DataError(f"{path} {what}, so it cannot be checked; restore the file")


def counts(record: Record, step: int) -> dict[str, int]:
    """Samples of each source that training had taken after a step; exact, and without looking at one of them."""
    samples = record.plan.batch.at(_known(record, step, least=0)).first_sample
    return record.data.counts_after(samples)


def agrees(record: Record, logged: Mapping[str, Any]) -> bool | None:
    """Whether the hash in what was logged of a step is that of its batch; None: none was logged."""
    found = logged.get("batch_hash")
    return None if found is None else found == str(record.data.digest(*record.plan.batch.at(logged["step"] - 1)))


def _who_knows(record: Record, document: str) -> str:
    """What tells what became of a document."""
    if record.curated is None:
        return (
            "no curation lies beside these tokens or the training; documents of pairs that were made elsewhere are "
            "called by their number there, as PAIR/17"
        )
    home = shlex.quote(str(record.curated.parent))
    return f"`trivium corpus inspect {shlex.quote(document)} --out {home}` tells what became of it"


def _row(record: Record, step: int, row: int) -> dict[str, Any]:
    data, sample = record.data, record.plan.batch.at(step - 1).first_sample + row
    where = data.where(sample)
    return {
        "row": row,
        "sample": sample,
        "place": int(data.left_out.places(np.asarray([sample]))[0]),
        **where._asdict(),
        "documents": [span._asdict() for span in data.documents_of(sample)],
        "tokens": data.sample(sample).tolist(),
    }


def _saw(record: Record, seen: Sighting) -> Saw:
    batches = record.plan.batch
    step = batches.steps_for(seen.sample + 1)
    row = seen.sample - batches.at(step - 1).first_sample
    return Saw(step, row, seen.offset, seen.length, seen.begin, seen.epoch)


def _known(record: Record, step: int, least: int = 1) -> int:
    if not least <= step <= record.training.steps:
        raise DataError(f"--step {step}: {record.folder} has steps {least} to {record.training.steps} (training.steps)")
    return step


def _within(option: str, value: int, limit: int) -> None:
    if not 0 <= value < limit:
        raise DataError(f"{option} {value} must be 0 to {limit - 1}")
