"""The cards at the top of the page: the figures that a reader looks for first."""

import math
from typing import Any

from trivium.report.experts import load_card
from trivium.report.parts import Card
from trivium.report.verdicts import significant_scores
from trivium.report.words import median_figure, percent_text
from trivium.units import counted, format_count, format_flops, format_seconds, shots_text

Tree = dict[str, Any]
SPARKLINE_POINTS = 80
UNKNOWN = "–"


def cards(report: Tree) -> list[Card]:
    """Return the cards for which there are results, in order."""
    training = report["training"]
    found = []
    if training is not None:
        found = [_loss(training), _speed(training), _share_of_peak(training, report.get("machine")), _time(report)]
        found.append(_cost(training, report.get("machine")))
        found += [load_card(training["loads"])] if training["loads"] else []
    if answers := report.get("answers"):
        before, after = (percent_text(answers[name]["accuracy"]) for name in ("before", "after"))
        found.append(Card("Answers exactly right", after, f"of {answers['after']['n']}; {before} before the tuning"))
    if report["evaluation"] or report["tasks"]:
        found.append(_best_task(report))
    return found


def _loss(training: Tree) -> Card:
    steps = training["curves"]["steps"]
    label, loss = "Validation loss", training["validation_loss"]
    if loss is None and steps:
        label, loss = "Training loss", steps[-1]["loss"]
    if loss is None:
        return Card(label, UNKNOWN, "not measured yet")
    if training.get("of_pairs"):
        return Card(label, f"{loss:.3f}", "mean over preference pairs", _sparkline(steps))
    entropy = training["unigram_entropy"]
    below = f", {entropy - loss:.2f} nats below token frequencies" if entropy is not None and loss < entropy else ""
    return Card(label, f"{loss:.3f}", f"perplexity {_perplexity(loss)}{below}", _sparkline(steps))


def _perplexity(loss: float) -> str:
    return _three_digits(math.exp(loss)) if loss < math.log(1e6) else "above 1M"


def _three_digits(value: float) -> str:
    """Format with three significant digits; a large value has no exponent."""
    return f"{float(f'{value:.3g}'):,.10g}"


def _sparkline(steps: list[Tree]) -> list[tuple[float, float]]:
    losses: list[float] = [step["loss_mean" if "loss_mean" in step else "loss"] for step in steps]
    every = math.ceil(len(losses) / SPARKLINE_POINTS) or 1
    means = [sum(part) / len(part) for n in range(0, len(losses), every) if (part := losses[n : n + every])]
    if len(means) < 2 or max(means) == min(means):
        return []
    height = max(means) - min(means)
    return [(n / (len(means) - 1), (max(means) - mean) / height) for n, mean in enumerate(means)]


def _speed(training: Tree) -> Card:
    speed, tokens = median_figure(training, "tokens_per_second"), training["tokens"]
    seen = f"{format_count(tokens)} tokens in " if tokens else ""
    note = f"{seen}{counted(training['steps'], 'step')}" if training["steps"] else ""
    return Card("Tokens per second", UNKNOWN if speed is None else format_count(speed), note)


def _share_of_peak(training: Tree, machine: Tree | None) -> Card:
    flops = median_figure(training, "model_flops_per_second")
    if flops is None:
        return Card("Share of peak", UNKNOWN, "no step was timed")
    if machine is None:
        return Card("Share of peak", UNKNOWN, f"{format_flops(flops)}/s; the peak of this machine is unknown")
    peak = machine["peak_flops_per_second"]
    assumed = "an assumed " if machine["assumed"] else ""
    of = f"{counted(machine['devices'], machine['device'])}"
    return Card(
        "Share of peak", f"{flops / peak:.1%}", f"{format_flops(flops)}/s of {assumed}{format_flops(peak)}/s, {of}"
    )


def _time(report: Tree) -> Card:
    seconds, stages = report["training"]["step_seconds"], report["seconds"] or {}
    note = f"training; all stages {format_seconds(sum(stages.values()))}" if len(stages) > 1 else "training"
    return Card("Time", format_seconds(seconds) if seconds else UNKNOWN, note)


def _cost(training: Tree, machine: Tree | None) -> Card:
    seconds = training["step_seconds"]
    if not seconds or machine is None:
        return Card("Cost", UNKNOWN, "the machine is unknown")
    hours = seconds / 3600 * machine["devices"]
    unit = "core-hours" if machine["device"].endswith("core") else "GPU-hours"
    price = machine["price_per_hour"]
    if price is None:
        return Card(f"Cost, {unit}", _three_digits(hours), "the machine has no price_per_hour")
    return Card("Cost", f"{hours * price:,.2f}", f"{_three_digits(hours)} {unit} at {price:g} each")


def _best_task(report: Tree) -> Card:
    """Return the score with the largest lead over its baseline among those that are significant."""
    groups = [report[name]["tasks"] for name in ("evaluation", "tasks") if report[name]]
    leads = [
        (score["accuracy"] - baseline, task, shots, score, baseline)
        for tasks in groups
        for (task, shots), baseline in significant_scores(tasks).items()
        for score in (tasks[task][shots],)
    ]
    if not leads:
        number = sum(len(by_shots) for tasks in groups for by_shots in tasks.values())
        return Card("Best task", UNKNOWN, f"none of {counted(number, 'score')} is significantly above chance")
    _, task, shots, score, baseline = max(leads, key=lambda lead: lead[:3])
    which = "chance" if baseline == score["chance"] else "token frequencies"
    note = f"{task}, {shots_text(shots)}; {which} {percent_text(baseline)}"
    return Card("Best task", percent_text(score["accuracy"]), note)
