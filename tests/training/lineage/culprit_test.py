"""The search for a culprit names the row, document and layer that made a step spike."""

import json
import math
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from chaos.poison import Poison, poisoned
from plans import small
from tokens.curated import tokenized
from trivium.cli import main as entry
from trivium.errors import DataError
from trivium.model.inputs import Inputs
from trivium.model.layers.mlp_plain import MlpPlain
from trivium.model.whole import WholeModel
from trivium.tokens.lineage import Span
from trivium.training.config import SpikesConfig, TrainingConfig
from trivium.training.lineage.culprit import LOSS, Place, Trail, _Search, _Worst, bad_weights, find_culprit
from trivium.training.lineage.replay import replay_to
from trivium.training.loop import TrainingJob
from trivium.training.record import Record, read_record
from trivium.training.supervision.job import start

STEP = 6


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("culprit")
    tokenized(root, {"short": 400}, words=6, validation_fraction=0.3)
    return root


def trained(root: Path, out: Path, poison: Poison | None, **more: Any) -> Record:
    """A run that a poison stops at STEP."""
    model = {"vocabulary": 300, "layers": 3, "sequence": 24, "dropout": 0.1, **more.pop("model", {})}
    plan = small(model=model, batch={"sequences": 8, "micro": 2}, **more)
    training = TrainingConfig(
        steps=8, checkpoint_every=4, validation_samples=2, decay_tokens=9999, spikes=SpikesConfig()
    )
    work = TrainingJob(plan, training, 5, root / "tokens", out / "training")
    if poison is None:
        start(work)
    else:
        with poisoned(poison), pytest.raises(DataError, match=f"step {STEP}"):
            start(work)
    return read_record(out / "training")


def nan_in(row: int, way: str = "forward", **more: Any) -> Poison:
    return Poison(f"sample {way}", STEP, row, 8 * (STEP - 1) + row, 1, "mlp", math.nan, **more)


@pytest.mark.broad
@pytest.mark.parametrize("weights", ["fp32", "bf16", "fp16"])
def test_row_and_layer_are_named_in_every_precision(root: Path, tmp_path: Path, weights: str) -> None:
    poison = nan_in(5)
    record = trained(root, tmp_path, poison, precision={"weights": weights})
    with poisoned(poison):
        found = find_culprit(record, STEP)
    assert (found["micro_batches"], found["rows"]) == ([2], [5])
    assert (found["layer"], found["pass"], found["reproduced"]) == ("layers.1.mlp", "forward", True)
    assert (found["replayed_from"], found["weights"], found["every_row"]) == (4, [], False)
    (blamed,) = found["culprits"]
    assert len(blamed["documents"]) > 1 and blamed["document"] is None, "every part of it is as bad"


def first_reading(record: Record, *, over_border: bool) -> tuple[int, Span, tuple[int, ...]]:
    """(row, document's span, phrase): tokens that training reads for the first time in STEP, and once.

    They lie within a document that is not the first of its row, or over the border before it.
    """
    data, length = record.data, 5
    samples = [data.sample(i)[:-1].tolist() for i in range(8 * STEP)]
    read = Counter(tuple(s[k : k + length]) for s in samples for k in range(len(s) - length + 1))
    for row in range(8):
        tokens = samples[8 * (STEP - 1) + row]
        for span in data.documents_of(8 * (STEP - 1) + row)[1:]:
            at = span.offset - 2 if over_border else span.offset
            phrase = tuple(tokens[at : at + length])
            if len(phrase) == length and (over_border or span.length >= length) and read[phrase] == 1:
                return row, span, phrase
    raise AssertionError("no such phrase; take another corpus")


@pytest.mark.parametrize("documents_see", ["joined", "apart"])
def test_document_is_named_among_several_in_a_row(root: Path, tmp_path: Path, documents_see: str) -> None:
    clean = trained(root, tmp_path / "clean", None)
    row, span, phrase = first_reading(clean, over_border=False)
    poison = nan_in(row, "backward", document=span.document, phrase=phrase)
    model = {"documents": documents_see, "end_of_text": clean.data.end_of_text}
    record = trained(root, tmp_path / "out", poison, model=model)
    with poisoned(poison):
        found = find_culprit(record, STEP)
    assert found["rows"] == [row] and (found["layer"], found["pass"]) == ("layers.1.mlp", "backward")
    (blamed,) = found["culprits"]
    assert (blamed["document"], blamed["positions"][0]) == (span.document, span.offset)


def test_documents_bad_only_together_blame_the_one_that_completes_them(root: Path, tmp_path: Path) -> None:
    clean = trained(root, tmp_path / "clean", None)
    row, second, phrase = first_reading(clean, over_border=True)
    poison = nan_in(row, phrase=phrase)
    record = trained(root, tmp_path / "out", poison)
    with poisoned(poison):
        found = find_culprit(record, STEP)
    assert found["rows"] == [row] and found["culprits"][0]["document"] == second.document


def run_culprit(monkeypatch, capsys, run: Path, *more: str) -> str:
    monkeypatch.setattr(sys, "argv", ["trivium", "data", "show", str(run), "--step", str(STEP), "--culprit", *more])
    with pytest.raises(SystemExit, match="0"):
        entry.main()
    return capsys.readouterr().out


def test_spike_that_a_replay_does_not_reproduce_is_reported(root: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    record = trained(root, tmp_path, nan_in(1))
    found = find_culprit(record, STEP)
    assert not found["reproduced"] and found["layer"] is None and found["rows"] == found["culprits"] == []
    assert "NOT REPRODUCED" in run_culprit(monkeypatch, capsys, tmp_path)
    with poisoned(nan_in(1)):
        told = run_culprit(monkeypatch, capsys, tmp_path)
        assert "layers.1.mlp, forward" in told and "row 1" in told
        assert json.loads(run_culprit(monkeypatch, capsys, tmp_path, "--json"))["rows"] == [1]
    with pytest.raises(DataError, match="did steps 1 to 6"):
        find_culprit(record, 7)


def test_no_document_is_blamed_for_a_step_without_a_spike(root: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    record = trained(root, tmp_path, None)
    assert find_culprit(record, STEP)["spiked"] is False
    assert "no document is to blame" in run_culprit(monkeypatch, capsys, tmp_path)
    with poisoned(nan_in(1)):
        assert find_culprit(record, STEP)["spiked"] is True


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_rows_of_a_step_computed_together_are_the_step(root: Path, tmp_path: Path, head: str) -> None:
    """Every weight's gradient counts, or a row whose own is large would not stand out."""
    record = trained(root, tmp_path, None, model={"head": head})
    replay = replay_to(record, STEP)
    samples = replay.samples(STEP - 1)
    step = replay.advance(update=False)
    search = _Search(replay, STEP - 1, samples, 1.0, _Worst(False, False))
    together = search.strength(search.inputs(0, samples.sequences))
    assert together.loss == pytest.approx(step.loss, rel=1e-5)
    norm = together.gradient_norm / record.plan.tokens(samples.sequences)
    assert norm == pytest.approx(step.gradient_norm, rel=1e-4)


@pytest.mark.parametrize(
    "groups",
    [(), ({"match": "embedding.*", "trainable": False}, {"match": "*.mlp.*", "lr_scale": 8.0}, {"rule": "lion"})],
    ids=["AdamW", "three groups"],
)
def test_step_is_replayed_from_the_checkpoint_before_it_with_its_spike_history(
    root: Path, tmp_path: Path, groups: tuple[Any, ...]
) -> None:
    record = trained(root, tmp_path, None, optimizer={"groups": groups})
    losses = [logged["loss"] for logged in record.logged()]
    for step, started in ((1, 0), (4, 0), (5, 4), (8, 4)):
        replay = replay_to(record, step)
        assert (replay.started_from, replay.done) == (started, step - 1)
        assert replay.spikes.state["losses"] == pytest.approx(losses[: step - 1], rel=1e-5)
        assert replay.advance(update=False).loss == pytest.approx(losses[step - 1], rel=1e-5)


def stage_and_inputs() -> tuple[Any, Inputs]:
    model = small().model
    stage = WholeModel(model, precision="fp32", device=torch.device("cpu")).stage
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in stage.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / 8)
    tokens = torch.randint(0, model.vocabulary, (9, 2), generator=generator)
    return stage, Inputs(tokens[:-1], tokens[1:])


@pytest.mark.parametrize(
    ("weight", "module"),
    [
        ("embedding.positions.weight", "embedding"),
        ("layers.2.attention.norm.weight", "layers.2.attention.norm"),
        ("layers.2.attention.qkv.weight", "layers.2.attention.qkv"),
        ("layers.0.mlp.up.bias", "layers.0.mlp.up"),
        ("layers.3.mlp.down.weight", "layers.3.mlp.down"),
        ("head.norm.bias", "head.norm"),
    ],
)
def test_bad_weight_shows_in_the_module_that_uses_it(weight: str, module: str) -> None:
    stage, inputs = stage_and_inputs()
    with torch.no_grad():
        stage.get_parameter(weight).view(-1)[3] = math.inf
    trail = Trail()
    with trail.watching(stage):
        stage(None, inputs)
    assert trail.found == Place(module, "forward") and bad_weights(stage) == [weight]


def test_bad_gradient_is_blamed_on_the_module_whose_backward_computed_it(monkeypatch) -> None:
    stage, inputs = stage_and_inputs()
    right = MlpPlain.forward

    def forward(self: MlpPlain, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        if self.layer == 2:  # the derivative of a root at 0
            x = x + (x - x.detach()).abs().sqrt() * 0
        return right(self, x, inputs)

    monkeypatch.setattr(MlpPlain, "forward", forward)
    trail = Trail()
    with trail.watching(stage):
        loss = stage(None, inputs)["loss"]
        assert trail.found is None
        torch.autograd.grad(loss, list(stage.parameters()))
    assert trail.found == Place("layers.2.mlp", "backward")


def test_weight_whose_gradient_alone_is_not_finite_is_named_by_its_module() -> None:
    """The derivative of a root at 0, which shows in no module's input or output."""
    inner = torch.nn.ModuleDict({"mlp": torch.nn.Linear(2, 2), "norm": torch.nn.LayerNorm(2)})
    stage = torch.nn.ModuleDict({"layers": inner})
    stage.forward = lambda x, inputs: {
        "loss": 0 * inner["mlp"].weight.sub(inner["mlp"].weight.detach()).abs().sqrt()[0, 0]
    }
    search = SimpleNamespace(stage=stage, scale=1.0, mesh=SimpleNamespace(device=torch.device("cpu")))
    trail = Trail()
    strength = _Search.strength(search, SimpleNamespace(shape=(8, 2)), trail)
    assert trail.found == Place("layers.mlp", "weight gradient") and not strength.finite and strength.loss == 0


def test_overflow_after_the_last_module_is_the_loss() -> None:
    stage, inputs = stage_and_inputs()
    trail = Trail()
    with trail.watching(stage):
        (stage(None, inputs)["loss"] * math.inf).backward()
    assert trail.found == Place(LOSS, "backward")
