"""text-dedup: its MinHash script with its own defaults but for 5-word shingles and a threshold of 0.8, one process.

Run with the interpreter of its own environment: python text_dedup_side.py IN OUT. Nothing is verified.
"""

import json
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, load_from_disk
from processor_time import cpu_seconds
from text_dedup import minhash


def main() -> None:
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    before = cpu_seconds()
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        Dataset(pq.read_table(source, columns=["id", "text"])).save_to_disk(str(at / "in"))
        words = ["--path", str(at / "in"), "--local", "--output", str(at / "out"), "--cache_dir", str(at / "cache")]
        words += ["--column", "text", "--ngram", "5", "--threshold", "0.8", "--num_proc", "1", "--min_length", "1"]
        minhash.main(words, standalone_mode=False)
        ids = load_from_disk(str(at / "out"))["id"]
        pq.write_table(pa.table({"id": list(ids)}), out)
    print(json.dumps({"cpu": cpu_seconds() - before, "import_cpu": before}))


if __name__ == "__main__":
    main()
