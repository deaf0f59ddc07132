"""F1 and speed of the extractors on pages with gold text: `python benchmarks/extraction.py [--json out.json]`.

The pages are those of the article-extraction-benchmark of Zyte (MIT; 90 with gold `articleBody`), under
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


def measure(folder: Path, rounds: int) -> dict[str, dict]:
    """Candidate → figures of all pages and of the unseen ones, or why there are none."""
    rows = check_extraction(folder, rounds=rounds)
    for row in rows.values():
        if "missing" not in row:
            each = row.pop("f1_of_pages")
            row["unseen"] = mean_scores(each, [name for name in each if name[0] not in DEVELOPED_ON])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if "TRIVIUM_DATA" not in os.environ:
        raise SystemExit("TRIVIUM_DATA is not set; it names the folder that holds html/")
    rows = measure(Path(os.environ["TRIVIUM_DATA"]) / "html", options.rounds)
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
