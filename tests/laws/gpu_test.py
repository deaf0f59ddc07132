"""The same laws on an accelerator, where there is one."""

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from plans import small
from trivium.certify.certificate import certificate, examine
from trivium.certify.layouts import ROTARY
from trivium.certify.reference import compute_reference, random_rows
from trivium.comms.mesh import Mesh
from trivium.comms.pretend import pretended
from trivium.cost.memory import worst_rank
from trivium.errors import TriviumError
from trivium.kernels.crossing import read_later
from trivium.kernels.cuda.attention import CudaAttention
from trivium.kernels.cuda.product import MIN_SUMMED_ELEMENTS, gradient_of_bias, widens
from trivium.kernels.cuda.recording import Recording
from trivium.kernels.operations import operations_of
from trivium.kernels.sight import Sight
from trivium.model import compiled as compiled_blocks
from trivium.parallel.sharding.gradient_sum import GradientSum
from trivium.parallel.sharding.zero import AdamRule, ShardedOptimizer
from trivium.parallel.tensor.regions import MAX_DIRECT_IDS, look_up
from trivium.plan.plan import Plan
from trivium.tokens.rows import Rows
from trivium.training.batches import Read
from trivium.training.trainer import Samples, Trainer

pytestmark = pytest.mark.gpu

LLAMA = {**ROTARY, "kv_heads": 2, "hidden": 32, "head": "untied"}
QWEN3 = {**LLAMA, "bias": "qkv", "qk_norm": "each_head", "head_width": 6}
YARN = {"kind": "yarn", "factor": 4.0, "original": 4, "slow": 0.1, "fast": 2.0}
PACKED = {"documents": "apart", "end_of_text": 3}
OLMO2 = {**LLAMA, "qk_norm": "all_heads", "norm_position": "after", "norm_epsilon": 0.1, "rope_scaling": YARN}
PLANS = [
    small(),
    small(model=LLAMA),
    small(model=QWEN3),
    small(model=OLMO2),
    small(model={**LLAMA, "window": 3, "pattern": [{"times": 1}, {"window": None}]}),
    small(recompute={"mode": "layer"}),
    small(zero=3, schedule="zb-h1"),
    small(cuda_graphs=True),
]


@pytest.fixture
def device() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    return torch.device("cuda", 0)


@pytest.mark.parametrize("plan", PLANS)
def test_one_accelerator_computes_what_the_plain_model_computes_on_the_processor(
    plan: Plan, device: torch.device
) -> None:
    findings = examine(plan, Mesh.single(device), compute_reference(plan))
    assert certificate(plan, findings.deviations).passed


@pytest.mark.parametrize("weights", ["bf16", "fp16"])
def test_half_precision_follows_fp32_on_the_accelerator(weights: str, device: torch.device) -> None:
    losses = []
    for precision in (weights, "fp32"):
        plan = small(precision={"weights": precision})
        trainer = Trainer(plan, Mesh.single(device), seed=1, rule=AdamRule())
        samples = Samples(0, plan.batch.sequences, random_rows(plan))
        losses.append([trainer.train_step(s, samples, 1e-3).loss for s in range(3)])
    assert losses[0] == pytest.approx(losses[1], rel=3e-2)


def nodes_of(x: torch.Tensor) -> Iterator[Any]:
    """The nodes of autograd's graph from a tensor on that have one input."""
    node = x.grad_fn
    while node is not None:
        yield node
        node = node.next_functions[0][0] if node.next_functions else None


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("window", [1, 5, 128, 299, None])
def test_the_kernel_that_knows_windows_and_documents_sees_what_a_mask_shows(
    window: int | None, packed: bool, kv_heads: int, device: torch.device
) -> None:
    """The kernel runs in bf16, which it requires; the attention with a mask runs in fp64."""
    torch.manual_seed(1)
    starts = np.array([[0] * 200 + [200] + [201] * 99, [0] * 3 + [3] * 130 + [133] * 167]).T if packed else None
    sight = Sight((), starts, window)
    shapes = [(2, n, 300, 64) for n in (4, kv_heads, kv_heads, 4)]
    *given, grad = (torch.randn(s, device=device, dtype=torch.bfloat16) for s in shapes)
    ours, theirs = ([x.to(t, copy=True).requires_grad_() for x in given] for t in (torch.bfloat16, torch.float64))
    found, expected = (CudaAttention().attend(*some, sight) for some in (ours, theirs))
    if packed or window is not None:
        assert any("Flash" in type(node).__name__ for node in nodes_of(found))
    found.backward(grad)
    expected.backward(grad.double())
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=3e-2)
    for mine, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad.double(), right.grad, rtol=0, atol=1e-1)


@pytest.mark.parametrize("clip", [0.05, 1e9])
def test_updates_follow_the_processors(clip: float, device: torch.device) -> None:
    """On the GPU many buckets are updated at once, and clipped by a norm that the host does not read before."""
    plan, found = small(precision={"weights": "fp64"}), []
    for where in (device, torch.device("cpu")):
        trainer = Trainer(plan, Mesh.single(where), seed=1, rule=AdamRule(clip=clip))
        samples = Samples(0, plan.batch.sequences, random_rows(plan))
        steps = [trainer.train_step(s, samples, 1e-2) for s in range(3)]
        found.append([(s.loss, s.gradient_norm) for s in steps])
    torch.testing.assert_close(*map(torch.tensor, found), rtol=1e-9, atol=0)


@pytest.mark.parametrize("weights", ["bf16", "fp32"])
def test_an_update_in_one_pass_is_that_of_the_passes_one_by_one(weights: str, device: torch.device) -> None:
    plan, masters = small(precision={"weights": weights}), []
    for compiled in (False, True):
        trainer = Trainer(plan, Mesh.single(device), seed=1, rule=AdamRule())
        trainer.optimizer = ShardedOptimizer(
            trainer.buckets, trainer.mesh, AdamRule(clip=0.05), torch.float32, compiled=compiled
        )
        trainer.train_step(0, Samples(0, plan.batch.sequences, random_rows(plan)), 1e-2)
        masters.append(torch.cat([shard.master for shard in trainer.optimizer.shards]))
    torch.testing.assert_close(*masters, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(7, 3, 5), (64, 48, 32), (2048, 1024, 512)])
def test_products_of_narrow_matrices_are_summed_without_rounding(
    shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device
) -> None:
    tokens, outputs, inputs = shape
    torch.manual_seed(0)
    total = GradientSum(outputs * inputs, torch.float32, device)
    exact = torch.zeros(outputs, inputs, dtype=torch.float64, device=device)
    for _ in range(3):
        grad, x = (torch.randn(tokens, n, device=device).to(dtype) for n in (outputs, inputs))
        total.add_product(0, grad.shape[1] * x.shape[1], grad, x, operations_of("cuda").products)
        exact += grad.double().T @ x.double()
    if not widens(grad, torch.float32):
        pytest.skip(f"{torch.cuda.get_device_name(device)} adds no {dtype} products to fp32 sums")
    error = (total.whole().view(outputs, inputs) - exact).norm() / exact.norm()
    assert error < 1e-5


@pytest.mark.parametrize("count", [31, MAX_DIRECT_IDS, MAX_DIRECT_IDS + 1])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_frequent_tokens_narrow_gradient_is_summed_wide_and_rounded_once(
    dtype: torch.dtype, count: int, device: torch.device
) -> None:
    torch.manual_seed(3)
    ids = torch.randint(0, 2, (count,), device=device)
    parts = ((torch.randn(count, 8, device=device) + 0.5) / 64).to(dtype)
    table = torch.zeros(3, 8, dtype=dtype, device=device, requires_grad=True)
    look_up(ids, table, sparse=False).backward(parts)
    exact = torch.zeros(3, 8, dtype=torch.float64, device=device).index_add_(0, ids, parts.double())
    torch.testing.assert_close(
        table.grad, exact.to(dtype), rtol=2 * torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps / 64
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_narrow_gradient_of_a_bias_is_summed_wide_and_rounded_once(dtype: torch.dtype, device: torch.device) -> None:
    torch.manual_seed(0)
    grad = ((torch.randn(2 * MIN_SUMMED_ELEMENTS // 4096, 4096, device=device) + 0.5) / 64).to(dtype)
    exact, eps = grad.double().sum(0), torch.finfo(dtype).eps
    torch.testing.assert_close(gradient_of_bias(grad).double(), exact, rtol=eps, atol=eps / 64)


@pytest.mark.parametrize("long_rows", [False, True])
def test_compiled_blocks_and_loss_follow_the_processors(
    long_rows: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if long_rows:
        monkeypatch.setattr(compiled_blocks, "SPLIT_ROW_ELEMENTS", 0)
        monkeypatch.setattr(compiled_blocks, "MIN_WHOLE_ROWS", 1)
    losses = []
    for where, compiled in ((device, True), (torch.device("cpu"), False)):
        plan = small(compiled=compiled, precision={"weights": "fp32"})
        trainer = Trainer(plan, Mesh.single(where), seed=1, rule=AdamRule())
        samples = Samples(0, plan.batch.sequences, random_rows(plan))
        losses.append([trainer.train_step(s, samples, 1e-3).loss for s in range(3)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("over", [{}, {"window": 3}, PACKED, {**PACKED, **LLAMA, "hidden": 64, "window": 3}])
def test_narrow_attention_of_any_reach_follows_the_processors(
    over: dict[str, Any], compiled: bool, device: torch.device
) -> None:
    """The GPU uses its own kernels in bf16; the CPU computes in fp32."""
    losses = []
    for where, weights in ((device, "bf16"), (torch.device("cpu"), "fp32")):
        model = {"hidden": 64, "heads": 4, **over}
        plan = small(model=model, compiled=compiled and where == device, precision={"weights": weights})
        trainer = Trainer(plan, Mesh.single(where), seed=1, rule=AdamRule())
        samples = Samples(0, plan.batch.sequences, random_rows(plan))
        losses.append([trainer.train_step(s, samples, 1e-3).loss for s in range(3)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)


def rows_of_documents(plan: Plan, length: int) -> Read:
    """Return a reader of random rows; if documents are separate, one ends every `length` tokens."""
    read = random_rows(plan.model_copy(update={"model": plan.model.model_copy(update={"documents": "joined"})}))

    def of_documents(first: int, count: int) -> Rows:
        tokens = np.concatenate([(rows := read(first, count)).tokens, rows.targets[:, -1:]], 1)
        if plan.model.documents == "apart":
            tokens[:, length - 1 :: length] = plan.model.end_of_text
        return Rows.of_text(tokens)

    return of_documents


@pytest.mark.parametrize(
    ("mode", "over"),
    [
        ("none", {}),
        ("attention", {}),
        ("layer", {}),
        ("layer", {"sequence": 1024}),
        ("none", {"window": 64}),
        ("none", PACKED),
    ],
)
@pytest.mark.parametrize("sequences", [8, 16])
@pytest.mark.parametrize("fast", [{}, {"cuda_graphs": True}, {"compiled": True}])
def test_a_step_allocates_at_most_what_is_predicted(
    fast: dict[str, bool], mode: str, over: dict[str, Any], sequences: int, device: torch.device
) -> None:
    """The workspaces of cuBLAS, which the process keeps, are not counted. The kernel's backward allocates at least 128
    positions for each packed document, so these are no shorter."""
    if fast.get("cuda_graphs") and over == PACKED:
        pytest.skip("of packed documents no step is recorded")
    shape = {"layers": 6, "hidden": 1024, "heads": 16, "vocabulary": 16384, "sequence": 512, "head": "untied"}
    shape |= over
    batch, precision = {"sequences": sequences, "micro": 8}, {"weights": "bf16"}
    plan = Plan(model=shape, batch=batch, precision=precision, recompute={"mode": mode}, **fast).checked()
    x = torch.ones(64, 64, device=device, dtype=torch.bfloat16, requires_grad=True)
    (x @ x).sum().backward()
    Recording(lambda: (x @ x).sum().backward())
    gc.collect()
    before = torch.cuda.memory_allocated(device)
    trainer = Trainer(plan, Mesh.single(device), seed=1, rule=AdamRule(), initial=False)
    samples = Samples(0, plan.batch.sequences, rows_of_documents(plan, 128))
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats(device)
        trainer.train_step(0, samples, 1e-3)
    found = torch.cuda.max_memory_allocated(device) - before
    assert worst_rank(plan)[1].total == pytest.approx(found, rel=0.02)


def test_numbers_are_read_while_the_accelerator_goes_on(device: torch.device) -> None:
    x = torch.arange(5, device=device, dtype=torch.float64)
    told = read_later(x)
    x.mul_(2)
    assert told() == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    "over",
    [
        {},
        {"model": {"documents": "apart"}},
        {"precision": {"weights": "bf16"}},
        {"precision": {"weights": "bf16"}, "cuda_graphs": True},
    ],
)
def test_nothing_in_a_step_waits_but_for_its_totals(over: dict[str, Any], device: torch.device) -> None:
    """The totals wait for an event; torch reports every other wait."""
    plan = small(**over)
    trainer = Trainer(plan, Mesh.single(device), seed=1, rule=AdamRule())
    samples = Samples(0, plan.batch.sequences, random_rows(plan))
    for step in (0, 1):  # the first step loads libraries, and a step is captured
        trainer.train_step(step, samples, 1e-3)
    torch.cuda.set_sync_debug_mode("error")
    try:
        trainer.train_step(2, samples, 1e-3)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_failed_capture_leaves_stream_memory_and_generator_as_they_were(device: torch.device) -> None:
    """Reading a value waits for the device, which no capture allows: CUDA then ends the capture with an error."""
    x, large = torch.ones(64, 64, device=device), 1 << 26

    def work() -> float:
        return torch.ones(large, dtype=torch.uint8, device=device).sum().item()

    torch.cuda.empty_cache()
    reserved, stream = torch.cuda.memory_reserved(device), torch.cuda.current_stream()
    with pytest.raises(TriviumError, match="cannot be recorded"):
        Recording(work)
    assert torch.cuda.current_stream() == stream
    torch.ones(large, dtype=torch.uint8, device=device)
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved(device) < reserved + large
    torch.rand(1, device=device)  # which raises if the generator is still in the capture
    recording = Recording(lambda: x + 1)
    recording.replay()
    assert float(recording.result[0, 0]) == 2


RECORDED = [
    {},
    {"compiled": True},
    {"recompute": {"mode": "layer"}},
    {"recompute": {"mode": "attention"}, "compiled": True},
    {"precision": {"weights": "fp32"}},
    {"model": {**LLAMA, "hidden": 64, "window": 3, "z_loss": 1e-3}},
    {"model": {"head": "tied"}, "schedule": "zb-h1"},
    {"batch": {"sequences": 8, "micro": 2, "ramp": {"start": 4, "increment": 4, "samples": 8}}},
]


@pytest.mark.parametrize("over", RECORDED)
def test_a_replayed_step_computes_the_bits_of_one_that_is_not(over: dict[str, Any], device: torch.device) -> None:
    """Between them are a measured step and a validation, after which the step is captured again."""
    _computes_the_same_bits(over, Mesh.single(device))


@pytest.mark.parametrize("over", [{"data": 2, "zero": 0}, {"tensor": 2, "zero": 1}])
def test_a_rank_of_two_records_its_work(over: dict[str, Any], device: torch.device) -> None:
    """The other rank is simulated: sums over both are this rank's values."""
    with pretended(small(**over).layout, 0, device=device) as mesh:
        _computes_the_same_bits(over, mesh)


def _computes_the_same_bits(over: dict[str, Any], mesh: Mesh) -> None:
    found = []
    for recorded in (False, True):
        plan = small(**{"precision": {"weights": "bf16"}, **over}, cuda_graphs=recorded)
        trainer, first = Trainer(plan, mesh, seed=1, rule=AdamRule()), 0
        told: list[float] = []
        for step in range(7):
            at = plan.batch.at(step)
            samples = Samples(first, at.sequences, random_rows(plan))
            result = trainer.train_step(step, samples, 1e-3, measure=step == 4)
            told += [*result.losses.values(), result.gradient_norm]
            if step == 2:
                told.append(trainer.validate(Samples(0, plan.validation_unit, random_rows(plan)))["loss"])
            first += at.sequences
        masters = torch.cat([shard.master for shard in trainer.optimizer.shards])
        found.append((told, masters.clone()))
    (ours, weights), (expected, right) = found
    assert len({*ours}) > 7, "every step has another batch"
    assert ours == expected
    assert torch.equal(weights, right)
