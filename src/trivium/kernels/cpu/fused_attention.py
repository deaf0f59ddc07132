"""PyTorch's fused attention on a processor; of fp32 copies where the processor multiplies bf16 numbers slowly.

There the kernel's forward and backward take 1.5 to 4 times as long on bf16 numbers, without AVX-512 7 to 11 times.

Legend: B sequences, N heads, G key-value heads, S queries, K keys, D head width, V head width of values.
"""

import math

import torch

from trivium.kernels.attention import as_wide
from trivium.kernels.cpu.processor import multiplies_bf16_slowly

Tensor = torch.Tensor

# Fewer queries, as in generation, and to widen all keys takes longer than the kernel.
MIN_WIDENED = 16


def widens(q: Tensor) -> bool:
    """Whether queries [B, N, S, D], and what goes with them, are attended as copies in fp32."""
    return q.dtype == torch.bfloat16 and q.shape[2] >= MIN_WIDENED and multiplies_bf16_slowly()


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, hiding: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """q [B, N, S, D], k [B, G, K, D], v [B, G, K, V] -> the result [B, N, S, V], and the logarithm of each query's sum
    of exponentials [B, N, S], both in fp32 at least where the queries are widened.

    hiding [B or 1, 1, S, K]: what is added to scores."""
    if widens(q):
        q, k, v = (wide(x) for x in (q, k, v))
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    mask, scale = _as(q, hiding), 1 / math.sqrt(q.shape[-1])
    out, log_sums = kernel(*as_wide(q, k, v), 0.0, causal, attn_mask=mask, scale=scale)
    return _first_columns(out, v), log_sums


def gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log_sums: Tensor,
    *,
    causal: bool = False,
    hiding: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v, given the gradient of the result and what `attend` returned. They are in fp32
    if the queries are converted to it."""
    if widens(q):
        grad, q, k, v, out = (wide(x) for x in (grad, q, k, v, out))
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    mask, scale = _as(q, hiding), 1 / math.sqrt(q.shape[-1])
    found = kernel(*as_wide(grad, q, k, v, out), log_sums, 0.0, causal, attn_mask=mask, scale=scale)
    d_q, d_k, d_v = found
    return _first_columns(d_q, q), _first_columns(d_k, k), _first_columns(d_v, v)


def wide(x: Tensor) -> Tensor:
    """Return x in fp32, with the positions of each head contiguous."""
    return x.to(torch.float32, memory_format=torch.contiguous_format)


def _first_columns(x: Tensor, like: Tensor) -> Tensor:
    """Return as many columns of x as another tensor has."""
    columns = like.shape[-1]
    return x if x.shape[-1] == columns else x[..., :columns]  # a view takes longer than the question


def _as(q: Tensor, hiding: Tensor | None) -> Tensor | None:
    return None if hiding is None else hiding.to(q.dtype)
