"""Texts that a model reads side by side, each token once. Texts join and leave between two tokens.

Legend: B rows, S positions, V vocabulary, T tokens of one text, K columns of the KV cache.
"""

from collections.abc import Callable, Sequence

import torch

from trivium.model.kv_cache import KVCache
from trivium.model.whole import WholeModel

Tensor = torch.Tensor
LOGIT_POSITIONS = 128  # positions of a text whose logits are in memory at the same time


def ignore_scores(logits: Tensor, following: Tensor) -> None:
    """Do nothing with scores."""


class Rows:
    """The texts of a batch, one row each, and their KV cache.

    lengths: the number of tokens read of each row. Every rank of the model's mesh calls the same methods with the same
    arguments. Logits are returned by the ranks of the last pipeline stage; the others return None.
    """

    def __init__(self, model: WholeModel) -> None:
        self.model = model
        self.lengths: list[int] = []
        self._cache = KVCache(0)

    @torch.inference_mode()
    def keep(self, rows: Sequence[int]) -> None:
        """Remove all rows but these, by number."""
        self.lengths = [self.lengths[n] for n in rows]
        numbers = torch.tensor(rows, dtype=torch.long, device=self.model.device)
        self._cache.only(numbers, max(self.lengths, default=0))

    @torch.inference_mode()
    def prefill(self, texts: Sequence[Sequence[int]], copies: Sequence[int], more: int) -> Tensor | None:
        """Read texts, append a row for each number in `copies`, which is that of a text, and return the logits of
        their next tokens [copies, V].

        more: the largest number of tokens that any row, new or not, will be extended by.
        """
        device, lengths = self.model.device, [len(text) for text in texts]
        width = max(lengths)
        padded = torch.tensor([[*text, *[0] * (width - len(text))] for text in texts], device=device)
        cache = KVCache(width)
        hidden = self.model.hidden(padded.T.contiguous(), cache=cache)
        cache.keep(width)
        new = [lengths[n] for n in copies]
        self._cache.append(cache, copies, new, more)
        self.lengths += new
        if hidden is None:
            return None
        last = hidden[torch.tensor(lengths, device=device) - 1, torch.arange(len(texts), device=device)]
        return self.model.predict(last)[torch.tensor(copies, device=device)]

    @torch.inference_mode()
    def decode(self, ids: Sequence[int]) -> Tensor | None:
        """Read the next token of each row, and return the logits of the tokens after them [B, V]."""
        device, used = self.model.device, self._cache.used
        lengths = torch.tensor(self.lengths, device=device).unsqueeze(1)
        padding = torch.arange(used + 1, device=device) < used - lengths  # B K; the ends of rows are aligned
        mask = torch.zeros(padding.shape, device=device, dtype=self.model.dtype).masked_fill_(padding, -torch.inf)
        self._cache.mask = mask[:, None, None]
        # A row that has ended may be read on, and no position follows the last one.
        positions = lengths.clamp(max=self.model.model.sequence - 1).T
        hidden = self.model.hidden(torch.tensor([ids], device=device), positions=positions, cache=self._cache)
        self._cache.keep(1)
        self.lengths = [length + 1 for length in self.lengths]
        return None if hidden is None else self.model.predict(hidden[0])

    @torch.inference_mode()
    def score(self, ids: Sequence[int], use: Callable[[Tensor, Tensor], None] = ignore_scores) -> None:
        """Read one text, which becomes no row. `use` receives logits [T, V] and the ids [T] that follow, for at most
        LOGIT_POSITIONS tokens at a time."""
        hidden = self.model.hidden(torch.tensor(ids[:-1], device=self.model.device).unsqueeze(1))
        assert hidden is not None, f"{len(ids)} ids are scored where the last pipeline stage is"
        following = torch.tensor(ids[1:], device=self.model.device)
        for begin in range(0, len(following), LOGIT_POSITIONS):
            part = slice(begin, begin + LOGIT_POSITIONS)
            use(self.model.predict(hidden[part, 0]), following[part])
