"""Documents as vectors: the mean of a model's hidden states after the last norm, over the tokens of each text.

Legend: B texts, S positions, H hidden.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from trivium.evaluation.answer import NativeScorer
from trivium.interchange.target import opened
from trivium.model.whole import WholeModel
from trivium.progress import Progress, silent

MAX_BATCH_TOKENS = 4096  # padding included
_TOKENIZED_AT_ONCE = 1024  # texts

Encode = Callable[[Sequence[str]], NDArray[np.float32]]


@contextmanager
def opened_encoder(place: Path, progress: Progress = silent) -> Iterator[Encode]:
    """Open a run, a checkpoint or a Hugging Face folder. Yields a function of texts to their vectors [B, H].

    Of a text that exceeds the sequence length of the model, the first tokens count. A text without tokens has zeros.
    """
    with opened(place) as target:
        scorer = NativeScorer.open(target.newest, target.tokenizer)

        def encode(texts: Sequence[str]) -> NDArray[np.float32]:
            vectors = np.zeros((len(texts), scorer.model.model.hidden), np.float32)
            for first in range(0, len(texts), _TOKENIZED_AT_ONCE):
                some = slice(first, first + _TOKENIZED_AT_ONCE)
                rows = [ids[: scorer.sequence] for ids in scorer.tokenizer.encode_prompts(texts[some])]
                vectors[some] = mean_hidden_states(scorer.model, rows)
                progress(min(first + _TOKENIZED_AT_ONCE, len(texts)), len(texts), "texts embedded")
            return vectors

        yield encode


def mean_hidden_states(model: WholeModel, rows: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """Return the mean over its tokens of the hidden states of each row of ids, [B, H]. An empty row has zeros.

    Rows of similar length are read in one batch. They are padded on the right, where causal attention does not look.
    """
    vectors = np.zeros((len(rows), model.model.hidden), np.float32)
    left = sorted((n for n, row in enumerate(rows) if len(row)), key=lambda n: -len(rows[n]))
    while left:
        width = len(rows[left[0]])
        batch, left = left[: max(1, MAX_BATCH_TOKENS // width)], left[max(1, MAX_BATCH_TOKENS // width) :]
        padded = torch.tensor([[*rows[n], *[0] * (width - len(rows[n]))] for n in batch], device=model.device)
        vectors[batch] = _means(model, padded, [len(rows[n]) for n in batch])
    return vectors


@torch.inference_mode()
def _means(model: WholeModel, tokens: torch.Tensor, lengths: Sequence[int]) -> NDArray[np.float32]:
    """tokens [B, S] -> [B, H]."""
    hidden = model.hidden(tokens.T.contiguous())
    assert hidden is not None and model.stage.head is not None, "one rank holds all layers"
    states = model.stage.head.normed(hidden).float()  # S B H
    count = torch.tensor(lengths, device=tokens.device)
    counted = torch.arange(len(states), device=tokens.device).unsqueeze(1) < count
    means = (states * counted.unsqueeze(-1)).sum(0) / count.unsqueeze(-1)
    return np.asarray(means.cpu().numpy(), dtype=np.float32)
