"""A small run directory with the results of every stage."""

import json
from pathlib import Path
from typing import Any

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


def span(rank: int, action: str, start: float, end: float) -> dict[str, Any]:
    return {"pipeline_rank": rank, "action": action, "start": start, "end": end}


def published_tasks() -> dict[str, Any]:
    """Return results as written by `trivium evaluate RUN`."""
    group = {"n": 9, "accuracy": 0.5, "interval": [0.2, 0.8]}
    score = {
        "accuracy": 0.5, "interval": [0.3, 0.7], "n": 18, "chance": 0.5, "published": 0.5161, "gpt3": None,
        "normalisation": "token", "truncated": 2, "by_group": {"heuristic": {f"constituent {HOSTILE}": group}},
        "contamination": {"n": 1, "clean": group, "in_corpus": None},
    }  # fmt: skip
    point = {"step": 3, "tokens": 3072, "tasks": {"hans": {"0": {"accuracy": 0.5, "prompt_hash": "h"}}}}
    return {
        "format": "trivium-task-results-2", "tasks": {"hans": {"0": score}}, "skipped": {"race_h": "no rows"},
        "series": [point | {"step": 1, "tokens": 1024}, point],
    }  # fmt: skip


def incontext_study() -> dict[str, Any]:
    """Return results as written by `trivium incontext RUN`."""
    measured = {
        "accuracy": 0.5, "interval": [0.3, 0.7], "threshold_accuracy": 0.6, "contextual_accuracy": None,
        "calibration_error": 0.1, "majority_bias": 0.01, "recency_bias": None,
        "calibration_bins": [{"n": 18, "sureness": 0.6, "accuracy": 0.5}],
        "margins": {"edges": [-1.0, 0.0, 1.0], "counts": {" True": [3, 1], f" {HOSTILE}": [1, 3]}},
        "margins_by_group": {
            f"constituent {HOSTILE}": {"edges": [-1.0, 0.0, 1.0], "counts": {" True": [3, 1], f" {HOSTILE}": [1, 3]}}
        },
    }  # fmt: skip
    model = {"checkpoint": "step-00000003", "step": 3, "tokens": 3072, "parameters": 466_000}
    varied = {kind: {"2": measured} for kind in ("shots", "order", "balance", "source", "template")}
    return {"format": "trivium-incontext-1", "task": "hans", "models": [{"model": model, **varied}]}


def bias_series() -> dict[str, Any]:
    """Return results as written by `trivium bias --every`."""
    effect = {"measure": "association", "of": f"neutral {HOSTILE}", "estimate": -0.4, "unit": "nats",
              "interval": [-0.5, -0.3], "effect_size": -0.8, "p": 0.01, "p_holm": 0.02, "n": 2}  # fmt: skip
    moments = [{"step": n, "tokens": 1024 * n, "effects": [effect, effect | {"interval": None}]} for n in (1, 3)]
    return {"format": "trivium-bias-series-1", "checkpoints": moments}


def stations() -> dict[str, Any]:
    """Return {file name: content}."""
    spans = [span(0, "F0.0", 0, 1), span(1, "F0.1", 1, 2), span(1, "B0.1", 2, 4), span(0, "B0.0", 4, 6)]
    held = {"weights": 400, "gradients": 400, "optimizer": 400, "activations": 5000}
    priced = {**held, "activations": 6000}
    place = {"pipeline": 0, "data": 0, "tensor": 0}
    score = {
        "accuracy": 0.31,
        "interval": [0.27, 0.35],
        "n": 500,
        "chance": 0.25,
        "unigram": 0.26,
        "confidence": 0.95,
        "nats_per_byte": 1.4,
        "nats_per_byte_interval": [1.3, 1.5],
        "unigram_nats_per_byte": 1.7,
    }
    return {
        "curated/funnel.json": [
            {"step": "read", "documents": 1000, "bytes": 9_000_000, "dropped": {}},
            {"step": "language", "documents": 900, "bytes": 8_000_000, "dropped": {"not English": 100}},
        ],
        "curated/planted.json": {
            "near_duplicates": {"planted": 40, "caught": 39},
            "leaks": {"planted": 20, "caught": 20},
        },
        "curated/honest.json": {"documents": 900, "lost": 9, "lost_by": {"language": 9}},
        "statistics.json": {
            "quantiles": [0.0, 0.5, 1.0],
            "figures": {"characters of web": [512, 3000.5, 70000]},
            "lengths": {"web": [0] * 9 + [3, 5, 8], HOSTILE: [0] * 9 + [1]},
            "rejected": {"language": {f"not English {HOSTILE}": 100}},
            "similarities": [0, 0, 0, 0, 0, 0, 0, 0, 12, 7],
        },
        "extraction.json": {
            "resiliparse": {"pages": 90, "word_f1": 0.95, "run_f1": 0.94, "mb_per_cpu_second": 31.0},
            "other": {"missing": "its package is not installed"},
        },
        "answers/results.json": {
            name: {"n": 40, "accuracy": share, "interval": [share, share + 0.09], "nats_per_token": 0.5}
            for name, share in (("before", 0.0), ("after", 0.9))
        },
        "tasks/results.json": published_tasks(),
        "incontext/results.json": incontext_study(),
        "plan/plan.json": {"format": "trivium-plan-1", "lines": ["This run", "layout tensor 2"], "spans": spans},
        "training/summary.json": {
            "validation_loss": 5.1,
            "unigram_entropy": 6.4,
            "layout": {"tensor": 2, "pipeline": 2, "data": 2, "chunks": 2},
            "schedule": "interleaved",
            "steps": 3,
            "tokens": 3072,
            "parameters": 466_000,
            "device": "cpu",
            "hosts": 1,
            "precision": "fp32",
            "memory": [{"rank": 0, "coordinate": place, "categories": held, "predicted": priced}],
        },
        "training/timeline.json": spans,
        "resume/proof.json": {
            "max_loss_difference": 2e-6,
            "tolerance": 2e-3,
            "why": "other order of sums",
            "layouts": [{"tensor": 2, "pipeline": 2, "data": 2}, {"tensor": 1, "pipeline": 4, "data": 2}],
            "killed": {"rank": 7, "step": 2, "signal": "SIGKILL"},
            "resumed_from": 1,
            "losses": [
                {"step": 1, "unbroken": 6.0, "resumed": 6.0},
                {"step": 2, "unbroken": 5.5, "resumed": 5.500002},
            ],
        },
        "evaluation/results.json": {"format": "trivium-results-1", "tasks": {"last_word": {"0": score, "4": score}}},
        "bias/results.json": {
            "format": "trivium-bias-1",
            "variants": {"neutral": {"mean_log_ratio": -0.4, "male_share": 0.8, "sign_test_p": 0.01, "n": 2}},
            "occupations": [{"occupation": "nurse", "neutral": 0.3}, {"occupation": "miner", "neutral": -0.9}],
            "effects": [
                {"measure": "association", "of": "neutral", "estimate": -0.4, "unit": "nats", "interval": [-0.5, -0.3],
                 "effect_size": -0.8, "p": 0.01, "p_holm": 0.02, "n": 2},
                {"measure": "adjectives", "of": "gender: male", "estimate": 0.1, "unit": "bits", "interval": None,
                 "effect_size": None, "p": 0.5, "p_holm": 0.5, "n": 9},
            ],
            "adjectives": {"gender": {"male": {
                "frequent": [{"word": "tall", "count": 3}],
                "one_sided": [{"word": "old", "count": 2, "log_odds": 0.7, "interval": [0.1, 1.3], "p_holm": 0.01}],
            }}},
            "sentiment": {"lexicon": "textblob", "axes": {"gender": {
                f"male {HOSTILE}": {"mean": 3.1, "interval": [1.0, 5.0]}, "female": {"mean": None, "interval": None},
            }}},
        },
        "bias_series.json": bias_series(),
        "generate/samples.json": {
            "format": "trivium-samples-1",
            "samples": [{"prompt": "The", "continuation": " end.", "settings": {}}],
        },
        "seconds.json": {"harvest": 3.5, "train": 120.0},
        "training/provenance.json": {"trivium": "0.1.0", "commit": "abc", "finished": "2026-01-01", "key": "k"},
    }  # fmt: skip


TASKS = [
    {"step": step, "tokens": 1024 * step, "tasks": {f"hans {HOSTILE}": {"0": {"accuracy": 0.5, "n": 18}}}}
    for step in (2, 3)
]
METRICS = [
    {"step": 1, "tokens": 1024, "loss": 6.5, "lr": 1e-4, "gradient_norm": 1.0, "seconds": 0.2},
    {"step": 2, "tokens": 2048, "loss": 5.9, "lr": 2e-4, "gradient_norm": 1.0, "seconds": 0.2},
    {"step": 2, "tokens": 2048, "validation_loss": 5.8},
    {"step": 3, "tokens": 3072, "loss": 5.2, "lr": 1e-4, "gradient_norm": 1.0, "seconds": 0.2},
]


def write_run(run: Path, **changed: Any) -> Path:
    """Write the files of all stages. changed: replaces files by name (None omits one); strings are written as they
    are."""
    lines = {"training/metrics.jsonl": METRICS, "training/tasks.jsonl": TASKS}
    files = stations() | {n: "".join(json.dumps(m) + "\n" for m in of) for n, of in lines.items()} | changed
    run.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if content is None:
            continue
        path = run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return run
