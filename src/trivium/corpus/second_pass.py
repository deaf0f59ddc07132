"""The second pass: parts → shards, without duplicates and without evaluation text, each loss with its reason.

A shard is made of the documents of consecutive parts; which parts make which shard depends on their sizes only.
"""

import json
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from trivium.corpus.dedup.comparison import REASONS, Decisions, Fate, decisions_of, survivor_ids
from trivium.corpus.document import Document
from trivium.corpus.engine import Result
from trivium.corpus.first_pass import PART_LIST, Part, all_parts, evaluation_keys
from trivium.corpus.job import Job, evaluation_texts, lay_down, read_array, read_job, save_array, state_of
from trivium.corpus.judged import REJECTS, packed_lines, reject_line
from trivium.corpus.kernels.texts import texts_of
from trivium.corpus.parts import COUNTS
from trivium.corpus.read.own_ids import keys_of
from trivium.corpus.select.decontaminate import Counters, Hit, Keys, at_least, decontaminate
from trivium.corpus.steps import Drop, Tally
from trivium.corpus.store import SCHEMA, documents_in, documents_table, shard_name, write_shard
from trivium.provenance import write_json

SHARDS, COMMON, MARKED = "shards", "common.json", "marked.npy"
EXACT_STEP, NEAR_STEP, CUT_STEP = "exact duplicates", "near duplicates", "decontamination"
CUT_AWAY = "evaluation text in most of it"
_REMEDIES = MappingProxyType(
    {
        REASONS[Fate.NEAR]: "dedup.threshold=1",
        REASONS[Fate.NEAR_HELDOUT]: "dedup.threshold=1",
        REASONS[Fate.SAME_ADDRESS]: "dedup.urls=false",
        CUT_AWAY: "decontamination.piece=0",
    }
)
_STEP = {
    Fate.SAME_TEXT: EXACT_STEP,
    Fate.SAME_ID: EXACT_STEP,
    Fate.SAME_ADDRESS: EXACT_STEP,
    Fate.NEAR: NEAR_STEP,
    Fate.NEAR_HELDOUT: NEAR_STEP,
}


def find_common(job: Job, parts: list[Part]) -> Counter[str]:
    """The keys found so often in the documents that are left that they are common phrases, with their counts."""
    if job.path(COMMON).is_file():
        return Counter(json.loads(job.path(COMMON).read_text(encoding="utf-8")))
    counts: Counter[str] = Counter()
    for part in parts[1:]:
        kept = decisions_of(job, part).fates == Fate.KEPT
        for row, keys in part.counts()["hits"].items():
            if kept[int(row)]:
                counts.update(keys)
    common = at_least(counts, job.config.decontamination.common)
    write_json(job.path(COMMON), dict(sorted(common.items())))
    return common


def find_marked(job: Job, parts: list[Part]) -> None:
    """Lay down the keys of the ids of documents that look like those of pieces, so that no piece is given one."""
    if not job.path(MARKED).is_file():
        ids = [identity for part in parts[1:] for identity in part.counts()["marked"]]
        save_array(job.path(MARKED), np.sort(keys_of(ids)))


def shard_groups(job: Job, parts: Sequence[Part]) -> list[list[Part]]:
    """Consecutive parts, as many as it takes to fill a shard; the held-out part is in none."""
    groups: list[list[Part]] = []
    size = job.config.shard_bytes
    for part in parts[1:]:
        if not groups or size >= job.config.shard_bytes:
            groups.append([])
            size = 0
        groups[-1].append(part)
        size += part.text_bytes
    return groups


def clean_shard(work: str, item: str) -> Result:
    """The task of one shard, by its number: its documents, its rejects and its counts."""
    job = read_job(work)
    folder = job.path(SHARDS, f"{int(item):05d}")
    if not folder.is_dir():
        cleaner = _Cleaner(job)
        pieces = [cleaner.clean(part) for part in _groups(job, state_of(job.path(PART_LIST)))[int(item)]]

        def write(into: Any) -> None:
            entry = write_shard(into / shard_name(int(item)), pa.concat_tables(pieces))
            (into / REJECTS).write_bytes(packed_lines(cleaner.lines))
            write_json(into / COUNTS, {"entry": entry, **cleaner.as_json()})

        lay_down(folder, write)
    return {}


class _Cleaner:
    """Makes the parts of one shard clean, and counts."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._keys = _spared_keys(job)
        self._marked = read_array(job.path(MARKED))
        self.lines: list[bytes] = []
        self.counters = Counters()
        self.tallies = {name: Tally(name) for name in (EXACT_STEP, NEAR_STEP, CUT_STEP)}

    def clean(self, part: Part) -> pa.Table:
        """The documents of a part that are left, some of them in pieces."""
        table, decisions = part.table(SCHEMA.names), decisions_of(self._job, part)
        self._drop(table, decisions)
        kept = table.filter(pa.array(decisions.fates == Fate.KEPT))
        self._count(NEAR_STEP, kept)
        numbers = {int(row) for row in part.counts()["hits"]}
        places = np.flatnonzero(decisions.fates == Fate.KEPT)
        touched = np.flatnonzero(np.isin(places, sorted(numbers)))
        self.counters.documents += kept.num_rows - len(touched)
        pieces, origins = self._cut(kept.take(touched), touched)
        whole = np.setdiff1d(np.arange(kept.num_rows), touched)
        left = pa.concat_tables([kept.take(whole), documents_table(pieces)])
        order = np.argsort(np.concatenate([whole, origins]), kind="stable")
        left = left.take(order)
        self._count(CUT_STEP, left)
        return left

    def as_json(self) -> dict[str, Any]:
        """The counts of the steps of this pass."""
        return {
            "tallies": [tally.as_json() for tally in self.tallies.values()],
            "decontamination": self.counters.as_json(),
            "keys": sorted(map(self._keys.text_of, self.counters.keys)),
        }

    def _drop(self, table: pa.Table, decisions: Decisions) -> None:
        exact = np.isin(decisions.fates, [fate for fate, step in _STEP.items() if step == EXACT_STEP])
        self._count(EXACT_STEP, table.filter(pa.array(~exact)))
        rows = np.flatnonzero(decisions.fates != Fate.KEPT)
        survivors = survivor_ids(self._job, decisions.survivors[rows])
        documents = documents_in(table.take(rows))
        for row, document, survivor in zip(rows.tolist(), documents, survivors, strict=True):
            fate = Fate(decisions.fates[row])
            detail: dict[str, Any] = {"survivor": survivor}
            if _STEP[fate] == NEAR_STEP:
                detail["jaccard"] = round(float(decisions.similarities[row]), 4)
            self._reject(document, _STEP[fate], REASONS[fate], **detail)

    def _cut(self, table: pa.Table, rows: np.ndarray) -> tuple[list[Document], np.ndarray]:
        """What is left of documents with evaluation text, and the row that each piece comes from."""
        pieces: list[Document] = []
        origins: list[int] = []
        hits = self._keys.hits(texts_of(table["text"]))
        for number, document in enumerate(documents_in(table)):
            left = self._left_of(document, hits.get(number, []))
            pieces += left
            origins += [int(rows[number])] * len(left)
        return pieces, np.array(origins, np.int64)

    def _left_of(self, document: Document, hits: list[Hit]) -> list[Document]:
        left = decontaminate(document, hits, self._job.config.decontamination, self.counters, self._is_marked)
        self.tallies[CUT_STEP].added += max(len(left) - 1, 0)
        if not left:
            self._reject(document, CUT_STEP, CUT_AWAY)
        return left

    def _is_marked(self, identity: str) -> bool:
        return bool(np.isin(keys_of([identity]), self._marked)[0])

    def _count(self, step: str, table: pa.Table) -> None:
        texts = texts_of(table["text"])
        self.tallies[step].documents += texts.num_texts
        self.tallies[step].bytes += int(texts.offsets[-1] - texts.offsets[0])

    def _reject(self, document: Document, step: str, reason: str, **detail: Any) -> None:
        self.tallies[step].drop(document, Drop(reason, _REMEDIES.get(reason, "")))
        self.lines.append(reject_line(document, step, reason, **detail))


@lru_cache(maxsize=2)
def _groups(job: Job, _: tuple[str, int, int]) -> list[list[Part]]:
    # Once a process, not once a shard, as the job is: there are as many shards as parts, but for a factor.
    return shard_groups(job, all_parts(job))


@lru_cache(maxsize=2)
def _spared_keys(job: Job) -> Keys:
    """The n-grams of the evaluation texts but for the common ones; made once in a process."""
    common = json.loads(job.path(COMMON).read_text(encoding="utf-8"))
    if not common:
        return evaluation_keys(job)
    keys = Keys(evaluation_texts(job), job.config.decontamination)
    keys.spare(common)
    return keys
