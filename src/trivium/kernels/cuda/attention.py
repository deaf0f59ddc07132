"""Causal attention by the fused kernels of accelerators, which know windows and packed documents but take no mask.

Legend: B sequences, N heads, G key-value heads, S queries, K keys, D head width, V head width of values.
"""

import math

import torch
import torch.nn.functional as F

from trivium.kernels.attention import About, Attention, Known, as_wide
from trivium.kernels.dtypes import NARROW
from trivium.kernels.sight import Sight

Tensor = torch.Tensor

WIDTH_MULTIPLE, MAX_WIDTH = 8, 256  # head widths that the kernels take
MIN_MAJOR = 8  # the first compute capability that has them: Ampere


class CudaAttention(Attention):
    """Attention on an accelerator."""

    def attend_before(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See Attention. Only the fused kernel shares keys among heads; without it torch would store all scores."""
        if q.shape[1] != k.shape[1] and self.fuses(q):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return super().attend_before(q, k, v)

    def attend_within(self, q: Tensor, k: Tensor, v: Tensor, sight: Sight) -> Tensor:
        """Compute the reference by the kernel under torch's fused attention, because torch's own function accepts
        neither a window nor document boundaries. The kernel's layout has positions before heads, and packed sequences
        end to end."""
        if not self.fuses(q):
            return super().attend_within(q, k, v, sight)
        (B, _, S, _), columns, scale = q.shape, v.shape[-1], 1 / math.sqrt(q.shape[-1])
        q, k, v = (x.transpose(1, 2) for x in as_wide(q, k, v))
        edges, longest = None, S
        if sight.starts is not None:
            edges, longest = sight.documents(q.device)
            q, k, v = (x.flatten(0, 1) for x in (q, k, v))
        # The window is counted without the query itself, and none is to its right.
        reach = {} if sight.window is None else {"window_size_left": sight.window - 1, "window_size_right": 0}
        no_dropout, no_mask_back = 0.0, False
        out, *_ = torch.ops.aten._flash_attention_forward(
            *(q, k, v, edges, edges, longest, longest, no_dropout, not reach, no_mask_back), **reach, scale=scale
        )
        found: Tensor = out.view(B, S, *out.shape[-2:]).transpose(1, 2)
        # The gradient of a slice is a copy, even of one that takes everything.
        return found if found.shape[-1] == columns else found.narrow(-1, 0, columns)

    def attend_masked(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """Compute the reference with the heads of a group as further positions, which attend to the same keys.

        No kernel accepts a mask and shares keys among heads.
        """
        (B, N, S, D), G = q.shape, k.shape[1]
        if N == G:
            return super().attend_masked(q, k, v, mask)
        rows = q.reshape(B, G, N // G * S, D)
        found = F.scaled_dot_product_attention(rows, k, v, attn_mask=mask.repeat(1, 1, N // G, 1))
        return found.reshape(B, N, S, -1)

    def fuses(self, q: Tensor) -> bool:
        """Whether the fused kernel takes such queries: 16-bit numbers, on Ampere or newer."""
        width = q.shape[-1]
        return q.dtype in NARROW and width % WIDTH_MULTIPLE == 0 and width <= MAX_WIDTH and _is_new_enough(q.device)

    def tile(
        self, q: Tensor, k: Tensor, v: Tensor, *, triangle: bool = False, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, About]:
        """Compute the reference, fused if there is no mask."""
        if mask is not None:
            return super().tile(q, k, v, mask=mask)
        kernel, scale = torch.ops.aten._scaled_dot_product_flash_attention, 1 / math.sqrt(q.shape[-1])
        out, sums, *about = kernel(*as_wide(q, k, v), 0.0, triangle, scale=scale)
        return out.narrow(-1, 0, v.shape[-1]), sums, tuple(about[:6])

    def tile_gradients(
        self, grad: Tensor, qkv: tuple[Tensor, Tensor, Tensor], known: Known, *, triangle: bool, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the reference, fused if there is no mask."""
        if mask is not None:
            return super().tile_gradients(grad, qkv, known, triangle=triangle, mask=mask)
        starts_q, starts_k, most_q, most_k, seed, offset = known.about
        grad, q, k, v, out = as_wide(grad, *qkv, known.out)
        found = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            *(grad.contiguous(), q, k, v, out, known.sums.contiguous()),
            *(starts_q, starts_k, most_q, most_k, 0.0, triangle, seed, offset),
            scale=1 / math.sqrt(qkv[0].shape[-1]),
        )
        d_q, d_k, d_v = (d.narrow(-1, 0, x.shape[-1]) for d, x in zip(found, qkv, strict=True))
        return d_q, d_k, d_v


def _is_new_enough(device: torch.device) -> bool:
    """Whether a card is Ampere or newer: V100 and T4 have no such kernel. For fake tensors only shapes matter."""
    return not torch.cuda.is_available() or torch.cuda.get_device_properties(device).major >= MIN_MAJOR
