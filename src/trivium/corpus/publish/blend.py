"""Weights over sources: how much of a training batch comes from each."""

from collections.abc import Mapping
from typing import Any

from trivium.errors import DataError, nearest


def blend(
    sources: Mapping[str, Mapping[str, int]], weights: Mapping[str, float]
) -> dict[str, dict[str, Any]]:
    """Source → documents, bytes, weight, epochs; `sources` as in a document store's manifest.

    Without `weights` each source weighs its share of the bytes. epochs: how often a source is seen while
    as many bytes are read as the whole corpus has.
    """
    unknown = sorted(set(weights) - set(sources))
    if unknown:
        raise DataError(
            f"blend names the source '{unknown[0]}', which the corpus lacks; {nearest(unknown[0], sources)}"
        )
    total = sum(counts["text_bytes"] for counts in sources.values())
    raw = {s: weights.get(s, 0.0) if weights else counts["text_bytes"] for s, counts in sources.items()}
    whole = sum(raw.values())
    if whole <= 0:
        raise DataError(f"the blend's weights add up to {whole}; give at least one source a weight above 0")
    return {
        source: {
            "documents": counts["documents"],
            "bytes": counts["text_bytes"],
            "weight": raw[source] / whole,
            "epochs": raw[source] / whole * total / max(counts["text_bytes"], 1),
        }
        for source, counts in sources.items()
    }
