"""Attention over what was read before."""

import pytest
import torch
import torch.nn.functional as F

from trivium.model.kv_cache import attend_by_groups


@pytest.mark.parametrize("positions", (1, 3))
@pytest.mark.parametrize("masks", (1, 2))
def test_heads_of_a_group_attend_as_positions_do(positions: int, masks: int) -> None:
    torch.manual_seed(positions)
    q, k, v = (torch.randn(2, n, s, 8, dtype=torch.float64) for n, s in ((6, positions), (2, 5), (2, 5)))
    mask = torch.zeros(masks, 1, positions, 5, dtype=torch.float64)
    mask[0, 0, 0, 4] = mask[-1, 0, -1, 1] = -torch.inf
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    torch.testing.assert_close(attend_by_groups(q, k, v, mask), expected)
