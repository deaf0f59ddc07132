"""The KV cache: keys and values of tokens already read, so that what follows is computed without reading them again.

Legend: S positions of a reading, B sequences, N heads here, G key-value heads here, D head width, K slots held.
"""

import torch
import torch.nn.functional as F

from trivium.kernels import reach_attention
from trivium.kernels.cpu import block_attention
from trivium.kernels.sight import Sight

Tensor = torch.Tensor


class KVCache:
    """Room for `slots` tokens of every layer that reads with it.

    A reading writes its keys and values behind those that are held and sees both; `keep` makes them stay, and
    otherwise the next reading overwrites them. `mask` [B or 1, 1, S, K] is added to the scores of a reading; None in
    the first, which is causal. Where layers have a window, `place` says before each reading what it is of.
    """

    def __init__(self, slots: int) -> None:
        self.slots, self.used = slots, 0
        self.mask: Tensor | None = None
        self._held: dict[int, tuple[Tensor, Tensor]] = {}
        self._places: Tensor | None = None  # [B, slots]
        self._through: dict[int, Tensor] = {}  # this reading's mask, by window

    def place(self, places: Tensor) -> None:
        """Of the tokens read next, the position of each in its sequence, [B, S]."""
        B, S = places.shape
        if self._places is None:
            self._places = places.new_empty(B, self.slots)
        self._places[:, self.used : self.used + S] = places
        self._through = {}

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, window: int | None = None) -> Tensor:
        """q [B, N, S, D], k and v [B, G, S, D] of the tokens being read -> [B, N, S, D].

        window: how many positions each sees, itself included; None: all that the mask shows."""
        end = self.used + k.shape[2]
        if layer not in self._held:
            shape = (*k.shape[:2], self.slots, k.shape[3])
            self._held[layer] = (k.new_empty(shape), v.new_empty(shape))
        keys, values = self._held[layer]
        keys[:, :, self.used : end] = k
        values[:, :, self.used : end] = v
        grouped = q.shape[1] != k.shape[1]
        if self.mask is None:
            if window is not None and window < k.shape[2]:
                return reach_attention.attend(q, k, v, Sight((), None, window))
            if block_attention.suits(q):
                return block_attention.attend(q, k, v)
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        keys, values = keys[:, :, :end], values[:, :, :end]
        mask = self.mask if window is None else self._mask_through(window, end)
        if grouped and q.device.type != "cpu":
            return attend_by_groups(q, keys, values, mask)
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=grouped)

    def keep(self, tokens: int) -> None:
        """What the last reading wrote, its first `tokens`, stays."""
        self.used += tokens

    def only(self, rows: Tensor) -> None:
        """Go on with these sequences alone; rows [sequences to keep]."""
        self._held = {layer: (k[rows], v[rows]) for layer, (k, v) in self._held.items()}
        self._places = None if self._places is None else self._places[rows]

    def _mask_through(self, window: int, end: int) -> Tensor:
        """The mask [B, 1, S, K] of this reading, which hides besides what is a window or more behind."""
        if window not in self._through:
            assert self.mask is not None and self._places is not None, f"window {window}: nothing was placed"
            places = self._places[:, :end]
            behind = places[:, self.used :, None] - places[:, None, :]  # B S K
            self._through[window] = self.mask.masked_fill((behind >= window).unsqueeze(1), -torch.inf)
        return self._through[window]


def attend_by_groups(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """q [B, N, S, D], k and v [B, G, K, D], mask [B or 1, 1, S, K] -> [B, N, S, D].

    The heads of a group are taken for positions, which see the same keys: accelerators have no kernel that takes a mask
    and gives keys to several heads.
    """
    B, N, S, D = q.shape
    heads = N // k.shape[1]
    y = F.scaled_dot_product_attention(
        q.reshape(B, k.shape[1], heads * S, D), k, v, attn_mask=mask.repeat(1, 1, heads, 1)
    )
    return y.reshape(q.shape)
