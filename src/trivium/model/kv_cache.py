"""The KV cache: keys and values of tokens already read, or their latents, so that what follows is computed without
reading them again.

Legend: S positions of a reading, B sequences, N heads here, G key-value heads here, D head width, K slots held.
"""

from collections.abc import Sequence

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
        self._places: Tensor | None = None  # [B, 1, slots]
        self._through: dict[int, Tensor] = {}  # this reading's mask, by window

    def place(self, places: Tensor) -> None:
        """Return the position of each token that is read next in its sequence, [B, S]."""
        B, S = places.shape
        if self._places is None:
            self._places = places.new_empty(B, 1, self.slots)
        self._places[:, 0, self.used : self.used + S] = places
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
            places = self._places[:, 0, : self.mask.shape[-1]]
            behind = places[:, self.used :, None] - places[:, None, :]  # B S K
            self._through[window] = self.mask.masked_fill((behind >= window).unsqueeze(1), -torch.inf)
        return self._through[window]

    def keep(self, tokens: int) -> None:
        """Commit the first `tokens` positions of the last forward pass. The next pass overwrites the others."""
        self.used += tokens

    def only(self, rows: Tensor, last: int | None = None) -> None:
        """Remove all sequences but `rows` [sequences to keep], and the columns before the last ones. last: the number
        of columns that remain; None for all."""
        begin = 0 if last is None else self.used - last
        self._held = {layer: tuple(x[:, :, begin:][rows] for x in held) for layer, held in self._held.items()}
        self._places = None if self._places is None else self._places[:, :, begin:][rows]
        self.used, self.slots = self.used - begin, self.slots - begin

    def append(self, other: "KVCache", rows: Sequence[int], lengths: Sequence[int], more: int) -> None:
        """Append copies of sequences of another cache, whose tokens begin in its first column. Afterwards all sequences
        end in one column, and `more` tokens can be added to each.

        rows: the number of each sequence in the other cache. lengths: the number of its tokens.
        """
        width = max(self.used, *lengths)

        def joined(old: Tensor | None, new: Tensor) -> Tensor:
            before = 0 if old is None else len(old)
            # Zeros, because padding that is not finite would change the result of attention although it is masked.
            room = new.new_zeros(before + len(rows), new.shape[1], width + more, *new.shape[3:])
            if old is not None:
                room[:before, :, width - self.used : width] = old[:, :, : self.used]
            for number, (row, length) in enumerate(zip(rows, lengths, strict=True), before):
                room[number, :, width - length : width] = new[row, :, :length]
            return room

        self._held = {
            layer: tuple(map(joined, self._held.get(layer, (None,) * len(new)), new))
            for layer, new in other._held.items()
        }
        self._places = None if other._places is None else joined(self._places, other._places)
        self.used, self.slots, self._through = width, width + more, {}
