"""Rows that do not compare speeds on one core: damage in a WARC file, and two workers."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from fastwarc.warc import ArchiveIterator, WarcRecordType

from trivium.corpus.config import CurateConfig
from trivium.corpus.daft_engine import Daft
from trivium.corpus.document import RAW, Damage, Document
from trivium.corpus.engine import Engine
from trivium.corpus.harvest.raw_files import RawFiles
from trivium.corpus.pipeline import curate
from trivium.corpus.read.read import read_any
from trivium.seeds import generator_for

PAGES, FLIPS = 3000, 40


def damaged_pages(corpus: Path, folder: Path) -> dict[str, Any]:
    """A WARC of 3,000 pages, bytes flipped at 40 places in the middle third: what is read of the sound ones."""
    shutil.rmtree(folder, ignore_errors=True)
    files = RawFiles(folder, shard_bytes=1 << 40)
    batch = next(pq.ParquetFile(corpus).iter_batches(PAGES, columns=["id", "text"]))
    for row in batch.to_pylist():
        page = f"<html><body><p>{row['text']}</p></body></html>"
        meta = {RAW: "html", "url": f"https://pages.example/{row['id']}"}
        files.add(Document(str(row["id"]), page, "pages", meta))
    files.close()
    path = folder / "warc" / "part-00000.warc.gz"
    whole = bytearray(path.read_bytes())
    ends = member_ends(bytes(whole))
    places = generator_for(1, "flips").integers(len(whole) // 3, 2 * len(whole) // 3, FLIPS)
    for place in places.tolist():
        whole[place] ^= 0xFF
    path.write_bytes(whole)
    hurt = len(set(np.searchsorted(ends, places, side="right").tolist()))
    every = list(read_any(path, source="pages"))
    found = [item for item in every if not isinstance(item, Damage)]
    return {
        "records": len(batch),
        "flipped_places": FLIPS,
        "records_hurt": hurt,
        "undamaged_records": len(batch) - hurt,
        "read": len(found),
        "quarantined": sum(item.records for item in every if isinstance(item, Damage)),
        "read_by_fastwarc_alone": _plain_reader(path),
    }


def member_ends(packed: bytes) -> np.ndarray:
    """Where each gzip member ends."""
    ends, at = [], 0
    while at < len(packed):
        member = zlib.decompressobj(31)
        member.decompress(packed[at:])
        at = len(packed) - len(member.unused_data)
        ends.append(at)
    return np.array(ends)


def _plain_reader(path: Path) -> int:
    count = 0
    try:
        with open(path, "rb") as file:
            for record in ArchiveIterator(file, record_types=WarcRecordType.response):
                record.reader.read()
                count += 1
    except Exception:  # noqa: BLE001 whatever damage does to it
        return count
    return count


def wall_seconds(runner: str, source: Path, out: Path) -> dict[str, float]:
    """Seconds of curation on two workers of this runner, its start and first task apart."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    began = time.monotonic()
    engine: Engine = Daft(runner, workers=2, scratch=Path(tempfile.mkdtemp(dir="/tmp")) if runner == "ray" else None)
    engine.map(nothing, ["0", "1", "2", "3"], lambda done: None)
    started = time.monotonic()
    curate(CurateConfig(), source, out, seed=1, engine=engine)
    return {"start_seconds": started - began, "seconds": time.monotonic() - started}


def nothing(item: str) -> dict[str, Any]:
    """The task that starts the workers."""
    return {}


def start_two_workers(runner: str, source: Path, out: Path) -> subprocess.Popen[str]:
    """A process that does `wall_seconds` and prints it."""
    command = [sys.executable, "-m", "corpora.survival", runner, str(source.absolute()), str(out.absolute())]
    environment = {**os.environ, "DAFT_ANALYTICS_ENABLED": "0", "DAFT_PROGRESS_BAR": "0"}
    here = Path(__file__).resolve().parents[1]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=here
    )


def two_workers(runner: str, source: Path, out: Path) -> dict[str, Any]:
    """`wall_seconds` in a process of its own."""
    return ending_of(start_two_workers(runner, source, out))


def ending_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What the process of `start_two_workers` found, or how it failed."""
    said, complained = process.communicate()
    if process.returncode:
        return {"failed": (complained.strip().splitlines() or ["no message"])[-1][:300]}
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


if __name__ == "__main__":
    print(json.dumps(wall_seconds(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))))
