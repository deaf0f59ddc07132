"""Claims about a run with their figures, each proven, failed, not shown, or not tried."""

import math
from typing import Any, Literal, NamedTuple

from trivium.report.outdated import outdated_text
from trivium.report.words import chance_text, layout_text, layouts_text, scores_of
from trivium.units import shots_text

# "not shown" means that a figure falls short where it may, as for a tiny model; "failed", that it must not.
State = Literal["proven", "failed", "not shown", "not tried"]

MIN_CAUGHT_SHARE = 0.95  # share of the planted documents of each kind
MAX_LOST_SHARE = 0.02  # share of the clean documents
EXACT = ("weights", "gradients", "optimizer")  # memory categories that must be predicted to the byte
SIGNIFICANCE_LEVEL = 0.05
MIN_PARAMETERS = 100_000_000  # the smallest GPT-2 has 124 million
CPU = "cpu"  # the name of a CPU in a training's summary


class Verdict(NamedTuple):
    """A claim and its state."""

    state: State
    text: str


def verdicts(report: dict[str, Any]) -> list[Verdict]:
    """Return all claims in order. A result with outdated inputs proves nothing here."""
    planted = (  # only the demo's corpus contains planted junk
        ("curated", "corpus curate", _planted(report["planted"])),
        ("curated", "corpus curate", _honest(report["honest"])),
    )
    found = (
        *(planted if report["planted"] or report["honest"] else ()),
        ("training", "train", _learned(report["training"])),
        ("resume", "prove", _resumed(report["resume_proof"])),
        ("training", "train", _counted(report["memory"], report["training"])),
        ("evaluation", "evaluate", _answers(report["evaluation"])),
        ("evaluation", "evaluate", _above_chance(report["evaluation"])),
    )
    return [_of_this_report(v, verb, report["outdated"].get(station)) for station, verb, v in found]


def _of_this_report(verdict: Verdict, verb: str, earlier: str | None) -> Verdict:
    if earlier is None or verdict.state == "not tried":
        return verdict
    return Verdict("not shown", f"{verdict.text}; but this is {outdated_text(earlier, verb)}")


def limits(report: dict[str, Any]) -> list[str]:
    """Return what a run of this kind cannot prove, as far as its machine is known."""
    training = report["training"] or {}
    return [*_quality(training), *_speed(training), *_scale(training)]


def is_tiny(training: dict[str, Any]) -> bool:
    """Whether a model is known to be too small for its quality to mean anything for the method."""
    return 0 < (training.get("parameters") or 0) < MIN_PARAMETERS


def _quality(training: dict[str, Any]) -> list[str]:
    if not training.get("parameters"):
        return ["Quality: no model was trained to its end."]
    size = f"{training['parameters']:,} parameters"
    seen = f", {training['tokens']:,} tokens" if training.get("tokens") else ""
    if is_tiny(training):
        return [f"Quality: the model is tiny ({size}{seen}). The path works; what it reaches at scale is not shown."]
    return [f"Quality: one training ({size}{seen}). Another seed, size or corpus may come out otherwise."]


def _speed(training: dict[str, Any]) -> list[str]:
    device = training.get("device")
    if device is None:
        return []
    if device != CPU:
        return [f"Speed: seconds are those of {device}; they say nothing about other machines."]
    where = "the cores of one CPU" if training.get("hosts") == 1 else "CPUs"
    return [f"Speed: ranks were processes on {where}; seconds here say nothing about a cluster."]


def _scale(training: dict[str, Any]) -> list[str]:
    one_host = training.get("hosts") == 1
    lacks = [
        *(["no NCCL", "no GPU"] if training.get("device") == CPU else []),
        *(["no second node"] if one_host else []),
        *(["no 16-bit training"] if training.get("precision") in ("fp32", "fp64") else []),
    ]
    where = "every rank ran on this one machine; " if one_host else ""
    return [f"Scale: {where}{', '.join(lacks)}."] if lacks else []


def _planted(planted: dict[str, Any] | None) -> Verdict:
    if not planted:
        return Verdict("not tried", "Planted junk is caught by curation")
    shares = {kind: row["caught"] / row["planted"] for kind, row in planted.items() if row["planted"]}
    if not shares:
        return Verdict("not tried", "Planted junk is caught by curation: none was planted")
    worst = min(shares, key=lambda kind: shares[kind])
    total, kinds = sum(row["planted"] for row in planted.values()), len(shares)
    if shares[worst] == 1:
        text = f"Curation caught all {total:,} planted documents, of {kinds} kind{'s' if kinds > 1 else ''} of junk"
    elif shares[worst] >= MIN_CAUGHT_SHARE:
        text = f"Curation caught at least {shares[worst]:.1%} of each kind of planted junk (worst: {worst})"
    else:
        text = f"Curation caught only {shares[worst]:.1%} of the planted junk of kind {worst}"
    return Verdict(
        "proven" if shares[worst] >= MIN_CAUGHT_SHARE else "failed",
        f"{text}; required: {MIN_CAUGHT_SHARE:.0%} of each kind",
    )


def _honest(honest: dict[str, Any] | None) -> Verdict:
    if not honest or not honest["documents"]:
        return Verdict("not tried", "Clean documents survive curation")
    share = honest["lost"] / honest["documents"]
    return Verdict(
        "proven" if share <= MAX_LOST_SHARE else "failed",
        f"Curation wrongly dropped {honest['lost']:,} of {honest['documents']:,} clean documents ({share:.1%}; limit "
        f"{MAX_LOST_SHARE:.0%})",
    )


def _learned(training: dict[str, Any] | None) -> Verdict:
    if training is not None and not training["finished"]:
        done = f"training has done {training['steps']} of {training['steps_planned'] or 'unknown'} steps"
        return Verdict("not tried", f"The model learns more than token frequencies: {done}")
    loss, entropy = (training or {}).get("validation_loss"), (training or {}).get("unigram_entropy")
    if training is None or entropy is None:
        return Verdict("not tried", "The model learns more than token frequencies")
    if loss is None:
        return Verdict("failed", "Training ended without a finite validation loss")
    return Verdict(
        "proven" if loss < entropy else "failed",
        f"Trained on {layouts_text(training['layouts'])}, the model has a validation loss of {loss:.2f} nats "
        f"per token; token frequencies alone give {entropy:.2f}",
    )


def _resumed(proof: dict[str, Any] | None) -> Verdict:
    if proof is None:
        return Verdict("not tried", "A killed run resumes under another layout with the same losses")
    difference, tolerance = proof["max_loss_difference"], proof["tolerance"]
    layouts = ", then ".join(layout_text(layout) for layout in proof["layouts"])
    if difference is None or tolerance is None:
        return Verdict("failed", f"The resumed run ({layouts}) has losses that are not finite")
    return Verdict(
        "proven" if difference <= tolerance else "failed",
        f"A rank was killed and the run resumed in another layout ({layouts}); its losses differ from those of the "
        f"unbroken run by at most {difference:.1e} nats; tolerance: {tolerance:.0e}",
    )


def _counted(memory: list[dict[str, Any]] | None, training: dict[str, Any] | None) -> Verdict:
    claim = "Weights, gradients and optimizer state take the bytes predicted before the run"
    rows = [row for row in memory or [] if row["predicted"] and row["categories"]]
    if not rows:
        return Verdict("not tried", claim)
    off = [
        row["rank"] for row in rows if any(row["predicted"].get(name) != row["categories"].get(name) for name in EXACT)
    ]
    if off:
        return Verdict("failed", f"{claim}: not so on ranks {', '.join(map(str, off))}")
    off_by = _activations_off(rows)
    ranks = "its one rank" if len(rows) == 1 else f"all {len(rows)} ranks"
    if training and len(training["layouts"]) > 1:
        ranks += f" of {layout_text(training['memory_layout'] or training['layout'])}"
    beside = "so do activations" if off_by == 0 else f"activations were predicted within {off_by}%"
    return Verdict("proven", f"{claim}, to the byte, on {ranks}; {beside}")


def _activations_off(rows: list[dict[str, Any]]) -> int:
    """Return the largest relative error of the predicted activations in percent, rounded up, because it is reported
    as a bound."""
    pairs: list[tuple[int, int]] = [
        (row["predicted"].get("activations", 0), row["categories"].get("activations", 0)) for row in rows
    ]
    return max(-(-100 * abs(predicted - counted) // max(counted, 1)) for predicted, counted in pairs)


def _answers(evaluation: dict[str, Any] | None) -> Verdict:
    claim = "Right answers to held-out questions are less surprising than token frequencies make them"
    scores = [
        score
        for *_, score in scores_of((evaluation or {}).get("tasks", {}))
        if score["nats_per_byte_interval"] is not None and score["unigram_nats_per_byte"] is not None
    ]
    if not scores:
        return Verdict("not tried", claim)
    closest = max(scores, key=lambda s: s["nats_per_byte_interval"][1] / s["unigram_nats_per_byte"])
    low, high = closest["nats_per_byte_interval"]
    holds = high < closest["unigram_nats_per_byte"]
    return Verdict(
        "proven" if holds else "failed",
        f"{claim}, on every task: {'at worst' if holds else 'not so,'} {low:.2f} to {high:.2f} nats per byte "
        f"(interval) against {closest['unigram_nats_per_byte']:.2f}",
    )


def significant_scores(tasks: dict[str, Any]) -> dict[tuple[str, str], float]:
    """Return {(task, shots): baseline} of the scores that are significantly above chance and the unigram baseline,
    corrected for the number of scores."""
    scores = _tested(tasks)
    return {
        (task, shots): _baseline(score)
        for task, shots, score in scores
        if score["interval"][0] > _baseline(score) and len(scores) * _luck(score) < SIGNIFICANCE_LEVEL
    }


def _tested(tasks: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Return (task, shots, score) of all scores that can be compared with chance."""
    known = ("n", "interval", "chance")
    return [scored for scored in scores_of(tasks) if all(scored[2][k] not in (None, 0) for k in known)]


def _above_chance(evaluation: dict[str, Any] | None) -> Verdict:
    tasks = (evaluation or {}).get("tasks", {})
    scores = _tested(tasks)
    if not scores:
        return Verdict("not tried", "Some task is answered better than by chance")
    task, shots, best = min(scores, key=lambda item: (_luck(item[2]), -item[2]["accuracy"]))
    low, high = best["interval"]
    luck = min(1.0, len(scores) * _luck(best))  # correct for choosing the best of several scores
    better = (task, shots) in significant_scores(tasks)
    return Verdict(
        "proven" if better else "not shown",
        f"{'Some' if better else 'No'} task is answered better than by chance and by token frequencies: the surest of "
        f"{len(scores)} scores, {task} with {shots_text(shots)}, is {best['accuracy']:.1%} (interval {low:.1%} to "
        f"{high:.1%}) against {_baseline(best):.1%}; p, corrected for their number: {chance_text(luck)}",
    )


def _luck(score: dict[str, Any]) -> float:
    """Return the larger p-value of two tests: as many correct answers by chance, and as large a lead over the
    unigram baseline."""
    right = round(score["accuracy"] * score["n"])
    by_tokens = score.get("unigram_p")
    if score["accuracy"] <= (score.get("unigram") or 0.0):
        by_tokens = 1.0  # the test is two-sided, so a score far below the baseline is also significant
    elif by_tokens is None:
        by_tokens = _at_least(right, score["n"], score.get("unigram") or 0.0)
    return max(_at_least(right, score["n"], score["chance"]), by_tokens)


def _at_least(successes: int, trials: int, rate: float) -> float:
    """Return the binomial probability of at least this number of successes.

    Summed here, because importing scipy takes longer than writing the page.
    """
    if successes <= 0 or rate >= 1:
        return 1.0
    if rate <= 0:
        return 0.0
    yes, no, all_orders = math.log(rate), math.log1p(-rate), math.lgamma(trials + 1)
    logs = (
        all_orders - math.lgamma(n + 1) - math.lgamma(trials - n + 1) + n * yes + (trials - n) * no
        for n in range(successes, trials + 1)
    )
    return min(1.0, math.fsum(map(math.exp, logs)))


def _baseline(score: dict[str, Any]) -> float:
    """Return what a score must exceed: chance, and the unigram baseline if it was measured."""
    return max(float(score["chance"]), float(score.get("unigram") or 0))
