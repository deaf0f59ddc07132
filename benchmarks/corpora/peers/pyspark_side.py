"""PySpark: the plan of Trivium (24 bands of 5 rows, true Jaccard, connected components) in Spark's own operators.

Run with the interpreter of its own environment: python pyspark_side.py IN OUT. Signatures are a pandas function in
numpy, everything else is Spark SQL on one thread; components are found on the driver, as in Trivium. The processor
time of Java and of its Python workers counts.
"""

import json
import os
import re
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

WORD = re.compile(r"\w+")
BANDS, ROWS, SHINGLE, THRESHOLD = 24, 5, 5, 0.8
SCHEMA = "id long, shingles array<long>, bands array<long>"
drawn = np.random.default_rng(1).integers(0, 2**31, BANDS * ROWS, dtype=np.uint32)
MULTIPLIERS = drawn * np.uint32(2) + np.uint32(1)
ADDED = np.random.default_rng(2).integers(0, 2**32, BANDS * ROWS, dtype=np.uint32)
BASE = np.uint64(0x9E3779B97F4A7C15)


def main() -> None:
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    before = cpu_seconds()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "6g")
        .config("spark.sql.shuffle.partitions", "8")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
        .getOrCreate()
    )
    java = spark.sparkContext._gateway.proc  # noqa: SLF001 its processor time counts too
    texts = spark.read.parquet(str(source)).select("id", "text")
    sets = texts.mapInPandas(signatures, SCHEMA).persist()
    bands = sets.select("id", F.posexplode("bands").alias("band", "key"))
    other = bands.select(F.col("id").alias("later"), "band", "key")
    pairs = bands.join(other, ["band", "key"]).where("id < later").select("id", "later").distinct()
    left = sets.select("id", F.col("shingles").alias("a"))
    right = sets.select(F.col("id").alias("later"), F.col("shingles").alias("b"))
    both = pairs.join(left, "id").join(right, "later")
    shared = F.size(F.array_intersect("a", "b"))
    similar = both.where(shared / (F.size("a") + F.size("b") - shared) >= THRESHOLD)
    edges = np.array([tuple(row) for row in similar.select("id", "later").collect()]).reshape(-1, 2)
    documents = pq.ParquetFile(source).metadata.num_rows
    graph = coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(documents, documents))
    _, labels = connected_components(graph, directed=False)
    kept = np.sort(np.unique(labels, return_index=True)[1])
    keep = spark.createDataFrame(pd.DataFrame({"id": kept}))
    texts.join(F.broadcast(keep), "id").write.mode("overwrite").parquet(f"{out}.folder")
    java_seconds = cpu_of_tree(java.pid)
    pq.write_table(pa.table({"id": kept}), out)
    spark.stop()
    print(json.dumps({"cpu": cpu_seconds() - before + java_seconds, "import_cpu": before}))


def signatures(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Distinct shingles and band keys of each document."""
    for frame in frames:
        rows = [features(text) for text in frame["text"]]
        yield pd.DataFrame({"id": frame["id"], "shingles": [r[0] for r in rows], "bands": [r[1] for r in rows]})


def features(text: str) -> tuple[np.ndarray, np.ndarray]:
    words = WORD.findall(text.lower())
    each = np.fromiter((crc32(word.encode()) for word in words), np.uint64, len(words))
    runs = max(len(words) - SHINGLE + 1, 1)
    mixed = np.zeros(runs, np.uint64)
    for place in range(min(SHINGLE, len(words))):
        mixed = mixed * BASE + each[place : place + runs]
    hashes = np.unique(mixed * BASE)
    values = (hashes >> np.uint64(32)).astype(np.uint32)
    smallest = (values[:, None] * MULTIPLIERS + ADDED).min(axis=0).astype(np.uint64).reshape(BANDS, ROWS)
    bands = np.zeros(BANDS, np.uint64)
    for row in range(ROWS):
        bands = bands * BASE + smallest[:, row]
    return hashes.view(np.int64), bands.view(np.int64)


def cpu_of_tree(root: int) -> float:
    """Seconds of a process and everything below it, living or ended."""
    ticks = os.sysconf("SC_CLK_TCK")
    parents, times = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            times[int(entry.name)] = sum(map(int, fields[11:15])) / ticks
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sum(times.get(pid, 0.0) for pid in found)


def cpu_seconds() -> float:
    """Return the CPU seconds of this process alone. `cpu_of_tree` counts Java and its children."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
