"""One step alone as a station: documents in, documents out, with its funnel and its rejects.

The work is cut into parts as in the first pass of curation, so it may be killed at any moment, goes on from the last
part, and gives the same bytes in any number of processes.
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trivium.corpus.config import CurateConfig
from trivium.corpus.curate import FUNNEL, REJECTS
from trivium.corpus.document import Document
from trivium.corpus.engine.engine import Engine, Here, Result
from trivium.corpus.filters.named import named_steps
from trivium.corpus.first_pass import (
    COUNTS,
    PART_BYTES,
    PARTS,
    finished_parts,
    packed_lines,
    part_name,
    reject_line,
    take,
)
from trivium.corpus.inputs import DOCUMENTS, documents_of, files_at
from trivium.corpus.job import Job, begin_job, lay_down, read_job
from trivium.corpus.publish import join_files, publish_shards, summed
from trivium.corpus.quarantine import Damage
from trivium.corpus.read import source_of
from trivium.corpus.steps import Reject, Steps, Tally
from trivium.corpus.store import documents_table, shard_name, write_shard
from trivium.progress import Progress, silent
from trivium.provenance import write_json

PART_REJECTS = "rejects.gz"


def run_steps(
    config: CurateConfig,
    source: Path,
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
    files = files_at(source)
    root = source if source.is_dir() else source.parent
    job = begin_job(work, root, config, seed=seed, files=files)
    named_steps(config, seed=seed)  # a name that is none is an error before anything starts
    numbers = [str(number) for number in range(len(files))]
    what = ", ".join(config.filters) or "reading"
    (engine or Here()).map(
        partial(judge_file, str(work)), numbers, lambda done: progress(done, len(files), what)
    )
    folders = [
        job.path(PARTS, part_name(number, place))
        for number in range(len(files))
        for place in range(len(finished_parts(job, number)))
    ]
    found = publish_parts(folders, out)
    shutil.rmtree(work)
    return found


def judge_file(work: str, item: str) -> Result:
    """The task of one file, by its number: write the parts of it that are not there yet."""
    job = read_job(work)
    number = int(item)
    done = finished_parts(job, number)
    if done and done[-1]["last"]:
        return {}
    path = job.files[number]
    raw = documents_of(path, source=source_of(path, job.source))
    for _ in range(sum(part["raw"] for part in done)):
        next(raw)
    last, count = False, len(done)
    while not last:
        taken, last = take(raw, PART_BYTES)
        steps = Steps(named_steps(job.config, seed=job.seed))
        write_part(job, part_name(number, count), taken, steps, last=last)
        count += 1
    return {}


def write_part(job: Job, name: str, raw: Sequence[Document | Damage], steps: Steps, *, last: bool) -> None:
    """Lay down what the steps leave of some records, with their rejects and counts."""
    read = Tally("read")
    lines: list[bytes] = []
    kept: list[Document] = []
    for result in steps.run(sound(raw, read, lines, job.source)):
        if isinstance(result, Reject):
            lines.append(reject_line(result.document, result.step, result.reason))
        else:
            kept.append(result)
    tallies = [tally.as_json() for tally in (read, *steps.tallies)]

    def write(into: Path) -> None:
        entry = write_shard(into / shard_name(0), documents_table(kept))
        (into / PART_REJECTS).write_bytes(packed_lines(lines))
        write_json(into / COUNTS, {"raw": len(raw), "last": int(last), "entry": entry, "tallies": tallies})

    lay_down(job.path(PARTS, name), write)


def sound(
    raw: Iterable[Document | Damage], read: Tally, lines: list[bytes], root: Path
) -> Iterator[Document]:
    """The documents among what was read; what could not be is counted and becomes a reject."""
    for item in raw:
        if isinstance(item, Damage):
            where = Path(item.path).relative_to(root).as_posix()
            read.quarantined += item.records
            lines.append(reject_line(Document(where, "", ""), read.step, item.reason))
        else:
            read.keep(item)
            yield item


def publish_parts(folders: Sequence[Path], out: Path) -> dict[str, Any]:
    """Finished parts as the output of a station; returns {"funnel": …}."""
    counts = [json.loads((folder / COUNTS).read_text(encoding="utf-8")) for folder in folders]
    entries = [one["entry"] for one in counts]
    publish_shards(zip(folders, entries, strict=True), out / DOCUMENTS)
    join_files([folder / PART_REJECTS for folder in folders], out / REJECTS)
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
        (into / PART_REJECTS).write_bytes(packed_lines(lines))
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
