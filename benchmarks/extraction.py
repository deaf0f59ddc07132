"""F1 and speed of the extractors on pages with gold text.

    python benchmarks/extraction.py [GOLD] [--json FILE] [--out RUN]

GOLD is a folder of pages; --out writes RUN/extraction.json, which the report of the run shows. By default the pages
are those of the article-extraction-benchmark of Zyte (MIT; 90 with gold `articleBody`), under
$TRIVIUM_DATA/html. F1 is over words (a multiset, lower case) and over runs of four words, as in that benchmark;
each is the mean over pages. Speed is bytes of HTML per CPU second on one core: rounds are interleaved, the median
counts. The default was developed on the pages whose name begins with 0 … 7; its figures on the others are given
apart. Of these only the mean score was looked at while it was developed; docs/extraction.md says what was read later.
"""

import argparse
import json
import os
from pathlib import Path

from trivium.corpus.clean.extract_check import check_extraction, mean_scores

DEVELOPED_ON = "01234567"


def with_unseen(rows: dict[str, dict]) -> dict[str, dict]:
    """Return the figures of all pages and of the unseen ones by candidate, or why there are none."""
    found = {}
    for candidate, row in rows.items():
        found[candidate] = {name: value for name, value in row.items() if name != "f1_of_pages"}
        if "missing" not in row:
            each = row["f1_of_pages"]
            unseen = [name for name in each if name[0] not in DEVELOPED_ON]
            found[candidate]["unseen"] = mean_scores(each, unseen or list(each))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gold", type=Path, nargs="?", help="pages with gold text; default: $TRIVIUM_DATA/html")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--out", type=Path, help="a run directory whose report will show the figures")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.gold is None and "TRIVIUM_DATA" not in os.environ:
        raise SystemExit("TRIVIUM_DATA is not set; it names the folder that holds html/, or give GOLD")
    measured = check_extraction(options.gold or Path(os.environ["TRIVIUM_DATA"]) / "html", rounds=options.rounds)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "extraction.json").write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    rows = with_unseen(measured)
    print(f"{'extractor':<28}{'word F1':>9}{'unseen':>8}{'run F1':>8}{'unseen':>8}{'MB/s':>8}")
    for name, row in rows.items():
        if "missing" in row:
            print(f"{name:<28}not measured: {row['missing']}")
            continue
        unseen = row["unseen"]
        figures = (row["word_f1"], unseen["word_f1"], row["run_f1"], unseen["run_f1"])
        print(f"{name:<28}" + "".join(f"{f:>8.3f}" for f in figures) + f"{row['mb_per_cpu_second']:>8.1f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
