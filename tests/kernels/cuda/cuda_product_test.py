"""Whether an accelerator adds 16-bit products to fp32 sums is found out by trying."""

import pytest
import torch

from trivium.kernels.cuda import product as products


def test_a_device_that_cannot_add_narrow_products_to_wide_sums_is_told_from_one_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A processor's library cannot; of an accelerator without memory nobody knows."""
    tried = products._multiplies_into_wide.__wrapped__
    assert tried(torch.device("cpu"), torch.bfloat16) is False

    def full(*matrices: torch.Tensor, first: bool) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(products, "_add_unrounded", full)
    with pytest.raises(torch.OutOfMemoryError):
        tried(torch.device("cpu"), torch.bfloat16)


@pytest.mark.parametrize("adds", [True, False])
def test_a_device_has_unrounded_sums_if_a_product_is_added_to_what_was_there(
    adds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add_unrounded(into: torch.Tensor, grad: torch.Tensor, x: torch.Tensor, *, first: bool) -> None:
        into.copy_(grad.T.float() @ x.float() + (into if adds and not first else 0))

    monkeypatch.setattr(products, "_add_unrounded", add_unrounded)
    assert products._multiplies_into_wide.__wrapped__(torch.device("cpu"), torch.bfloat16) is adds
