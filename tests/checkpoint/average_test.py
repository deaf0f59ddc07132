"""The average of checkpoints is the mean of their weights, and training can start from it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from plans import small
from trivium.certify.certificate import RULE
from trivium.checkpoint import reshard
from trivium.checkpoint.average import average
from trivium.checkpoint.load import Checkpoint
from trivium.checkpoint.save import save
from trivium.comms.mesh import Mesh
from trivium.config import to_tree
from trivium.errors import CheckpointError, ConfigError
from trivium.plan.parameters import Box, parameters
from trivium.plan.plan import Plan
from trivium.training.record import refuse_weights_alone
from trivium.training.state import begin_with, fragments
from trivium.training.trainer import Trainer

STEPS = (10, 20, 30)


def made(root: Path, plan: Plan, step: int, **about: Any) -> Checkpoint:
    """Create a checkpoint whose weights depend on the step."""
    trainer = Trainer(plan, Mesh.single(), seed=step, rule=RULE)
    for shard in trainer.optimizer.shards:
        shard.master *= 1 + 1e-5  # too small a change for 16-bit weights
    told = {"plan": to_tree(plan), "tokens_seen": step * 64, "seed": 7, **about}
    path = save(root, step, fragments(trainer), Mesh.single(), told)
    return Checkpoint.open(path)


def whole(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    shape = tuple(checkpoint.manifest["tensors"][name]["shape"])
    return checkpoint.read(name, Box(tuple(0 for _ in shape), shape), torch.float64)


@pytest.mark.parametrize(("weights", "of"), [("fp32", "weights"), ("fp64", "weights"), ("bf16", "master")])
def test_every_weight_is_the_mean_of_the_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: str, of: str
) -> None:
    """Master weights are averaged if there are any. The pieces are so small that every tensor has several."""
    monkeypatch.setattr(reshard, "PIECE_BYTES", 256)
    plan = small(model={"layers": 1}, precision={"weights": weights})
    sources = [made(tmp_path / "run", plan, step) for step in STEPS]
    found = Checkpoint.open(average(sources, tmp_path / "mean"))
    found.verify()
    assert found.names == [f"weights/{p.name}" for p in sorted(parameters(plan.model), key=lambda p: p.name)]
    for name in found.names:
        each = [whole(s, name.replace("weights", of)) for s in sources]
        expected = torch.stack(each).mean(0)
        dtype = torch.float64 if weights == "fp64" else torch.float32
        assert found.manifest["tensors"][name]["dtype"] == {"fp64": "F64"}.get(weights, "F32")
        torch.testing.assert_close(whole(found, name), expected.to(dtype).double(), rtol=2e-15, atol=0)
        if of == "master" and name.endswith(("qkv.weight", "norm.weight", "tokens.weight")):
            rounded = torch.stack([whole(s, name) for s in sources]).mean(0)
            assert not torch.allclose(rounded, expected, rtol=1e-6), "the bf16 weights have another mean"


def test_checkpoints_with_adapters_are_not_averaged(tmp_path: Path) -> None:
    plan = small(model={"adapters": [{"settings": {"r": 2}}]})
    with pytest.raises(CheckpointError, match="trivium checkpoint merge"):
        average([made(tmp_path / "run", plan, step) for step in STEPS], tmp_path / "mean")


def test_average_lists_its_sources(tmp_path: Path) -> None:
    sources = [made(tmp_path / "run", small(), step) for step in STEPS]
    found = Checkpoint.open(average([sources[2], sources[0]], tmp_path / "mean"))
    assert found.step == 30 and found.manifest["tokens_seen"] == 30 * 64
    assert [of["step"] for of in found.manifest["average_of"]] == [30, 10]
    assert [of["sha256"] for of in found.manifest["average_of"]] == [
        s.manifest["sha256"] for s in (sources[2], sources[0])
    ]
    assert not any(name.startswith(("moment", "master")) for name in found.names)


def test_average_of_equal_weights_is_bitwise_equal(tmp_path: Path) -> None:
    one = made(tmp_path / "one", small(), 10)
    others = [made(tmp_path / str(n), small(), 10) for n in range(2)]
    found = Checkpoint.open(average([one, *others], tmp_path / "mean"))
    for name in found.names:
        assert torch.equal(whole(found, name), whole(one, name))


def test_training_starts_from_average(tmp_path: Path) -> None:
    sources = [made(tmp_path / "run", small(), step) for step in STEPS]
    found = Checkpoint.open(average(sources, tmp_path / "mean"))
    trainer = Trainer(small(), Mesh.single(), seed=1, rule=RULE, initial=False)
    begin_with(trainer, found)
    for name, parameter in trainer.stages[0].named_parameters():
        rows = whole(found, f"weights/{name}")
        here = parameter[tuple(slice(0, n) for n in rows.shape)].double()
        torch.testing.assert_close(here, rows, rtol=0, atol=0)


def test_training_cannot_start_from_missing_state(tmp_path: Path) -> None:
    sources = [made(tmp_path / "run", small(), step) for step in STEPS]
    found = Checkpoint.open(average(sources, tmp_path / "mean"))
    refuse_weights_alone(sources[0].directory, sources[0].manifest)
    with pytest.raises(CheckpointError, match="holds weights alone.*set training.start_with=weights"):
        refuse_weights_alone(found.directory, found.manifest)


Wrong = Callable[[Path, Checkpoint], list[Checkpoint]]


@pytest.mark.parametrize(
    "wrong, error, words",
    [
        (lambda at, one: [one], ConfigError, "two checkpoints or more.* 1 is named"),
        (lambda at, one: [one, Checkpoint.open(one.directory)], ConfigError, "step-00000010 is named twice"),
        (
            lambda at, one: [one, made(at / "b", small(model={"hidden": 48}), 20)],
            CheckpointError,
            r"of another model or tokenizer(.|\n)*plan.model.hidden: 24 -> 48",
        ),
        (
            lambda at, one: [one, made(at / "b", small(model={"norm_epsilon": 1e-6}), 20)],
            CheckpointError,
            r"norm_epsilon: 1e-05 -> 1e-06",
        ),
        (
            lambda at, one: [one, made(at / "b", small(), 20), made(at / "c", small(model={"hidden": 48}), 30)],
            CheckpointError,
            r"step-00000030 is of another model(.|\n)*plan.model.hidden: 24 -> 48",
        ),
        (
            lambda at, one: [one, made(at / "b", small(), 20, data={"tokenizer_sha256": "b"})],
            CheckpointError,
            r"tokenizer_sha256: null -> b\n.*name only those",
        ),
    ],
)
def test_sources_that_cannot_be_averaged_are_rejected(
    tmp_path: Path, wrong: Wrong, error: type[Exception], words: str
) -> None:
    sources = wrong(tmp_path, made(tmp_path / "a", small(), 10))
    with pytest.raises(error, match=words):
        average(sources, tmp_path / "mean")
    assert not (tmp_path / "mean").exists()


def test_average_replaces_nothing(tmp_path: Path) -> None:
    sources = [made(tmp_path / "run", small(), step) for step in STEPS]
    average(sources, tmp_path / "mean")
    with pytest.raises(ConfigError, match="step-00000030 exists already"):
        average(sources, tmp_path / "mean")
