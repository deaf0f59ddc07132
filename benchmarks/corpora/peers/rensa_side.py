"""rensa: 128 functions over 5-word shingles, LSH at 0.8; a document that meets an earlier one goes.

Run with the interpreter of its own environment: python rensa_side.py IN OUT. This is the library's own example of
deduplication (RMinHashDeduplicator.add_pairs): a candidate is compared by its signature, and not by its shingles.
"""

import json
import re
import sys
from collections.abc import Iterator

import pyarrow.parquet as pq
from processor_time import cpu_seconds
from rensa import RMinHashDeduplicator

WORD = re.compile(r"\w+")


def main() -> None:
    source, out = sys.argv[1:3]
    before = cpu_seconds()
    table = pq.read_table(source, columns=["id", "text"])
    found = RMinHashDeduplicator(threshold=0.8, num_perm=128, use_lsh=True)
    keeps = found.add_pairs(shingles(table["text"].to_pylist()))
    pq.write_table(table.filter(keeps), out, compression="zstd")
    print(json.dumps({"cpu": cpu_seconds() - before, "import_cpu": before}))


def shingles(texts: list[str]) -> Iterator[tuple[str, set[str]]]:
    for row, text in enumerate(texts):
        words = WORD.findall(text.lower())
        yield str(row), {" ".join(words[i : i + 5]) for i in range(max(len(words) - 4, 1))}


if __name__ == "__main__":
    main()
