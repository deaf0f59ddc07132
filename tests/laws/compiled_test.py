"""Compiled blocks compute what one process computes by the formulas, and are compiled once for all layers.

Traced and differentiated as always, but run by PyTorch's own operators: this needs no C++ compiler.
"""

import shutil
from functools import partial
from typing import Any

import pytest
import torch

from plans import brief, small
from trivium.certify import sweep
from trivium.certify.certificate import Findings, certificate, examine
from trivium.certify.layouts import DEEPSEEK, LATENT, ROTARY
from trivium.certify.reference import compute_reference, random_rows
from trivium.certify.sweep import certify, describe
from trivium.comms.mesh import Mesh
from trivium.comms.pretend import pretended
from trivium.errors import TriviumError
from trivium.kernels.cpu.product import MIN_MULTIPLICATIONS, product
from trivium.kernels.operations import operations_of
from trivium.model import compiled, stage
from trivium.model.compiled import opaque_context, opaque_region, options_for
from trivium.model.inputs import Inputs
from trivium.model.layers.half import Around
from trivium.model.layers.wiring import module_of
from trivium.parallel.context.attention import Context
from trivium.parallel.sharding.zero import AdamRule
from trivium.parallel.tensor.regions import Region
from trivium.plan.plan import Plan
from trivium.training.trainer import Samples, Trainer

LLAMA = {**ROTARY, "kv_heads": 2, "hidden": 32, "head": "untied"}
QWEN3 = {**LLAMA, "bias": "qkv", "qk_norm": "each_head", "head_width": 6}
OLMO2 = {**LLAMA, "qk_norm": "all_heads", "norm_position": "after", "norm_epsilon": 0.1}
LATENTS = {**DEEPSEEK, "latent": {**LATENT, "query_rank": 6}, "head": "untied"}
EXPERTS = {"count": 4, "chosen": 2, "shared": 6}
YARN = {"kind": "yarn", "factor": 4.0, "original": 4, "slow": 0.1, "fast": 2.0}
MANY_LAYERS = 9  # more than torch.compile takes of one function's variants before it gives up
ALONE = [
    small(model={"layers": MANY_LAYERS}, compiled=True),
    small(model={**LLAMA, "rope_scaling": YARN, "layers": MANY_LAYERS}, compiled=True, zero=3),
    small(model={**QWEN3, "layers": MANY_LAYERS}, compiled=True, recompute={"mode": "attention"}),
    small(model={**OLMO2, "layers": MANY_LAYERS}, compiled=True),
    small(model={**LLAMA, "window": 3, "layers": MANY_LAYERS}, compiled=True),
    small(model={**LATENTS, "layers": MANY_LAYERS}, compiled=True, recompute={"mode": "attention"}),
    small(model={"layers": MANY_LAYERS}, compiled=True, recompute={"mode": "attention", "activation_function": True}),
]
PACKED = [
    small(model={**LLAMA, "window": 3, "layers": MANY_LAYERS, "documents": "apart"}, compiled=True),
    small(model={"layers": MANY_LAYERS, "documents": "apart"}, compiled=True, recompute={"mode": "layer"}),
    small(model={"layers": MANY_LAYERS, "documents": "apart", "z_loss": 0.05}, compiled=True, zero=3),
    small(model={**LLAMA, "layers": MANY_LAYERS, "feed_forward": "experts", "experts": EXPERTS}, compiled=True),
]
TOGETHER = [
    small(tensor=2, sequence_parallel=True, model=LLAMA, compiled=True),
    small(context=2, model=QWEN3, compiled=True),
    small(tensor=2, model=OLMO2, compiled=True),
    small(tensor=2, sequence_parallel=True, model=LATENTS, compiled=True),
    small(context=2, model={**LLAMA, "window": 3, "first": [{"times": 1, "window": None}]}, compiled=True),
    small(tensor=2, row_chunks=2, compiled=True, recompute={"activation_function": True}),
    small(pipeline=2, chunks=2, schedule="zb-v", compiled=True),
    small(context=2, context_attention="ulysses", zero=3, compiled=True, recompute={"mode": "layer"}),
]


@pytest.fixture(autouse=True)
def run_by_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))


def graphs_of(plan: Plan) -> tuple[int, bool]:
    """How many graphs are made of a plan, which is certified, and whether something in them is left as it is."""
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    plan = brief(plan, micro_batches=2)
    findings = examine(plan, Mesh.single(), compute_reference(plan))
    assert certificate(plan, findings.deviations).passed
    return counters["stats"]["unique_graphs"], bool(counters["graph_break"])


@pytest.mark.broad
@pytest.mark.parametrize("plan", ALONE)
def test_one_process_compiles_one_whole_block_for_all_layers_and_the_loss(plan: Plan) -> None:
    assert graphs_of(plan) == (2, False)


@pytest.mark.broad
@pytest.mark.parametrize("plan", PACKED)
def test_what_packed_documents_attend_to_is_no_part_of_a_graph(plan: Plan) -> None:
    """Document starts change with every micro-batch, and a graph would be compiled again for each."""
    graphs, _ = graphs_of(plan)
    assert 3 <= graphs < MANY_LAYERS, "around attention, of all layers; the loss"


@pytest.mark.broad
def test_layers_with_a_window_and_without_are_two_graphs_however_many_there_are() -> None:
    model = {
        **LLAMA,
        "window": 3,
        "first": [{"times": 1, "window": None}],
        "pattern": [{"times": 2}, {"window": None}],
        "layers": 2 * MANY_LAYERS,
    }
    assert graphs_of(small(model=model, compiled=True, recompute={"mode": "attention"})) == (3, False)


@pytest.mark.broad
def test_communication_stays_outside_of_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.utils import counters

    def examined(*given: Any) -> Findings:
        counters.clear()
        found = examine(*given)
        assert counters["stats"]["unique_graphs"] >= 2, "a block and the loss, also of the last of several plans"
        return found

    monkeypatch.setattr(sweep, "examine", examined)
    certificates = certify([brief(plan) for plan in TOGETHER], timeout_seconds=100)
    assert [(describe(p), c.error or c.worst) for p, c in zip(TOGETHER, certificates) if not c.passed] == []


@pytest.mark.parametrize(
    ("plan", "region", "context"),
    [
        (small(compiled=True), Region, Context),
        (small(tensor=2, compiled=True), opaque_region(), Context),
        (small(pipeline=2, schedule="zb-h1", compiled=True), opaque_region(), Context),
        (small(context=2, compiled=True), Region, opaque_context()),
        (small(model={"documents": "apart"}, compiled=True), Region, opaque_context()),
        (small(tensor=2, context=2), Region, Context),
    ],
)
def test_what_communicates_or_waits_is_opaque(plan: Plan, region: type, context: type) -> None:
    """Traced it would be right too, but compiled anew at every call, until torch.compile gives up."""
    with pretended(plan.layout, 0) as mesh:
        attention = stage.Stage(plan, 0, mesh).layers["0"].attention
    assert type(attention.region) is region and type(attention.context) is context


def test_a_region_that_communicates_is_opaque_in_all_that_a_block_calls() -> None:
    called = {name for name, value in vars(Region).items() if callable(value) and not name.startswith("_")}
    traced = {"leave", "positions", "square_sums"}  # between blocks, or on one rank alone
    assert traced < called
    assert called - traced <= vars(opaque_region()).keys()


def test_what_is_between_two_products_that_are_not_traced_is_one_graph() -> None:
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    plan = small()
    with pretended(plan.layout, 0) as mesh:
        operations = operations_of("cpu")
        region = opaque_region()(mesh.tensor, False, operations.products)
        context = Context(mesh.context, "ring", operations.attention)
        block = module_of(plan.model.each_layer[0], Around(0, region, context, plan.recompute, operations, mesh.expert))
        block.compile_training(None)
        block(torch.randn(plan.activation_shape, requires_grad=True), Inputs(torch.zeros(8, 2).long()))
    of_a_block = ["norm", "attention per head", "bias, sum and norm", "GELU", "bias and sum"]
    assert counters["stats"]["unique_graphs"] == len(of_a_block)


def test_sums_of_long_rows_that_are_enough_are_not_split() -> None:
    from torch._inductor import config

    asked = options_for((2048 // 8, 1, 20480))
    assert asked == {"split_reductions": False} and all(hasattr(config, name) for name in asked)
    for shape in ((2048, 1, 20480), (32, 1, 20480), (256, 1, 8192)):
        assert options_for(shape) is None


def test_what_is_opaque_is_not_traced() -> None:
    class Asks:
        def asked(self) -> bool:
            return torch.compiler.is_compiling()

    for kind, traced in ((Asks, True), (compiled._opaque(Asks, "asked"), False)):
        torch.compiler.reset()
        _, found = torch.compile(lambda x, thing: (x + 1, thing.asked()))(torch.ones(1), kind())
        assert found is traced


def test_nothing_is_compiled_unless_asked_for_or_in_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped: list[object] = []
    monkeypatch.setattr(torch, "compile", lambda function, **_: wrapped.append(function) or _fails)
    mesh = Mesh.single()
    stages = stage.build_stages(small(), mesh, seed=1)
    assert not wrapped and stages
    of_plan = stage.build_stages(small(compiled=True), mesh, seed=1)
    assert len(wrapped) == 5  # four blocks and the loss
    inputs = stage.Inputs(torch.zeros(8, 2, dtype=torch.int64), torch.zeros(8, 2, dtype=torch.int64))
    of_plan[0].eval()(None, inputs)
    with pytest.raises(AssertionError, match="of training"):
        of_plan[0].train()(None, inputs)


def _fails(*_: object) -> None:
    raise AssertionError("of training")


def test_masks_that_names_draw_cannot_be_compiled() -> None:
    (problem,) = small().model_copy(update={"compiled": True, "model": small(model={"dropout": 0.1}).model}).check()
    assert "plan.compiled" in problem and "plan.model.dropout" in problem and "0.1" in problem


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a processor")
def test_a_large_product_is_compiled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone it is oneDNN's, by an operator that the compiler knows for constant weights only."""
    monkeypatch.undo()
    x, weight = torch.randn(256, 128), torch.randn(128, 128, requires_grad=True)
    assert x.numel() * len(weight) >= MIN_MULTIPLICATIONS
    found = torch.compile(product)(x, weight)
    torch.testing.assert_close(found, x @ weight.T)
    found.sum().backward()
    # Two orders of summing 256 numbers differ by up to 256 * 2^-24 * sum |x|, which is 3e-3 here.
    torch.testing.assert_close(weight.grad, x.sum(0).expand(128, 128), rtol=0, atol=1e-3)


def test_a_file_that_a_killed_compilation_left_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(*_: Any) -> torch.Tensor:
        raise ImportError("/tmp/cache/s3.main.so: file too short")

    monkeypatch.setattr(stage.Stage, "forward", cut)
    plan = small()
    trainer = Trainer(plan, Mesh.single(), seed=1, rule=AdamRule())
    with pytest.raises(TriviumError, match="s3.main.so: file too short; .* delete it, and start again"):
        trainer.train_step(0, Samples(0, plan.batch.sequences, random_rows(plan)), 1e-3)
