"""Sections about the corpus: funnel, statistics and extraction."""

from typing import Any

from trivium.report import figures
from trivium.report.parts import Drawn, Section, Table
from trivium.report.words import number_text, percent_text

Tree = dict[str, Any]


def funnel_section(report: Tree) -> Section:
    """Show how many documents remain after each step, and how much of the planted junk was removed."""
    steps, planted, honest = report["funnel"], report["planted"] or {}, report["honest"]
    before = [None, *(s["documents"] for s in steps)]
    rows = [
        (s["step"], f"{s['documents']:,}", f"{s['bytes'] / 1e6:.2f}", _reasons(s, was))
        for s, was in zip(steps, before, strict=False)
    ]
    tables = [Table(("step", "documents", "MB", "dropped, by reason"), rows)]
    if planted:
        junk = [
            (*(kind.replace("_", " "), f"{r['planted']:,}", f"{r['caught']:,}"), caught_text(r))
            for kind, r in planted.items()
        ]
        tables.append(Table(("planted kind", "planted", "caught", "share"), junk))
    lost = ""
    if honest:
        by = ", ".join(f"{reason} {number:,}" for reason, number in (honest.get("lost_by") or {}).items())
        lost = f" Of {honest['documents']:,} clean documents {honest['lost']:,} were lost{f' ({by})' if by else ''}."
    known = f"The numbers of planted junk documents are known, so recall can be measured.{lost}"
    return Section(
        "funnel",
        "Corpus",
        gist=f"{steps[0]['documents']:,} documents, {steps[-1]['documents']:,} kept",
        shows="Documents left after each step of curation, and the reasons for dropping the others.",
        reading=known if planted or honest else "",
        limits="Planted junk follows simple rules, which makes it easier to find than real junk." if planted else "",
        figures=[Drawn("Documents left after each step of curation", figures.funnel(steps), "demo picture")],
        tables=tables,
    )


def caught_text(row: Tree) -> str:
    """Format the share of planted documents of a kind that was caught."""
    return percent_text(row["caught"] / row["planted"]) if row["planted"] else "none planted"


def _reasons(step: Tree, documents_before: int | None) -> str:
    """List the reasons of dropped documents, and the number of documents added by cutting passages out of others."""
    dropped = step["dropped"]
    texts = [f"{reason} {number:,}" for reason, number in sorted(dropped.items(), key=lambda item: -item[1])]
    added = 0 if documents_before is None else step["documents"] - documents_before + sum(dropped.values())
    if added > 0:
        texts.append(f"{added:,} more: removing a passage splits a document")
    return ", ".join(texts) or "none"


def corpus_section(report: Tree) -> Section:
    """Show distributions of the kept documents, and reasons and similarities of the rejected ones."""
    found = report["corpus"]
    drawn = []
    if found["lengths"]:
        drawn.append(Drawn("Documents by their length", figures.lengths(found["lengths"])))
    if found["rejected"]:
        drawn.append(Drawn("Documents dropped, by step and reason", figures.rejects(found["rejected"])))
    if any(found["similarities"]):
        drawn.append(Drawn("Near duplicates, by their true similarity", figures.similarities(found["similarities"])))
    heads = tuple({0.0: "least", 0.5: "median", 1.0: "most"}.get(q, f"{q:.0%}") for q in found["quantiles"])
    rows = [
        (name, *(number_text(None if value is None else float(value)) for value in values))
        for name, values in found["figures"].items()
    ]
    return Section(
        "corpus",
        "Corpus statistics",
        gist="lengths, filter values, rejects",
        shows="Lengths of the kept documents, the values that filters use, and the reasons for rejecting the others.",
        reading="A value whose maximum or minimum is close to a threshold is limited by it. Every near duplicate was "
        "verified, so all are at or above the similarity threshold.",
        figures=drawn,
        tables=[Table(("figure", *heads), rows)] if rows else [],
    )


def extraction_section(report: Tree) -> Section:
    """Show F1 and speed of each extractor on pages with known text."""
    rows = [
        (name, f"not measured: {row['missing']}", "", "", "")
        if row["missing"]
        else (
            *(name, number_text(row["pages"])),
            *("unknown" if row[key] is None else f"{row[key]:.3f}" for key in ("word_f1", "run_f1")),
            number_text(row["mb_per_cpu_second"]),
        )
        for name, row in report["extraction"].items()
    ]
    return Section(
        "extraction",
        "Extraction",
        shows="Accuracy of text extraction on pages with known text.",
        reading="F1 combines missed and superfluous text; 1 is exactly the gold text.",
        tables=[Table(("extractor", "pages", "F1 of words", "F1 of runs of 4 words", "MB per CPU second"), rows)],
    )
