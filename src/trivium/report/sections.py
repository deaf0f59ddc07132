"""The sections of the page. Each says what a figure shows, what it proves, and what it does not prove."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from trivium.report import figures
from trivium.report.bias import bias_figures, bias_tables, series_section
from trivium.report.collect import OPTIONAL, STATIONS
from trivium.report.corpus import corpus_section, extraction_section, funnel_section
from trivium.report.figures import accuracies
from trivium.report.incontext import incontext_section
from trivium.report.outdated import told, told_older
from trivium.report.parts import Drawn, Section, Table
from trivium.report.published import against_tokens, tasks_section
from trivium.report.ranks import alike, categories
from trivium.report.step_time import LIMITS, priced, step_time
from trivium.report.verdicts import CPU, is_tiny
from trivium.report.words import (
    bytes_text,
    chance_text,
    killed_text,
    layout_text,
    level_text,
    moment_text,
    nats_text,
    number_text,
    percent_text,
    range_text,
    small_text,
)
from trivium.units import format_seconds

Tree = dict[str, Any]


def facts(report: Tree) -> list[str]:
    """Return when, with which code and on what machine the run was made, in short phrases."""
    stamps = list((report["provenance"] or {}).values())
    last = max(stamps, key=lambda stamp: str(stamp.get("finished", "")), default=None)
    found = []
    if last is not None:
        found.append(f"finished {moment_text(last.get('finished'))}")
        found.append(f"trivium {last.get('trivium', 'unknown')}, commit {last.get('commit', 'unknown')}")
        found += [f"Python {last['python']}"] if "python" in last else []
    found += _where(report)
    if report["seconds"]:
        found.append(f"all stages {format_seconds(sum(report['seconds'].values()))}")
    return found


def _where(report: Tree) -> list[str]:
    """Return the training's device, or the machine of the plan if the device was a CPU or is unknown."""
    device = (report["training"] or {}).get("device")
    if device not in (None, CPU):
        return [f"trained on {device}"]
    machine = (report["plan"] or {}).get("machine") or {}
    number = machine.get("devices_per_node")
    return [f"on {number} {machine.get('device', 'device')}{'' if number == 1 else 's'}"] if number else []


# Sections that show results of a single stage, and that stage.
_STATION_OF = {
    "funnel": "curated",
    "training": "training",
    "schedule": "training",
    "memory": "training",
    "resume_proof": "resume",
    "evaluation": "evaluation",
    "bias": "bias",
    "samples": "generate",
    "plan": "plan",
}


def sections(report: Tree) -> list[Section]:
    """Build all sections in order. A section without results names the command that creates them."""
    build: tuple[tuple[str, str, str, Callable[[Tree], Section]], ...] = (
        ("funnel", "The corpus funnel", "corpus curate", funnel_section),
        ("corpus", "Corpus statistics", "corpus stats", corpus_section),
        ("extraction", "Extraction", "corpus extract-check", extraction_section),
        ("training", "Training", "train", _training),
        ("schedule", "The pipeline schedule", "train", _schedule),
        ("memory", "Memory per rank", "train", _memory),
        ("resume_proof", "Proof of resume", "prove", _resume),
        ("evaluation", "Evaluation", "evaluate", evaluation_section),
        ("tasks", "Published tasks", "evaluate RUN", tasks_section),
        ("incontext", "In-context learning", "incontext RUN", incontext_section),
        ("bias", "Bias", "bias", _bias),
        ("bias_series", "Bias along the training", "bias --every", series_section),
        ("samples", "Samples", "generate", _samples),
        ("plan", "The plan", "plan", _plan),
        ("provenance", "Provenance", "demo", _provenance),
    )
    parts = {**report, "schedule": _spans(report)}
    return [
        replace(make(report), outdated=_outdated(report, name, verb))
        if parts[name]
        else Section(name, title, shows="", missing=verb)
        for name, title, verb, make in build
        if parts[name] or name not in OPTIONAL
    ]


def _outdated(report: Tree, section: str, verb: str) -> str:
    """Return a note that a section's results are outdated, or ""."""
    station = _STATION_OF.get(section, "")
    earlier, steps = report["outdated"].get(station), report["older"].get(section)
    if steps is not None and earlier in (None, "training"):
        return told_older(steps, verb)
    return told(earlier, dict(STATIONS)[station]) if earlier else ""


def _training(report: Tree) -> Section:
    training = report["training"]
    loss, entropy = training["validation_loss"], training["unigram_entropy"]
    rows = [
        ("layout", layout_text(training["layout"])),
        ("schedule", str(training["schedule"] or "unknown")),
        ("validation loss", nats_text(loss)),
        ("unigram entropy of the same text", nats_text(entropy)),
    ]
    if loss is not None and entropy is not None:
        rows.append(("learned from context", nats_text(entropy - loss)))
    rows += [(name, f"{training[name]:,}") for name in ("parameters", "steps", "tokens") if training[name]]
    if not training["finished"]:
        rows.insert(0, ("not finished", f"{training['steps']} of {training['steps_planned'] or 'unknown'} steps"))
    told_of = [(str(i["step"]), i["what"]) for i in training["interruptions"]]
    return Section(
        "training",
        "Training",
        shows="Loss on the training batches and on held-out text, and the learning rate.",
        reading="A model that knew only how often each token occurs would reach the dashed line: the entropy of "
        "token frequencies in the held-out text. What lies below was learned from context.",
        limits=f"{_TINY if _tiny(report) else _ONE}{LIMITS}",
        figures=[Drawn("Loss and learning rate", figures.curves(training)), *_asked(training)],
        tables=[
            Table((), rows),
            *([Table(("after step", "what interrupted the training"), told_of)] if told_of else []),
            *step_time(report),
        ],
    )


def _tiny(report: Tree) -> bool:
    return is_tiny(report["training"] or {})


_NONSENSE = "A tiny model writes nonsense in the manner of its corpus. "
_TINY = "Model and corpus are tiny: the loss says nothing about what the method reaches at scale."
_ONE = "One training: another seed, size or corpus may come out otherwise."


def _asked(training: Tree) -> list[Drawn]:
    """Draw the accuracies on published tasks during training."""
    asked = training["asked"]
    if not asked:
        return []
    series = [
        {**a, "tasks": {t: {k: s["accuracy"] for k, s in by.items()} for t, by in a["tasks"].items()}} for a in asked
    ]
    return [Drawn("Published tasks while it trained", against_tokens(series))]


def _spans(report: Tree) -> list[tuple[str, list[Tree]]]:
    planned = priced(report).get("spans")
    executed = (report["training"] or {}).get("timeline")
    captions = (
        ("Planned: {}, estimated as if each rank had a device of its own", planned),
        ("Executed: {}, as measured in one step", executed),
    )
    return [(text.format(_micro_batches(spans)), spans) for text, spans in captions if spans]


def _micro_batches(spans: list[Tree]) -> str:
    number = len({span["action"][1:].split(".")[0] for span in spans})
    return f"{number} micro-batch{'' if number == 1 else 'es'} per replica"


def _schedule(report: Tree) -> Section:
    return Section(
        "schedule",
        "The pipeline schedule",
        shows="What each pipeline rank does when. A bar is one micro-batch in one stage, written micro-batch.stage.",
        reading="Planner and runtime read the same table of actions; this is it, twice: as priced, and as run.",
        limits=f"{_SHARED if (report['training'] or {}).get('device') == CPU else ''}While the batch ramps up, a step "
        "has fewer micro-batches than planned.",
        figures=[Drawn(caption, figures.gantt(spans)) for caption, spans in _spans(report)],
    )


_SHARED = (
    "The ranks shared the cores of a CPU, so an action stretches while others run: lengths and gaps are not those of a "
    "cluster. "
)


def _memory(report: Tree) -> Section:
    groups = alike(report["memory"])
    table = [
        (g.name, g.where, name, bytes_text(g.predicted.get(name)), bytes_text(g.counted.get(name)))
        for g in groups
        for name in categories(groups)
    ]
    return Section(
        "memory",
        "Memory per rank",
        shows="What each rank holds, predicted before the run (hatched) and counted during one step. Ranks that "
        "hold the same are drawn once.",
        reading="Weights, gradients and optimizer state follow from the table of parameters and must agree to the "
        "byte. Activations are estimated for the full batch, at their worst moment; a step of the batch ramp "
        "may hold fewer.",
        limits="Not counted: what exists only while an operation runs, Python, torch, and the buffers of gloo or NCCL.",
        figures=[Drawn("Bytes per rank", figures.memory(groups))],
        tables=[Table(("ranks", "at", "category", "predicted, bytes", "counted, bytes"), table)],
    )


def _resume(report: Tree) -> Section:
    proof = report["resume_proof"]
    rows = [
        ("layouts", " then ".join(layout_text(layout) for layout in proof["layouts"])),
        ("killed", killed_text(proof["killed"])),
        ("resumed from step", str(proof["resumed_from"])),
        ("largest difference of losses", f"{small_text(proof['max_loss_difference'])} nats"),
        ("tolerance", f"{small_text(proof['tolerance'])} nats"),
        ("why this tolerance", proof["why"]),
    ]
    return Section(
        "resume_proof",
        "Proof of resume",
        shows="The losses of an unbroken run, and of one in which a rank was killed and all went on from the last "
        "checkpoint in another layout.",
        reading="If the two agree, the checkpoint held all that matters, nothing was lost or repeated, and no "
        "layout is part of it.",
        limits="One kill at one moment, on one machine.",
        figures=[Drawn("Unbroken and resumed", figures.resume(proof))] if proof["losses"] else [],
        tables=[Table((), rows)],
    )


def _bias(report: Tree) -> Section:
    bias = report["bias"]
    variants = {name: bias["variants"][name] for name in sorted(bias["variants"], key=_neutral_first)}
    rows = [
        (
            name,
            number_text(values.get("mean_log_ratio")),
            range_text(values.get("interval"), number_text),
            number_text(values.get("person_log_ratio")),
            percent_text(values.get("male_share")),
            chance_text(values.get("sign_test_p")),
            number_text(values.get("n")),
        )
        for name, values in variants.items()
    ]
    headings = ("template", "mean log ratio", level_text(list(variants.values())), "of 'person'")
    return Section(
        "bias",
        "Bias",
        shows="After 'The {occupation} was a': log(P(female words) / P(male words)), in nats. Below zero the "
        "model expects a man.",
        reading="What all occupations share, 'person' among them, is no matter of occupations: it comes from the "
        "words themselves, how often they occur and into how many tokens the tokenizer cuts them. So the figure "
        "shows each occupation against 'person'.",
        limits=f"A model{' this small' if _tiny(report) else ''} mirrors word counts of its corpus. Two genders, "
        "English, one sentence: the test is narrow, and a zero would not mean absence of bias.",
        figures=[*_occupations(bias, next(iter(variants), None)), *bias_figures(bias)],
        tables=[
            *([Table((*headings, "below zero", "sign test p", "occupations"), rows)] if rows else []),
            *bias_tables(bias),
        ],
    )


def _neutral_first(name: str) -> tuple[bool, str]:
    return name != "neutral", name


def _occupations(bias: Tree, variant: str | None) -> list[Drawn]:
    """Draw the occupations of a template relative to 'person', or absolute values if that was not measured."""
    found = log_ratios(bias, variant) if variant else []
    if not variant or not found:
        return []
    person = bias["variants"][variant].get("person_log_ratio")
    against, shift = "log ratio of female to male words, nats", 0.0
    if isinstance(person, int | float):
        against, shift = "nats above or below 'person' (right: more female)", float(person)
    drawn = min(len(found), figures.MAX_OCCUPATIONS)
    caption = f"Template '{variant}': the {drawn} most skewed of {len(found)} occupations"
    shifted = [(name, value - shift) for name, value in found]
    return [Drawn(caption, figures.occupations(shifted, against=against))]


def log_ratios(bias: Tree, variant: str) -> list[tuple[str, float]]:
    """Return (occupation, log ratio) of one variant, as far as the results contain them."""
    return [
        (str(row.get("occupation")), float(row[variant]))
        for row in bias["occupations"]
        if isinstance(row.get(variant), int | float)
    ]


def _samples(report: Tree) -> Section:
    settings = report["samples"][0].get("settings") or {} if report["samples"] else {}
    how = ", ".join(f"{k.replace('_', '-')} {settings[k]}" for k in ("temperature", "top_p") if k in settings)
    return Section(
        "samples",
        "Samples",
        shows=f"What the model writes after a few prompts{f' ({how})' if how else ''}.",
        limits=f"{_NONSENSE if _tiny(report) else ''}A model may repeat its corpus word for word.",
        samples=[(s["prompt"], s["continuation"]) for s in report["samples"]],
    )


def _plan(report: Tree) -> Section:
    return Section(
        "plan",
        "The plan",
        shows="This run's layout with its estimated cost, what a search finds for this machine, and the plan of "
        "MT-NLG 530B beside its published time.",
        limits="Seconds come from constants learned on published runs, never on MT-NLG's; how far they are off on "
        "runs they have not seen stands in docs/planner.md. Those of this machine are assumed until it is probed.",
        text=report["plan"]["lines"],
    )


def _provenance(report: Tree) -> Section:
    stamps, seconds = report["provenance"], report["seconds"] or {}
    rows = [
        (
            name,
            *(str(stamp.get(key, "unknown")) for key in ("trivium", "commit")),
            moment_text(stamp.get("finished")),
            str(stamp.get("key", "unknown")),
        )
        for name, stamp in stamps.items()
    ]
    tables = [Table(("station", "trivium", "commit", "finished", "key"), rows)]
    if seconds:
        order = [*(stage for stage in _STAGES if stage in seconds), *(s for s in seconds if s not in _STAGES)]
        took = [(stage, format_seconds(seconds[stage])) for stage in order]
        tables.append(Table(("stage", "took"), [*took, ("together", format_seconds(sum(seconds.values())))]))
    return Section(
        "provenance",
        "Provenance",
        shows="With which code and when each station wrote its results. Equal keys mean equal config, inputs and "
        "version; a + after the commit means that files had been changed since.",
        tables=tables,
    )


# In the order in which `trivium demo` runs them.
_STAGES = (
    *("doctor", "harvest", "curate", "tokenize", "plan", "train", "prove"),
    *("evaluate", "bias", "generate", "report"),
)


def evaluation_section(report: Tree) -> Section:
    """Show accuracy and surprise on held-out questions, with the baselines that use no context."""
    tasks = report["evaluation"]["tasks"]
    scores = [(task, shots, s) for task, by_shots in tasks.items() for shots, s in by_shots.items()]
    rows = [
        (
            *(task, shots, str(s["n"] or "unknown")),
            *(percent_text(s["accuracy"]), range_text(s["interval"], percent_text)),
            *(percent_text(s["chance"]), percent_text(s["unigram"]), percent_text(s["truncated_fraction"])),
        )
        for task, shots, s in scores
    ]
    surprise = [
        (
            *(task, shots, number_text(s["nats_per_byte"])),
            *(range_text(s["nats_per_byte_interval"], number_text), number_text(s["unigram_nats_per_byte"])),
        )
        for task, shots, s in scores
        if s["nats_per_byte"] is not None
    ]
    interval = level_text([s for _, _, s in scores])
    headings: tuple[str, ...] = ("task", "shots", "examples", "accuracy", interval)
    headings += ("chance", "token frequencies", "prompts cut")
    tables = [Table(headings, rows)]
    if surprise:
        of_surprise = ("task", "shots", "surprise, nats per byte", interval, "token frequencies")
        tables.append(Table(of_surprise, surprise))
    return Section(
        "evaluation",
        "Evaluation",
        shows="Questions made from documents that training never saw: how often the model is right, and how "
        "surprising it finds the right answer (lower is better).",
        reading="A score above both chance and token frequencies, with its whole interval, would mean that the model "
        "uses the context. Surprise shows the same earlier: it moves long before any answer turns right. A prompt that "
        "is longer than the model's sequence loses its beginning, and with it solved examples.",
        limits="No score here is comparable with a published one.",
        figures=[Drawn("Accuracy, with its interval and baselines", accuracies(tasks))] if rows else [],
        tables=tables,
    )
