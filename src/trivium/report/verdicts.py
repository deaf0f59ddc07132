"""What a run proved: each claim with its figures, true, false, or not tried."""

from typing import Any, Literal, NamedTuple

State = Literal["proven", "failed", "not tried"]

CAUGHT = 0.95  # of the planted documents of each kind
LOST = 0.02  # of the honest documents
EXACT = ("weights", "gradients", "optimizer")  # categories of memory that must be predicted to the byte


class Verdict(NamedTuple):
    """A claim and whether it holds."""

    state: State
    text: str


def verdicts(report: dict[str, Any]) -> list[Verdict]:
    """Every claim, in the order of the path."""
    return [
        _planted(report["planted"]),
        _honest(report["honest"]),
        _learned(report["training"]),
        _resumed(report["resume_proof"]),
        _counted(report["memory"]),
        _above_chance(report["evaluation"]),
    ]


def limits(report: dict[str, Any]) -> list[str]:
    """What no run of this kind can prove."""
    training = report["training"] or {}
    size = f"{training['parameters']:,} parameters" if training.get("parameters") else "a tiny model"
    seen = f", {training['tokens']:,} tokens" if training.get("tokens") else ""
    return [
        f"Quality: the model is tiny ({size}{seen}); its scores show that the path works, not what it would reach.",
        "Speed: ranks are processes that share the cores of one CPU; seconds here say nothing about a cluster.",
        "Scale: collectives ran over gloo on one machine; NCCL, GPUs, several nodes and 16-bit training did not run.",
    ]


def _planted(planted: dict[str, Any] | None) -> Verdict:
    if not planted:
        return Verdict("not tried", "Planted junk is caught by curation")
    shares = {kind: row["caught"] / row["planted"] for kind, row in planted.items() if row["planted"]}
    if not shares:
        return Verdict("not tried", "Planted junk is caught by curation: none was planted")
    worst = min(shares, key=lambda kind: shares[kind])
    return Verdict(
        "proven" if shares[worst] >= CAUGHT else "failed",
        f"Curation caught at least {shares[worst]:.1%} of every kind of planted junk (worst: {worst}; "
        f"asked: {CAUGHT:.0%})",
    )


def _honest(honest: dict[str, Any] | None) -> Verdict:
    if not honest or not honest["documents"]:
        return Verdict("not tried", "Honest documents survive curation")
    share = honest["lost"] / honest["documents"]
    return Verdict(
        "proven" if share <= LOST else "failed",
        f"Curation lost {share:.2%} of {honest['documents']:,} honest documents (allowed: {LOST:.0%})",
    )


def _learned(training: dict[str, Any] | None) -> Verdict:
    loss, entropy = (training or {}).get("validation_loss"), (training or {}).get("unigram_entropy")
    if training is None or entropy is None:
        return Verdict("not tried", "The model learns more than word frequencies")
    if loss is None:
        return Verdict("failed", "Training ended without a finite validation loss")
    layout = layout_text(training["layout"])
    return Verdict(
        "proven" if loss < entropy else "failed",
        f"Trained on {layout}, the model's validation loss is {loss:.3f} nats per token; knowing only token "
        f"frequencies gives {entropy:.3f}",
    )


def _resumed(proof: dict[str, Any] | None) -> Verdict:
    if proof is None:
        return Verdict("not tried", "A killed run resumes under another layout with the same losses")
    difference, tolerance = proof["max_loss_difference"], proof["tolerance"]
    layouts = " then ".join(layout_text(layout) for layout in proof["layouts"])
    if difference is None or tolerance is None:
        return Verdict("failed", f"The resumed run ({layouts}) has losses that are not finite")
    return Verdict(
        "proven" if difference <= tolerance else "failed",
        f"A rank was killed and the run resumed in another layout ({layouts}): losses differ from the unbroken run "
        f"by at most {difference:.2g} (tolerance {tolerance:.2g})",
    )


def _counted(memory: list[dict[str, Any]] | None) -> Verdict:
    claim = "Weights, gradients and optimizer state take the bytes predicted before the run"
    rows = [row for row in memory or [] if row["predicted"] and row["categories"]]
    if not rows:
        return Verdict("not tried", claim)
    off = [
        row["rank"]
        for row in rows
        if any(row["predicted"].get(name) != row["categories"].get(name) for name in EXACT)
    ]
    if off:
        return Verdict("failed", f"{claim}: not so on ranks {', '.join(map(str, off))}")
    more = all(row["predicted"].get("activations") == row["categories"].get("activations") for row in rows)
    return Verdict(
        "proven", f"{claim}, to the byte, on all {len(rows)} ranks{'; so do activations' if more else ''}"
    )


def _above_chance(evaluation: dict[str, Any] | None) -> Verdict:
    claim = "Some task is answered better than by chance"
    scores = [
        (task, shots, score)
        for task, by_shots in (evaluation or {}).get("tasks", {}).items()
        for shots, score in by_shots.items()
        if score["interval"] is not None and score["chance"] is not None
    ]
    if not scores:
        return Verdict("not tried", claim)
    task, shots, best = max(scores, key=lambda item: item[2]["interval"][0] - item[2]["chance"])
    low, high = best["interval"]
    return Verdict(
        "proven" if low > best["chance"] else "failed",
        f"{claim}: {task} with {shots} shots scores {best['accuracy']:.1%}, interval {low:.1%} to {high:.1%}, "
        f"chance {best['chance']:.1%}",
    )


def layout_text(layout: dict[str, Any]) -> str:
    """tensor 2 x pipeline 2 x data 2."""
    axes = [f"{axis} {layout[axis]}" for axis in ("tensor", "pipeline", "data") if axis in layout]
    chunks = layout.get("chunks", 1)
    return (" x ".join(axes) or "an unknown layout") + (
        f", {chunks} chunks" if chunks not in (None, 1) else ""
    )
