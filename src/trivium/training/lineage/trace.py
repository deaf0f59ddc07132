"""Finds the document of each token of each step, and the steps that saw a document. No torch.

Steps are numbered from 1, as in metrics.jsonl; rows of a batch and positions of a row from 0.
"""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from trivium.errors import DataError
from trivium.provenance import STAMP
from trivium.tokens.lineage import Span
from trivium.tokens.samples import Sighting, TokenDataset
from trivium.training.metrics import METRICS
from trivium.training.record import Record


def batch(record: Record, step: int, row: int | None = None) -> dict[str, Any]:
    """Return what a step consumed: each row with its ids and documents, its hash, and the hash that was logged.

    row: only this one. counts: samples of each source up to and with this step. Raises DataError if the training has
    no such step or row.
    """
    (first, count), data = record.plan.batch.at(_known(record, step) - 1), record.data
    if row is not None:
        _within("--row", row, count)
    logged = record.logged_of(step)
    return {
        "step": step,
        "first_sample": first,
        "sequences": count,
        "hash": str(data.digest(first, count)),
        "logged_hash": logged.get("batch_hash"),
        "agrees": agrees(record, logged),
        "counts": data.counts_after(first + count),
        "rows": [_row(data, first, number) for number in (range(count) if row is None else [row])],
    }


def _row(data: TokenDataset, first: int, row: int) -> dict[str, Any]:
    sample = first + row
    return {
        "row": row,
        "sample": sample,
        "place": int(data.left_out.places(np.asarray([sample]))[0]),
        **data.where(sample)._asdict(),
        "documents": [span._asdict() for span in data.documents_of(sample)],
        "tokens": data.sample(sample).tolist(),
    }


def trace(record: Record, step: int, row: int, position: int) -> dict[str, Any]:
    """Return the document of one token of one step: its id, the token's number in it, source and epoch.

    agrees: whether the step's hash is the logged one, so that these are the tokens that it consumed; None if none was
    logged.
    """
    (first, count), data = record.plan.batch.at(_known(record, step) - 1), record.data
    _within("--row", row, count)
    sample = first + row
    where, tokens, spans = data.where(sample), data.sample(sample), data.documents_of(sample)
    _within("--position", position, sum(span.length for span in spans))
    span = next(s for s in spans if s.offset <= position < s.offset + s.length)
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
    """Return every row of every step that saw a document, or the pieces into which it was split.

    agrees: whether the last step's hash is the logged one; None if none was logged. Raises DataError if no training
    token is from the document.
    """
    data, done, batches = record.data, record.steps_done, record.plan.batch
    pieces = data.find(document)
    if not pieces:
        raise DataError(
            f"no training token of {record.tokens} comes from a document '{document}': it was cut into pieces "
            f"with ids of their own, dropped by curation, validates, is of a source of weight 0, or is none; "
            f"{_who_knows(record, document)}"
        )

    def saw(seen: Sighting) -> dict[str, int]:
        step = batches.steps_for(seen.sample + 1)
        row = seen.sample - batches.at(step - 1).first_sample
        about = {name: getattr(seen, name) for name in ("offset", "length", "begin", "epoch")}
        return {"step": step, "row": row, **about}

    samples = batches.at(done).first_sample
    return {
        "document": document,
        "steps_done": done,
        "agrees": agrees(record, record.last_logged),
        "pieces": [
            {
                "document": piece.document,
                "source": piece.source,
                "tokens": piece.stop - piece.start,
                "seen": [saw(seen) for seen in data.sightings(piece, samples)],
            }
            for piece in pieces
        ],
    }


def _who_knows(record: Record, document: str) -> str:
    if record.curated is None:
        return (
            "no curation lies beside these tokens or the training; documents of pairs that were made elsewhere are "
            "called by their number there, as PAIR/17"
        )
    out = shlex.quote(str(record.curated.parent))
    return f"`trivium corpus show {shlex.quote(document)} --out {out}` tells what became of it"


def round_trip(record: Record) -> dict[str, Any]:
    """Check each step's hash, and find each document's rows in both directions.

    forward: from every row its documents. backward: from every document its rows. The two sets must be equal. Neither
    is stored, as a long training has more rows than fit in memory: every backward sighting is looked up in its row, and
    the numbers of both must be equal.
    """
    data, batches, wrong_hashes = record.data, record.plan.batch, list[int]()
    begun, done, forward = 0, 0, 0
    for logged in _every_step(record):
        done = logged["step"]
        begun = begun or done
        if agrees(record, logged) is False:
            wrong_hashes.append(done)
        first, count = batches.at(done - 1)
        forward += sum(len(data.documents_of(sample)) for sample in range(first, first + count))
    samples, before = batches.at(done).first_sample, batches.at(begun - 1).first_sample
    documents = documents_seen = both = only_backward = 0
    for found in data.documents():
        # If a training began with the state of another one, the samples before are the other's.
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
    """Yield the metrics of each step. Raises DataError if a step is missing, which would pass unchecked, or is there
    twice."""
    path, expected = record.folder / METRICS, 1
    for number, logged in enumerate(record.logged()):
        step = logged["step"]
        if number == 0 and record.training.start_with == "state":  # earlier steps are another run's
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
    """Return the number of samples of each source after a step, without reading any."""
    samples = record.plan.batch.at(_known(record, step, least=0)).first_sample
    return record.data.counts_after(samples)


def agrees(record: Record, logged: Mapping[str, Any]) -> bool | None:
    """Whether the hash in the metrics of a step is that of its batch; None if none was logged."""
    found = logged.get("batch_hash")
    return None if found is None else found == str(record.data.digest(*record.plan.batch.at(logged["step"] - 1)))


def _known(record: Record, step: int, least: int = 1) -> int:
    if not least <= step <= record.training.steps:
        raise DataError(f"--step {step}: {record.folder} has steps {least} to {record.training.steps} (training.steps)")
    return step


def _within(option: str, value: int, limit: int) -> None:
    if not 0 <= value < limit:
        raise DataError(f"{option} {value} must be 0 to {limit - 1}")
