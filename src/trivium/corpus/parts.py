"""The parts that the first pass of a curation writes, numbered for the passes that follow."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from trivium.corpus.config import CurateConfig
from trivium.corpus.work import Job, all_parts_in, counts_of, state_of
from trivium.provenance import write_json

PARTS, PART_LIST, HELDOUT = "parts", "parts.json", "heldout"
TABLE, BANDS = "documents.parquet", "bands.npy"  # files of a part
# Columns of 16 bytes that are equal for texts with the same words, and for documents of the same address.
KEY, ADDRESS = "key", "address"

CurationJob = Job[CurateConfig]


class Part(NamedTuple):
    """A finished part: its folder, the number of its first document among all, and how many it has."""

    folder: Path
    first: int
    documents: int
    text_bytes: int

    @property
    def end(self) -> int:
        """The number after its last document's."""
        return self.first + self.documents

    def table(self, columns: list[str] | None = None) -> pa.Table:
        """Return its documents."""
        return pq.read_table(self.folder / TABLE, columns=columns)

    def counts(self) -> dict[str, Any]:
        """Return what happened to its records, and which evaluation text its documents hold."""
        return counts_of(self.folder)


def list_parts(job: CurationJob) -> list[Part]:
    """List every part in order, the held-out documents first, also for the tasks that follow."""
    if not job.path(PART_LIST).is_file():
        rows, first = [], 0
        for folder in (job.path(HELDOUT), *all_parts_in(job.path(PARTS), len(job.files))):
            counts = counts_of(folder)
            rows.append([str(folder), first, counts["documents"], counts["text_bytes"]])
            first += counts["documents"]
        write_json(job.path(PART_LIST), rows)
    return all_parts(job)


def all_parts(job: CurationJob) -> list[Part]:
    """Return the parts that `list_parts` found."""
    return list(_listed_parts(job, state_of(job.path(PART_LIST))))


@lru_cache(maxsize=2)  # read once in each process, not for each task
def _listed_parts(job: CurationJob, _: tuple[str, int, int]) -> tuple[Part, ...]:
    rows = json.loads(job.path(PART_LIST).read_text(encoding="utf-8"))
    return tuple(Part(Path(folder), *numbers) for folder, *numbers in rows)
