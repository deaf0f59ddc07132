"""Finished pieces → the output of a station: their shards under one manifest, their rejects in one file, one funnel."""

import gzip
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from trivium.corpus.store import shard_name, write_manifest

_COUNTED = ("documents", "bytes", "added", "quarantined")
_COUNTED_BY_REASON = ("dropped", "dropped_bytes", "passed_over")


def publish_shards(pieces: Iterable[tuple[Path, dict[str, Any]]], store: Path) -> dict[str, Any]:
    """A store of the shards in these folders, each with its entry; those without a document are left out."""
    store.mkdir(exist_ok=True)
    entries: list[dict[str, Any]] = []
    for folder, entry in pieces:
        if entry["documents"]:
            entries.append({**entry, "file": shard_name(len(entries))})
            put(folder / entry["file"], store / entries[-1]["file"])
    return write_manifest(store, entries)


def join_packed(pieces: Sequence[Path], place: Path) -> None:
    """Gzip files end to end; where all are empty an empty member, as a file of 0 bytes is none that gzip reads."""
    with open(place, "wb") as whole:
        for piece in pieces:
            with open(piece, "rb") as file:
                shutil.copyfileobj(file, whole)
        if whole.tell() == 0:
            whole.write(gzip.compress(b"", mtime=0))


def summed(lists: Iterable[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Tallies of the same steps as one tally a step."""
    totals: dict[str, dict[str, Any]] = {}
    for tallies in lists:
        for tally in tallies:
            empty: dict[str, Any] = {name: Counter() for name in _COUNTED_BY_REASON}
            total = totals.setdefault(
                tally["step"], {**tally, "remedies": {}, **dict.fromkeys(_COUNTED, 0), **empty}
            )
            for name in _COUNTED_BY_REASON:
                total[name].update(tally[name])
            for name in _COUNTED:
                total[name] += tally[name]
            total["remedies"] |= tally["remedies"]
    for total in totals.values():
        for name in (*_COUNTED_BY_REASON, "remedies"):
            total[name] = dict(sorted(total[name].items()))
    return list(totals.values())


def put(piece: Path, place: Path) -> None:
    """A finished piece under its last name, without copying where the disk allows it."""
    try:
        os.link(piece, place)
    except OSError:
        shutil.copyfile(piece, place)
