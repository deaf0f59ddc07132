"""DuckDB: the first row of each text, from Parquet to Parquet, on one thread.

Run with the interpreter of its own environment: python duckdb_side.py IN OUT.
"""

import json
import sys

import duckdb
from processor_time import cpu_seconds


def main() -> None:
    source, out = sys.argv[1:3]
    before = cpu_seconds()
    connection = duckdb.connect(config={"threads": 1})
    first = f"SELECT min(id) FROM read_parquet('{source}') GROUP BY text"
    kept = f"SELECT id, text FROM read_parquet('{source}') WHERE id IN ({first}) ORDER BY id"
    connection.execute(f"COPY ({kept}) TO '{out}' (FORMAT parquet, COMPRESSION zstd)")
    print(json.dumps({"cpu": cpu_seconds() - before, "import_cpu": before}))


if __name__ == "__main__":
    main()
