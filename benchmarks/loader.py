"""Random batches per second from .bin/.idx, and the time to open a large blend.

python benchmarks/loader.py [--rounds 5]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trivium.tokens.manifest import FORMAT, MANIFEST
from trivium.tokens.samples import BLOCK_SAMPLES, TokenDataset
from trivium.tokens.shards import ShardWriter

OPEN_SECONDS_TARGET, OPEN_BYTES_TARGET = 10.0, 1 << 30
SEQUENCE, BATCH = 2048, 32
BATCHES = BLOCK_SAMPLES // BATCH  # of a round: each pays once for looking places up
SMALL_TOKENS, LARGE_TOKENS, SOURCES = 50_000_000, 1_000_000_000, 15
DOCUMENT = 800  # tokens, about the mean of a page of the Pile
CHUNK = 20_000_000  # tokens written at once


def loader_rows() -> list[tuple[str, Callable[[int], dict[str, Any]]]]:
    """Batches per second, and the opening of 10^9 tokens."""
    return [("loader batches", batches), ("loader index", lambda rounds: opening())]


def written_tokens(directory: Path, weights: Mapping[str, float], tokens: int, *, vocabulary: int = 50257) -> None:
    """A token directory of random ids: `tokens` in all, the same of each source."""
    directory.mkdir()
    sources = {}
    each = tokens // len(weights)
    ids = np.random.default_rng(0).integers(0, vocabulary, min(CHUNK, each), dtype=np.uint16)
    for name, weight in weights.items():
        writer, left = ShardWriter(directory / name, dtype="uint16"), each
        while left:
            part = ids[: min(left, len(ids))]
            whole, rest = divmod(len(part), DOCUMENT)
            writer.append(part, np.asarray([DOCUMENT] * whole + [rest] * (rest > 0)))
            left -= len(part)
        lengths = writer.close()
        entry = {"prefix": name, "documents": len(lengths), "tokens": each}
        sources[name] = {"weight": weight, "train": entry}
    manifest = {"format": FORMAT, "vocabulary": vocabulary, "end_of_text": 0, "sources": sources, "files": {}}
    (directory / MANIFEST).write_text(json.dumps(manifest))


def batches(rounds: int) -> dict[str, Any]:
    """Batches of random samples per second; a batch is [sequences, positions + 1] in int64.

    No peer stands beside them: the indexed dataset that did was our own re-implementation and did other work.
    """
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "tokens"
        written_tokens(directory, {"one": 1.0}, SMALL_TOKENS)
        data = TokenDataset.open(directory, "train", sequence=SEQUENCE, seed=0)
        rates = []
        for number in range(rounds + 1):
            begin = time.perf_counter()
            for n in range(number * BATCHES, (number + 1) * BATCHES):
                data.samples(range(n * BATCH, (n + 1) * BATCH))
            rates.append(BATCHES / (time.perf_counter() - begin))
    rate = statistics.median(rates[1:])
    return {
        "name": "loader batches",
        "status": "measured",
        "says": f"{BATCH} samples of {SEQUENCE} + 1 tokens from {SMALL_TOKENS:,} tokens in documents of {DOCUMENT}.",
        "batches_per_second": rate,
        "summary": f"{rate:,.0f} batches/s",
    }


def opening() -> dict[str, Any]:
    """A process of its own opens 10^9 tokens of 15 sources and takes one batch."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "tokens"
        weights = {f"source {n:02}": 1.0 + n for n in range(SOURCES)}
        written_tokens(directory, weights, LARGE_TOKENS)
        command = [sys.executable, __file__, "--open", str(directory)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=280)
    found = json.loads(done.stdout)
    return {
        "name": "loader index",
        "status": "measured",
        "says": f"{LARGE_TOKENS:,} tokens of {SOURCES} sources: until the first batch of {BATCH} samples is there; "
        "memory: the most the process held, interpreter and NumPy included.",
        **found,
        "targets": {"seconds": OPEN_SECONDS_TARGET, "peak_bytes": OPEN_BYTES_TARGET},
        "summary": f"{found['seconds']:.2f} s (target <= {OPEN_SECONDS_TARGET:.0f}), "
        f"{found['peak_bytes'] / 2**20:.0f} MiB (target <= {OPEN_BYTES_TARGET >> 20})",
    }


def _open(directory: Path) -> None:
    begin = time.perf_counter()
    data = TokenDataset.open(directory, "train", sequence=SEQUENCE, seed=0)
    data.samples(range(BATCH))
    seconds = time.perf_counter() - begin
    # Not getrusage: its peak starts with that of the process which started this one.
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    print(json.dumps({"seconds": seconds, "peak_bytes": peak}))


def main(arguments: list[str]) -> None:
    """Both rows on standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.open is not None:
        _open(options.open)
        return
    for name, measure in loader_rows():
        print(f"{name}: {measure(options.rounds)['summary']}")


if __name__ == "__main__":
    main(sys.argv[1:])
