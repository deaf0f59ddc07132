import pytest
import torch

from cost.plans import small
from ranks import on_ranks
from trivium.cost.activations import layer_bytes, logits_bytes, stage_ends_bytes
from trivium.model.inputs import Inputs
from trivium.model.stage import build_stages
from trivium.parallel.measure import SavedBytes
from trivium.parallel.mesh import Mesh
from trivium.parallel.randomness import DropoutKey

ALONE = {"layout": {"tensor": 1, "pipeline": 1, "data": 1}, "batch": {"sequences": 2, "micro": 2}}
FAMILIES = [
    {},
    {"head": "untied", "dropout": 0.1},
    {"family": "llama", "head": "untied"},
    {"family": "llama", "kv_heads": 2, "head": "untied", "dropout": 0.1},
]


def counted(plan, rank=0) -> int:
    """Bytes autograd keeps of one forward of the whole model on this tensor rank."""
    stage = build_stages(plan, Mesh.connect(plan.layout, rank, plan.layout.world_size), seed=1)[0]
    shape = (plan.model.sequence, plan.batch.micro)
    tokens, targets = torch.zeros(shape, dtype=torch.int64), torch.ones(shape, dtype=torch.int64)
    key = (
        DropoutKey(seed=1, step=0, samples=(0, 1), sequence=plan.model.sequence)
        if plan.model.dropout
        else None
    )
    known = list(stage.parameters())
    with SavedBytes(known).counting() as found:
        stage(None, Inputs(tokens, targets, dropout=key))
    return found.bytes


@pytest.mark.parametrize("weights", ["fp32", "bf16"])
@pytest.mark.parametrize("mode", ["none", "attention", "layer"])
@pytest.mark.parametrize("family", FAMILIES)
def test_predicted_bytes_equal_what_autograd_keeps(family, mode, weights):
    over = {**ALONE, "recompute": {"mode": mode}, "precision": {"weights": weights}}
    one, three = (small(**over, model={**family, "layers": n}) for n in (1, 3))
    assert (counted(three) - counted(one)) / 2 == layer_bytes(one, mode)
    ends = stage_ends_bytes(one, first=True, last=True) + logits_bytes(one)
    assert counted(one) == layer_bytes(one, mode) + ends


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("family", [FAMILIES[0], FAMILIES[3]])
def test_predicted_bytes_equal_what_autograd_keeps_on_each_of_two_tensor_ranks(family, sequence_parallel):
    over = {**ALONE, "layout": {"tensor": 2, "pipeline": 1, "data": 1}}
    plan = small(**over, model=family, sequence_parallel=sequence_parallel)
    on_ranks(2, check_rank, plan)


def check_rank(place, plan):
    ends = stage_ends_bytes(plan, first=True, last=True) + logits_bytes(plan)
    expected = plan.model.layers * layer_bytes(plan, "none") + ends
    assert (found := counted(plan, place.rank)) == expected, f"counted {found}, predicted {expected}"


def test_in_the_papers_counting_a_layer_keeps_34_and_5_times_a_s_over_h():
    plan = small(**ALONE, model={"dropout": 0.1}, precision={"weights": "bf16"})
    s, b, h, a = 32, 2, 64, 4
    assert layer_bytes(plan, "none", counting="paper") == s * b * h * 34 + 5 * a * s * s * b
    assert layer_bytes(plan, "attention", counting="paper") == s * b * h * 34
    assert layer_bytes(plan, "layer", counting="paper") == 2 * s * b * h


def test_in_the_papers_counting_tensor_ranks_split_24_of_the_34_and_sequence_parallelism_the_rest():
    over = {"model": {"dropout": 0.1}, "precision": {"weights": "bf16"}}
    s, b, h, a, t = 32, 2, 64, 4, 2
    whole, split = s * b * h * 10, s * b * h * 24 + 5 * a * s * s * b
    assert layer_bytes(small(**over), "none", counting="paper") == whole + split // t
    spread = small(**over, sequence_parallel=True)
    assert layer_bytes(spread, "none", counting="paper") == (whole + split) // t


def test_only_ends_keep_more_than_their_layers():
    assert stage_ends_bytes(small(), first=False, last=False) == 0
