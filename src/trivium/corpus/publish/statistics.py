"""Distributions of a curated corpus: lengths and scores of what was kept, reasons and similarities of what was not."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from trivium.corpus.publish.history import rejects_of
from trivium.corpus.read.inputs import DOCUMENTS
from trivium.corpus.steps import float_of
from trivium.corpus.store import read_documents

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
SIMILARITY_BINS = 10  # between 0 and 1


def corpus_statistics(curated: Path) -> dict[str, Any]:
    """figures: name → quantiles over kept documents (characters of each source; every number in the metadata).

    lengths: source → documents by characters, doubling from bin to bin (bin n: 2^n characters or more).
    rejected: step → reason → documents; similarities: near duplicates by tenths of their Jaccard similarity.
    """
    values: dict[str, array[float]] = defaultdict(lambda: array("d"))
    lengths: dict[str, Counter[int]] = defaultdict(Counter)
    for document in read_documents(curated / DOCUMENTS, verify=False):
        values[f"characters of {document.source}"].append(len(document.text))
        lengths[document.source][max(len(document.text), 1).bit_length() - 1] += 1
        for name, value in numbers_in(document.metadata):
            values[name].append(value)
    rejected: dict[str, Counter[str]] = defaultdict(Counter)
    similarities = array("d")
    for row in rejects_of(curated):
        rejected[row["step"]][row["reason"]] += 1
        if "jaccard" in row:
            similarities.append(row["jaccard"])
    counts, _ = np.histogram(similarities, bins=SIMILARITY_BINS, range=(0, 1))
    return {
        "quantiles": list(QUANTILES),
        "figures": {
            name: [round(float(q), 4) for q in np.quantile(found, QUANTILES)]
            for name, found in sorted(values.items())
        },
        "lengths": {
            source: [bins[n] for n in range(max(bins) + 1)] for source, bins in sorted(lengths.items())
        },
        "rejected": {step: dict(reasons.most_common()) for step, reasons in rejected.items()},
        "similarities": counts.tolist(),
    }


def _shown(value: float) -> str:
    """Four digits, and of larger numbers all."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def statistics_lines(found: Mapping[str, Any]) -> list[str]:
    """Statistics for a terminal."""
    width = max(map(len, found["figures"]), default=0)
    heads = "".join(f"{_head(q):>11}" for q in found["quantiles"])
    lines = [f"{'figure':<{width}}{heads}"]
    for name, values in found["figures"].items():
        lines.append(f"{name:<{width}}" + "".join(f"{_shown(value):>11}" for value in values))
    for step, reasons in found["rejected"].items():
        lines += [f"dropped by {step}: {count:,} {reason}" for reason, count in reasons.items()]
    for tenth, count in enumerate(found["similarities"]):
        if count:
            low = tenth / SIMILARITY_BINS
            lines.append(f"near duplicates at a similarity of {low:.1f} to {low + 0.1:.1f}: {count:,}")
    return lines


def numbers_in(metadata: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every number of nested metadata that is finite as a float, by its path."""
    for name, value in metadata.items():
        if isinstance(value, Mapping):
            yield from numbers_in(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool) and isfinite(float_of(value)):
            yield f"{prefix}{name}", float(value)


def _head(quantile: float) -> str:
    return {0.0: "least", 0.5: "median", 1.0: "most"}.get(quantile, f"{100 * quantile:.0f} %")
