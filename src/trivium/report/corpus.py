"""Sections about the corpus: funnel, statistics and extraction, with the figures of the statistics."""

from typing import Any

import plotly.graph_objects as go

from trivium.report import figures
from trivium.report.figures import BLUE, ORANGE, ROW, look, plain_label, sized
from trivium.report.parts import Drawn, Section, Table
from trivium.report.words import number_text, reasons_text, share_text

Tree = dict[str, Any]


def funnel_section(report: Tree) -> Section:
    """Show how many documents remain after each step, and how much of the planted junk was removed."""
    steps, planted, honest = report["funnel"], report["planted"] or {}, report["honest"]
    before = [None, *(s["documents"] for s in steps)]
    tables = [
        Table(
            ("step", "documents", "MB", "dropped, by reason"),
            [
                (s["step"], f"{s['documents']:,}", f"{s['bytes'] / 1e6:.2f}", reasons_text(s["dropped"], s, was))
                for s, was in zip(steps, before, strict=False)
            ],
        )
    ]
    if planted:
        rows = [
            (k.replace("_", " "), f"{r['planted']:,}", f"{r['caught']:,}", share_text(r)) for k, r in planted.items()
        ]
        tables.append(Table(("planted kind", "planted", "caught", "share"), rows))
    lost = ""
    if honest:
        by = ", ".join(f"{reason} {number:,}" for reason, number in (honest.get("lost_by") or {}).items())
        lost = f" Of {honest['documents']:,} clean documents {honest['lost']:,} were lost{f' ({by})' if by else ''}."
    return Section(
        "funnel",
        "The corpus funnel",
        shows="Documents left after each step of curation, and why the others went.",
        reading=f"The numbers of planted junk documents are known, so recall can be measured.{lost}"
        if planted or honest
        else "",
        limits="Planted junk follows simple rules, which makes it easier to find than real junk." if planted else "",
        figures=[Drawn("Documents left after each step", figures.funnel(steps))],
        tables=tables,
    )


def corpus_section(report: Tree) -> Section:
    """Show distributions of the kept documents, and reasons and similarities of the rejected ones."""
    found = report["corpus"]
    drawn = []
    if found["lengths"]:
        drawn.append(Drawn("Documents by their length", lengths(found["lengths"])))
    if found["rejected"]:
        drawn.append(Drawn("Documents dropped, by step and reason", rejects(found["rejected"])))
    if any(found["similarities"]):
        drawn.append(Drawn("Near duplicates, by their true similarity", similarities(found["similarities"])))
    heads = tuple({0.0: "least", 0.5: "median", 1.0: "most"}.get(q, f"{q:.0%}") for q in found["quantiles"])
    rows = [(name, *map(number_text, map(_float, values))) for name, values in found["figures"].items()]
    return Section(
        "corpus",
        "Corpus statistics",
        shows="Lengths of the kept documents, the values used by the filters, and the numbers and reasons of "
        "the rejected ones.",
        reading="A value whose maximum or minimum is close to a threshold is limited by it. Near "
        "duplicates all lie at or above the threshold of similarity, since each was verified.",
        figures=drawn,
        tables=[Table(("figure", *heads), rows)] if rows else [],
    )


def extraction_section(report: Tree) -> Section:
    """Show F1 and speed of each extractor on pages with known text."""
    rows = [
        (name, f"not measured: {row['missing']}", "", "", "")
        if row["missing"]
        else (
            name,
            *(number_text(row["pages"]), _f1(row["word_f1"]), _f1(row["run_f1"])),
            number_text(row["mb_per_cpu_second"]),
        )
        for name, row in report["extraction"].items()
    ]
    headings = ("extractor", "pages", "F1 of words", "F1 of runs of 4 words", "MB per CPU second")
    return Section(
        "extraction",
        "Extraction",
        shows="Accuracy of text extraction on pages with known text.",
        reading="F1 combines missed and superfluous text; 1 is exactly the gold text.",
        tables=[Table(headings, rows)],
    )


def _f1(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)


MAX_REASONS = 30  # bars, for the most frequent reasons


def lengths(by_source: dict[str, list[int]]) -> go.Figure:
    """Draw documents by length for each source; each bar doubles the number of characters."""
    last = max(len(counts) for counts in by_source.values())
    first = min(n for counts in by_source.values() for n, count in enumerate(counts) if count)
    names = [f"{2**n:,}" for n in range(first, last)]
    figure = go.Figure()
    for number, (source, counts) in enumerate(by_source.items()):
        padded = [*counts, *([0] * (last - len(counts)))]
        colour, hatch, _ = look(number)
        marker = {"color": colour, "pattern": {"shape": hatch}}
        figure.add_bar(name=plain_label(source), x=names, y=padded[first:], marker=marker)
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title="characters, at least", type="category")
    figure.update_yaxes(title="documents", rangemode="tozero")
    return sized(figure, 340)


def rejects(by_step: dict[str, dict[str, int]]) -> go.Figure:
    """Draw the numbers of rejected documents by step and reason, for the most frequent reasons."""
    rows = [(step, reason, count) for step, reasons in by_step.items() for reason, count in reasons.items()]
    rows = sorted(rows, key=lambda row: -row[2])[:MAX_REASONS]
    figure = go.Figure(
        go.Bar(
            y=[plain_label(f"{step}: {reason}"[:80]) for step, reason, _ in rows],
            x=[count for _, _, count in rows],
            orientation="h",
            marker_color=ORANGE,
            text=[f"{count:,}" for _, _, count in rows],
        )
    )
    figure.update_yaxes(autorange="reversed", dtick=1)
    figure.update_xaxes(title="documents dropped", rangemode="tozero")
    return sized(figure, 120 + ROW * len(rows) * 2 // 3)


def similarities(tenths: list[int]) -> go.Figure:
    """Draw near duplicates by Jaccard similarity in steps of a tenth."""
    names = [f"{n / len(tenths):.1f} to {(n + 1) / len(tenths):.1f}" for n in range(len(tenths))]
    figure = go.Figure(go.Bar(x=names, y=tenths, marker_color=BLUE))
    figure.update_xaxes(title="Jaccard similarity to the nearest other document", type="category")
    figure.update_yaxes(title="documents dropped", rangemode="tozero")
    return sized(figure, 300)
