"""What differs between the versions of torch that Trivium runs on."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode


def fake_attention_is_exact() -> bool:
    """Not in torch 2.11: there attention on tensors without memory says that its fp64 sums are fp32. What a rank
    keeps is counted on such tensors; of fp64 then only `tests/laws/memory_test.py` tells the truth."""
    with FakeTensorMode():
        q = torch.empty(1, 1, 8, 4, dtype=torch.float64)
        _, log_sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q)
    return log_sums.dtype == torch.float64
