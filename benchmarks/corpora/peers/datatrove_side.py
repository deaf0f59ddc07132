"""datatrove: its MinHash pipeline of four stages with its own defaults but for 5-word shingles, local executor.

Run with the interpreter of its own environment: python datatrove_side.py IN OUT. Nothing is verified.
"""

import json
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupBuckets
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.writers import ParquetWriter
from processor_time import cpu_seconds


def main() -> None:
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    before = cpu_seconds()
    config = MinhashConfig(n_grams=5)
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        (at / "in").mkdir()
        table = pq.read_table(source, columns=["id", "text"])
        pq.write_table(table.set_column(0, "id", table["id"].cast(pa.string())), at / "in" / "in.parquet")
        reader = ParquetReader(str(at / "in"), text_key="text", id_key="id")
        stages = (
            [reader, MinhashDedupSignature(str(at / "signatures"), config=config)],
            [MinhashDedupBuckets(str(at / "signatures"), str(at / "buckets"), config=config)],
            [MinhashDedupCluster(str(at / "buckets"), str(at / "remove"), config=config)],
            [reader, MinhashDedupFilter(str(at / "remove")), ParquetWriter(str(at / "out"))],
        )
        for number, stage in enumerate(stages):
            tasks = config.num_buckets if number == 1 else 1
            LocalPipelineExecutor(stage, tasks=tasks, workers=1, logging_dir=str(at / f"log{number}")).run()
        ids = pq.read_table(at / "out", columns=["id"])["id"].cast(pa.int64())
        pq.write_table(pa.table({"id": ids}), out)
    print(json.dumps({"cpu": cpu_seconds() - before, "import_cpu": before}))


if __name__ == "__main__":
    main()
