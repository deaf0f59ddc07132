"""Curation: a harvest becomes documents fit to train on, with an account of every document that is dropped.

    filter_file    a raw file → parts             read, extract, filter: all that one document alone decides
    decide         all parts → decisions          exact and near duplicates (dedup/comparison.py)
    clean_shard    consecutive parts → a shard    duplicates dropped, evaluation text cut out

Each of the three is a list of tasks, which an engine runs in any processes, on any hosts. A finished part or shard is a
folder that appears complete; an interrupted curation makes only those that are missing. `run_steps` runs filters alone.
"""

import hashlib
import platform
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from importlib import metadata
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trivium import __version__
from trivium.config import to_tree
from trivium.corpus.clean.extract import extract_pages_step, extract_step
from trivium.corpus.clean.filters import named_steps
from trivium.corpus.config import CurateConfig
from trivium.corpus.dedup.comparison import ADDRESS, BANDS, KEY, TABLE, TEXT_ID, CurationJob, Part, decide, list_parts
from trivium.corpus.dedup.groups import url_key
from trivium.corpus.dedup.minhash import MinHash
from trivium.corpus.document import Damage, Document, PassedOver, whole_of
from trivium.corpus.engine import Engine, Here, Result
from trivium.corpus.harvest.raw_files import AS_WRITTEN, JSONL_FOLDER, WARC_FOLDER
from trivium.corpus.kernels.texts import texts_of
from trivium.corpus.kernels.warm_up import warm_up
from trivium.corpus.kernels.words import text_keys
from trivium.corpus.publish.output import PART_REJECTS, REJECTS, blend, publish, score, write_piece
from trivium.corpus.publish.shards import SHARDS, clean_shard, find_common, find_marked, shard_groups
from trivium.corpus.publish.store import DOCUMENTS, MANIFEST, PASSING_PACKING, documents_table, read_documents
from trivium.corpus.read.cutting import id_of_text
from trivium.corpus.read.files import Input, input_files, name_of
from trivium.corpus.read.ids import names_in, write_ids
from trivium.corpus.read.inputs import documents_of, files_at, store_at
from trivium.corpus.read.read import read_any
from trivium.corpus.select.classifier import model_file
from trivium.corpus.select.decontaminate import Keys
from trivium.corpus.select.evaluation_texts import EVALUATION_ITEMS, evaluation_items, evaluation_keys, evaluation_texts
from trivium.corpus.steps import Steps, judged, summed
from trivium.corpus.work import (
    COUNTS,
    NewPart,
    all_parts_in,
    begin_job,
    counts_of,
    is_sound,
    lay_down,
    parts_in,
    read_job,
    read_json,
    run_streams,
    state_of,
    stream_folder,
    write_array,
    write_parts,
)
from trivium.errors import DataError
from trivium.progress import Progress, silent
from trivium.provenance import discard, fingerprint, write_json
from trivium.untrusted import read_json as read_any_json

BLEND, DECONTAMINATION, PLANTED, HONEST = "blend.json", "decontamination.json", "planted.json", "honest.json"
HELDOUT = "heldout"  # folder of a harvest, and name of the part with its documents
PARTS, IDS, NAMES = "parts", "ids", "names"  # filtered documents; ids as read; ids that replace some of them
# Packages that, besides Trivium's own code, determine the extracted text and the verdicts on it.
_PACKAGES = ("ftfy", "justext", "lxml", "numpy", "pyarrow", "pycld2", "resiliparse", "trafilatura")
# Settings that change nothing in the parts of the first pass.
_LATER_SECTIONS = ("blend", "selection", "shard_bytes")
_LATER_FIELDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "dedup": ("threshold", "shortest", "priority", "quality"),
        "decontamination": ("common", "margin", "piece", "pieces"),
    }
)
Records = list[Document | Damage | PassedOver]


def curate(
    config: CurateConfig,
    source: Path,
    out: Path,
    *,
    seed: int,
    progress: Progress = silent,
    engine: Engine | None = None,
    work: Path | None = None,
    kept: Path | None = None,
) -> dict[str, Any]:
    """Curate the harvest at `source` into the existing folder `out`. Return the contents of its JSON files.

    engine: where the tasks run; the output does not depend on it. work: the folder of finished parts, from which an
    interrupted curation continues; the caller deletes it. kept: a folder in which the parts of the first pass stay for
    later curations; the output does not depend on it.

    Writes documents/, rejects.jsonl.gz, funnel.json, blend.json, decontamination.json; planted.json and honest.json
    if the harvest lists planted junk. Raises DataError if no document is left.
    """
    runner = engine or Here()
    warm_up(progress)
    job = begin_curation(work or out / ".work", source, config, seed=seed, kept=kept)
    index_heldout(job)
    run_streams(runner, filter_file, job, progress, "extracting and filtering")
    folders = [folder for number in range(len(job.files)) for folder in parts_in(part_folder(job, number))]
    parts = list_parts(job, [job.path(HELDOUT), *folders])
    _require_documents(job, parts)
    decide(job, parts, runner, lambda done: progress(done, None, "finding near duplicates"))
    common = find_common(job, parts)
    find_marked(job, parts)
    shards = [str(number) for number in range(len(shard_groups(job, parts)))]
    runner.map(partial(clean_shard, str(job.work)), shards, lambda done: progress(done, len(shards), "decontaminating"))
    result = _publish(job, parts, out, common, config)
    if kept is not None:
        forget_unused(job, kept)
    if work is None:
        discard(job.work.parent)
    return {**result, **_scored(source, out)}


# The first pass ------------------------------------------------------------------------------------------------------


def begin_curation(
    work: Path, source: Path, config: CurateConfig, *, seed: int, kept: Path | None = None
) -> CurationJob:
    """Return the job of curating the harvest at `source`.

    No part depends on the blend, so the job does not either: a typo in it, which is reported last, costs nothing.
    """
    heldout = source / HELDOUT
    beside = [*(sorted(heldout.iterdir()) if heldout.is_dir() else ()), source / EVALUATION_ITEMS]
    beside = [*filter(Path.is_file, beside), *files_beside(config)]
    config = config.model_copy(update={"blend": {}})
    read = Input(source, AS_WRITTEN)
    return begin_job(work, config, read, raw_files(source), seed=seed, beside=beside, kept=kept)


def raw_files(source: Path) -> list[Path]:
    """Return the raw files of a harvest, in order. Raises DataError if it has none."""
    folders = [source / name for name in (WARC_FOLDER, JSONL_FOLDER) if (source / name).is_dir()]
    if not folders:
        raise DataError(
            f"{source} is no harvest ({WARC_FOLDER}/ and {JSONL_FOLDER}/ are missing); run `trivium corpus harvest`"
        )
    filled = [folder for folder in folders if any(folder.iterdir())]
    if not filled:
        raise DataError(f"{source} holds no raw file in {WARC_FOLDER}/ or {JSONL_FOLDER}/; harvest again")
    return [path for folder in filled for path in input_files(folder)]


def files_beside(config: CurateConfig) -> list[Path]:
    """Return the files named in a config that documents are compared with: a model, if it exists, and evaluation
    texts."""
    model = config.classifier.model if "classifier" in config.filters else None
    files = [file for file in ([model_file(Path(model))] if model else []) if file.is_file()]
    return files + [file for place in config.decontamination.against for file in files_at(Path(place))]


def index_heldout(job: CurationJob) -> None:
    """Write the part of the held-out documents. It has only what is needed to find copies of them."""
    if not job.path(HELDOUT).is_dir():
        source = Path(job.source) / HELDOUT
        documents = list(read_documents(source)) if (source / MANIFEST).is_file() else []
        nothing = Keys({}, job.config.decontamination)
        lay_down(job.path(HELDOUT), lambda into: write_json(into / COUNTS, _features(job, into, documents, nothing)))


def filter_file(work: str, item: str) -> Result:
    """Write the missing parts of the raw file of this number. A task."""
    job = read_job(work, CurateConfig)
    path, folder = job.files[int(item)], part_folder(job, int(item))
    if job.kept is not None and not all(map(is_sound, parts_in(folder))):
        shutil.rmtree(folder)

    def read() -> Iterator[Document | Damage | PassedOver]:
        return read_any(path, source=name_of(path).split(".")[0], limits=job.limits)

    write_parts(folder, read, partial(_filter, job), summed=job.kept is not None)
    return {}


def _filter(job: CurationJob, part: NewPart, records: Records) -> dict[str, Any]:
    """Write the documents that pass every filter, with their features, and the rejects. Return the counts."""
    if job.config.keep_all:
        every = [extract_pages_step(job.config.extract)]
    else:
        every = [extract_step(job.config.extract), *named_steps(job.config, seed=job.seed)]
    steps = Steps(every, document_seconds=job.config.document_seconds)
    result = judged(records, job.source, steps)
    (part.into / PART_REJECTS).write_bytes(result.rejects)
    features = _features(job, part.into, result.kept, evaluation_keys(job))
    return {**features, "tallies": result.tallies, "damage": result.damage, "timed_out": steps.timed_out}


def _features(job: CurationJob, into: Path, documents: Sequence[Document], evaluation: Keys) -> dict[str, Any]:
    """Write documents with the keys by which they are compared.

    Return their counts, the ids that look like those of pieces, and the rows that contain evaluation text.
    """
    table, dedup = documents_table(documents), job.config.dedup
    texts = texts_of(table["text"])
    if not job.config.keep_all:
        write_array(into / BANDS, MinHash(dedup, seed=job.seed).band_keys(texts))
    keys = pa.array([key.tobytes() for key in text_keys(texts)], pa.binary(16))
    addresses = list(map(url_key, documents)) if dedup.urls else [b""] * len(documents)
    compared = table.append_column(KEY, keys).append_column(ADDRESS, pa.array(addresses, pa.binary()))
    text_ids = [id_of_text(document.id, document.metadata) for document in documents]
    compared = compared.append_column(TEXT_ID, pa.array(text_ids, pa.string()))
    pq.write_table(compared, into / TABLE, **PASSING_PACKING)
    return {
        "documents": table.num_rows,
        "text_bytes": int(texts.offsets[-1] - texts.offsets[0]),
        "marked": [document.id for document in documents if whole_of(document.id) != document.id],
        "hits": {
            str(row): [evaluation.text_of(hit.key) for hit in hits] for row, hits in evaluation.hits(texts).items()
        },
    }


# Parts that stay for later curations ---------------------------------------------------------------------------------


def part_folder(job: CurationJob, number: int) -> Path:
    """Return the folder of the parts of the raw file of this number."""
    if job.kept is None:
        return stream_folder(job.path(PARTS), number)
    return job.kept / _kept_name(Path(job.files[number]), Path(job.source), job.config, job.seed)


def _kept_name(file: Path, source: Path, config: CurateConfig, seed: int) -> str:
    """Return a hash of everything that determines the parts of a raw file."""
    tree = {name: value for name, value in to_tree(config).items() if name not in _LATER_SECTIONS}
    for section, names in _LATER_FIELDS.items():
        tree[section] = {name: value for name, value in tree[section].items() if name not in names}
    beside = [path for path in (*files_beside(config), source / EVALUATION_ITEMS) if path.is_file()]
    name = file.relative_to(source).as_posix()
    return fingerprint([name, state_of(file), tree, seed, list(map(state_of, beside)), code_version()])


def reuse_lines(kept: Path, source: Path, config: CurateConfig, *, seed: int) -> list[str]:
    """Return a line for the terminal: how many raw files need not be read again."""
    names = [_kept_name(path, source, config, seed) for path in raw_files(source)]
    finished = [parts for name in names if (parts := parts_in(kept / name)) and counts_of(parts[-1])["last"]]
    return [
        f"  used again: the filtered documents of {len(finished)} of {len(names)} raw files; the rest is read again"
    ]


def forget_unused(job: CurationJob, kept: Path) -> None:
    """Delete kept parts that this curation did not use, and those that depend on the speed of the machine."""
    used = {part_folder(job, number).name for number in range(len(job.files))}
    for folder in kept.iterdir():
        parts = [part for part in parts_in(folder) if (part / COUNTS).is_file()]
        if parts and (folder.name not in used or any(counts_of(part)["timed_out"] for part in parts)):
            shutil.rmtree(folder, ignore_errors=True)


def kept_bytes(kept: Path) -> int:
    """Return the size of all kept parts."""
    return sum(path.stat().st_size for path in kept.rglob("*") if path.is_file())


@lru_cache(maxsize=1)
def code_version() -> str:
    """Return a hash of the code that determines the parts: Trivium's sources and the versions of other packages."""
    sources = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(Path(__file__).parent.rglob("*.py"))]
    return fingerprint([__version__, platform.python_version(), sources, list(map(_version, _PACKAGES))])


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


# The output ----------------------------------------------------------------------------------------------------------


def _require_documents(job: CurationJob, parts: Sequence[Part]) -> None:
    """Raise DataError if no document passed the filters."""
    if any(part.documents for part in parts[1:]):
        return
    counts = [part.counts() for part in parts[1:]]
    funnel = summed(one["tallies"] for one in counts)
    if funnel[0]["documents"] == 0:
        damage = [line for one in counts for line in one["damage"]]
        reason = damage[0] if damage else "its files hold no document"
        raise DataError(f"{job.source} gives no document: {reason}; harvest again")
    raise _nothing_left(job, funnel)


def _nothing_left(job: CurationJob, funnel: Sequence[dict[str, Any]]) -> DataError:
    """Return the error that names the step which dropped most documents, and the settings that loosen it."""
    read, *steps = funnel
    worst = max(steps, key=lambda tally: sum(tally["dropped"].values()))
    remedies = [
        f"--set curate.{worst['remedies'][reason]}" for reason in worst["dropped"] if reason in worst["remedies"]
    ]
    remedy = f"loosen its limits ({' '.join(remedies)})" if remedies else "loosen corpus thresholds"
    return DataError(
        f"none of the {read['documents']} documents of {job.source} is left after '{steps[-1]['step']}'; most were "
        f"dropped by '{worst['step']}' ({', '.join(worst['dropped'])}): {remedy} or give more text"
    )


def _publish(
    job: CurationJob, parts: Sequence[Part], out: Path, common: Mapping[str, int], config: CurateConfig
) -> dict[str, Any]:
    """Join the shards to the output of the curation."""
    shards = [job.path(SHARDS, f"{number:05d}") for number in range(len(shard_groups(job, parts)))]
    manifest, funnel, counts = publish(shards, out, rejected_before=[part.folder for part in parts[1:]])
    if manifest["documents"] == 0:
        raise _nothing_left(job, funnel)
    figures: Counter[str] = Counter()
    for one in counts:
        figures.update(one["decontamination"])
    keys = evaluation_keys(job)
    cut = {
        **figures,
        "items": len(evaluation_texts(Path(job.source), job.config)),
        "items_seen": sorted(keys.items_with({key for one in counts for key in one["keys"]})),
        "keys": len(keys),
        "common_keys_spared": dict(sorted(common.items())),
    }
    weights = blend(manifest["sources"], config.blend)
    write_json(out / BLEND, weights)
    write_json(out / DECONTAMINATION, cut)
    absent = [source for source in config.dedup.priority if source not in manifest["sources"]]
    return {"funnel": funnel, "blend": weights, "decontamination": cut, "priority_absent": absent}


def _scored(source: Path, out: Path) -> dict[str, Any]:
    path = source / PLANTED
    if not path.is_file():
        return {}
    try:
        planted = read_any_json(path)
    except ValueError:
        raise DataError(f"{path} is not JSON: it was truncated or edited; harvest again") from None
    caught, honest = score(planted, evaluation_items(source), out / DOCUMENTS, out / REJECTS)
    write_json(out / PLANTED, caught)
    write_json(out / HONEST, honest)
    return {"planted": caught, "honest": honest}


# Filters alone ------------------------------------------------------------------------------------------------------


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
    """Run the steps of `config.filters` on every document at `source`; without filters only read. Return {"funnel": …}.

    out: an existing folder for documents/, rejects.jsonl.gz and funnel.json. work: the folder of finished parts.
    """
    named_steps(config, seed=seed)  # raises an error for a wrong name before anything is written
    path = Path(source.path)
    job = begin_job(work, config, source, files_at(path), seed=seed)
    runner = engine or Here()
    if store_at(path) is None:  # a store's documents have unique ids
        run_streams(runner, survey_file, job, progress, "ids")
        _settle_ids(job)
    run_streams(runner, judge_file, job, progress, ", ".join(config.filters) or "reading")
    return {"funnel": publish(all_parts_in(job.path(PARTS), len(job.streams)), out).funnel}


def survey_file(work: str, item: str) -> Result:
    """Write the ids of the documents of the file of this number. A task."""

    def write(part: NewPart, records: Records) -> Mapping[str, Any]:
        write_ids(part.into, [record.id for record in records if isinstance(record, Document)])
        return {}

    job = read_job(work, CurateConfig)
    write_parts(stream_folder(job.path(IDS), int(item)), _reader(job, item), write)
    return {}


def judge_file(work: str, item: str) -> Result:
    """Run the steps on the documents of the file of this number. A task."""
    job = read_job(work, CurateConfig)
    write_parts(stream_folder(job.path(PARTS), int(item)), _reader(job, item), partial(_judge, job, item))
    return {}


def _reader(job: CurationJob, item: str) -> Callable[[], Iterator[Document | Damage | PassedOver]]:
    return lambda: documents_of(job.files[int(item)], Input(job.source, job.limits))


def _settle_ids(job: CurationJob) -> None:
    """Write, for each part in which ids repeat, the rows that need another id, and that id."""
    if job.path(NAMES).is_dir():
        return
    parts = all_parts_in(job.path(IDS), len(job.streams))
    named = list(zip(parts, names_in(parts), strict=True))

    def fill(into: Path) -> None:
        for part, ids in named:
            if ids:
                write_json(into / f"{part.parent.name}-{part.name}.json", ids)

    lay_down(job.path(NAMES), fill)


def _judge(job: CurationJob, item: str, part: NewPart, records: Records) -> dict[str, Any]:
    """Write the documents that the steps keep, and the rejects. Return the counts."""
    names = job.path(NAMES, f"{int(item):05d}-{part.name}.json")
    if names.is_file():
        ids, rows = read_json(names), count()
        records = [
            replace(one, id=ids.get(str(next(rows)), one.id)) if isinstance(one, Document) else one for one in records
        ]
    steps = Steps(named_steps(job.config, seed=job.seed), document_seconds=job.config.document_seconds)
    result = judged(records, job.source, steps)
    entry = write_piece(part.into, documents_table(result.kept), result.rejects)
    return {"entry": entry, "tallies": result.tallies}
