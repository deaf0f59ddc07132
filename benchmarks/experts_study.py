"""Are experts better than a dense model of equal active FLOPs, per token and per second? And which balance is better?

    python benchmarks/experts_study.py --json out.json [--seeds 1 2 3] [--steps 240] [--report benchmarks/reports]
    python benchmarks/experts_study.py --json out.json --join one.json two.json [--report benchmarks/reports]

All models read the same stories in the same order, with one learning rate, which is constant after a warm-up so that
losses may be compared at any step. For each seed they take steps by turns; seconds are those of the processor. The
held-out stories are of whole books that no model was trained on. Settings were chosen before the first run, and none
was changed afterwards. The second form joins what several processes measured for seeds of their own.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from trivium import mkl

mkl.prefer_fast_kernels()  # before torch

import numpy as np
import torch
from circumstances import circumstances
from scipy.stats import t as student

from trivium.comms.mesh import Mesh
from trivium.config import build
from trivium.corpus.harvest.stories import read_stories
from trivium.plan.parameters import parameters
from trivium.plan.plan import Plan
from trivium.provenance import write_json
from trivium.seeds import generator_for
from trivium.tokens.rows import Rows
from trivium.tokens.tokenizer import train_tokenizer
from trivium.training.batches import windows
from trivium.training.config import TrainingConfig
from trivium.training.trainer import Samples, Trainer, adam_rule

VOCABULARY, SEQUENCE, SEQUENCES = 2048, 128, 8
HIDDEN, ACTIVE_COLUMNS = 128, 512
HELD_OUT_SHARE = 0.1  # of the books
HELD_OUT_WINDOWS = 96
LR, WARM_UP_STEPS = 2e-3, 30
EVALUATED_EVERY, LOADS_OF_STEPS = 40, 20  # steps; the last ones, whose loads are averaged
SHARED: dict[str, Any] = {
    "layers": 4,
    "hidden": HIDDEN,
    "heads": 4,
    "sequence": SEQUENCE,
    "vocabulary": VOCABULARY,
    "norm": "rms_norm",
    "positions": "rotary",
    "bias": "none",
}


def _experts(count: int, chosen: int, *, shared: int = 0, **more: Any) -> dict[str, Any]:
    """Return the settings of experts with as many active columns as the dense model."""
    columns = (ACTIVE_COLUMNS - shared) // chosen
    return {
        "feed_forward": "experts",
        "experts": {"count": count, "chosen": chosen, "columns": columns, "shared": shared, **more},
    }


LOSS, BIAS = {"balance_loss": 0.01}, {"bias_rate": 0.001}
DENSE = "dense"
MODELS: Mapping[str, dict[str, Any]] = {
    DENSE: {"feed_forward": "gated", "ffn": ACTIVE_COLUMNS},
    "8 experts, 2 chosen, balance loss": _experts(8, 2, **LOSS),
    "8 experts, 2 chosen, bias": _experts(8, 2, **BIAS),
    "8 experts, 2 chosen, no balance": _experts(8, 2),
    "24 experts, 6 chosen, 1 shared, balance loss": _experts(24, 6, shared=128, **LOSS),
}


class Corpus(NamedTuple):
    """Token ids of the stories, and of those that are held out."""

    trained: np.ndarray
    held_out: np.ndarray


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    record: dict[str, Any] = circumstances(
        "benchmarks/experts_study.py", sys.argv[1:] if arguments is None else arguments
    )
    record["load"] = os.getloadavg()[0]
    torch.set_num_threads(1)
    if options.join:
        pieces = [json.loads(Path(piece).read_text()) for piece in options.join]
        record = pieces[0] | {
            "command": "; ".join(piece["command"] for piece in pieces),
            "seeds": [seed for piece in pieces for seed in piece["seeds"]],
        }
    else:
        _measure(record, options.seeds, options.steps, options.models, Path(options.json))
    write_json(Path(options.json), record)
    if options.report:
        Path(options.report).mkdir(parents=True, exist_ok=True)
        name = f"experts-study-{record['date'][:10]}"
        write_json(Path(options.report) / f"{name}.json", record)
        (Path(options.report) / f"{name}.md").write_text(page(record))
    return 0


def _measure(record: dict[str, Any], seeds: Sequence[int], steps: int, models: Sequence[str], out: Path) -> None:
    """Add the experiment of each seed to the record, and write it to `out` after each."""
    corpus = _corpus()
    record["tokens"] = {name: len(ids) for name, ids in corpus._asdict().items()}
    record["seeds"] = []
    for seed in seeds:
        record["seeds"].append(experiment(corpus, seed, steps, models))
        write_json(out, record)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", required=True, help="file for the figures")
    parser.add_argument("--report", help="folder for a dated report")
    parser.add_argument("--join", nargs="+", help="files with figures of other seeds, instead of measuring")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="the dense one among them")
    return parser.parse_args(arguments)


def _corpus() -> Corpus:
    """Divide the stories by books, so that no book is on both sides."""
    chapters = read_stories()
    books = sorted({chapter["book"] for chapter in chapters})
    drawn = generator_for(0, "experts study").permutation(len(books))
    held_out = {books[n] for n in drawn[: max(1, round(HELD_OUT_SHARE * len(books)))]}
    texts = {side: [c["text"] for c in chapters if (c["book"] in held_out) == side] for side in (False, True)}
    tokenizer = train_tokenizer(texts[False], VOCABULARY)

    def ids(side: bool) -> np.ndarray:
        encoded = tokenizer.encode_batch(texts[side])
        return np.array([i for each in encoded for i in (*each, tokenizer.end_of_text)], np.int64)

    return Corpus(ids(False), ids(True))


def experiment(corpus: Corpus, seed: int, steps: int, models: Sequence[str]) -> dict[str, Any]:
    """Train the models of a seed by turns. Return their losses on the held-out stories by step, and their seconds;
    of experts also the load of the busiest one over the mean, of all layers and the last steps."""
    trainers = {name: _trainer(MODELS[name], seed) for name in models}
    found: dict[str, dict[str, list[float]]] = {name: {"loss": [], "seconds": [], "loads": []} for name in models}
    spent = dict.fromkeys(models, 0.0)
    per_epoch = (len(corpus.trained) - 1) // SEQUENCE
    order = generator_for(seed, "experts study order")
    shuffled = np.concatenate([order.permutation(per_epoch) for _ in range(steps * SEQUENCES // per_epoch + 1)])
    for step in range(steps):
        chosen = shuffled[step * SEQUENCES : (step + 1) * SEQUENCES]
        ids = np.concatenate([corpus.trained[n * SEQUENCE : (n + 1) * SEQUENCE + 1] for n in chosen])
        batch = _batch(ids, trainers[DENSE].plan)
        for name, trainer in trainers.items():
            begin = time.process_time()
            result = trainer.train_step(step, batch, LR * min(1.0, (step + 1) / WARM_UP_STEPS))
            spent[name] += time.process_time() - begin
            if step >= steps - LOADS_OF_STEPS:
                found[name]["loads"] += [load.largest for load in result.loads.values()]
        if (step + 1) % EVALUATED_EVERY == 0 or step + 1 == steps:
            for name, trainer in trainers.items():
                found[name]["loss"].append(_held_out(trainer, corpus))
                found[name]["seconds"].append(spent[name])
            print(
                f"seed {seed}, step {step + 1}: { ({k: round(v['loss'][-1], 4) for k, v in found.items()}) }",
                flush=True,
            )
    return {"seed": seed, "steps": steps, "models": found}


def _trainer(model: dict[str, Any], seed: int) -> Trainer:
    tree = {"model": SHARED | model, "batch": {"sequences": SEQUENCES, "micro": SEQUENCES}}
    plan = build(Plan, tree).checked()
    return Trainer(plan, Mesh.single(), seed=seed, rule=adam_rule(build(TrainingConfig, {})))


def _batch(ids: np.ndarray, plan: Plan) -> Samples:
    """Return windows of SEQUENCE + 1 ids each as one batch."""
    rows = ids.reshape(SEQUENCES, SEQUENCE + 1)
    return Samples(0, SEQUENCES, lambda first, count: Rows.of_text(rows[first : first + count]))


def _held_out(trainer: Trainer, corpus: Corpus) -> float:
    """Return the loss in nats per token."""
    read = partial(windows, corpus.held_out, trainer.plan.model)
    return float(trainer.validate(Samples(0, HELD_OUT_WINDOWS, read))["loss"])


def active_parameters(model: Mapping[str, Any]) -> tuple[int, int]:
    """Return the parameters of a model without its table: those that a token visits, and all."""
    plan = build(Plan, {"model": SHARED | dict(model), "batch": {"sequences": 1, "micro": 1}})
    rows = [row for row in parameters(plan.model) if row.owner != "embedding"]
    experts = plan.model.experts
    share = 1.0 if experts is None else experts.chosen / experts.count
    active = sum(row.elements * (share if row.by_expert else 1) for row in rows)
    return round(active), sum(row.elements for row in rows)


def at_seconds(curve: Mapping[str, Sequence[float]], seconds: float) -> float:
    """Return a model's loss when it had spent as many seconds, by linear interpolation."""
    return float(np.interp(seconds, curve["seconds"], curve["loss"]))


def paired(differences: Sequence[float]) -> tuple[float, float]:
    """Return the mean of differences on the same seeds, and half its 95 % interval (Student)."""
    values = np.array(differences)
    if len(values) < 2:
        return float(values.mean()), float("nan")
    half = student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean()), float(half)


def page(record: Mapping[str, Any]) -> str:
    """Return the report as Markdown."""
    machine, seeds = record["machine"], record["seeds"]
    lines = [
        f"# Experts beside a dense model of equal active FLOPs, {record['date'][:10]}",
        "",
        f"`{record['command']}` at {record['commit']}{'+' if record['changed'] else ''}, torch {record['torch']}, "
        f"{machine['processor']}; load {record['load']:.1f} at the beginning. {len(seeds)} seeds of "
        f"{seeds[0]['steps']} steps with {SEQUENCES * SEQUENCE:,} tokens on the stories that the package ships, of "
        f"which whole books are held out ({HELD_OUT_WINDOWS * SEQUENCE:,} tokens are evaluated). The learning rate is "
        f"{LR:g} for all models; it was not searched for any. Differences are to the dense model, paired by seed, with "
        f"95 % intervals; below 0, experts are better.",
        "",
        "| | parameters that a token visits | all | CPU seconds per step | load of the busiest expert / mean | loss | "
        "difference at equal tokens | difference at equal seconds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in seeds[0]["models"]:
        curves = [seed["models"][name] for seed in seeds]
        dense = [seed["models"][DENSE] for seed in seeds]
        active, every = active_parameters(MODELS[name])
        step = np.mean([c["seconds"][-1] / s["steps"] for c, s in zip(curves, seeds, strict=True)])
        loss = np.mean([c["loss"][-1] for c in curves])
        told = ["", ""]
        if name != DENSE:
            tokens = paired([c["loss"][-1] - d["loss"][-1] for c, d in zip(curves, dense, strict=True)])
            ends = [min(c["seconds"][-1], d["seconds"][-1]) for c, d in zip(curves, dense, strict=True)]
            seconds = paired(
                [at_seconds(c, end) - at_seconds(d, end) for c, d, end in zip(curves, dense, ends, strict=True)]
            )
            told = [f"{mean:+.4f} ± {half:.4f}" for mean, half in (tokens, seconds)]
        load = f"{np.mean([c['loads'] for c in curves]):.2f}" if curves[0]["loads"] else ""
        lines.append(f"| {name} | {active:,} | {every:,} | {step:.3f} | {load} | {loss:.4f} | {told[0]} | {told[1]} |")
    names = [name for name in seeds[0]["models"] if "8 experts, 2 chosen" in name]
    lines += ["", "Between ways of balancing 8 experts, at equal tokens:", ""]
    for a, b in combinations(names, 2):
        mean, half = paired([s["models"][a]["loss"][-1] - s["models"][b]["loss"][-1] for s in seeds])
        lines.append(f"- {a.split(', ')[-1]} minus {b.split(', ')[-1]}: {mean:+.4f} ± {half:.4f}")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
