"""What do encoded messages cost in loss, and what do they save in bytes?

    python benchmarks/encoded_messages.py --json out.json [--seeds 1 2 3] [--steps 150] [--report benchmarks/reports]

Two ranks train a small model on the demo's stories: with tensor parallelism, whose activations and gradients are
encoded, and with data parallelism, whose gradients or weights are. Each seed reads the same batches under each
encoding. The gap is that of the loss on held-out stories to the exact messages of the same seed, with Student's
interval over the seeds. Errors of single messages are of those that the tensor ranks send in the last step. Nothing is
timed: on a processor encoding costs more than it saves.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from circumstances import circumstances
from experts_study import HELD_OUT_WINDOWS, LR, SEQUENCE, SEQUENCES, VOCABULARY, WARM_UP_STEPS, Corpus, _batch, _corpus
from scipy.stats import t as student

from trivium.comms import encodings
from trivium.comms.launch import Place, connected, run_ranks
from trivium.comms.mesh import Mesh
from trivium.config import build
from trivium.plan.messages import UNITS, EncodingName
from trivium.plan.plan import Plan
from trivium.provenance import write_json
from trivium.seeds import generator_for
from trivium.training.batches import windows
from trivium.training.config import TrainingConfig
from trivium.training.trainer import Samples, Trainer, adam_rule

Tensor = torch.Tensor

MODEL = {
    "layers": 4,
    "hidden": 128,
    "heads": 4,
    "sequence": SEQUENCE,
    "vocabulary": VOCABULARY,
    "norm": "rms_norm",
    "positions": "rotary",
    "feed_forward": "gated",
    "ffn": 512,
    "bias": "none",
}
LAYOUTS: Mapping[str, dict[str, Any]] = {
    "tensor": {"layout": {"tensor": 2}, "sequence_parallel": True},
    "gradients": {"layout": {"data": 2}},
    "weights": {"layout": {"data": 2}, "precision": {"weights": "bf16"}},
}
RECORDED_MESSAGES = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", required=True, type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--report", type=Path, help="folder for encoded-messages-DATE.md and .json")
    options = parser.parse_args()
    record: dict[str, Any] = circumstances("benchmarks/encoded_messages.py", sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "runs.json"
        run_ranks(rank, 2, _corpus(), options.seeds, options.steps, out)
        record |= {"seeds": options.seeds, "steps": options.steps, **json.loads(out.read_text())}
    write_json(options.json, record)
    print(page(record))
    if options.report:
        path = options.report / f"encoded-messages-{record['date'][:10]}.json"
        write_json(path, record)
        path.with_suffix(".md").write_text(page(record))


def rank(place: Place, corpus: Corpus, seeds: list[int], steps: int, out: Path) -> None:
    """Train under each kind of message and each encoding, and let the first rank write what was found."""
    runs: list[dict[str, Any]] = []
    errors: dict[str, Any] = {}
    with connected(place):
        _train(place, corpus, seeds, steps, runs, errors)
    if place.rank == 0:
        out.write_text(json.dumps({"runs": runs, "errors": errors}))


def _train(
    place: Place, corpus: Corpus, seeds: list[int], steps: int, runs: list[dict[str, Any]], errors: dict[str, Any]
) -> None:
    for kind, layout in LAYOUTS.items():
        batch = {"sequences": SEQUENCES, "micro": SEQUENCES // layout["layout"].get("data", 1)}
        plan = build(Plan, {"model": MODEL, "batch": batch, **layout}).checked()
        mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends)
        for seed in seeds:
            for name in ("exact", *UNITS):
                changed = build(Plan, {"model": MODEL, "batch": batch, **layout, "messages": {kind: name}}).checked()
                last = kind == "tensor" and name == "bf16" and seed == seeds[-1]
                found = _run(changed, mesh, corpus, seed, steps, errors if last else None)
                runs.append({"kind": kind, "encoding": name, "seed": seed, **found})
                if place.rank == 0:
                    print(runs[-1], flush=True)
        mesh.disconnect()


def _run(
    plan: Plan, mesh: Mesh, corpus: Corpus, seed: int, steps: int, errors: dict[str, Any] | None
) -> dict[str, Any]:
    trainer = Trainer(plan, mesh, seed=seed, rule=adam_rule(build(TrainingConfig, {})))
    for group in mesh.groups:
        group.traffic.clear()
    order = generator_for(seed, "encodings order").permutation((len(corpus.trained) - 1) // SEQUENCE)
    for step in range(steps):
        chosen = order[step * SEQUENCES : (step + 1) * SEQUENCES]
        ids = np.concatenate([corpus.trained[n * SEQUENCE : (n + 1) * SEQUENCE + 1] for n in chosen])
        recorded: list[Tensor] = []
        if errors is not None and step == steps - 1:
            recording = _recorder(recorded)
        trainer.train_step(step, _batch(ids, plan), LR * min(1.0, (step + 1) / WARM_UP_STEPS))
        if errors is not None and step == steps - 1:
            encodings.encode = recording
            errors.update(_errors(recorded))
    held_out = Samples(0, HELD_OUT_WINDOWS, lambda first, count: windows(corpus.held_out, plan.model, first, count))
    sent = {role: dict(getattr(mesh, role).traffic) for role in ("tensor", "replicas")}
    return {"loss": float(trainer.validate(held_out)["loss"]), "sent_bytes": sent}


def _recorder(recorded: list[Tensor]) -> Any:
    """Keep copies of the tensors that are encoded from now on. Return the function that was in place before."""
    plain = encodings.encode

    def encode(name: EncodingName, x: Tensor) -> Tensor:
        if len(recorded) < RECORDED_MESSAGES:
            recorded.append(x.detach().float().clone())
        return plain(name, x)

    encodings.encode = encode
    return plain


def _errors(recorded: list[Tensor]) -> dict[str, Any]:
    """Return the root mean square error over that of the numbers, and the median relative error, by encoding."""
    found = {}
    for name in UNITS:
        square, relative = [], []
        for x in recorded:
            back = encodings.decode(name, encodings.encode(name, x), x.numel()).view(x.shape)
            square.append(float((back - x).norm() / x.norm()))
            used = x != 0
            relative.append(float(((back - x)[used] / x[used]).abs().median()))
        found[name] = {"root_mean_square": float(np.mean(square)), "median": float(np.mean(relative))}
    return found


def page(record: Mapping[str, Any]) -> str:
    """Return the report as Markdown."""
    runs = record["runs"]
    lines = [
        "# Encoded messages",
        "",
        f"Date: {record['date'][:10]}. Command: `{record['command']}`. {len(record['seeds'])} seeds, {record['steps']} "
        "steps, two ranks. Gap: loss in nats per token on held-out stories, less that of exact messages with the same "
        "seed; 95 % interval over the seeds. Bytes: those that a rank hands to the encoded collectives, over the exact "
        "ones.",
        "",
        "| messages | encoding | gap | bytes |",
        "| --- | --- | ---: | ---: |",
    ]
    for kind in LAYOUTS:
        exact = {r["seed"]: r for r in runs if (r["kind"], r["encoding"]) == (kind, "exact")}
        for name in UNITS:
            every = [r for r in runs if (r["kind"], r["encoding"]) == (kind, name)]
            gaps = np.array([r["loss"] - exact[r["seed"]]["loss"] for r in every])
            half = student.ppf(0.975, len(gaps) - 1) * gaps.std(ddof=1) / len(gaps) ** 0.5
            share = _bytes(every[0], kind) / _bytes(exact[every[0]["seed"]], kind)
            lines.append(f"| {kind} | {name} | {gaps.mean():+.4f} ± {half:.4f} | {share:.2f} |")
    lines += [
        "",
        "Errors of the messages of tensor ranks in the last step: root mean square over that of the numbers, and the "
        "median relative error of single numbers.",
        "",
        "| encoding | root mean square | median |",
        "| --- | ---: | ---: |",
        *(f"| {k} | {e['root_mean_square']:.2%} | {e['median']:.2%} |" for k, e in record["errors"].items()),
    ]
    return "\n".join(lines) + "\n"


def _bytes(run: Mapping[str, Any], kind: str) -> float:
    role, collectives = {
        "tensor": ("tensor", ("all_gather", "reduce_scatter")),
        "gradients": ("replicas", ("reduce_scatter",)),
        "weights": ("replicas", ("all_gather",)),
    }[kind]
    return sum(run["sent_bytes"][role][collective] for collective in collectives)


if __name__ == "__main__":
    main()
