"""Curation after one threshold changed: from nothing, and with what the curation before it kept.

    python benchmarks/corpus_again.py --data DATA --work FOLDER [--rounds 3] [--megabytes 60] [--kinds lines pages]

The same text twice: as JSON lines, and as pages of a crawl (HTML in WARC files, with a frame around each text).
Contestants alternate, each in a process of its own on one core, read and write the same bytes, and are told apart by
processor seconds, without imports and the loading of kernels. Prints medians, their ratio, and the size of what is
kept, as JSON.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from corpora.text import as_json_lines, build_text

from trivium.config import build
from trivium.corpus.config import CurateConfig
from trivium.corpus.document import RAW, Document
from trivium.corpus.harvest.plant import html_page
from trivium.corpus.harvest.raw_files import RawFiles
from trivium.corpus.kernels.warm_up import warm_up
from trivium.corpus.pipeline import curate, kept_bytes
from trivium.corpus.publish.views import differences_between
from trivium.seeds import generator_for

SEED = 5
SETTINGS: dict[str, dict[str, Any]] = {
    "before": {},
    "quality": {"quality": {"words_low": 200}},
    "similarity": {"dedup": {"threshold": 0.7}},
}


def main() -> None:
    options = _options()
    if options.one:
        print(json.dumps(_curated(*options.one)))
        return
    options.work.mkdir(parents=True, exist_ok=True)
    texts = options.work / "corpus.parquet"
    if not texts.is_file():
        wanted = int(1e6 * options.megabytes)
        build_text(texts, data=options.data, bytes_wanted=wanted, copies_fraction=0.12, seed=SEED)
    found = {}
    for kind in options.kinds:
        source = options.work / kind / "raw"
        if not source.is_dir():
            KINDS[kind](texts, source)
        found[kind] = _compared(source, options.work / kind, options.rounds)
    print(json.dumps({"load": os.getloadavg()[0]} | found, indent=1))


def _compared(source: Path, work: Path, rounds: int) -> dict[str, Any]:
    """Each change of settings: seconds from nothing and with kept work, in turns; both must write the same bytes."""
    kept = work / "kept"
    shutil.rmtree(kept, ignore_errors=True)
    keeping = _timed(source, work / "keeping", "before", str(kept))
    found: dict[str, Any] = {"keeping": keeping, "kept_megabytes": kept_bytes(kept) / 1e6}
    for name in list(SETTINGS)[1:]:
        runs: dict[str, list[dict[str, float]]] = {"from nothing": [], "again": []}
        for _ in range(rounds):
            for how, one in runs.items():
                one.append(_timed(source, work / how, name, str(kept) if how == "again" else ""))
        different = differences_between(work / "from nothing", work / "again")
        medians = {how: {k: statistics.median(r[k] for r in one) for k in one[0]} for how, one in runs.items()}
        ratio = medians["from nothing"]["cpu"] / medians["again"]["cpu"]
        found[name] = {**medians, "ratio": ratio, "differences": different, "every": runs}
    return found


def _timed(source: Path, out: Path, settings: str, kept: str) -> dict[str, float]:
    command = (sys.executable, __file__, "--work", ".", "--one", str(source), str(out), settings, kept)
    ended = subprocess.run(command, check=True, capture_output=True, text=True, preexec_fn=_on_one_core)
    measured: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return measured


def _curated(source: str, out: str, settings: str, kept: str) -> dict[str, float]:
    warm_up()
    folder = Path(out)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    cpu, wall = time.process_time(), time.monotonic()
    config = build(CurateConfig, SETTINGS[settings])
    curate(config, Path(source), folder, seed=1, kept=Path(kept) if kept else None)
    return {"cpu": time.process_time() - cpu, "wall": time.monotonic() - wall}


def _lines(texts: Path, raw: Path) -> None:
    as_json_lines(((str(row["id"]), row["text"]) for row in _rows(texts)), raw / "jsonl")


def _pages(texts: Path, raw: Path) -> None:
    generator = generator_for(SEED, "pages")
    files = RawFiles(raw, shard_bytes=16 << 20)
    for row in _rows(texts):
        page = html_page(row["text"].split("\n\n"), title=str(row["id"]), generator=generator)
        told = {RAW: "html", "url": f"https://pages.example/{row['id']}"}
        files.add(Document(str(row["id"]), page, "pages", told))
    files.close()


def _rows(texts: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(texts, columns=["id", "text"]).to_pylist()
    return rows


def _on_one_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


KINDS = {"lines": _lines, "pages": _pages}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("TRIVIUM_DATA"))
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--megabytes", type=float, default=60)
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
