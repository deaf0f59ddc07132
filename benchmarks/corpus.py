"""The corpus kernels against peers and plain Python, on real text with injected near-duplicates.

    python benchmarks/corpus.py --data DATA --work FOLDER --json out.json [--rounds 3] [--megabytes 210]
    python benchmarks/corpus.py --install datasketch

Rows may be measured in several calls: each adds to what out.json holds, and writes the page out.md beside it.
DATA is the folder with corpora/ and tasks/ (see corpora/text.py). Rounds are interleaved: every contestant runs
once a round, alone, in a process bound to one core; figures are medians of CPU seconds, without the imports and
with reading and writing. A peer is run with its own environment in benchmarks/.venvs and reported as not run
when that is missing.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from corpora import encoders
from corpora.memory import curate_large, peak_of
from corpora.page import gathered, page, read_record
from corpora.survival import damaged_pages, two_workers
from corpora.text import as_json_lines, books, build_text
from corpora.tokenizing import lay_out, same_ids
from corpora.truth import true_pairs
from corpus_kills import killed_runs
from extraction import check_extraction
from peers.environment import Environment

from trivium.corpus.publish.store import read_documents
from trivium.corpus.publish.views import differences_between

HERE = Path(__file__).resolve().parent
THRESHOLD, SEED, COPIES_FRACTION = 0.8, 5, 0.12
MEGABYTES = 210.0  # of text, unless told
TEXT_DEDUP_NEEDS = (
    *("datasets==3.6.0", "click<8.2", "click-option-group==0.5.6", "fire<0.7", "ftfy", "regex", "rich<14"),
    *("scipy", "xxhash", "psutil", "bitarray", "zstandard", "pybloom-live", "setuptools<81", "tqdm"),
)
PEERS = {
    "rensa": Environment("rensa", (("rensa==0.5.0", "pyarrow"),)),
    "datasketch": Environment("datasketch", (("datasketch==2.0.0", "pyarrow"),)),
    "datatrove": Environment("datatrove", (("datatrove[io,processing]==0.10.1", "spacy", "xxhash<4"),)),
    # without what its other scripts need (tensorflow, Spark)
    "text_dedup": Environment("text_dedup", (TEXT_DEDUP_NEEDS, ("--no-deps", "text-dedup==0.4.0"))),
    "pyspark": Environment("pyspark", (("pyspark==4.3.0", "pandas<3", "pyarrow", "numpy", "scipy"),)),
}
FILTER_PEERS = {  # for Gopher's rules
    "nemo_curator": Environment("nemo_curator", (("torch==2.13.0",), ("nemo-curator==1.4.0",))),
    "datatrove_filters": PEERS["datatrove"],
}
EXACT_PEERS = {  # for equal texts
    "duckdb": Environment("duckdb", (("duckdb==2.0.1",),)),
    "polars": Environment("polars", (("polars==2.1.0",),)),
}
INSTALLABLE = PEERS | EXACT_PEERS | {"nemo_curator": FILTER_PEERS["nemo_curator"]}
TARGETS = {
    "datasketch": 4.0,
    "datatrove": 30.0,
    "text_dedup": 12.0,
    "pyspark": 5.0,
    "decontaminate plainly": 30.0,
    "tokenize as Megatron": 3.5,
}


@dataclass(frozen=True)
class Contestant:
    """A name, the command that does the work, and what it writes."""

    name: str
    command: tuple[str, ...]
    out: Path


def main() -> None:
    options = _options()
    if options.install:
        INSTALLABLE[options.install].install()
        return
    corpus = options.work / "corpus.parquet"
    if not corpus.is_file():
        wanted = int(1e6 * options.megabytes)
        build_text(corpus, data=options.data, bytes_wanted=wanted, copies_fraction=COPIES_FRACTION, seed=SEED)
    items = evaluation_texts(options.data)
    (options.work / "items.json").write_text(json.dumps(items))
    leaky = with_leaks(corpus, list(items.values()))
    size = pc.sum(pc.binary_length(pq.read_table(corpus, columns=["text"])["text"])).as_py() / 1e6
    documents = pq.ParquetFile(corpus).metadata.num_rows
    rows: dict[str, Any] = {}
    for row in options.rows:
        load = os.getloadavg()[0]
        rows[row] = ROWS[row](leaky if row == "decontamination" else corpus, size, options)
        rows[row] = {"megabytes": size, "documents": documents, "load_before": load} | rows[row]
    print(json.dumps(rows, indent=1))
    if options.json:
        record = gathered(read_record(options.json), rows, _command(options))
        options.json.write_text(json.dumps(record, indent=1) + "\n")
        options.json.with_suffix(".md").write_text(page(record, ROWS))


def deduplication(corpus: Path, size: float, options: argparse.Namespace) -> dict[str, Any]:
    """Speed, recall and precision of every contestant.

    Peers are compared with the station `corpus dedup`, which does what the command does. Beside it stand its kernels
    alone, from Parquet to Parquet as the peers work, and the whole command, whose seconds include its imports.
    """
    truth = true_pairs(corpus, options.work / "truth.npy", threshold=THRESHOLD)
    contestants = [
        _own("corpus dedup", corpus, options.work / "station"),
        _own("kernels alone", corpus, options.work / "kernels.parquet"),
        _own("the command, imports included", corpus, options.work / "command"),
    ]
    rows = _add_peers(contestants, {n: e for n, e in PEERS.items() if n in options.peers}, corpus, options)
    rows |= _timed(contestants, size, options.rounds)
    for one in contestants:
        if "failed" not in rows[one.name]:
            rows[one.name] |= judged(truth, rows_kept(one.out), pq.ParquetFile(corpus).metadata.num_rows)
    return _compared(rows, "corpus dedup") | {"true_pairs": len(truth)}


def exact_deduplication(corpus: Path, size: float, options: argparse.Namespace) -> dict[str, Any]:
    """Speed of the keys of equal texts against databases, and whether the same rows stay."""
    return _rows_kept_by(
        _own("first of each text", corpus, options.work / "exact.parquet"), EXACT_PEERS, corpus, size, options
    )


def gopher_filters(corpus: Path, size: float, options: argparse.Namespace) -> dict[str, Any]:
    """Speed of Gopher's rules on quality and repetition against other pipelines, and whether the same rows stay.

    Lines end in a line feed alone: datatrove takes the carriage returns of empty lines for repeated lines. NeMo Curator
    runs without its executor, which would add the time of Ray's processes.
    """
    table = pq.read_table(corpus, columns=["id", "text"])
    lines = corpus.with_name("lines.parquet")
    pq.write_table(table.set_column(1, "text", pc.replace_substring(table["text"], "\r\n", "\n")), lines)
    ours = _own("gopher filters", lines, options.work / "gopher.parquet")
    return _rows_kept_by(ours, FILTER_PEERS, lines, size, options)


def _rows_kept_by(
    ours: Contestant, peers: dict[str, Environment], corpus: Path, size: float, options: argparse.Namespace
) -> dict[str, Any]:
    contestants = [ours]
    rows = _add_peers(contestants, peers, corpus, options)
    rows |= _timed(contestants, size, options.rounds)
    kept = {one.name: set(rows_kept(one.out).tolist()) for one in contestants if "failed" not in rows[one.name]}
    return _compared(rows, ours.name) | {
        "rows_kept": {name: len(ids) for name, ids in kept.items()},
        "rows_that_differ": {name: len(ids ^ kept[ours.name]) for name, ids in kept.items()},
    }


def _add_peers(
    contestants: list[Contestant], peers: dict[str, Environment], corpus: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Add the peers that are installed, and return why the others are not run."""
    rows: dict[str, Any] = {}
    for name, environment in peers.items():
        out = options.work / f"{name}.parquet"
        script = HERE / "corpora" / "peers" / f"{name}_side.py"
        if environment.is_ready():
            command = (str(environment.python), str(script), str(corpus), str(out))
            contestants.append(Contestant(name, command, out))
        else:
            rows[name] = {"not run": f"not installed: python benchmarks/corpus.py --install {environment.name}"}
    return rows


def decontamination(corpus: Path, size: float, options: argparse.Namespace) -> dict[str, Any]:
    """Speed of the scan and of plain Python, and whether they leave the same pieces."""
    contestants = [
        _own(name, corpus, options.work / f"{name}.json") for name in ("decontaminate", "decontaminate plainly")
    ]
    rows = _timed(contestants, size, options.rounds)
    ours, plain = (json.loads(one.out.read_text()) for one in contestants)
    return _compared(rows, "decontaminate") | {
        "items": len(evaluation_texts(options.data)),
        "documents_cut": len(plain),
        "identical": ours == plain,
    }


def curation(corpus: Path, size: float, options: argparse.Namespace) -> dict[str, Any]:
    """Speed of the whole station from JSON lines to shards on one core, and whether both engines agree."""
    _lay_down(corpus)
    names = ("curate here", "curate native")
    contestants = [_own(name, corpus, options.work / name) for name in names]
    rows = _timed(contestants, size, min(options.rounds, 3))
    differences = differences_between(*(one.out for one in contestants))
    return {"ours": "curate native", "rows": rows, "differences": differences, "target_megabytes_per_second": 15.0}


def curation_of_books(corpus: Path, size: float, options: argparse.Namespace) -> dict[str, Any]:
    """Speed of the whole station on books alone, where nearly every document passes every step."""
    texts = list(books(options.data))
    beside = options.work / "books" / "corpus"
    as_json_lines(((str(n), text) for n, text in enumerate(texts)), beside.with_name("raw") / "jsonl")
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    contestants = [_own("curate native", beside, options.work / "curate books")]
    return {
        "ours": "curate native",
        "megabytes": megabytes,
        "documents": len(texts),
        "rows": _timed(contestants, megabytes, options.rounds),
        "target_megabytes_per_second": 15.0,
    }


def two_runners(corpus: Path, size: float, options: argparse.Namespace) -> dict[str, Any]:
    """Wall seconds of curation on two workers of Daft's native runner and of Ray, and whether the shards are equal."""
    _lay_down(corpus)
    found: dict[str, dict[str, Any]] = {}
    for _ in range(min(options.rounds, 3)):
        for runner in ("native", "ray"):
            one = two_workers(runner, corpus.with_name("raw"), options.work / f"two {runner}")
            found.setdefault(runner, one)
            if "seconds" in one:
                found[runner].setdefault("every", []).append(one["seconds"])
    if any("failed" in one for one in found.values()):
        return found
    medians = {runner: statistics.median(one["every"]) for runner, one in found.items()}
    differences = differences_between(*(options.work / f"two {runner}" for runner in found))
    ratio = medians["ray"] / medians["native"]
    return {**found, "ray_over_native": ratio, "limit": 2.0, "differences": differences}


def damage(corpus: Path, size: float, options: argparse.Namespace) -> dict[str, Any]:
    """What is read of a WARC file with bytes flipped in its middle."""
    return damaged_pages(corpus, options.work / "damaged")


def memory(corpus: Path, size: float, options: argparse.Namespace) -> dict[str, Any]:
    """The most memory that curation of a large generated input takes."""
    folder = options.work / f"large-{options.gigabytes:g}"
    found = curate_large(corpus, folder, options.work / "curated large", gigabytes=options.gigabytes)
    return {**found, "limit_bytes": 4 << 30}


def kills(corpus: Path, size: float, options: argparse.Namespace) -> dict[str, Any]:
    """Whether `corpus run demo`, killed a hundred times, comes to the same bytes (benchmarks/corpus_kills.py)."""
    return killed_runs(options.work / "kills", sets=("harvest.max_bytes=3000000",))


def extraction(corpus: Path, size: float, options: argparse.Namespace) -> dict[str, Any]:
    """F1 and speed of each extractor on pages with gold text (benchmarks/extraction.py)."""
    return check_extraction(options.data / "html", rounds=options.rounds)


def tokenization(corpus: Path, size: float, options: argparse.Namespace) -> dict[str, Any]:
    """Speed to .bin/.idx against a loop over lines, whether the ids are the same, and the memory of 1 GB."""
    _lay_down(corpus)
    lay_out(corpus, options.work, data=options.data)
    contestants = [_own(n, options.work, options.work / n) for n in ("tokenize", "tokenize as Megatron")]
    found = _compared(_timed(contestants, size, options.rounds), "tokenize")
    return found | {"identical": same_ids(*(one.out for one in contestants))}


def encoding(corpus: Path, size: float, options: argparse.Namespace) -> dict[str, Any]:
    """Speed of encoders of GPT-2's ids on HTML and books, and in how many texts they differ (corpora/encoders.py)."""
    return encoders.measured(options.data, options.megabytes)


def tokenization_memory(corpus: Path, size: float, options: argparse.Namespace) -> dict[str, Any]:
    """The most memory the station takes for 1 GB of text, every process of it counted."""
    times = math.ceil(1000 / size)
    large = options.work / "large"
    large.mkdir(exist_ok=True)
    lay_out(corpus, large, data=options.data, times=times)
    command = _own("tokenize", large, options.work / "tokenize large").command
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=HERE) as process:
        peak = peak_of(process)
    if process.returncode:
        return {"failed": f"exit code {process.returncode}"}
    return {
        "megabytes": size * times,
        "peak_bytes": peak.own,
        "peak_resident_bytes": peak.resident,
        "limit_bytes": 1 << 30,
    }


ROWS: dict[str, Callable[[Path, float, argparse.Namespace], dict[str, Any]]] = {
    "deduplication": deduplication,
    "exact deduplication": exact_deduplication,
    "gopher filters": gopher_filters,
    "decontamination": decontamination,
    "curation": curation,
    "curation of books": curation_of_books,
    "tokenization": tokenization,
    "encoding": encoding,
    "tokenization memory": tokenization_memory,
    "extraction": extraction,
    "two runners": two_runners,
    "WARC damage": damage,
    "memory": memory,
    "kills": kills,
}
ASKED_FOR_BY_NAME = ("memory", "kills")  # take long, and memory much disk


def judged(truth: np.ndarray, kept: np.ndarray, documents: int) -> dict[str, float]:
    """recall: pairs at or above 0.8 of which not both stay; precision: removed documents that are in such a pair."""
    stays = np.zeros(documents, dtype=bool)
    stays[kept] = True
    has_partner = np.zeros(documents, dtype=bool)
    has_partner[truth.ravel()] = True
    removed = ~stays
    return {
        "recall": float(np.mean(~(stays[truth[:, 0]] & stays[truth[:, 1]]))),
        "precision": float(np.mean(has_partner[removed])) if removed.any() else 1.0,
        "removed": int(removed.sum()),
    }


def rows_kept(out: Path) -> np.ndarray:
    """The ids (row numbers of the corpus) that a contestant left, in a file or a document store."""
    if out.is_dir():
        return np.array([int(document.id) for document in read_documents(out / "documents")])
    return pq.read_table(out, columns=["id"])["id"].to_numpy()


def evaluation_texts(data: Path) -> dict[str, str]:
    """The passages of LAMBADA, BoolQ and PIQA, by task and line."""
    files = {"lambada": "test_openai.jsonl", "boolq": "validation.jsonl", "piqa": "validation.jsonl"}
    fields = {"lambada": "text", "boolq": "passage", "piqa": "goal"}
    found = {}
    for task, name in files.items():
        lines = (data / "tasks" / task / name).read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            found[f"{task}-{number}"] = str(json.loads(line)[fields[task]])
    return found


def with_leaks(corpus: Path, items: list[str]) -> Path:
    """The corpus with an evaluation text in every thirtieth document."""
    path = corpus.with_name("leaky.parquet")
    if not path.is_file():
        table = pq.read_table(corpus, columns=["id", "text"])
        texts = table["text"].to_pylist()
        for number, row in enumerate(range(0, len(texts), 30)):
            middle = len(texts[row]) // 2
            leak = items[number % len(items)].upper()
            texts[row] = f"{texts[row][:middle]} {leak} {texts[row][middle:]}"
        pq.write_table(table.set_column(1, "text", [texts]), path, compression="zstd")
    return path


def _lay_down(corpus: Path) -> None:
    batches = pq.ParquetFile(corpus).iter_batches(1024, columns=["id", "text"])
    rows = (row for batch in batches for row in batch.to_pylist())
    as_json_lines(((str(row["id"]), row["text"]) for row in rows), corpus.with_name("raw") / "jsonl")


def _own(name: str, source: Path, out: Path) -> Contestant:
    command = (sys.executable, "-m", "corpora.contestants", name, str(source), str(out))
    return Contestant(name, command, out)


def _timed(contestants: list[Contestant], size: float, rounds: int) -> dict[str, Any]:
    runs: dict[str, list[dict[str, float]]] = {one.name: [] for one in contestants}
    failed: dict[str, str] = {}
    for _ in range(rounds):
        for one in contestants:
            if one.name in failed:
                continue
            ended = subprocess.run(one.command, capture_output=True, text=True, cwd=HERE, preexec_fn=_on_one_core)
            if ended.returncode == 0:
                runs[one.name].append(json.loads(ended.stdout.splitlines()[-1]))
            else:
                failed[one.name] = (ended.stderr.strip().splitlines() or ["no message"])[-1][:300]
    rows: dict[str, Any] = {name: {"failed": text} for name, text in failed.items()}
    for name, results in runs.items():
        if name not in failed:
            cpu = statistics.median(one["cpu"] for one in results)
            rows[name] = {
                "cpu_seconds": cpu,
                "megabytes_per_cpu_second": size / cpu,
                "import_cpu_seconds": statistics.median(one["import_cpu"] for one in results),
                "peak_bytes": max((one.get("peak_bytes", 0) for one in results), default=0),
                "every_cpu_seconds": [one["cpu"] for one in results],
            }
    return rows


def _on_one_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def _compared(rows: dict[str, Any], ours: str) -> dict[str, Any]:
    for name, row in rows.items():
        if name != ours and "cpu_seconds" in row:
            row["times_as_fast"] = row["cpu_seconds"] / rows[ours]["cpu_seconds"]
            if name in TARGETS:
                row["target"] = TARGETS[name]
    return {"ours": ours, "rows": rows}


def _command(options: argparse.Namespace) -> str:
    rows = " ".join(f"'{row}'" if " " in row else row for row in options.rows)
    peers = "" if len(options.peers) == len(PEERS) else f" --peers {' '.join(options.peers) or 'none'}"
    large = f" --gigabytes {options.gigabytes:g}" if "memory" in options.rows else ""
    size = "" if options.megabytes == MEGABYTES else f" --megabytes {options.megabytes:g}"
    chosen = f"--rounds {options.rounds} --rows {rows}{peers}{size}{large}"
    return f"python benchmarks/corpus.py --data DATA {chosen} --json out.json"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("TRIVIUM_DATA"))
    parser.add_argument("--work", type=Path, default=HERE / ".corpus")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=float, default=MEGABYTES)
    parser.add_argument(
        "--rows", nargs="+", choices=list(ROWS), default=[r for r in ROWS if r not in ASKED_FOR_BY_NAME]
    )
    parser.add_argument("--peers", nargs="*", choices=[*PEERS, "none"], default=list(PEERS))
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--install", choices=sorted(INSTALLABLE))
    options = parser.parse_args()
    if options.data is None and not options.install:
        parser.error("--data (or TRIVIUM_DATA) names the folder with corpora/ and tasks/")
    if not options.install:
        options.data = Path(options.data)
        options.work.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    main()
