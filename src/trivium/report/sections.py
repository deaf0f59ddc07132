"""The sections of the page: for people, what each figure shows, what it proves, and what it does not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go

from trivium.report import figures
from trivium.report.verdicts import layout_text
from trivium.units import format_bytes, format_seconds

Tree = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """Rows of text under headings."""

    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class Drawn:
    """A figure and its caption."""

    caption: str
    figure: go.Figure


@dataclass(frozen=True)
class Section:
    """A part of the page. missing: the command that would fill it, when nothing is there yet."""

    name: str
    title: str
    shows: str
    proves: str = ""
    limits: str = ""
    figures: list[Drawn] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    samples: list[tuple[str, str]] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    missing: str = ""


def sections(report: Tree) -> list[Section]:
    """Every section in the order of the path; those whose station has not run say which command runs it."""
    build: tuple[tuple[str, str, str, Callable[[Tree], Section]], ...] = (
        ("funnel", "The corpus funnel", "corpus curate", _funnel),
        ("training", "Training", "train", _training),
        ("schedule", "The pipeline schedule", "train", _schedule),
        ("memory", "Memory per rank", "train", _memory),
        ("resume_proof", "Proof of resume", "prove", _resume),
        ("evaluation", "Evaluation", "evaluate", _evaluation),
        ("bias", "Bias", "bias", _bias),
        ("samples", "Samples", "generate", _samples),
        ("plan", "The plan", "plan", _plan),
        ("provenance", "Provenance", "demo", _provenance),
    )
    parts = {**report, "schedule": _spans(report)}
    return [
        make(report) if parts[name] else Section(name, title, shows="", missing=verb)
        for name, title, verb, make in build
    ]


def _funnel(report: Tree) -> Section:
    steps, planted, honest = report["funnel"], report["planted"] or {}, report["honest"]
    tables = [
        Table(
            ("step", "documents", "bytes", "dropped, by reason"),
            [
                (s["step"], f"{s['documents']:,}", format_bytes(s["bytes"]), _reasons(s["dropped"]))
                for s in steps
            ],
        )
    ]
    if planted:
        rows = [(k, f"{r['planted']:,}", f"{r['caught']:,}", _share(r)) for k, r in planted.items()]
        tables.append(Table(("planted kind", "planted", "caught", "share"), rows))
    lost = f" Of {honest['documents']:,} honest documents {honest['lost']:,} were lost." if honest else ""
    return Section(
        "funnel",
        "The corpus funnel",
        shows="How many documents are left after each step of curation, and why the others went.",
        proves="Junk was planted before curation, in known numbers, so the second table counts how much of each "
        f"kind was found.{lost}",
        limits="Planted junk is easier than what the web invents: it was made by rules, and rules find it.",
        figures=[Drawn("Documents left after each step", figures.funnel(steps))],
        tables=tables,
    )


def _training(report: Tree) -> Section:
    training = report["training"]
    rows = [
        ("layout", f"{layout_text(training['layout'])}, schedule {training['schedule'] or 'unknown'}"),
        ("validation loss", _number(training["validation_loss"])),
        ("unigram entropy", _number(training["unigram_entropy"])),
    ]
    rows += [(name, f"{training[name]:,}") for name in ("parameters", "steps", "tokens") if training[name]]
    return Section(
        "training",
        "Training",
        shows="Loss on the training batches and on held-out text, and the learning rate, against tokens seen.",
        proves="A model that knew only how often each token occurs would reach the dashed line, the unigram entropy "
        "of the same held-out text. What lies below it was learned from context.",
        limits="The model and the corpus are tiny: the loss says nothing about what the method reaches at scale.",
        figures=[Drawn("Loss and learning rate", figures.curves(training))],
        tables=[Table(("figure", "value"), rows)],
    )


def _spans(report: Tree) -> list[tuple[str, list[Tree]]]:
    planned = (report["plan"] or {}).get("spans")
    executed = (report["training"] or {}).get("timeline")
    captions = (("Planned, with estimated seconds", planned), ("Executed, as measured", executed))
    return [(caption, spans) for caption, spans in captions if spans]


def _schedule(report: Tree) -> Section:
    return Section(
        "schedule",
        "The pipeline schedule",
        shows="What each pipeline rank does when: forwards and backwards of micro-batches, written micro-batch.stage.",
        proves="Planner and runtime read one table of actions: nothing about the schedule is written twice.",
        limits="Ranks here share the cores of one CPU, so actions stretch while others run. Lengths and gaps are not "
        "those of a cluster, where each rank has a device of its own.",
        figures=[Drawn(caption, figures.gantt(spans)) for caption, spans in _spans(report)],
    )


def _memory(report: Tree) -> Section:
    rows = report["memory"]
    names = list(dict.fromkeys(n for row in rows for n in (*row["predicted"], *row["categories"])))
    table = [
        (
            f"{row['rank']}",
            _coordinate(row["coordinate"]),
            name,
            *(_bytes(row[s].get(name)) for s in _SOURCES),
        )
        for row in rows
        for name in names
    ]
    return Section(
        "memory",
        "Memory per rank",
        shows="Bytes each rank holds, predicted before the run and counted during it.",
        proves="Weights, gradients and optimizer state follow from the table of parameters: they must agree to the "
        "byte.",
        limits="Activations are what autograd keeps for the backward at the worst moment. What exists only while an "
        "operation runs is not counted, nor are Python, torch and the buffers of gloo.",
        figures=[Drawn("Predicted (hatched) and counted bytes", figures.memory(rows))],
        tables=[Table(("rank", "coordinate", "category", "predicted", "counted"), table)],
    )


_SOURCES = ("predicted", "categories")


def _resume(report: Tree) -> Section:
    proof = report["resume_proof"]
    killed = proof["killed"]
    rows = [
        ("layouts", " then ".join(layout_text(layout) for layout in proof["layouts"])),
        ("killed", ", ".join(f"{k} {v}" for k, v in killed.items()) or "unknown"),
        ("resumed from step", str(proof["resumed_from"])),
        ("largest difference of losses", _small(proof["max_loss_difference"])),
        ("tolerance", _small(proof["tolerance"])),
        ("why so much", proof["why"]),
    ]
    return Section(
        "resume_proof",
        "Proof of resume",
        shows="The losses of an unbroken run, and of one in which a rank was killed and the rest restarted from the "
        "last checkpoint in another layout.",
        proves="The checkpoint holds all that matters, in a form no layout is part of: nothing is lost or repeated.",
        limits="One kill at one moment, on one machine. Differences of zero are left out of the logarithmic scale.",
        figures=[Drawn("Unbroken and resumed", figures.resume(proof["losses"]))] if proof["losses"] else [],
        tables=[Table(("figure", "value"), rows)],
    )


def _evaluation(report: Tree) -> Section:
    tasks = report["evaluation"]["tasks"]
    rows = [
        (
            task,
            shots,
            _percent(s["accuracy"]),
            f"{_percent(s['interval'][0])} to {_percent(s['interval'][1])}" if s["interval"] else "unknown",
            _percent(s["chance"]),
            _percent(s["unigram"]),
            str(s["n"] or "unknown"),
            s["normalisation"] or "none",
        )
        for task, by_shots in tasks.items()
        for shots, s in by_shots.items()
    ]
    headings = ("task", "shots", "accuracy", "interval", "chance", "unigram", "examples", "normalised by")
    return Section(
        "evaluation",
        "Evaluation",
        shows="Accuracy on tasks made from documents that training never saw, with confidence intervals.",
        proves="Where an interval lies above chance and above the unigram baseline, the model uses the context.",
        limits="A model this small mostly does not. The harness is what is shown; no score here is comparable with "
        "a published one.",
        figures=[Drawn("Accuracy, chance and unigram baseline", figures.accuracies(tasks))] if rows else [],
        tables=[Table(headings, rows)],
    )


def _bias(report: Tree) -> Section:
    bias = report["bias"]
    variants = bias["variants"]
    rows = [
        (name, *(_number(values.get(k)) for k in ("mean_log_ratio", "male_share", "sign_test_p", "n")))
        for name, values in variants.items()
    ]
    drawn = [
        Drawn(f"Occupations, template '{name}'", figures.occupations(found))
        for name in list(variants)[:1]
        if (found := log_ratios(bias, name))
    ]
    return Section(
        "bias",
        "Bias",
        shows="After 'The {occupation} was a', how much likelier the model finds a female than a male word: below "
        "zero it expects a man. Occupations with the largest skew are drawn.",
        proves="The association test of the paper runs on this model, with its interval and significance.",
        limits="A model this small mirrors word counts of its corpus. Two genders, English, one template: the test "
        "is narrow, and a zero would not mean absence of bias.",
        figures=drawn,
        tables=[Table(("template", "mean log ratio", "share male", "sign test p", "occupations"), rows)],
    )


def log_ratios(bias: Tree, variant: str) -> list[tuple[str, float]]:
    """Occupations and their log ratios of one variant, where the results hold them."""
    return [
        (str(row.get("occupation")), float(row[variant]))
        for row in bias["occupations"]
        if isinstance(row.get(variant), int | float)
    ]


def _samples(report: Tree) -> Section:
    return Section(
        "samples",
        "Samples",
        shows="What the model writes after a few prompts.",
        limits="A tiny model writes nonsense in the manner of its corpus. It may also repeat it word for word.",
        samples=[(s["prompt"], s["continuation"]) for s in report["samples"]],
    )


def _plan(report: Tree) -> Section:
    return Section(
        "plan",
        "The plan",
        shows="This run's layout with its estimated cost, what a search finds for this machine, and the plan of "
        "MT-NLG 530B beside its published time.",
        limits="Seconds are a first analytic figure: matrix products at one stated fraction of the peak, links, and "
        "the simulated schedule. The fraction was fitted on Megatron-LM's published runs, not on MT-NLG.",
        text=report["plan"]["lines"],
    )


def _provenance(report: Tree) -> Section:
    stamps, seconds = report["provenance"], report["seconds"] or {}
    keys = ("trivium", "commit", "finished", "key")
    tables = [
        Table(
            ("station", *keys),
            [(name, *(str(stamp.get(key, "unknown")) for key in keys)) for name, stamp in stamps.items()],
        )
    ]
    if seconds:
        rows = [(name, format_seconds(value)) for name, value in seconds.items()]
        tables.append(Table(("stage", "took"), [*rows, ("together", format_seconds(sum(seconds.values())))]))
    return Section(
        "provenance",
        "Provenance",
        shows="With which code, from which inputs and when each station wrote its results. Equal keys mean equal work.",
        tables=tables,
    )


def _reasons(dropped: dict[str, int]) -> str:
    ordered = sorted(dropped.items(), key=lambda item: -item[1])
    return ", ".join(f"{reason} {number:,}" for reason, number in ordered) or "none"


def _share(row: Tree) -> str:
    return _percent(row["caught"] / row["planted"]) if row["planted"] else "none planted"


def _coordinate(coordinate: dict[str, int]) -> str:
    return ", ".join(f"{axis} {index}" for axis, index in coordinate.items())


def _number(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, int | float) else "unknown"


def _small(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3g}"


def _bytes(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}"


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"
