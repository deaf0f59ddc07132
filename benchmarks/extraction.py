"""F1 and speed of the extractors on pages with gold text: `python benchmarks/extraction.py [--json out.json]`.

The pages are those of the article-extraction-benchmark of Zyte (MIT; 90 with gold `articleBody`), under
$TRIVIUM_DATA/html. F1 is over words (a multiset, lower case) and over runs of four words, as in that benchmark;
each is the mean over pages. Speed is bytes of HTML per CPU second on one core: rounds are interleaved, the median
counts. The default was developed on the pages whose name begins with 0 … 7; its figures on the others, which
nobody looked at, are given apart.
"""

import argparse
import gzip
import json
import os
import re
import statistics
import time
from collections import Counter
from pathlib import Path

from trivium.corpus.clean import tidy
from trivium.corpus.config import ExtractConfig
from trivium.corpus.encoding import decode
from trivium.corpus.extract import extractor
from trivium.errors import TriviumError

CANDIDATES = {
    "resiliparse (default)": ExtractConfig(),
    "resiliparse (main content)": ExtractConfig(only_article=False),
    "justext": ExtractConfig(extractor="justext"),
    "trafilatura": ExtractConfig(extractor="trafilatura"),
}
DEVELOPED_ON = "01234567"


def pages(folder: Path) -> dict[str, tuple[bytes, str]]:
    """Name → (HTML as fetched, gold text)."""
    truth = json.loads((folder / "ground-truth.json").read_text(encoding="utf-8"))
    return {
        name: (gzip.decompress((folder / "pages" / f"{name}.html.gz").read_bytes()), entry["articleBody"])
        for name, entry in sorted(truth.items())
    }


def f1(found: Counter, wanted: Counter) -> float:
    """Of two multisets; 1 when both are empty."""
    total = found.total() + wanted.total()
    return 2 * (found & wanted).total() / total if total else 1.0


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def runs(text: str, size: int = 4) -> Counter:
    found = words(text)
    return Counter(tuple(found[n : n + size]) for n in range(max(len(found) - size + 1, 1)))


def quality(texts: dict[str, str], gold: dict[str, str], names: list[str]) -> dict[str, float]:
    return {
        "pages": len(names),
        "word_f1": round(
            statistics.mean(f1(Counter(words(texts[n])), Counter(words(gold[n]))) for n in names), 4
        ),
        "run_f1": round(statistics.mean(f1(runs(texts[n]), runs(gold[n])) for n in names), 4),
    }


def measure(folder: Path, rounds: int) -> dict[str, dict]:
    """Candidate → figures, or why there are none."""
    every = pages(folder)
    gold = {name: text for name, (_, text) in every.items()}
    unseen = [name for name in every if name[0] not in DEVELOPED_ON]
    rows: dict[str, dict] = {}
    extractors = {}
    for name, config in CANDIDATES.items():
        try:
            extractors[name] = extractor(config)
        except TriviumError as error:
            rows[name] = {"missing": str(error)}
    seconds: dict[str, list[float]] = {name: [] for name in extractors}
    texts: dict[str, dict[str, str]] = {}
    for _ in range(rounds):
        for name, extract in extractors.items():
            start = time.process_time()
            texts[name] = {page: tidy(extract(decode(body, None))) for page, (body, _) in every.items()}
            seconds[name].append(time.process_time() - start)
    size = sum(len(body) for body, _ in every.values())
    for name in extractors:
        rows[name] = {
            "all": quality(texts[name], gold, list(gold)),
            "unseen": quality(texts[name], gold, unseen),
            "mb_per_cpu_second": round(size / 1e6 / statistics.median(seconds[name]), 2),
        }
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
        whole, unseen = row["all"], row["unseen"]
        figures = (whole["word_f1"], unseen["word_f1"], whole["run_f1"], unseen["run_f1"])
        print(f"{name:<28}" + "".join(f"{f:>8.3f}" for f in figures) + f"{row['mb_per_cpu_second']:>8.1f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
