"""Polars: the first row of each text, from Parquet to Parquet, on one thread.

Run with the interpreter of its own environment: python polars_side.py IN OUT.
"""

import json
import os
import resource
import sys

os.environ["POLARS_MAX_THREADS"] = "1"
import polars


def main() -> None:
    source, out = sys.argv[1:3]
    before = cpu_seconds()
    rows = polars.read_parquet(source, columns=["id", "text"])
    rows.unique("text", keep="first", maintain_order=True).write_parquet(out, compression="zstd")
    print(json.dumps({"cpu": cpu_seconds() - before, "import_cpu": before}))


def cpu_seconds() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


if __name__ == "__main__":
    main()
