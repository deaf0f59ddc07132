"""Rows that do not compare speeds on one core: damage in a WARC file, two workers, and memory for a large input."""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import zstandard
from fastwarc.warc import ArchiveIterator, WarcRecordType

from trivium.corpus.config import CurateConfig
from trivium.corpus.curate import curate
from trivium.corpus.document import Document
from trivium.corpus.engine.daft_engine import Daft
from trivium.corpus.engine.engine import Engine
from trivium.corpus.extract import RAW
from trivium.corpus.quarantine import Damage, Intake
from trivium.corpus.raw_files import RawFiles
from trivium.corpus.read import read_any
from trivium.seeds import generator_for

PAGES, FLIPS = 3000, 40
LARGE_FILE_BYTES = 250_000_000


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
    intake = Intake()
    found = [item for item in read_any(path, source="pages", intake=intake) if not isinstance(item, Damage)]
    return {
        "records": len(batch),
        "flipped_places": FLIPS,
        "records_hurt": hurt,
        "undamaged_records": len(batch) - hurt,
        "read": len(found),
        "quarantined": intake.quarantined.total(),
        "balances": intake.balances,
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
    engine: Engine = Daft(
        runner, workers=2, scratch=Path(tempfile.mkdtemp(dir="/tmp")) if runner == "ray" else None
    )
    engine.map(nothing, ["0", "1", "2", "3"], lambda done: None)
    started = time.monotonic()
    curate(CurateConfig(), source, out, seed=1, engine=engine)
    return {"start_seconds": started - began, "seconds": time.monotonic() - started}


def nothing(item: str) -> dict[str, Any]:
    """The task that starts the workers."""
    return {}


def two_workers(runner: str, source: Path, out: Path) -> dict[str, Any]:
    """`wall_seconds` in a process of its own."""
    command = [sys.executable, "-m", "corpora.survival", runner, str(source), str(out)]
    environment = {**os.environ, "DAFT_ANALYTICS_ENABLED": "0", "DAFT_PROGRESS_BAR": "0"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    if ended.returncode:
        return {"failed": (ended.stderr.strip().splitlines() or ["no message"])[-1][:300]}
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def write_large(corpus: Path, folder: Path, *, gigabytes: float) -> float:
    """JSON lines of documents whose words are those of real ones in another order; returns their gigabytes.

    In files of a quarter of a gigabyte; those that are there already stay.
    """
    (folder / "jsonl").mkdir(parents=True, exist_ok=True)
    words: list[list[str]] = []
    count = math.ceil(gigabytes * 1e9 / LARGE_FILE_BYTES)
    for number in range(count):
        path = folder / "jsonl" / f"part-{number:05d}.jsonl.zst"
        if not path.is_file():
            words = words or [text.split() for text in _first_texts(corpus, 8000)]
            _write_shuffled(words, path, generator_for(1, "large", number))
    return count * LARGE_FILE_BYTES / 1e9


def _first_texts(corpus: Path, count: int) -> list[str]:
    texts: list[str] = pq.read_table(corpus, columns=["text"])["text"].slice(0, count).to_pylist()
    return texts


def _write_shuffled(words: list[list[str]], path: Path, generator: np.random.Generator) -> None:
    beside, size = path.with_suffix(".partial"), 0
    with zstandard.open(beside, "wt", encoding="utf-8") as file:
        while size < LARGE_FILE_BYTES:
            chosen = words[int(generator.integers(len(words)))]
            places = generator.permutation(len(chosen)).tolist()
            text = "".join(chosen[p] + (".\n" if n % 12 == 11 else " ") for n, p in enumerate(places))
            file.write(json.dumps({"id": f"{path.name}-{size}", "text": text}) + "\n")
            size += len(text.encode())
    beside.rename(path)


def most_memory(runner: str, source: Path, out: Path) -> dict[str, Any]:
    """`two_workers`, and the most memory that its processes took together, shared pages counted once."""
    found: dict[str, Any] = {}
    most = 0

    def work() -> None:
        found.update(two_workers(runner, source, out))

    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        most = max(most, sum(_proportional_bytes(pid) for pid in _below(os.getpid())))
        time.sleep(0.5)
    return {**found, "peak_bytes": most}


def _below(root: int) -> set[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {root}


def _proportional_bytes(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    return 0


if __name__ == "__main__":
    print(json.dumps(wall_seconds(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))))
