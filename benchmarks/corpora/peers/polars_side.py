"""Polars: the first row of each text, from Parquet to Parquet, on one thread.

Run with the interpreter of its own environment: python polars_side.py IN OUT.
"""

import json
import os
import sys

os.environ["POLARS_MAX_THREADS"] = "1"
import polars
from processor_time import cpu_seconds


def main() -> None:
    source, out = sys.argv[1:3]
    before = cpu_seconds()
    rows = polars.read_parquet(source, columns=["id", "text"])
    rows.unique("text", keep="first", maintain_order=True).write_parquet(out, compression="zstd")
    print(json.dumps({"cpu": cpu_seconds() - before, "import_cpu": before}))


if __name__ == "__main__":
    main()
