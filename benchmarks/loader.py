"""Random batches from .bin/.idx beside a plain Megatron-style indexed dataset, and the time to open a large blend.

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
from numpy.typing import NDArray

from trivium.tokens.manifest import FORMAT, MANIFEST
from trivium.tokens.samples import BLOCK, TokenDataset
from trivium.tokens.shards import ShardWriter, TokenShard

BATCHES_TARGET, OPEN_SECONDS_TARGET, OPEN_BYTES_TARGET = 3.0, 10.0, 1 << 30
SEQUENCE, BATCH = 2048, 32
BATCHES = BLOCK // BATCH  # of a round: each pays once for looking places up
SMALL_TOKENS, LARGE_TOKENS, SOURCES = 50_000_000, 1_000_000_000, 15
DOCUMENT = 800  # tokens, about the mean of a page of the Pile
CHUNK = 20_000_000  # tokens written at once


def loader_rows() -> list[tuple[str, Callable[[int], dict[str, Any]]]]:
    """Batches per second, and the opening of 10^9 tokens."""
    return [("loader batches", batches), ("loader index", lambda rounds: opening())]


def written_tokens(
    directory: Path, weights: Mapping[str, float], tokens: int, *, vocabulary: int = 50257
) -> None:
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


class IndexedDataset:
    """Megatron-LM's way: a shuffled list of samples, each found by its documents, whose pieces are joined.

    document order, (document, offset) of every sample's start and the order of samples are built before the first
    batch, as its GPTDataset does.
    """

    def __init__(self, shard: TokenShard, sequence: int) -> None:
        self.shard, self.sequence = shard, sequence
        random = np.random.default_rng(0)
        documents = len(shard)
        self.document_order = random.permutation(documents)
        lengths = np.diff(shard.document_starts)[self.document_order]
        ends = np.cumsum(lengths)
        samples = (int(ends[-1]) - 1) // sequence
        starts = np.arange(samples + 1, dtype=np.int64) * sequence
        self.first = np.searchsorted(ends, starts, side="right")
        self.offset = starts - (ends - lengths)[self.first]
        self.sample_order = random.permutation(samples)

    def __getitem__(self, i: int) -> NDArray[np.int64]:
        at = self.sample_order[i % len(self.sample_order)]
        pieces, wanted = [], self.sequence + 1
        document, offset = int(self.first[at]), int(self.offset[at])
        while wanted and document < len(self.document_order):
            text = self.shard[int(self.document_order[document])][offset : offset + wanted]
            pieces.append(text)
            wanted -= len(text)
            document, offset = document + 1, 0
        return np.concatenate(pieces).astype(np.int64)


def batches(rounds: int) -> dict[str, Any]:
    """Batches of random samples by turns; a batch is [sequences, positions + 1] in int64."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "tokens"
        written_tokens(directory, {"one": 1.0}, SMALL_TOKENS)
        ours = TokenDataset.open(directory, "train", sequence=SEQUENCE, seed=0)
        plain = IndexedDataset(TokenShard.open(directory / "one"), SEQUENCE)

        def theirs(n: int) -> NDArray[np.int64]:
            return np.stack([plain[i] for i in range(n * BATCH, (n + 1) * BATCH)])

        sides = {"trivium": lambda n: ours.samples(range(n * BATCH, (n + 1) * BATCH)), "indexed": theirs}
        times: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(rounds + 1):
            for name, take in sides.items():
                begin = time.perf_counter()
                for n in range(number * BATCHES, (number + 1) * BATCHES):
                    take(n)
                times[name].append(BATCHES / (time.perf_counter() - begin))
    rates = {name: statistics.median(found[1:]) for name, found in times.items()}
    ratio = rates["trivium"] / rates["indexed"]
    return {
        "name": "loader batches",
        "status": "measured",
        "says": f"{BATCH} samples of {SEQUENCE} + 1 tokens from {SMALL_TOKENS:,} tokens in documents of {DOCUMENT}; "
        "the peer finds a sample by its documents, as Megatron-LM's GPTDataset does.",
        "batches_per_second": rates,
        "ratio": ratio,
        "target": BATCHES_TARGET,
        "summary": f"{rates['trivium']:,.0f} batches/s, {ratio:.2f} x a plain indexed dataset "
        f"(target {BATCHES_TARGET})",
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
