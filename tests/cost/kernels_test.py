import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.cost.constants import prior_constants
from trivium.cost.hardware import machine_named
from trivium.cost.kernels import Device

A100 = Device(machine_named("selene"), prior_constants(), width=2)
SIZE = st.integers(1, 4096).map(lambda n: 8 * n)


@given(m=SIZE, n=SIZE, k=SIZE)
@settings(max_examples=100, deadline=None)
def test_a_product_is_never_faster_than_peak_or_memory(m, n, k):
    for batch in (1, 3):
        seconds = float(A100.product(m, n, k, batch))
        assert seconds >= batch * 2 * m * n * k / A100.machine.peak.bf16
        assert seconds >= batch * 2 * (m * k + k * n + m * n) / A100.machine.memory_bandwidth


@given(m=SIZE, n=SIZE, k=SIZE)
@settings(max_examples=100, deadline=None)
def test_two_products_at_once_take_no_longer_than_one_after_the_other(m, n, k):
    assert float(A100.product(m, n, k, batch=2)) <= 2 * float(A100.product(m, n, k)) * (1 + 1e-12)


def test_a_large_product_reaches_the_fraction_of_peak_that_is_believed():
    n = 256 * 108
    assert 2 * n**3 / float(A100.product(n, n, n)) == pytest.approx(A100.gemm * A100.machine.peak.bf16, rel=0.02)


def test_one_tile_too_many_costs_a_wave():
    """108 tiles of 256 x 128 fill an A100 once; one row of tiles more needs a second, nearly empty wave."""
    full, over = (float(A100.product(256 * 12, 128 * columns, 4096)) for columns in (9, 10))
    assert over / full > 1.2


@pytest.mark.parametrize(("n", "k"), [(2048, 108), (108, 2048)])
def test_misaligned_operands_miss_the_tensor_cores(n, k):
    aligned = {108: 112, 2048: 2048}
    assert float(A100.product(2048, n, k, 64)) > 3 * float(A100.product(2048, aligned[n], aligned[k], 64))


def test_fused_attention_is_slower_per_head_while_few_heads_share_the_device():
    one_head = 4.0 * 4096**2 * 128 * 0.5
    few, many = (float(A100.attention(heads * one_head, heads, 4096, 128)) / heads for heads in (8, 512))
    assert few > many


def test_fp16_has_a_peak_of_its_own():
    selene = machine_named("selene")
    slow = selene.model_copy(update={"peak": selene.peak.model_copy(update={"fp16": selene.peak.bf16 / 100})})
    bf16, fp16 = (Device(slow, prior_constants(), 2, half) for half in (0, 1))
    assert fp16.product(4096, 4096, 4096) > 50 * bf16.product(4096, 4096, 4096)
