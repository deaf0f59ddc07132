"""The page of benchmarks/got_d.py as Markdown."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from got_d import (
    BASELINES,
    BUDGETS,
    DOCUMENTS,
    EPSILONS,
    MEASURES,
    METHODS,
    MODEL,
    NAMES,
    SPEED_WORDS,
    TARGET,
    TOPICS,
    TRAINED_ON,
    VOCABULARY,
    WORDS,
    paired,
)

GOT_D = [method for method in METHODS if method not in BASELINES]


def page(record: dict[str, Any]) -> str:
    """Return losses, paired differences, selections and, where it was measured, speed."""
    seeds, machine = record["seeds"], record["machine"]
    lines = [
        f"# Warming up on documents selected by GOT-D, {record['date'][:10]}",
        "",
        f"- machine: {machine['processor']}, {machine['cores']} cores, {machine['system']}; torch {record['torch']}, "
        f"one thread; load average {min(s['load'] for s in seeds):.1f} to {max(s['load'] for s in seeds):.1f}",
        f"- commit {', '.join(dict.fromkeys(map(_commit, seeds)))}; `python benchmarks/got_d.py --json out.json "
        f"--seeds {len(seeds)} --report benchmarks/reports`",
        f"- {len(seeds)} seeds, which draw documents, weights and order; the seeds of a row are paired",
        f"- model: {MODEL['layers']} layers, hidden {MODEL['hidden']}, vocabulary {VOCABULARY:,}, {MODEL['sequence']} "
        f"positions; trained on {DOCUMENTS['trained on']:,} documents of {WORDS} words "
        f"({_shares(TRAINED_ON)}), {seeds[0]['steps']:,} steps of 1,024 tokens",
        f"- candidates: {DOCUMENTS['candidates']:,} other documents in the same mix. Target: {_shares(TARGET)}; "
        f"{DOCUMENTS['tuning']} documents for tuning, {DOCUMENTS['tested']} others for the loss",
        "- GOT-D compares the target with what the model was trained on (`--from`), with default settings",
        "- Learning rates were set on another seed by the loss after tuning without a warm-up. A first run of one seed "
        "at 1e-3 was discarded: there the tuning itself raised the loss on the target, with and without a warm-up. In "
        "that run `epsilon` was 0.05 of the mean cost, and hashed words selected 80 % prose; its unit is now the "
        "standard deviation of the costs",
        "",
        *_verdict(seeds),
        "",
        "## Loss on the target and on the mix that the model was trained on",
        "",
        "Nats per token, means over seeds: after the warm-up, and after tuning on the target, which follows it. Before "
        f"either they are {_mean(s['trained']['target'] for s in seeds):.4f} and "
        f"{_mean(s['trained']['mix'] for s in seeds):.4f}.",
        "",
        f"| warm-up, tokens | method | selected ({', '.join(TOPICS)}) | {' | '.join(MEASURES)} |",
        "|---:|---|---|---:|---:|---:|---:|",
        *_loss_rows(seeds),
        "",
        "## GOT-D less each other method, paired by seed",
        "",
        "Mean difference of the losses and its 95 % interval (Student). Below 0, GOT-D is better; an interval that "
        "contains 0 is no difference.",
        "",
        f"| warm-up, tokens | GOT-D by | less | {' | '.join(MEASURES)} |",
        "|---:|---|---|---:|---:|---:|---:|",
        *_difference_rows(seeds),
        "",
        "## Selections",
        "",
        f"Jaccard overlap of the documents selected for {BUDGETS[-1]:,} tokens, means over seeds:",
        "",
        "| | | overlap |",
        "|---|---|---:|",
        *(f"| {_name(a)} | {_name(b)} | {_mean(s['overlap'][f'{a}/{b}'] for s in seeds):.3f} |"
          for a, b in (key.split("/") for key in seeds[0]["overlap"])),
        "",
        "Shares of the topics that GOT-D selects by hashed words under several values of `epsilon` (default 0.1):",
        "",
        f"| epsilon | {' | '.join(TOPICS)} |",
        "|---:|---:|---:|---:|",
        *(f"| {e} | {' | '.join(f'{x:.2f}' for x in np.mean([s['epsilons'][str(e)] for s in seeds], 0))} |"
          for e in EPSILONS),
        *(_speed_lines(record["speed"]) if "speed" in record else []),
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def _shares(shares: Sequence[float]) -> str:
    return ", ".join(f"{share:.0%} {topic}" for share, topic in zip(shares, TOPICS, strict=True))


def _commit(record: dict[str, Any]) -> str:
    return f"{record['commit']}{'+' if record['changed'] else ''}"


def _name(method: str) -> str:
    return NAMES[method]


def _mean(values: Any) -> float:
    return float(np.mean(list(values)))


def _values(seeds: Sequence[dict[str, Any]], method: str, budget: int, measure: str) -> np.ndarray:
    key = f"{method}/{0 if method == 'none' else budget}"
    return np.array([seed["methods"][key][measure] for seed in seeds])


def _difference(
    seeds: Sequence[dict[str, Any]], method: str, other: str, budget: int, measure: str
) -> tuple[float, float]:
    return paired(_values(seeds, method, budget, measure) - _values(seeds, other, budget, measure))


def _verdict(seeds: Sequence[dict[str, Any]]) -> list[str]:
    """Say for the loss after tuning where GOT-D differs from the baselines, and where it does not."""
    lines = []
    for method in GOT_D:
        counts = {"lower": 0, "higher": 0, "no different": 0}
        for other in BASELINES:
            for budget in BUDGETS:
                mean, half = _difference(seeds, method, other, budget, "target, tuned")
                counts["no different" if abs(mean) <= half else "lower" if mean < 0 else "higher"] += 1
        told = ", ".join(f"{n} {what}" for what, n in counts.items())
        lines.append(
            f"**{NAMES[method]}**: the loss on the target after tuning, compared with {len(BASELINES)} baselines at "
            f"{len(BUDGETS)} budgets, is {told} (95 % intervals, not corrected for the number of comparisons)."
        )
        lines.append("")
    return lines[:-1]


def _loss_rows(seeds: Sequence[dict[str, Any]]) -> list[str]:
    rows = []
    for budget in (0, *BUDGETS):
        for method in ("none",) if budget == 0 else [m for m in METHODS if m != "none"]:
            shares = np.mean([seed["methods"][f"{method}/{budget}"]["shares"] for seed in seeds], axis=0)
            selected = " / ".join(f"{share:.2f}" for share in shares) if budget else ""
            losses = " | ".join(f"{_values(seeds, method, budget, m).mean():.4f}" for m in MEASURES)
            rows.append(f"| {budget:,} | {NAMES[method]} | {selected} | {losses} |")
    return rows


def _difference_rows(seeds: Sequence[dict[str, Any]]) -> list[str]:
    rows = []
    for budget in BUDGETS:
        for method in GOT_D:
            for other in [*BASELINES, *(m for m in GOT_D if m < method)]:
                cells = [_difference(seeds, method, other, budget, measure) for measure in MEASURES]
                told = " | ".join(f"{mean:+.4f} ± {half:.4f}" for mean, half in cells)
                rows.append(f"| {budget:,} | {NAMES[method].removeprefix('GOT-D, ')} | {NAMES[other]} | {told} |")
    return rows


def _speed_lines(speed: dict[str, Any]) -> list[str]:
    rows = speed["speed"]
    lines = [
        "",
        "## Speed of the selection",
        "",
        f"Texts of {SPEED_WORDS} words, {rows[0]['targets']:,} documents of the target, default settings, "
        f"{speed['date']}, commit {_commit(speed)}; `{speed['command']}`. CPU seconds of one process; the machine did "
        "other work at the same time, as its load says. Growth: the exponent of the total between two sizes.",
        "",
        "| embedding | candidates | embedding, CPU s | transport and ranking, CPU s | growth | peak, GiB | load |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    before: dict[str, tuple[int, float]] = {}
    for row in rows:
        total = row["embedding_cpu_seconds"] + row["transport_cpu_seconds"]
        size, seconds = before.get(row["embedding"], (0, 0.0))
        growth = f"{np.log(total / seconds) / np.log(row['candidates'] / size):.2f}" if size else ""
        before[row["embedding"]] = row["candidates"], total
        lines.append(
            f"| {row['embedding']} | {row['candidates']:,} | {row['embedding_cpu_seconds']:.1f} | "
            f"{row['transport_cpu_seconds']:.1f} | {growth} | {row['peak_gib']:.1f} | {row['load']:.1f} |"
        )
    return lines
