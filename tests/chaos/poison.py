"""Poison one step of a training at a known place: the step must be rejected, and its culprit named.

A document's phrase, a sample's activations or a weight produce a value that is not finite, or a gradient that is far
too large. The job must stop at that step on every rank, with no weight changed, and `trivium data show --culprit` must
name the row, the document and the layer.
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from chaos.scene import LAYOUTS, SEED, event_steps, job, plan, write_tokens
from trivium.checkpoint.format import MANIFEST, manifest_hash, manifest_text, published, read_manifest
from trivium.checkpoint.verify import NOT_FINITE
from trivium.errors import CheckpointError, DataError, Preempted, TriviumError
from trivium.model.inputs import Inputs
from trivium.model.layers.attention_softmax import AttentionSoftmax
from trivium.model.layers.half import Half
from trivium.model.layers.mlp_plain import MlpPlain
from trivium.progress import Progress, silent
from trivium.provenance import file_sha256
from trivium.seeds import generator_for
from trivium.tokens.samples import TokenDataset
from trivium.training.lineage.culprit import find_culprit
from trivium.training.loop import TrainingJob
from trivium.training.record import CHECKPOINTS, read_record
from trivium.training.supervision.job import start
from trivium.training.supervision.preemption import EndedAtOnce

Tensor = torch.Tensor
PARTS: dict[str, type[Half]] = {"attention": AttentionSoftmax, "mlp": MlpPlain}
KINDS = ("document forward", "document backward", "document spike", "sample forward", "sample backward", "weight")
WINDOW, STEPS, EVERY = 4, 12, 3
HUGE = 1e6  # factor of a gradient, far above any norm of this training
PHRASE = 3  # consecutive tokens that occur in one document only


@dataclass(frozen=True)
class Poison:
    """A fault in the start of a document's `phrase`, in a full sample, or in a weight.

    factor: multiplies the output of a part of a layer, or its gradient. step: 1-based.
    """

    kind: str
    step: int
    row: int
    sample: int
    layer: int
    part: str
    factor: float
    document: str | None = None
    phrase: tuple[int, ...] = ()

    @property
    def way(self) -> str:
        """The pass with the fault: forward or backward."""
        return "forward" if self.kind in ("document forward", "sample forward", "weight") else "backward"

    @property
    def module(self) -> str:
        """The name of the module with the fault: a layer's part, or its last matrix."""
        inner = {"attention": ".out", "mlp": ".down"}[self.part] if self.kind == "weight" else ""
        return f"layers.{self.layer}.{self.part}{inner}"


class _Scaled(torch.autograd.Function):
    """Identity in the forward pass; multiplies gradients by `factors` in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factors: Tensor) -> Tensor:
        ctx.save_for_backward(factors)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.saved_tensors[0], None


@contextmanager
def poisoned(poison: Poison) -> Iterator[None]:
    """Poison the computation of this process and of those it forks; nothing on disk changes."""
    owner = PARTS[poison.part]
    right = owner.forward

    def forward(self: Half, x: Tensor, inputs: Inputs) -> Tensor:
        y = right(self, x, inputs)
        hit = _hit(poison, inputs)[self.region.positions(inputs.shape[0])]
        if self.layer != poison.layer or not bool(hit.any()):
            return y
        factors = torch.where(hit, poison.factor, 1.0).to(y.dtype)[..., None]
        return y * factors if poison.way == "forward" else _Scaled.apply(y, factors)

    owner.forward = forward
    try:
        yield
    finally:
        owner.forward = right


def _hit(poison: Poison, inputs: Inputs) -> Tensor:
    """Return a mask [S, B] of the poisoned tokens."""
    hit = torch.zeros(inputs.shape, dtype=torch.bool, device=inputs.tokens.device)
    if inputs.dropout is None:  # validation
        return hit
    if not poison.phrase:
        if inputs.dropout.step == poison.step - 1:
            for column, sample in enumerate(inputs.dropout.samples):
                hit[:, column] = sample == poison.sample
        return hit
    last = inputs.shape[0] - len(poison.phrase) + 1
    if last > 0:
        parts = [inputs.tokens[k : last + k] == token for k, token in enumerate(poison.phrase)]
        hit[:last] = torch.stack(parts).all(0)
    return hit


def poison_often(folder: Path, poisons: int, *, seed: int = SEED, progress: Progress = silent) -> dict[str, Any]:
    """Poison `poisons` trainings; count poisons not detected at their step, and culprits named wrongly."""
    tokens, missed, misnamed = write_tokens(folder), list[str](), list[str]()
    for number in range(poisons):
        draw = generator_for(seed, "chaos", "poison", number)
        kind, layout = kind_and_layout(number)
        given = plan(layout, weights="fp32", dropout=float(draw.choice([0.0, 0.1])))
        spikes = {"policy": "stop", "deviations": 100.0, "window": WINDOW}
        more = {"steps": STEPS, "checkpoint_every": EVERY, "spikes": spikes}
        work = job(tokens, folder / str(number), given, **more)
        poison = draw_poison(work, kind, draw)
        label = f"{number}: {poison.kind} at step {poison.step}, {poison.module}, {dict(layout)}"
        problem = _train(work, poison)
        if problem:
            missed.append(f"{label}: {problem}")
        else:
            misnamed += [f"{label}: {what}" for what in _wrong_names(work, poison)]
        progress(number + 1, poisons, f"{len(missed)} undetected, {len(misnamed)} misnamed")
    named = poisons - len(missed) - len({what.partition(":")[0] for what in misnamed})
    return {"poisons": poisons, "undetected": len(missed), "rightly_named": named, "losses": missed + misnamed}


def kind_and_layout(number: int) -> tuple[str, Mapping[str, Any]]:
    """Return kind and layout of a poison. Each kind meets every layout, though their counts have a common divisor."""
    rounds, kind = divmod(number, len(KINDS))
    return KINDS[kind], LAYOUTS[(number + rounds) % len(LAYOUTS)]


def draw_poison(work: TrainingJob, kind: str, draw: np.random.Generator) -> Poison:
    """Draw a poison of a kind at a random place of the training."""
    data = TokenDataset.open(work.tokens, "train", sequence=work.plan.model.sequence, seed=work.seed)
    step = int(draw.integers(WINDOW + 2, STEPS + 1))
    first, sequences = work.plan.batch.at(step - 1)
    row = int(draw.integers(sequences))
    document: str | None = None
    phrase: tuple[int, ...] = ()
    if kind.startswith("document"):
        step, row, document, phrase = _phrase_of_one(work, data, draw)
        first = work.plan.batch.at(step - 1).first_sample
    factor = HUGE if kind == "document spike" else float(draw.choice([math.nan, math.inf]))
    layer, part = int(draw.integers(work.plan.model.layers)), str(draw.choice(list(PARTS)))
    return Poison(kind, step, row, first + row, layer, part, factor, document, phrase)


def _phrase_of_one(
    work: TrainingJob, data: TokenDataset, draw: np.random.Generator
) -> tuple[int, int, str, tuple[int, ...]]:
    """Return (step, row, document, phrase) of a phrase within one document that training reads there first."""
    places: dict[tuple[int, ...], list[tuple[int, int, str | None]]] = {}
    for step in range(1, STEPS + 1):
        first, sequences = work.plan.batch.at(step - 1)
        for row in range(sequences):
            inputs = data.sample(first + row)[:-1].tolist()
            spans = data.documents_of(first + row)
            for at in range(len(inputs) - PHRASE + 1):
                inside = (s.document for s in spans if s.offset <= at and at + PHRASE <= s.offset + s.length)
                place = step, row, next(inside, None)
                places.setdefault(tuple(inputs[at : at + PHRASE]), []).append(place)
    # The first step that reads it must read it once, or more than one row would be to blame.
    possible = [
        (phrase, (step, row, document))
        for phrase, ((step, row, document), *later) in sorted(places.items())
        if document is not None and step >= WINDOW + 2 and all(other[0] > step for other in later)
    ]
    phrase, place = possible[int(draw.integers(len(possible)))]
    return *place, phrase


def _train(work: TrainingJob, poison: Poison) -> str:
    """Train with the poison; return what went wrong, or an empty string."""
    try:
        if poison.kind == "weight":
            before = poison.step - 1
            clean = work.training.model_copy(update={"steps": before, "checkpoint_every": before})
            start(TrainingJob(work.plan, clean, work.seed, work.tokens, work.out))
            poison_weight(published(work.out / CHECKPOINTS)[-1], poison)
            start(work)
        else:
            with poisoned(poison):
                start(work)
        return "the job ran to its end"
    except DataError as error:
        message = str(error)
    except CheckpointError as error:
        if poison.kind == "weight" and f"{poison.module}.weight {NOT_FINITE}" in str(error):
            return ""
        return f"the job ended with {error}"
    except (Preempted, EndedAtOnce):
        raise  # this process received a signal
    except TriviumError as error:
        return f"the job ended with {type(error).__name__}: {error}"
    logged = event_steps(work.out, "spike")
    if logged != [poison.step] or f"step {poison.step}:" not in message:
        return f"spikes were logged at steps {logged}"
    return ""


def _wrong_names(work: TrainingJob, poison: Poison) -> list[str]:
    """List what the search for the culprit named wrongly. A weight was named when its checkpoint was rejected."""
    if poison.kind == "weight":
        return []
    with poisoned(poison):
        found = find_culprit(read_record(work.out), poison.step)
    rows = found["rows"]
    wrong = [] if found["reproduced"] else ["it was not reproduced"]
    if rows != [poison.row]:
        wrong.append(f"rows {rows}, not {poison.row}")
    elif poison.document is not None and found["culprits"][0]["document"] != poison.document:
        wrong.append(f"document {found['culprits'][0]['document']}, not {poison.document}")
    expected = (None, None) if poison.kind == "document spike" else (poison.module, poison.way)
    if (found["layer"], found["pass"]) != expected:
        wrong.append(f"{found['layer']} {found['pass']}, not {expected}")
    return wrong


def poison_weight(directory: Path, poison: Poison) -> None:
    """Make one element of a weight in a checkpoint not finite, and update the hashes."""
    name = f"{poison.module}.weight"
    manifest = read_manifest(directory)
    for kind in ("weights", "master"):
        if f"{kind}/{name}" not in manifest["tensors"]:
            continue
        piece = manifest["tensors"][f"{kind}/{name}"]["pieces"][0]
        path = directory / piece["file"]
        tensors = load_file(path)
        tensors[piece["key"]].view(-1)[poison.sample % tensors[piece["key"]].numel()] = poison.factor
        save_file(tensors, path)
        manifest["files"][piece["file"]] = {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
    manifest = json.loads(json.dumps(manifest))
    text = manifest_text({**manifest, "sha256": manifest_hash(manifest)})
    (directory / MANIFEST).write_text(text, encoding="utf-8")
