"""Training on packed conversations: the same losses and gradients as one conversation at a time, in every layout."""

from pathlib import Path

import numpy as np
import pytest
import torch

from plans import small
from ranks import on_ranks
from tokens.chat.conversations import bare
from tokens.chat.shard_test import SEQUENCE, TEMPLATE, many, written
from trivium.certify.layouts import ROTARY
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.errors import DataError
from trivium.model.inputs import Inputs
from trivium.parallel.sharding.zero import AdamRule
from trivium.plan.plan import Plan
from trivium.tokens.chat.encode import encode_conversation
from trivium.tokens.rows import Rows
from trivium.tokens.samples import TokenDataset
from trivium.training.batches import inputs_of
from trivium.training.config import TrainingConfig
from trivium.training.lineage import trace as lineage
from trivium.training.loop import TrainingJob
from trivium.training.metrics import METRICS, read
from trivium.training.record import read_record
from trivium.training.supervision.job import start
from trivium.training.trainer import Samples, Trainer

BATCH = 8


def plan(family: str = "gpt", data: int = 1, micro: int = 2) -> Plan:
    model = {"documents": "apart", "sequence": SEQUENCE, "vocabulary": 400, **{"gpt": {}, "llama": ROTARY}[family]}
    batch = {"sequences": BATCH, "micro": micro}
    return small(data=data, model={**model, "hidden": 32, "layers": 2}, batch=batch, precision={"weights": "fp64"})


def opened(folder: Path) -> TokenDataset:
    return TokenDataset.open(folder, "train", sequence=SEQUENCE, seed=3)


@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_the_losses_of_a_bin_are_those_of_its_conversations_alone(tmp_path: Path, family: str) -> None:
    found = {one.name: one for one in many(30)}
    written(tmp_path, list(found.values()))
    data, of = opened(tmp_path), plan(family)
    stage = Trainer(of, Mesh.single(), seed=2, rule=AdamRule()).stages[0]
    for sample in range(3):
        packed = stage(None, inputs_of(of, data.rows(sample, 1), Mesh.single(), dropout=None))["loss"].item()
        alone = 0.0
        for span in data.documents_of(sample):
            if span.document in found:
                encoded = encode_conversation(found[span.document], TEMPLATE, bare())
                ids, counted = (torch.tensor(np.array(x)[:, None]) for x in encoded)
                inputs = Inputs(ids[:-1], ids[1:], weights=counted[1:].float())
                alone += stage(None, inputs)["loss"].item()
        assert alone > 1
        assert packed == pytest.approx(alone, rel=1e-12)


def stepped(place: Place | None, folder: str, of: Plan) -> tuple[float, float]:
    """Return loss and gradient norm of a step on the first batch."""
    mesh = Mesh.single() if place is None else Mesh.connect(of.layout, place.rank, place.world_size, place.device)
    data = opened(Path(folder))
    trainer = Trainer(of, mesh, seed=2, rule=AdamRule())
    result = trainer.train_step(0, Samples(0, BATCH, data.rows, data.costs), 1e-3)
    again = trainer.train_step(1, Samples(BATCH, BATCH, data.rows, data.costs), 1e-3)
    assert result.batch_hash == str(data.digest(0, BATCH))
    return result.loss, result.gradient_norm + again.loss


def test_the_loss_is_the_mean_over_the_counted_tokens_of_the_whole_batch(tmp_path: Path) -> None:
    """A mean over micro-batches of their means would weigh short answers more."""
    written(tmp_path, many(60))
    data, of = opened(tmp_path), plan(micro=1)
    stage = Trainer(of, Mesh.single(), seed=2, rule=AdamRule()).stages[0]
    rows = [data.rows(sample, 1) for sample in range(BATCH)]
    sums = [stage(None, inputs_of(of, one, Mesh.single(), dropout=None))["loss"].item() for one in rows]
    counts = [one.weights.sum() for one in rows]
    loss = Trainer(of, Mesh.single(), seed=2, rule=AdamRule()).train_step(0, Samples(0, BATCH, data.rows), 1e-3).loss
    assert loss == pytest.approx(sum(sums) / sum(counts), rel=1e-12)
    assert len(set(counts)) > 1
    assert abs(loss - np.mean(np.divide(sums, counts))) > 1e-6


@pytest.mark.broad
@pytest.mark.parametrize("micro", [1, 2])
def test_data_ranks_with_balanced_work_train_as_one_process(tmp_path: Path, micro: int) -> None:
    written(tmp_path, many(60))
    expected = stepped(None, str(tmp_path), plan())
    on_ranks(2, _same, str(tmp_path), micro, expected)


def _same(place: Place, folder: str, micro: int, expected: tuple[float, float]) -> None:
    assert stepped(place, folder, plan(data=2, micro=micro)) == pytest.approx(expected, rel=1e-12)


def test_work_is_balanced_over_data_ranks_as_a_function_of_the_batch_alone(tmp_path: Path) -> None:
    written(tmp_path, many(200), sequence=4 * SEQUENCE)
    data = TokenDataset.open(tmp_path, "train", sequence=4 * SEQUENCE, seed=3)
    assert data.num_samples > 2 * BATCH
    for first in (0, BATCH):
        samples = Samples(first, BATCH, data.rows, data.costs)
        shares = [samples.share(rank, 2) for rank in range(2)]
        assert sorted(shares[0] + shares[1]) == list(range(first, first + BATCH))
        costs = data.costs(first, BATCH)
        assert costs is not None
        work = [sum(int(costs[n - first]) for n in share) for share in shares]
        in_order = [int(costs[:4].sum()), int(costs[4:].sum())]
        assert abs(work[0] - work[1]) <= abs(in_order[0] - in_order[1])
        assert [Samples(first, BATCH, data.rows, data.costs).share(rank, 2) for rank in range(2)] == shares
    rows = samples.rows([9, 8, 12, 13])
    assert rows.tokens.tolist() == [data.sample(n)[:-1].tolist() for n in (9, 8, 12, 13)]
    plain = Samples(0, BATCH, data.rows)
    assert [plain.share(rank, 4) for rank in range(4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_mask_that_is_slipped_by_one_changes_the_loss(tmp_path: Path) -> None:
    """It would train the end of the header, and never the end of an answer."""
    written(tmp_path, many(60))
    data, of = opened(tmp_path), plan()
    ends, parts = [], []
    for number in range(BATCH):
        rows = data.rows(number, 1)
        slipped = np.roll(rows.weights, -1, axis=1)
        end = rows.targets == bare().end_of_text
        ends.append((rows.weights[end].sum(), slipped[end].sum()))
        parts.append(Rows(rows.tokens, rows.targets, slipped, rows.starts))
    right, wrong = map(sum, zip(*ends, strict=True))
    assert right > wrong
    losses = [
        Trainer(of, Mesh.single(), seed=2, rule=AdamRule()).train_step(0, Samples(0, BATCH, read), 0.0).loss
        for read in (data.rows, lambda first, count: Rows.joined(parts).part(first, first + count))
    ]
    assert abs(losses[0] - losses[1]) > 1e-3


def test_a_batch_without_a_counted_token_is_a_step_of_zero(tmp_path: Path) -> None:
    written(tmp_path, many(60))
    data, of = opened(tmp_path), plan()
    trainer = Trainer(of, Mesh.single(), seed=2, rule=AdamRule())

    def none(first: int, count: int) -> Rows:
        rows = data.rows(first, count)
        return rows._replace(weights=np.zeros_like(rows.weights))

    result = trainer.train_step(0, Samples(0, BATCH, none), 1e-3)
    assert (result.loss, result.gradient_norm) == (0.0, 0.0)


@pytest.mark.broad
def test_a_trained_token_leads_to_its_conversation(tmp_path: Path) -> None:
    written(tmp_path / "tokens", many(60))
    config = TrainingConfig(steps=2, validation_samples=2, restarts=0)
    start(TrainingJob(plan(data=2), config, 5, tmp_path / "tokens", tmp_path / "training"))
    record = read_record(tmp_path / "training")
    assert lineage.round_trip(record)["agrees"]
    with pytest.raises(DataError, match="--position 64 must be 0 to 63"):  # the last token is no target
        lineage.trace(record, 1, 0, SEQUENCE)
    found = {one.name: encode_conversation(one, TEMPLATE, bare()) for one in many(60)}
    led = [lineage.trace(record, step, row, 5) for step in (1, 2) for row in range(BATCH)]
    for one in led:
        assert found[one["document"]].ids[one["offset"]] == one["token"]
        assert one["agrees"]
    assert len({one["document"] for one in led}) == 2 * BATCH


@pytest.mark.broad
def test_a_training_on_conversations_resumes_exactly_on_other_data_ranks(tmp_path: Path) -> None:
    written(tmp_path / "tokens", many(60))
    config = TrainingConfig(steps=6, validation_samples=2, restarts=0)
    logged = []
    for name, then in (("unbroken", None), ("moved", (3, plan()))):
        start(TrainingJob(plan(data=2), config, 5, tmp_path / "tokens", tmp_path / name), then=then)
        steps = [m for m in read(tmp_path / name / METRICS) if "batch_hash" in m]
        logged.append(([m["batch_hash"] for m in steps], [m["loss"] for m in steps]))
    assert len(logged[0][0]) == 6
    assert logged[0][0] == logged[1][0]
    assert logged[0][1] == pytest.approx(logged[1][1], rel=1e-10)
