"""The KV cache: keys and values of tokens already read, or their latents, so that what follows is computed without
reading them again.

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
        self._held: dict[int, tuple[Tensor, ...]] = {}
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
        keys, values = self.write(layer, k, v)
        if self.mask is None:
            return attention.attend(q, k, v, Sight((), None, window))
        return attention.attend_masked(q, keys, values, self.mask_through(window))

    def write(self, layer: int, *new: Tensor) -> tuple[Tensor, ...]:
        """Write what a layer caches of the tokens being read, [B, G, S, D] each; return it behind what is held,
        [B, G, K, D] each."""
        end = self.used + new[0].shape[2]
        if layer not in self._held:
            self._held[layer] = tuple(x.new_empty((*x.shape[:2], self.slots, x.shape[3])) for x in new)
        for room, x in zip(self._held[layer], new, strict=True):
            room[:, :, self.used : end] = x
        return tuple(room[:, :, :end] for room in self._held[layer])

    def mask_through(self, window: int | None) -> Tensor:
        """The mask [B or 1, 1, S, K] of this reading, which besides hides what is a window or more behind."""
        assert self.mask is not None, "the first reading has no mask"
        if window is None:
            return self.mask
        if window not in self._through:
            assert self._places is not None, f"window {window}: nothing was placed"
            places = self._places[:, : self.mask.shape[-1]]
            behind = places[:, self.used :, None] - places[:, None, :]  # B S K
            self._through[window] = self.mask.masked_fill((behind >= window).unsqueeze(1), -torch.inf)
        return self._through[window]

    def keep(self, tokens: int) -> None:
        """What the last reading wrote, its first `tokens`, stays."""
        self.used += tokens

    def only(self, rows: Tensor) -> None:
        """Go on with these sequences alone; rows [sequences to keep]."""
        self._held = {layer: tuple(x[rows] for x in held) for layer, held in self._held.items()}
        self._places = None if self._places is None else self._places[rows]
