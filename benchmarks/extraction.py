"""F1 and speed of the extractors on pages with gold text.

    python benchmarks/extraction.py [GOLD] [--json FILE] [--out RUN]

GOLD is a folder with ground-truth.json ({name: {"articleBody": text}}) and pages/NAME.html.gz; --out writes
RUN/extraction.json, which the report of the run shows. By default the pages are those of the article-extraction-
benchmark of Zyte (MIT; 90 with gold `articleBody`), under $TRIVIUM_DATA/html. F1 is over words (a multiset, lower
case) and over runs of four words, as in that benchmark; each is the mean over pages. Speed is bytes of HTML per CPU
second on one core: rounds are interleaved, the median counts. The default was developed on the pages whose name begins
with 0 … 7; its figures on the others are given apart. Of these only the mean score was looked at while it was
developed; docs/extraction.md says what was read later.
"""

import argparse
import gzip
import json
import os
import re
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trivium.corpus.clean.extract import extractor
from trivium.corpus.clean.tidy import tidy
from trivium.corpus.config import ExtractConfig
from trivium.corpus.read.encoding import decode
from trivium.errors import MachineError

DEVELOPED_ON = "01234567"
CANDIDATES = {
    "blocks (default)": ExtractConfig(),
    "resiliparse": ExtractConfig(extractor="resiliparse"),
    "justext": ExtractConfig(extractor="justext"),
    "trafilatura": ExtractConfig(extractor="trafilatura"),
}
RUN_WORDS = 4


def gold_pages(folder: Path) -> dict[str, tuple[bytes, str]]:
    """Return the HTML as fetched and the gold text of each page by name."""
    truth = json.loads((folder / "ground-truth.json").read_text(encoding="utf-8"))
    return {
        name: (gzip.decompress((folder / "pages" / f"{name}.html.gz").read_bytes()), entry["articleBody"])
        for name, entry in sorted(truth.items())
    }


def check_extraction(folder: Path, *, rounds: int = 1) -> dict[str, dict[str, Any]]:
    """Return for each extractor the mean F1 over words and over runs, and MB of HTML per CPU second.

    Rounds are interleaved, and the median of their times counts. `f1_of_pages` has both scores of each page.
    An extractor that is not installed has `missing` instead.
    """
    pages = gold_pages(folder)
    rows: dict[str, dict[str, Any]] = {}
    extractors = {}
    for name, config in CANDIDATES.items():
        try:
            extractors[name] = extractor(config)
        except MachineError as error:
            rows[name] = {"missing": str(error)}
    seconds: dict[str, list[float]] = {name: [] for name in extractors}
    texts: dict[str, dict[str, str]] = {}
    for _ in range(rounds):
        for name, extract in extractors.items():
            start = time.process_time()
            texts[name] = {page: tidy(extract(decode(body, None))) for page, (body, _) in pages.items()}
            seconds[name].append(time.process_time() - start)
    size = sum(len(body) for body, _ in pages.values()) / 1e6
    for name in extractors:
        each = {page: scores(texts[name][page], gold) for page, (_, gold) in pages.items()}
        rows[name] = {
            **mean_scores(each, list(each)),
            "mb_per_cpu_second": round(size / max(statistics.median(seconds[name]), 1e-9), 2),
            "f1_of_pages": each,
        }
    return rows


def scores(found: str, gold: str) -> tuple[float, float]:
    """Return F1 of an extracted text over words, and over runs of four words, as multisets."""
    words = [re.findall(r"\w+", text.lower()) for text in (found, gold)]
    runs = [Counter(tuple(some[n : n + RUN_WORDS]) for n in range(max(len(some) - RUN_WORDS + 1, 1))) for some in words]
    return _f1(*map(Counter, words)), _f1(*runs)


def _f1(found: Counter[Any], wanted: Counter[Any]) -> float:
    total = found.total() + wanted.total()
    return 2 * (found & wanted).total() / total if total else 1.0


def mean_scores(each: Mapping[str, tuple[float, float]], names: Sequence[str]) -> dict[str, float]:
    """Return the means over some pages."""
    words, runs = zip(*(each[name] for name in names), strict=True)
    return {"pages": len(names), "word_f1": round(statistics.mean(words), 4), "run_f1": round(statistics.mean(runs), 4)}


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
