"""Tables of the bias section: all effects, and the most frequent and most one-sided adjectives of each group."""

from typing import Any

from trivium.report.parts import Table
from trivium.report.words import chance_text, number_text, range_text

Tree = dict[str, Any]
WORDS = ("most frequent adjectives (texts)", "most one-sided (log-odds, nats)")


def bias_tables(bias: Tree) -> list[Table]:
    """Return the table of effects, and for each axis the table of its adjectives, omitting empty tables."""
    tables: list[Table] = []
    rows = [_effect(row) for row in bias["effects"]] + [_unmeasured(row) for row in bias["not_measured"]]
    if rows:
        headings = ("measure", "of", "estimate", "unit", "interval", "Cohen's d", "p, corrected", "n")
        tables.append(Table(headings, rows))
    for axis, groups in bias["adjectives"].items():
        words = [
            (group, _words(g["frequent"], "count"), _sided(g["one_sided"])) for group, g in groups.items()
        ]
        tables.append(Table((axis, *WORDS), words))
    return tables


def _effect(row: Tree) -> tuple[str, ...]:
    size = row["effect_size"]
    return (
        *(row["measure"], row["of"], number_text(row["estimate"]), row["unit"]),
        range_text(row["interval"], number_text) if row["interval"] else "–",
        "–" if size is None else number_text(size),
        *(chance_text(row["p_holm"]), number_text(row["n"])),
    )


def _unmeasured(row: Tree) -> tuple[str, ...]:
    """List an effect that could not be measured, because a group has no counted words, so that it does not seem
    forgotten."""
    return (row["measure"], row["of"], "not measured", *("–",) * 4, number_text(row["n"]))


def _words(rows: list[Tree], key: str) -> str:
    return ", ".join(f"{row['word']} ({row[key]})" for row in rows) or "none"


def _sided(rows: list[Tree]) -> str:
    """Mark words that are significant after correction with a star."""
    told = [f"{r['word']} ({r['log_odds']:+.2f}{'*' if r['p_holm'] < 0.05 else ''})" for r in rows]
    return ", ".join(told) or "none"
