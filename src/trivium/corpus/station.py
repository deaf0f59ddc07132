"""One step alone as a station: documents in, documents out, with its funnel and its rejects.

The work is cut into parts as in the first pass of curation, so it may be killed at any moment, goes on from the last
part, and gives the same bytes in any number of processes.
"""

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from trivium.corpus.config import CurateConfig
from trivium.corpus.curate import FUNNEL, REJECTS
from trivium.corpus.document import Document
from trivium.corpus.engine import Engine, Here, Result
from trivium.corpus.filters import named_steps
from trivium.corpus.first_pass import PARTS
from trivium.corpus.ids_of_parts import names_in, write_ids
from trivium.corpus.job import Job, begin_job, lay_down, read_job, read_json
from trivium.corpus.judged import REJECTS as PACKED
from trivium.corpus.judged import as_read, packed_lines, reject_line
from trivium.corpus.parts import COUNTS, PART_BYTES, Piece, counts_of, do_parts, part_names, stretches
from trivium.corpus.publish.shards import join_packed, publish_shards, summed
from trivium.corpus.read.inputs import DOCUMENTS, Input, documents_of, files_at, store_at
from trivium.corpus.read.quarantine import Damage, PassedOver
from trivium.corpus.steps import Reject, Steps, Tally
from trivium.corpus.store import documents_table, shard_name, write_shard
from trivium.progress import Progress, silent
from trivium.provenance import write_json

SURVEYED, NAMED = "surveyed", "named"  # ids as they are read; those that were settled
Part = Piece[list[Document | Damage | PassedOver]]


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
    named_steps(config, seed=seed)  # what is wrong with them is an error before anything is written
    files = files_at(source.path)
    job = begin_job(work, source.path, config, seed=seed, files=files, limits=source.limits)
    runner, numbers = engine or Here(), [str(number) for number in range(len(files))]

    def told(what: str) -> Callable[[int], None]:
        return lambda done: progress(done, len(files), what)

    if store_at(source.path) is None:  # whose documents have ids of their own
        runner.map(partial(survey_file, str(job.work)), numbers, told("ids"))
        _settle_ids(job)
    runner.map(partial(judge_file, str(job.work)), numbers, told(", ".join(config.filters) or "reading"))
    folders = [job.path(PARTS, name) for name in part_names(job.path(PARTS), len(files))]
    return publish_parts(folders, out)


def survey_file(work: str, item: str) -> Result:
    """The task of one file, by its number: what its documents are called in it."""
    return _each_part(work, item, SURVEYED, _survey_part)


def judge_file(work: str, item: str) -> Result:
    """The task of one file, by its number: write the parts of it that are not there yet."""
    return _each_part(work, item, PARTS, _write_part)


def _each_part(work: str, item: str, folder: str, do: Callable[[Job, Part], dict[str, Any]]) -> Result:
    job = read_job(work)
    path = job.files[int(item)]
    return do_parts(
        job.path(folder),
        int(item),
        stretches(lambda: documents_of(path, Input(job.source, job.limits))),
        partial(do, job),
    )


def _survey_part(job: Job, piece: Part) -> dict[str, Any]:
    write_ids(piece.into, [record.id for record in piece.records if isinstance(record, Document)])
    return {}


def _settle_ids(job: Job) -> None:
    """Lay down, for each part that has some, the rows that need another id than their own, and that id."""
    if job.path(NAMED).is_dir():
        return
    parts = part_names(job.path(SURVEYED), len(job.files))
    named = zip(parts, names_in([job.path(SURVEYED, name) for name in parts]), strict=True)

    def fill(into: Path) -> None:
        for name, ids in named:
            if ids:
                write_json(into / f"{name}.json", ids)

    lay_down(job.path(NAMED), fill)


def _under_own_ids(job: Job, piece: Part) -> list[Document | Damage | PassedOver]:
    """The records of a part, its documents under the ids that were settled."""
    path = job.path(NAMED, f"{piece.name}.json")
    if not path.is_file():
        return piece.records
    named, rows = read_json(path), count()
    return [
        replace(record, id=named.get(str(next(rows)), record.id)) if isinstance(record, Document) else record
        for record in piece.records
    ]


def _write_part(job: Job, piece: Part) -> dict[str, Any]:
    """What the steps leave of some records, and their rejects."""
    steps = Steps(named_steps(job.config, seed=job.seed), document_seconds=job.config.document_seconds)
    found = as_read(_under_own_ids(job, piece), job.source).by(steps)
    (piece.into / PACKED).write_bytes(found.rejects)
    return {
        "entry": write_shard(piece.into / shard_name(0), documents_table(found.kept)),
        "tallies": found.tallies,
    }


def publish_parts(folders: Sequence[Path], out: Path) -> dict[str, Any]:
    """Finished parts as the output of a station; returns {"funnel": …}."""
    counts = list(map(counts_of, folders))
    entries = [one["entry"] for one in counts]
    publish_shards(zip(folders, entries, strict=True), out / DOCUMENTS)
    join_packed([folder / PACKED for folder in folders], out / REJECTS)
    funnel = summed(one["tallies"] for one in counts)
    write_json(out / FUNNEL, funnel)
    return {"funnel": funnel}


def write_results(
    results: Iterable[Document | Reject], out: Path, tallies: Sequence[Tally]
) -> dict[str, Any]:
    """Documents and rejects, as they come, as the output of a station; the tallies are read at the end."""
    lines: list[bytes] = []
    folder = out / ".parts"

    def write(number: int, kept: list[Document]) -> None:
        into = folder / f"{number:05d}"
        into.mkdir(parents=True)
        entry = write_shard(into / shard_name(0), documents_table(kept))
        (into / PACKED).write_bytes(packed_lines(lines))
        write_json(into / COUNTS, {"entry": entry, "tallies": []})
        lines.clear()

    kept: list[Document] = []
    held = number = 0
    for result in results:
        if isinstance(result, Reject):
            lines.append(reject_line(result.document, result.step, result.reason))
            held += result.document.text_bytes
        else:
            kept.append(result)
            held += result.text_bytes
        if held >= PART_BYTES:
            write(number, kept)
            kept, held, number = [], 0, number + 1
    write(number, kept)
    found = publish_parts(sorted(folder.iterdir()), out)
    shutil.rmtree(folder)
    found["funnel"] = [tally.as_json() for tally in tallies]
    write_json(out / FUNNEL, found["funnel"])
    return found
