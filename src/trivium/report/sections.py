"""The sections of the page. Each says what a figure shows, what it proves, and what it does not prove."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from trivium.report import figures
from trivium.report.answers import (
    answers_section,
    bias_section,
    evaluation_section,
    incontext_section,
    samples_section,
    series_section,
    tasks_section,
)
from trivium.report.collect import OPTIONAL, STAGES
from trivium.report.corpus import corpus_section, extraction_section, funnel_section
from trivium.report.experts import experts_section
from trivium.report.outdated import of_another_plan, older_text, outdated_text
from trivium.report.parts import Drawn, Section, Table
from trivium.report.ranks import alike, categories
from trivium.report.verdicts import CPU
from trivium.report.words import (
    bytes_text,
    killed_text,
    layout_text,
    layouts_text,
    median_figure,
    moment_text,
    nats_text,
    small_text,
)
from trivium.units import counted, format_count, format_energy, format_seconds

Tree = dict[str, Any]


def facts(report: Tree) -> list[str]:
    """Return model, layout, machine, code and time of the run, in short phrases."""
    training, found = report["training"] or {}, []
    if training:
        if training["parameters"]:
            found.append(f"{format_count(training['parameters'])} parameters")
        if model := (training["plan"] or {}).get("model"):
            found.append(f"{model.get('layers', '?')} layers, hidden {model.get('hidden', '?')}")
        found.append(layouts_text(training["layouts"]))
        if training["device"]:
            found.append("CPU" if training["device"] == CPU else training["device"])
    stamps = list((report["provenance"] or {}).values())
    last = max(stamps, key=lambda stamp: str(stamp.get("finished", "")), default=None)
    if last is not None:
        found.append(moment_text(last.get("finished")))
        found.append(f"trivium {last.get('trivium', 'unknown')} ({last.get('commit', 'unknown')})")
    return found


# For sections that show results of a single stage, that stage.
_STAGE_OF = {
    "funnel": "curated",
    "training": "training",
    "experts": "training",
    "schedule": "training",
    "memory": "training",
    "resume_proof": "resume",
    "evaluation": "evaluation",
    "bias": "bias",
    "samples": "generate",
    "plan": "plan",
}


def sections(report: Tree) -> list[Section]:
    """Return all sections in order. A section without results names the command that creates them."""
    build: tuple[tuple[str, str, str, Callable[[Tree], Section]], ...] = (
        ("funnel", "Corpus", "corpus curate", funnel_section),
        ("corpus", "Corpus statistics", "corpus show", corpus_section),
        ("extraction", "Extraction", "", extraction_section),
        ("training", "Training", "train", _training),
        ("experts", "Experts", "train", experts_section),
        ("schedule", "Pipeline schedule", "train", _schedule),
        ("memory", "Memory per rank", "train", _memory),
        ("resume_proof", "Resume after a kill", "prove", _resume),
        ("evaluation", "Evaluation", "evaluate", evaluation_section),
        ("answers", "Answers", "tune", answers_section),
        ("tasks", "Published tasks", "evaluate RUN", tasks_section),
        ("incontext", "In-context learning", "incontext RUN", incontext_section),
        ("bias", "Bias", "bias", bias_section),
        ("bias_series", "Bias along the training", "bias --every", series_section),
        ("samples", "Samples", "generate", samples_section),
        ("plan", "Plan", "plan", _plan),
        ("provenance", "Provenance", "demo", _provenance),
    )
    parts = {**report, "schedule": _spans(report), "experts": (report["training"] or {}).get("loads")}
    return [
        replace(make(report), outdated=_outdated(report, name, verb))
        if parts[name]
        else Section(name, title, shows="", missing=verb)
        for name, title, verb, make in build
        if parts[name] or name not in OPTIONAL
    ]


def _outdated(report: Tree, section: str, verb: str) -> str:
    """Return a note that a section's results are outdated, or ""."""
    stage = _STAGE_OF.get(section, "")
    changed_input, steps = report["outdated"].get(stage), report["older"].get(section)
    if steps is not None and changed_input in (None, "training"):
        return older_text(steps, verb)
    return outdated_text(changed_input, dict(STAGES)[stage]) if changed_input else ""


def _training(report: Tree) -> Section:
    training = report["training"]
    loss, entropy = training["validation_loss"], training["unigram_entropy"]
    rows = [("layout", layouts_text(training["layouts"])), ("schedule", str(training["schedule"] or "unknown"))]
    if training.get("of_pairs"):
        rows.append(("validation loss", "unknown" if loss is None else f"{loss:.3f}, mean over preference pairs"))
    else:
        rows += [("validation loss", nats_text(loss)), ("unigram entropy of the same text", nats_text(entropy))]
    if loss is not None and entropy is not None:
        rows.append(("learned from context", nats_text(entropy - loss)))
    rows += [(name, f"{training[name]:,}") for name in ("parameters", "steps", "tokens") if training[name]]
    if joules := training["step_joules"]:
        each = f", {joules / training['tokens']:.3g} J per token" if training["tokens"] else ""
        rows.append(("energy of the steps, measured", f"{format_energy(joules)}{each}"))
    if not training["finished"]:
        rows.insert(0, ("not finished", f"{training['steps']} of {training['steps_planned'] or 'unknown'} steps"))
    interruptions = [(str(i["step"]), i["what"]) for i in training["interruptions"]]
    steps = training["curves"]["steps"]
    drawn = [Drawn("Loss and learning rate", figures.curves(training), "picture")] if steps else []
    if timed := [step for step in steps if step.get("tokens_per_second")]:
        drawn.append(Drawn("Throughput", figures.throughput(timed), "picture"))
    if training["asked"]:
        asked = figures.accuracy_against_tokens(training["asked"])
        drawn.append(Drawn("Published tasks during the training", asked, "picture"))
    stopped = f", {counted(len(interruptions), 'interruption')}" if interruptions else ""
    return Section(
        "training",
        "Training",
        gist=f"{training['steps'] or 0:,} steps{stopped}",
        shows="Loss on the training batches and on held-out text, learning rate, throughput, and the parts of a step.",
        reading="The dashed line is the entropy of token frequencies in the held-out text: a model that knew nothing "
        "else would reach it.",
        limits="The parts of a step are those of the pipeline rank that computes longest, in one traced step. Where "
        "ranks share cores, a part includes the time in which other ranks ran.",
        figures=drawn,
        tables=[
            Table((), rows),
            *([Table(("after step", "what interrupted the training"), interruptions)] if interruptions else []),
            *step_time(report),
        ],
    )


# The parts of a step: label, the corresponding parts of the estimate, and the measured phase.
STEP_PARTS = (
    (
        "stages, with their collectives",
        ("compute", *(f"{axis}_collectives" for axis in ("tensor", "context", "expert"))),
        "stages",
    ),
    ("waiting for other stages", ("bubble", "pipeline_transfers"), "waiting"),
    ("reducing gradients and updating", ("data_collectives", "optimizer"), "update"),
    ("scoring the batch or counting loads first, reading it, agreeing on the loss", ("forward_passes",), "other"),
)


def step_time(report: Tree) -> list[Table]:
    """Return the tables of predicted and measured times, or [] if none was measured. Each layout of a training is
    compared with its own prediction."""
    estimate, training = _priced(report).get("estimate") or {}, report["training"]
    longest, parts = busiest(training["phases"]), estimate.get("parts") or {}
    rows, of_parts = [], []
    for name, predicted, phase in STEP_PARTS if longest else ():
        found = [parts[part] for part in predicted if part in parts]
        of_parts.append(_step_row(name, sum(found) if found else None, longest[phase]))
    compared = ("predicted", "measured", "measured / predicted")
    if len(training["layouts"]) == 1:
        measured = median_figure(training, "seconds")
        if measured is None:
            return []
        rows = [_step_row("step of the full batch, median", estimate.get("seconds"), measured), *of_parts]
        return [Table(("part of a step", *compared), rows)]
    for part, last in zip(training["layouts"], [*(p["after"] for p in training["layouts"][1:]), math.inf], strict=True):
        measured = median_figure(training, "seconds", (part["after"], last))
        if measured is not None:
            rows.append(_step_row(layout_text(part["layout"]), _predicted_seconds(report, part), measured))
    tables = [Table(("step of the full batch, median", *compared), rows)] if rows else []
    if of_parts:
        tables.append(
            Table(
                (f"part of a step, {layout_text(training['memory_layout'] or training['layout'])}", *compared), of_parts
            )
        )
    return tables


def _predicted_seconds(report: Tree, part: Tree) -> float | None:
    """Return the predicted seconds of a step under one of the training's layouts: those of its resume, or the plan's,
    if that has this layout."""
    if part["predicted_seconds"] is not None:
        return float(part["predicted_seconds"])
    told, trained = report["plan"] or {}, report["training"]["plan"] or {}
    priced = told.get("plan") or {}
    other = of_another_plan(priced.get("model"), trained.get("model"))
    if other or layout_text(priced.get("layout") or {}) != layout_text(part["layout"]):
        return None
    seconds: float | None = (told.get("estimate") or {}).get("seconds")
    return seconds


def _priced(report: Tree) -> Tree:
    """Return the plan's predictions, or {} if the training used another plan."""
    return {} if "plan" in report["outdated"] else report["plan"] or {}


def busiest(phases: list[Tree]) -> dict[str, float]:
    """Return the phases of the rank whose stages took longest; {} if no rank has all phases."""
    found = [p["seconds"] for p in phases if all(phase in p["seconds"] for *_, phase in STEP_PARTS)]
    return max(found, key=lambda seconds: seconds["stages"], default={})


def _step_row(name: str, predicted: float | None, measured: float) -> tuple[str, str, str, str]:
    ratio = f"{measured / predicted:.2f}" if predicted else "–"
    return (name, "none" if predicted is None else format_seconds(predicted), format_seconds(measured), ratio)


def _spans(report: Tree) -> list[tuple[str, list[Tree]]]:
    captions = (
        ("Pipeline schedule as planned: {}, each rank on its own device", _priced(report).get("spans")),
        ("Pipeline schedule as executed: {}", (report["training"] or {}).get("timeline")),
    )
    return [(text.format(_micro_batches(spans)), spans) for text, spans in captions if spans]


def _micro_batches(spans: list[Tree]) -> str:
    number = len({span["action"][1:].split(".")[0] for span in spans})
    return f"{number} micro-batch{'' if number == 1 else 'es'} per replica"


def _schedule(report: Tree) -> Section:
    spans = _spans(report)
    shared = (
        "The ranks shared the cores of a CPU, so an action takes longer while others run: lengths and gaps are not "
        "those of a cluster. "
    )
    drawn = [Drawn(caption, figures.gantt(actions)) for caption, actions in spans]
    if (report["training"] or {}).get("timeline"):
        drawn[-1] = replace(drawn[-1], tier="demo picture")
    return Section(
        "schedule",
        "Pipeline schedule",
        gist=" and ".join(caption.partition(":")[0].removeprefix("Pipeline schedule ") for caption, _ in spans),
        shows="What each pipeline rank does when. A bar is one micro-batch in one stage, written micro-batch.stage. "
        "Planner and runtime read the same table of actions.",
        limits=f"{shared if (report['training'] or {}).get('device') == CPU else ''}While the batch ramps up, a step "
        "has fewer micro-batches than planned.",
        figures=drawn,
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
        gist="predicted and counted",
        shows="Memory of each rank, predicted before the run (hatched) and counted during one step. Ranks with the "
        "same figures share a bar.",
        reading="Weights, gradients and optimizer state must agree to the byte. Activations are predicted for the full "
        "batch, at their peak, with every target counted; a step of a batch ramp or of a tuning may need less.",
        limits="Temporary buffers, Python, torch, and the buffers of gloo or NCCL are not counted.",
        figures=[Drawn("Memory per rank, predicted and counted", figures.memory(groups), "demo picture")],
        tables=[Table(("ranks", "at", "category", "predicted, bytes", "counted, bytes"), table)],
    )


def _resume(report: Tree) -> Section:
    proof = report["resume_proof"]
    difference = f"{small_text(proof['max_loss_difference'])} nats"
    rows = [
        ("layouts", " then ".join(layout_text(layout) for layout in proof["layouts"])),
        ("killed", killed_text(proof["killed"])),
        ("resumed from step", str(proof["resumed_from"])),
        ("largest difference of losses", difference),
        ("tolerance", f"{small_text(proof['tolerance'])} nats"),
        ("why this tolerance", proof["why"]),
    ]
    caption = "Killed and resumed in another layout, beside the unbroken run"
    return Section(
        "resume_proof",
        "Resume after a kill",
        gist=f"losses differ by at most {difference}",
        shows="The losses of an unbroken run, and of one in which a rank was killed and training resumed from the last "
        "checkpoint in another layout.",
        reading="If both agree, the checkpoint contains everything that training depends on, no batch was lost or "
        "repeated, and the checkpoint does not depend on the layout.",
        limits="One kill at one step, on one machine.",
        figures=[Drawn(caption, figures.resume(proof), "demo picture")] if proof["losses"] else [],
        tables=[Table((), rows)],
    )


def _plan(report: Tree) -> Section:
    return Section(
        "plan",
        "Plan",
        gist="layout, cost, alternatives",
        shows="The layout of this run with its predicted cost, the best layouts that a search finds for this machine, "
        "and the plan of MT-NLG 530B beside its published time.",
        limits="Predicted seconds come from constants fitted to published runs, MT-NLG's excluded; docs/planner.md has "
        "the errors on unseen runs. The figures of this machine are assumptions until `trivium plan probe` measures "
        "them.",
        text=report["plan"]["lines"],
    )


# In the order in which `trivium demo` runs them.
_DEMO_STAGES = ("doctor", "harvest", "curate", "tokenize", "plan", "train", "prove", "evaluate", "bias", "generate")


def _provenance(report: Tree) -> Section:
    stamps, seconds = report["provenance"], report["seconds"] or {}
    rows = [
        (
            *(name, *(str(stamp.get(key, "unknown")) for key in ("trivium", "commit"))),
            *(moment_text(stamp.get("finished")), str(stamp.get("key", "unknown"))),
        )
        for name, stamp in stamps.items()
    ]
    tables = [Table(("stage", "trivium", "commit", "finished", "key"), rows)]
    if seconds:
        order = [s for s in _DEMO_STAGES if s in seconds] + [s for s in seconds if s not in _DEMO_STAGES]
        took = [(stage, format_seconds(seconds[stage])) for stage in order]
        tables.append(Table(("stage", "took"), [*took, ("together", format_seconds(sum(seconds.values())))]))
    return Section(
        "provenance",
        "Provenance",
        gist=f"{len(stamps)} stages",
        shows="When each stage finished, and with which code. Equal keys mean equal config, inputs and version; a + "
        "after the commit means uncommitted changes.",
        tables=tables,
    )
