"""datatrove: its filters of Gopher's quality and repetition with their defaults, from Parquet to Parquet.

Run with the interpreter of its own environment: python datatrove_filters_side.py IN OUT.
"""

import json
import sys

import pyarrow as pa
import pyarrow.parquet as pq
from datatrove.data import Document
from datatrove.pipeline.filters import GopherQualityFilter, GopherRepetitionFilter
from processor_time import cpu_seconds

BATCH = 1024  # documents read at once


def main() -> None:
    source, out = sys.argv[1:3]
    before = cpu_seconds()
    filters = (GopherQualityFilter(), GopherRepetitionFilter())
    kept = []
    for batch in pq.ParquetFile(source).iter_batches(BATCH, columns=["id", "text"]):
        texts = batch["text"].to_pylist()
        stays = [all(one.filter(Document(text, id="")) is True for one in filters) for text in texts]
        kept.append(batch.filter(pa.array(stays)))
    pq.write_table(pa.Table.from_batches(kept), out, compression="zstd")
    print(json.dumps({"cpu": cpu_seconds() - before, "import_cpu": before}))


if __name__ == "__main__":
    main()
