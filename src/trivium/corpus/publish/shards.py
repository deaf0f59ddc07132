"""The second pass of a curation: parts become shards without duplicates and evaluation text.

A shard consists of consecutive parts, whose sizes alone decide where it ends.
"""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from trivium.corpus.config import CurateConfig
from trivium.corpus.dedup.comparison import (
    PART_LIST,
    REASONS,
    CurationJob,
    Decisions,
    Fate,
    Part,
    all_parts,
    decisions_of,
    survivor_ids,
)
from trivium.corpus.document import Document
from trivium.corpus.engine import Result
from trivium.corpus.kernels.texts import texts_of
from trivium.corpus.publish.output import write_piece
from trivium.corpus.publish.store import SCHEMA, documents_in, documents_table
from trivium.corpus.read.ids import keys_of
from trivium.corpus.select.decontaminate import Counters, Keys, decontaminate
from trivium.corpus.select.evaluation_texts import evaluation_keys, evaluation_texts
from trivium.corpus.steps import Drop, Tally, packed_lines, reject_line
from trivium.corpus.work import COUNTS, lay_down, read_array, read_job, read_json, save_array, state_of
from trivium.provenance import write_json

SHARDS, COMMON, MARKED = "shards", "common.json", "marked.npy"
EXACT_STEP, NEAR_STEP, CUT_STEP = "exact duplicates", "near duplicates", "decontamination"
CUT_AWAY = "evaluation text in most of it"
_NEAR = (Fate.NEAR, Fate.NEAR_HELDOUT)
_REMEDIES = MappingProxyType(
    {
        REASONS[Fate.NEAR]: "dedup.threshold=1",
        REASONS[Fate.NEAR_HELDOUT]: "dedup.threshold=1",
        REASONS[Fate.SAME_ADDRESS]: "dedup.urls=false",
        CUT_AWAY: "decontamination.piece=0",
    }
)


def find_common(job: CurationJob, parts: Sequence[Part]) -> dict[str, int]:
    """Return how often each key occurs in the remaining documents, for keys so frequent that they are common
    phrases."""
    if not job.path(COMMON).is_file():
        counts: Counter[str] = Counter()
        for part in parts[1:]:
            kept = decisions_of(job, part).fates == Fate.KEPT
            for row, keys in part.counts()["hits"].items():
                if kept[int(row)]:
                    counts.update(keys)
        least = job.config.decontamination.common
        write_json(job.path(COMMON), {key: n for key, n in sorted(counts.items()) if n >= least})
    return read_json(job.path(COMMON))


def find_marked(job: CurationJob, parts: Sequence[Part]) -> None:
    """Write the hashes of ids that look like those of pieces, so that no piece gets one of these ids."""
    if not job.path(MARKED).is_file():
        ids = [identity for part in parts[1:] for identity in part.counts()["marked"]]
        save_array(job.path(MARKED), np.sort(keys_of(ids)))


def shard_groups(job: CurationJob, parts: Sequence[Part]) -> list[list[Part]]:
    """Group consecutive parts until they fill a shard. The groups depend on the sizes of the parts alone. The part of
    the held-out documents is in no group."""
    groups: list[list[Part]] = []
    size = job.config.shard_bytes
    for part in parts[1:]:
        if size >= job.config.shard_bytes:
            groups.append([])
            size = 0
        groups[-1].append(part)
        size += part.text_bytes
    return groups


def clean_shard(work: str, item: str) -> Result:
    """Write the documents, rejects and counts of one shard. A task; item: the number of the shard."""
    job = read_job(work, CurateConfig)
    folder = job.path(SHARDS, f"{int(item):05d}")
    if not folder.is_dir():
        cleaner = _Cleaner(job)
        tables = [cleaner.clean(part) for part in _groups(job, state_of(job.path(PART_LIST)))[int(item)]]

        def write(into: Path) -> None:
            entry = write_piece(into, pa.concat_tables(tables), packed_lines(cleaner.lines))
            write_json(into / COUNTS, {"entry": entry, **cleaner.counts()})

        lay_down(folder, write)
    return {}


@lru_cache(maxsize=2)  # once in each process, not for each shard
def _groups(job: CurationJob, _: tuple[str, int, int]) -> list[list[Part]]:
    return shard_groups(job, all_parts(job))


@lru_cache(maxsize=2)  # made once in a process
def _spared_keys(job: CurationJob) -> Keys:
    """Return the n-grams of the evaluation texts without common phrases."""
    common = read_json(job.path(COMMON))
    if not common:
        return evaluation_keys(job)
    keys = Keys(evaluation_texts(Path(job.source), job.config), job.config.decontamination)
    keys.spare(common)
    return keys


class _Cleaner:
    """Removes duplicates and evaluation text from the parts of one shard, and counts."""

    def __init__(self, job: CurationJob) -> None:
        self._job = job
        self._keys = _spared_keys(job)
        self._marked = read_array(job.path(MARKED))
        self.lines: list[bytes] = []
        self.counters = Counters()
        self.tallies = {name: Tally(name) for name in (EXACT_STEP, NEAR_STEP, CUT_STEP)}

    def clean(self, part: Part) -> pa.Table:
        """Return the remaining documents of a part, some of them cut into pieces."""
        table, decisions = part.table(SCHEMA.names), decisions_of(self._job, part)
        self._drop(table, decisions)
        kept = table.filter(pa.array(decisions.fates == Fate.KEPT))
        self._count(NEAR_STEP, kept)
        rows = sorted(int(row) for row in part.counts()["hits"])
        touched = np.flatnonzero(np.isin(np.flatnonzero(decisions.fates == Fate.KEPT), rows))
        self.counters.documents += kept.num_rows - len(touched)
        pieces, origins = self._cut(kept.take(touched), touched.tolist())
        untouched = np.setdiff1d(np.arange(kept.num_rows), touched)
        left = pa.concat_tables([kept.take(untouched), documents_table(pieces)])
        left = left.take(np.argsort(np.concatenate([untouched, np.array(origins, np.int64)]), kind="stable"))
        self._count(CUT_STEP, left)
        return left

    def counts(self) -> dict[str, Any]:
        """Return the counts of this pass's steps."""
        return {
            "tallies": [tally.as_json() for tally in self.tallies.values()],
            "decontamination": self.counters.as_json(),
            "keys": sorted(map(self._keys.text_of, self.counters.keys)),
        }

    def _drop(self, table: pa.Table, decisions: Decisions) -> None:
        """Count the exact duplicates, and reject all documents that did not survive."""
        self._count(EXACT_STEP, table.filter(pa.array(np.isin(decisions.fates, [Fate.KEPT, *_NEAR]))))
        rows = np.flatnonzero(decisions.fates != Fate.KEPT)
        survivors = survivor_ids(self._job, decisions.survivors[rows])
        documents = documents_in(table.take(rows))
        for row, document, survivor in zip(rows.tolist(), documents, survivors, strict=True):
            fate = Fate(decisions.fates[row])
            detail: dict[str, Any] = {"survivor": survivor}
            if fate in _NEAR:
                detail["jaccard"] = round(float(decisions.similarities[row]), 4)
            self._reject(document, NEAR_STEP if fate in _NEAR else EXACT_STEP, REASONS[fate], **detail)

    def _cut(self, table: pa.Table, rows: list[int]) -> tuple[list[Document], list[int]]:
        """Return the pieces of documents with evaluation text, and the row that each piece comes from."""
        pieces: list[Document] = []
        origins: list[int] = []
        hits = self._keys.hits(texts_of(table["text"]))
        for number, (row, document) in enumerate(zip(rows, documents_in(table), strict=True)):
            config = self._job.config.decontamination
            left = decontaminate(document, hits.get(number, []), config, self.counters, self._is_marked)
            self.tallies[CUT_STEP].added += max(len(left) - 1, 0)
            if not left:
                self._reject(document, CUT_STEP, CUT_AWAY)
            pieces += left
            origins += [row] * len(left)
        return pieces, origins

    def _is_marked(self, identity: str) -> bool:
        return bool(np.isin(keys_of([identity]), self._marked)[0])

    def _count(self, step: str, table: pa.Table) -> None:
        texts = texts_of(table["text"])
        self.tallies[step].documents += texts.num_texts
        self.tallies[step].bytes += int(texts.offsets[-1] - texts.offsets[0])

    def _reject(self, document: Document, step: str, reason: str, **detail: Any) -> None:
        self.tallies[step].drop(document, Drop(reason, _REMEDIES.get(reason, "")))
        self.lines.append(reject_line(document, step, reason, **detail))
