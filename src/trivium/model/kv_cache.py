"""The KV cache: keys and values of tokens already read, so that what follows is computed without reading them again.

Legend: S positions of a reading, B sequences, N heads here, G key-value heads here, D head width, K slots held.
"""

import torch

from trivium.kernels.attention import Attention
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
        """Return the position of each token that is read next in its sequence, [B, S]."""
        B, S = places.shape
        if self._places is None:
            self._places = places.new_empty(B, self.slots)
        self._places[:, self.used : self.used + S] = places
        self._through = {}

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, attention: Attention, *, window: int | None = None
    ) -> Tensor:
        """q [B, N, S, D], k and v [B, G, S, D] of the tokens being read -> [B, N, S, D].

        window: how many positions each sees, itself included; None: all that the mask shows."""
        end = self.used + k.shape[2]
        if layer not in self._held:
            shape = (*k.shape[:2], self.slots, k.shape[3])
            self._held[layer] = (k.new_empty(shape), v.new_empty(shape))
        keys, values = self._held[layer]
        keys[:, :, self.used : end] = k
        values[:, :, self.used : end] = v
        if self.mask is None:
            return attention.attend(q, k, v, Sight((), None, window))
        keys, values = keys[:, :, :end], values[:, :, :end]
        mask = self.mask if window is None else self._mask_through(window, end)
        return attention.attend_masked(q, keys, values, mask)

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
