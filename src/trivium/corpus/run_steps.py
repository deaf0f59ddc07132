"""Single steps as a verb: documents in, documents out, with funnel and rejects.

The work is cut into parts as in the first pass of a curation. So it continues after a kill, and gives the same bytes in
any number of processes.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from trivium.corpus.config import CurateConfig
from trivium.corpus.document import Damage, Document, PassedOver
from trivium.corpus.engine import Engine, Here, Result
from trivium.corpus.files import Input
from trivium.corpus.filters import named_steps
from trivium.corpus.publish.output import publish, write_piece
from trivium.corpus.read.ids import names_in, write_ids
from trivium.corpus.read.inputs import documents_of, files_at, store_at
from trivium.corpus.steps import Steps, as_read
from trivium.corpus.work import (
    Job,
    NewPart,
    all_parts_in,
    begin_job,
    lay_down,
    read_job,
    read_json,
    run_streams,
    stream_folder,
    write_parts,
)
from trivium.progress import Progress, silent
from trivium.provenance import write_json

PARTS, IDS, NAMES = "parts", "ids", "names"  # documents; their ids as read; the ids that replace some
StepJob = Job[CurateConfig]
Records = list[Document | Damage | PassedOver]


def run_steps(
    config: CurateConfig,
    source: Input,
    out: Path,
    *,
    seed: int,
    work: Path,
    progress: Progress = silent,
    engine: Engine | None = None,
) -> dict[str, Any]:
    """Judge every document at `source` by the steps of `config.filters`; none only reads. Returns {"funnel": …}.

    out: an existing folder for documents/, rejects.jsonl.gz and funnel.json. work: the folder of finished parts.
    """
    named_steps(config, seed=seed)  # an error in their names comes before anything is written
    path = Path(source.path)
    job = begin_job(work, config, source, files_at(path), seed=seed)
    runner = engine or Here()
    if store_at(path) is None:  # a store's documents have unique ids
        run_streams(runner, survey_file, job, progress, "ids")
        _settle_ids(job)
    run_streams(runner, judge_file, job, progress, ", ".join(config.filters) or "reading")
    return {"funnel": publish(all_parts_in(job.path(PARTS), len(job.streams)), out).funnel}


def survey_file(work: str, item: str) -> Result:
    """Write the ids of the documents of one file, by its number."""

    def write(part: NewPart, records: Records) -> Mapping[str, Any]:
        write_ids(part.into, [record.id for record in records if isinstance(record, Document)])
        return {}

    job = read_job(work, CurateConfig)
    write_parts(stream_folder(job.path(IDS), int(item)), _reader(job, item), write)
    return {}


def judge_file(work: str, item: str) -> Result:
    """Judge the documents of one file, by its number."""
    job = read_job(work, CurateConfig)
    write_parts(stream_folder(job.path(PARTS), int(item)), _reader(job, item), partial(_judge, job, item))
    return {}


def _reader(job: StepJob, item: str) -> Callable[[], Iterator[Document | Damage | PassedOver]]:
    return lambda: documents_of(job.files[int(item)], Input(job.source, job.limits))


def _settle_ids(job: StepJob) -> None:
    """Write, for each part in which ids repeat, the rows that need another id, and that id."""
    if job.path(NAMES).is_dir():
        return
    parts = all_parts_in(job.path(IDS), len(job.streams))
    named = zip(parts, names_in(parts), strict=True)

    def fill(into: Path) -> None:
        for part, ids in named:
            if ids:
                write_json(into / f"{part.parent.name}-{part.name}.json", ids)

    lay_down(job.path(NAMES), fill)


def _judge(job: StepJob, item: str, part: NewPart, records: Records) -> dict[str, Any]:
    """Write what the steps leave of the records of a part, and their rejects. Return the counts."""
    names = job.path(NAMES, f"{int(item):05d}-{part.name}.json")
    if names.is_file():
        named, rows = read_json(names), count()
        records = [
            replace(one, id=named.get(str(next(rows)), one.id)) if isinstance(one, Document) else one for one in records
        ]
    steps = Steps(named_steps(job.config, seed=job.seed), document_seconds=job.config.document_seconds)
    found = as_read(records, job.source).by(steps)
    return {"entry": write_piece(part.into, found.kept, found.rejects), "tallies": found.tallies}
