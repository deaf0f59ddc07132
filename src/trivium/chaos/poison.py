"""Poison one step of a training at a known place, and see that it is noticed there and its culprit named.

A document's words, a sample's activations or a weight make a value that is not finite, or a gradient that is far too
large; the job must stop at that very step on every rank, with no weight changed, and `trivium data culprit` must
name the row, the document and the layer.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from trivium.chaos.scene import LAYOUTS, SEED, job, plan, write_tokens
from trivium.checkpoint.format import MANIFEST, manifest_hash, manifest_text, published, read_manifest
from trivium.checkpoint.pieces import NOT_FINITE
from trivium.errors import CheckpointError, DataError, Preempted, TriviumError
from trivium.model.inputs import Inputs
from trivium.model.layers.attention_softmax import AttentionSoftmax
from trivium.model.layers.half import Half
from trivium.model.layers.mlp_plain import MlpPlain
from trivium.progress import Progress, silent
from trivium.provenance import file_sha256
from trivium.seeds import generator_for
from trivium.tokens.samples import TokenDataset
from trivium.training.culprit import find_culprit
from trivium.training.job import start
from trivium.training.metrics import EVENTS, read
from trivium.training.preemption import EndedAtOnce
from trivium.training.record import read_record
from trivium.training.run import CHECKPOINTS, TrainingJob

Tensor = torch.Tensor
PARTS: dict[str, type[Half]] = {"attention": AttentionSoftmax, "mlp": MlpPlain}
KINDS = (
    "document forward",
    "document backward",
    "document spike",
    "sample forward",
    "sample backward",
    "weight",
)
WINDOW, STEPS, EVERY = 4, 12, 3
HUGE = 1e6  # times a gradient: far above any norm of this training
PHRASE = 3  # tokens that stand together in one document alone


@dataclass(frozen=True)
class Poison:
    """What is poisoned. Of a document: where its `phrase` begins; of a sample: all of it.

    factor: times the output of a part of a layer, or times its gradient. step: counted from 1.
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
        """Which pass goes wrong."""
        return "forward" if self.kind in ("document forward", "sample forward", "weight") else "backward"

    @property
    def module(self) -> str:
        """The module that is poisoned, by name: a layer's part, or in it the last matrix."""
        inner = {"attention": ".out", "mlp": ".down"}[self.part] if self.kind == "weight" else ""
        return f"layers.{self.layer}.{self.part}{inner}"


class _Scaled(torch.autograd.Function):
    """The same values forward; their gradients times a factor where a mask says so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factors: Tensor) -> Tensor:
        ctx.save_for_backward(factors)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.saved_tensors[0], None


@contextmanager
def poisoned(poison: Poison) -> Iterator[None]:
    """Inside, this process and those it forks compute with the poison; nothing on disk changes."""
    owner = PARTS[poison.part]
    right: Callable[..., Tensor] = owner.forward

    def forward(self: Half, x: Tensor, inputs: Inputs) -> Tensor:
        y = right(self, x, inputs)
        hit = _hit(poison, inputs)[self.region.positions(inputs.shape[0])]
        if self.layer != poison.layer or not bool(hit.any()):
            return y
        factors = torch.where(hit, poison.factor, 1.0).to(y.dtype)[..., None]
        return y * factors if poison.way == "forward" else _Scaled.apply(y, factors)  # type: ignore[no-untyped-call]

    owner.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        owner.forward = right  # type: ignore[method-assign]


def _hit(poison: Poison, inputs: Inputs) -> Tensor:
    """[S, B]: which tokens the poison falls on."""
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


def poison_often(
    folder: Path, *, poisons: int, seed: int = SEED, progress: Progress = silent
) -> dict[str, Any]:
    """Poison so many trainings; count those not noticed at their step, and those whose culprit was named wrongly."""
    began, tokens = time.monotonic(), write_tokens(folder)
    missed: list[str] = []
    misnamed: list[str] = []
    for number in range(poisons):
        draw = generator_for(seed, "chaos", "poison", number)
        kind, layout = kind_and_layout(number)
        given = plan(layout, weights="fp32", dropout=float(draw.choice([0.0, 0.1])))
        spikes = {"policy": "stop", "deviations": 100.0, "window": WINDOW}
        more = {"steps": STEPS, "checkpoint_every": EVERY, "spikes": spikes}
        work = job(tokens, folder / str(number), given, **more)
        poison = draw_poison(work, kind, draw)
        label = f"{number}: {poison.kind} at step {poison.step}, {poison.module}, {dict(layout)}"
        said = _noticed(work, poison)
        if said:
            missed.append(f"{label}: {said}")
        else:
            misnamed += [f"{label}: {what}" for what in _wrong_names(work, poison)]
        progress(number + 1, poisons, f"{len(missed)} undetected, {len(misnamed)} misnamed")
    named = poisons - len(missed) - len({what.partition(":")[0] for what in misnamed})
    return {
        "poisons": poisons,
        "undetected": len(missed),
        "rightly_named": named,
        "losses": missed + misnamed,
        "seconds": time.monotonic() - began,
        "passed": named == poisons,
    }


def kind_and_layout(number: int) -> tuple[str, Mapping[str, Any]]:
    """Of a poison: each kind meets every layout, though their numbers have a common divisor."""
    rounds, kind = divmod(number, len(KINDS))
    return KINDS[kind], LAYOUTS[(number + rounds) % len(LAYOUTS)]


def draw_poison(work: TrainingJob, kind: str, draw: np.random.Generator) -> Poison:
    """A poison of a kind, at a random place of the training."""
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
    """(step, row, document, phrase): a phrase that training reads there first, within one document."""
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
    # Where it is read first it must be read once, or more than one row would be to blame.
    possible = [
        (phrase, (step, row, document))
        for phrase, ((step, row, document), *later) in sorted(places.items())
        if document is not None and step >= WINDOW + 2 and all(other[0] > step for other in later)
    ]
    phrase, place = possible[int(draw.integers(len(possible)))]
    return *place, phrase


def _noticed(work: TrainingJob, poison: Poison) -> str:
    """Train with the poison; what went otherwise than it should, or nothing."""
    said = ""
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
        return "the job went on to its end"
    except DataError as error:
        said = str(error)
    except CheckpointError as error:
        if poison.kind == "weight" and f"{poison.module}.weight {NOT_FINITE}" in str(error):
            return ""
        return f"the job ended with {error}"
    except (Preempted, EndedAtOnce):
        raise  # this process was asked to end
    except TriviumError as error:
        return f"the job ended with {type(error).__name__}: {error}"
    noted = [e["step"] for e in read(work.out / EVENTS) if e["event"] == "spike"]
    if noted != [poison.step] or f"step {poison.step}:" not in said:
        return f"spikes were noted at {noted}"
    return ""


def _wrong_names(work: TrainingJob, poison: Poison) -> list[str]:
    """What the search for the culprit named wrongly. A weight was named when its checkpoint was refused."""
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
    """Make one element of a weight in a checkpoint not finite, with hashes that are right again."""
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
