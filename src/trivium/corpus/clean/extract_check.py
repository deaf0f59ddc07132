"""Quality of extraction on pages whose text is known: F1 over words, and over runs of four words.

The gold pages are a folder as in the article-extraction-benchmark (Zyte, MIT): ground-truth.json with the articleBody
of each page, and pages/NAME.html.gz.
"""

import gzip
import json
import re
import statistics
import time
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trivium.corpus.clean.extract import extractor
from trivium.corpus.clean.tidy import tidy
from trivium.corpus.config import ExtractConfig
from trivium.corpus.read.encoding import decode
from trivium.errors import DataError, MachineError

CANDIDATES: Mapping[str, ExtractConfig] = {
    "blocks (default)": ExtractConfig(),
    "resiliparse": ExtractConfig(extractor="resiliparse"),
    "justext": ExtractConfig(extractor="justext"),
    "trafilatura": ExtractConfig(extractor="trafilatura"),
}
RUN_WORDS = 4


def gold_pages(folder: Path) -> dict[str, tuple[bytes, str]]:
    """Return the HTML as fetched and the gold text of each page by name. DataError if the folder has none."""
    try:
        truth = json.loads((folder / "ground-truth.json").read_text(encoding="utf-8"))
        pages = {
            name: (gzip.decompress((folder / "pages" / f"{name}.html.gz").read_bytes()), entry["articleBody"])
            for name, entry in sorted(truth.items())
        }
        if not pages:
            raise ValueError("ground-truth.json names no page")
        return pages
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, zlib.error) as error:
        raise DataError(
            f"{folder} holds no gold pages ({error}); give a folder with ground-truth.json "
            '({name: {"articleBody": text}}) and pages/NAME.html.gz'
        ) from None


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
