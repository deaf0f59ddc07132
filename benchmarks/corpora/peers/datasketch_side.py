"""datasketch: 128 functions over 5-word shingles, LSH at 0.8; a document that meets an earlier one goes.

Run with the interpreter of its own environment: python datasketch_side.py IN OUT. Nothing is verified, as in the
library's own examples of deduplication.
"""

import json
import re
import sys

import pyarrow.parquet as pq
from datasketch import MinHash, MinHashLSH
from processor_time import cpu_seconds

WORD = re.compile(r"\w+")


def main() -> None:
    source, out = sys.argv[1:3]
    before = cpu_seconds()
    table = pq.read_table(source, columns=["id", "text"])
    lsh = MinHashLSH(threshold=0.8, num_perm=128)
    kept = []
    for row, text in enumerate(table["text"].to_pylist()):
        words = WORD.findall(text.lower())
        signature = MinHash(num_perm=128)
        signature.update_batch({" ".join(words[i : i + 5]).encode() for i in range(max(len(words) - 4, 1))})
        if not lsh.query(signature):
            kept.append(row)
            lsh.insert(row, signature)
    pq.write_table(table.take(kept), out, compression="zstd")
    print(json.dumps({"cpu": cpu_seconds() - before, "import_cpu": before}))


if __name__ == "__main__":
    main()
