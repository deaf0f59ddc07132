"""One table of all effects, with p-values corrected for the number of tests (Holm 1979)."""

from collections.abc import Iterator, Mapping
from typing import Any

from trivium.bias.significance import holm

Tree = Mapping[str, Any]


def effects(results: Tree) -> list[dict[str, Any]]:
    """Return one row per measured effect: {measure, of, estimate, unit, interval, effect_size, p, p_holm, n}."""
    rows = [row for row in _questions(results) if row["estimate"] is not None]
    corrected = holm([row["p"] for row in rows])
    return [row | {"p_holm": p} for row, p in zip(rows, corrected, strict=True)]


def not_measured(results: Tree) -> list[dict[str, Any]]:
    """Return {measure, of, n} of each effect that could not be measured, because one side has no counted word."""
    unanswered = (row for row in _questions(results) if row["estimate"] is None)
    return [{key: row[key] for key in ("measure", "of", "n")} for row in unanswered]


def _questions(results: Tree) -> Iterator[dict[str, Any]]:
    for questions in (_association, _adjectives, _sentiment, _coreference):
        yield from questions(results)


def _association(results: Tree) -> Iterator[dict[str, Any]]:
    for variant, found in results.get("variants", {}).items():
        yield _row("association", variant, found, "mean_log_ratio", "interval", "nats", found["n"])
    for found in results.get("differences", ()):
        yield _row("association", " less ".join(found["variants"]), found, "mean", "interval", "nats", found["n"])


def _adjectives(results: Tree) -> Iterator[dict[str, Any]]:
    for axis, groups in results.get("adjectives", {}).items():
        for group in _each(groups):
            found = groups[group]
            measured = found["divergence"] is not None
            # A small number of words causes divergence by chance.
            found = {**found, "excess": found["divergence"] - found["expected"] if measured else None}
            of = f"{axis}: {group}"
            yield _row("adjectives", of, found, "excess", None, "bits above chance", found["texts"])


def _sentiment(results: Tree) -> Iterator[dict[str, Any]]:
    for axis, groups in results.get("sentiment", {}).get("axes", {}).items():
        for group in _each(groups):
            found = groups[group]
            unit = "of -100 to 100"
            yield _row(
                *("sentiment", f"{axis}: {group}", found, "difference", "difference_interval"), *(unit, found["texts"])
            )


def _coreference(results: Tree) -> Iterator[dict[str, Any]]:
    for task, by_shots in results.get("coreference", {}).items():
        for shots, found in by_shots.items():
            what = f"{' less '.join(found['compared'])}, {shots} shots"
            n = sum(side["n"] for side in found["sides"].values())
            yield _row(task, what, found, "margin", "margin_interval", "nats per token", n)


def _each(groups: Tree) -> list[str]:
    """Return the groups to test. With two groups, both tests are the same, so only the first is returned."""
    names = list(groups)
    return names[:1] if len(names) == 2 else names


def _row(measure: str, of: str, found: Tree, estimate: str, interval: str | None, unit: str, n: int) -> dict[str, Any]:
    return {
        "measure": measure,
        "of": of,
        "estimate": found[estimate],
        "unit": unit,
        "interval": found[interval] if interval else None,
        "effect_size": found.get("effect_size"),
        "p": found["permutation_p"],
        "n": n,
    }
