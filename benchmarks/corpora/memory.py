"""The most memory of a process and all below it, and an input that is larger than memory to measure it with."""

import json
import math
import re
import subprocess
import time
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import zstandard

from corpora.survival import ending_of, start_two_workers
from trivium.corpus.publish.output import FUNNEL
from trivium.seeds import generator_for

LARGE_FILE_BYTES = 250_000_000
COPIES_FRACTION, FIRST_DOCUMENTS = 0.12, 10_000  # copies are made of the first documents of any earlier file
SECONDS_BETWEEN = 0.25
_ROLLUP = re.compile(r"^(Pss|Rss):\s+(\d+) kB$", re.M)


class Peak(NamedTuple):
    """The most bytes that a process and those below it held together, pages they share counted once (`own`) or
    once for each (`resident`)."""

    own: int
    resident: int


def peak_of(process: subprocess.Popen[str]) -> Peak:
    """Looked at four times a second until the process ends."""
    peak = Peak(0, 0)
    while process.poll() is None:
        found = [_bytes_of(pid) for pid in _below(process.pid)]
        peak = Peak(max(peak.own, sum(p for p, _ in found)), max(peak.resident, sum(r for _, r in found)))
        time.sleep(SECONDS_BETWEEN)
    return peak


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
    return found


def _bytes_of(pid: int) -> tuple[int, int]:
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:  # it has ended
        return 0, 0
    found = {name: 1024 * int(kilobytes) for name, kilobytes in _ROLLUP.findall(rollup)}
    return found.get("Pss", 0), found.get("Rss", 0)


def curate_large(corpus: Path, folder: Path, out: Path, *, gigabytes: float) -> dict[str, Any]:
    """Curation of `write_large`'s input on two workers of Daft's native runner: memory, seconds, what was dropped."""
    held = write_large(corpus, folder, gigabytes=gigabytes)
    process = start_two_workers("native", folder, out)
    peak = peak_of(process)
    found = ending_of(process)
    if "failed" in found:
        return {"gigabytes": held, "peak_bytes": peak.own, **found}
    funnel = json.loads((out / FUNNEL).read_text(encoding="utf-8"))
    return {
        "gigabytes": held,
        "peak_bytes": peak.own,
        "peak_resident_bytes": peak.resident,
        **found,
        "documents_read": funnel[0]["documents"],
        "documents_left": funnel[-1]["documents"],
        "dropped": {one["step"]: sum(one["dropped"].values()) for one in funnel if one["dropped"]},
    }


def write_large(corpus: Path, folder: Path, *, gigabytes: float) -> float:
    """JSON lines of documents whose words are those of real ones in another order; returns their gigabytes.

    An eighth of them are copies of earlier ones, in any file: half of these word for word, half with some words
    exchanged. In files of a quarter of a gigabyte; those that are there already stay.
    """
    (folder / "jsonl").mkdir(parents=True, exist_ok=True)
    count = math.ceil(gigabytes * 1e9 / LARGE_FILE_BYTES)
    for number in range(count):
        path = folder / "jsonl" / f"part-{number:05d}.jsonl.zst"
        if not path.is_file():
            _write_shuffled(corpus, path, number)
    return count * LARGE_FILE_BYTES / 1e9


def _write_shuffled(corpus: Path, path: Path, number: int) -> None:
    beside, size, place = path.with_suffix(".partial"), 0, 0
    generator = generator_for(1, "copies", number)
    with zstandard.open(beside, "wt", encoding="utf-8") as file:
        while size < LARGE_FILE_BYTES:
            words = _words(corpus, number, place)
            if (number or place >= FIRST_DOCUMENTS) and generator.random() < COPIES_FRACTION:
                words = _copied(corpus, number, generator)
            text = "".join(f"{word}.\n" if n % 12 == 11 else f"{word} " for n, word in enumerate(words))
            file.write(json.dumps({"id": f"{number}-{place}", "text": text}) + "\n")
            size += len(text.encode())
            place += 1
    beside.rename(path)


def _copied(corpus: Path, number: int, generator: np.random.Generator) -> list[str]:
    """The words of a document of this file or an earlier one; one in two hundred exchanged in half of the cases."""
    words = _words(corpus, int(generator.integers(number + 1)), int(generator.integers(FIRST_DOCUMENTS)))
    if generator.random() < 0.5:
        for place in generator.integers(len(words), size=len(words) // 200).tolist():
            words[place] += "x"
    return words


def _words(corpus: Path, number: int, place: int) -> list[str]:
    """The words of an original, which its file and place give."""
    generator = generator_for(1, "large", number, place)
    every = _real_words(corpus)
    chosen = every[int(generator.integers(len(every)))]
    return [chosen[p] for p in generator.permutation(len(chosen)).tolist()]


@lru_cache(maxsize=1)
def _real_words(corpus: Path) -> list[list[str]]:
    texts: list[str] = pq.read_table(corpus, columns=["text"])["text"].slice(0, 8000).to_pylist()
    return [text.split() for text in texts]
