"""Encodings of messages: what is sent, how far it is from the numbers, and that all ranks agree on it."""

import pytest
import torch

from plans import small
from ranks import on_ranks
from trivium.certify.reduce import refuse_rounded
from trivium.certify.reference import random_rows
from trivium.comms.collectives import all_gather, all_reduce_, reduce_scatter
from trivium.comms.encodings import TACO_BLOCK, decode, encode, encoded, hadamard
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.errors import ConfigError
from trivium.parallel.sharding.zero import AdamRule
from trivium.plan.layout import Layout
from trivium.plan.messages import UNITS, Messages, encoded_bytes
from trivium.plan.precision import Precision
from trivium.training.trainer import Samples, Trainer

NAMES = tuple(UNITS)
# Largest error of a number, over the largest of its unit: half a step of bf16, of E4M3 and of int8. The scales of taco
# are rounded to E4M3, too, by which a number may lie a sixteenth beyond the range. A rotation spreads the errors of a
# block over its numbers.
BOUNDS = {"bf16": 2**-8, "fp8": 2**-4, "taco": 2**-3, "taco-hadamard": 2**-1, "int8": 1 / 253}


def numbers(elements: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(seed)) ** 3


@pytest.mark.parametrize("elements", (1, 127, 4096, 10_001))
@pytest.mark.parametrize("name", NAMES)
def test_a_message_has_the_bytes_of_the_formula_and_its_numbers_are_near(name, elements):
    x = numbers(elements)
    sent = encode(name, x)
    assert sent.dtype == torch.uint8 and sent.numel() == encoded_bytes(name, elements, 4)
    back = decode(name, sent, elements)
    unit = max(TACO_BLOCK, UNITS[name].elements)
    for part, given in zip(back.split(unit), x.split(unit), strict=True):
        assert (part - given).abs().max() <= BOUNDS[name] * given.abs().max()


@pytest.mark.parametrize("name", NAMES)
def test_zeros_stay_zeros_and_powers_of_two_change_nothing_but_scales(name):
    assert not decode(name, encode(name, torch.zeros(5000)), 5000).any()
    x = numbers(5000)
    for factor in (2.0**-30, 2.0**30):
        torch.testing.assert_close(
            decode(name, encode(name, x * factor), 5000), factor * decode(name, encode(name, x), 5000), rtol=0, atol=0
        )


@pytest.mark.parametrize("name", [name for name in NAMES if name != "taco-hadamard"])
def test_the_largest_numbers_are_near(name):
    huge = torch.tensor([3e38, -1e36, 1.0])
    torch.testing.assert_close(decode(name, encode(name, huge), 3)[:1], huge[:1], rtol=0.07, atol=0)


@pytest.mark.parametrize("bad", (float("nan"), float("inf"), -float("inf")))
@pytest.mark.parametrize("name", NAMES)
def test_a_number_that_is_not_finite_is_never_sent_as_a_finite_one(name, bad):
    x = numbers(9000)
    x[4500] = bad
    back = decode(name, encode(name, x), 9000)
    assert not back[4500].isfinite() and back[:4000].isfinite().all()


def test_the_rotation_is_orthonormal():
    matrix = hadamard(TACO_BLOCK, torch.device("cpu")).double()
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(TACO_BLOCK, dtype=torch.float64), rtol=0, atol=1e-6)


def collectives(place: Place, by_memory: bool) -> None:
    mesh = Mesh.connect(Layout(data=3), place.rank, place.world_size, by_memory=by_memory)
    for name in NAMES:
        group, every = encoded(mesh.data, name), [numbers(9000, seed).view(300, 30) for seed in range(3)]
        own = every[place.rank]
        sums = sum(decode(name, encode(name, x[100 * place.rank : 100 * (place.rank + 1)]), 3000) for x in every)
        scattered = reduce_scatter(own, group)
        torch.testing.assert_close(scattered.flatten(), sums)
        gathered = all_gather(own, group)
        expected = torch.cat([decode(name, encode(name, x), 9000).view(300, 30) for x in every])
        assert torch.equal(gathered, expected)
        total = all_reduce_(own.clone(), group)
        assert torch.equal(total, all_gather(scattered, group))
        assert torch.equal(all_gather(total, mesh.data), torch.cat([total] * 3))
        odd = all_reduce_(own.flatten()[:1001].clone(), group)
        exact = all_reduce_(own.flatten()[:1001].clone(), mesh.data)
        largest = max(float(x.abs().max()) for x in every)  # three are sent, and then their sum
        assert (odd - exact).abs().max() <= BOUNDS[name] * 6 * largest
    assert encoded(mesh.data, "exact") is mesh.data
    mesh.disconnect()


@pytest.mark.parametrize("by_memory", (True, False))
def test_sums_add_what_each_rank_sent_and_all_ranks_have_the_same_bits(by_memory):
    on_ranks(3, collectives, by_memory)


def copies(place: Place) -> None:
    for messages, over in (("gradients", {"zero": 0}), ("weights", {"zero": 1, "precision": {"weights": "bf16"}})):
        for name in ("taco", "int8"):
            plan = small(tensor=2, data=2, messages={messages: name}, **over)
            mesh = Mesh.connect(plan.layout, place.rank, place.world_size)
            trainer = Trainer(plan, mesh, seed=1, rule=AdamRule())
            for step in range(4):
                trainer.train_step(step, Samples(0, plan.batch.sequences, random_rows(plan)), 1e-2)
            slots = [(bucket.weights, slot) for bucket in trainer.buckets for slot in bucket.slots]
            whole = [slot.parameter.detach().flatten() for _, slot in slots if slot.row.split is None]
            here = torch.cat(whole).float()
            assert torch.equal(all_reduce_(here.clone(), mesh.tensor, largest=True), here), (messages, name)
            mesh.disconnect()


@pytest.mark.broad
def test_copies_of_parameters_on_tensor_ranks_are_rounded_alike():
    """Copies share no scale with slices, which differ from tensor rank to tensor rank."""
    on_ranks(4, copies)


def test_rounded_messages_are_not_certified_and_weights_are_not_rounded_where_they_are_the_only_ones():
    with pytest.raises(ConfigError, match=r"plan\.messages\.tensor is fp8"):
        refuse_rounded(Messages(tensor="fp8"))
    refuse_rounded(Messages())
    assert "the sent weights are the only ones" in Messages(weights="int8").problems(Precision())[0]
    assert not Messages(weights="int8").problems(Precision(weights="bf16"))
