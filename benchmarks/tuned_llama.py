"""What is tuned in benchmarks/tune.py: a small Llama, its conversations, and the low rank of its adapters."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from trivium.seeds import generator_for

SEED, LR, CLIP = 11, 2e-4, 1.0
RANK, ALPHA = 16, 32
END = 0  # the id that ends a conversation
HIDDEN, LAYERS, HEADS, KV_HEADS, FFN, VOCABULARY = 512, 6, 8, 4, 1408, 8192
SEQUENCE, BINS = 512, 4  # ids of a packed row, and rows of a step
PER_BIN, SHORTEST = 4, 32  # conversations of a bin, and the fewest ids of one
PADDING = 12  # ids of a bin that are in no conversation, at least
ANSWERED = 0.4  # share of a conversation that is answer, and counts
DIFFERENT_STEPS = 4


class Conversation(NamedTuple):
    """Ids, the last one END, and how many of the last ones count."""

    ids: np.ndarray
    counted: int


class Rows(NamedTuple):
    """A batch [rows, positions]. weights: of each id as a target. positions: within the conversation; the padding
    after the last one counts on."""

    ids: np.ndarray
    weights: np.ndarray
    positions: np.ndarray
    numbers: np.ndarray  # of the conversation in its row; 0 is padding


def bins(step: int) -> list[list[Conversation]]:
    """Return the conversations of a step, packed into bins of SEQUENCE ids."""
    draw = generator_for(SEED, "tune", step % DIFFERENT_STEPS)
    found: list[list[Conversation]] = []
    for _ in range(BINS):
        free = SEQUENCE - PADDING - PER_BIN * SHORTEST
        lengths = SHORTEST + (free * draw.dirichlet(np.ones(PER_BIN))).astype(int)
        texts = (np.append(draw.integers(1, VOCABULARY, length - 1), END) for length in lengths)
        found.append([Conversation(ids, max(1, int(ANSWERED * len(ids)))) for ids in texts])
    return found


def packed(step: int) -> Rows:
    """Return the rows of a step with several conversations each."""
    return _rows(bins(step), SEQUENCE)


def padded(step: int, length: int | None = None) -> Rows:
    """Return the rows of a step with one conversation each, by default as long as the longest of them."""
    alone = [[one] for inside in bins(step) for one in inside]
    return _rows(alone, length or longest(step))


def longest(step: int) -> int:
    """Return the number of ids of the longest conversation of a step."""
    return max(len(one.ids) for inside in bins(step) for one in inside)


def tokens_of(step: int) -> int:
    """Return the ids of the conversations of a step, without padding."""
    return sum(len(one.ids) for inside in bins(step) for one in inside)


def _rows(rows: list[list[Conversation]], length: int) -> Rows:
    ids = np.full((len(rows), length), END, np.int64)
    weights, numbers = np.zeros(ids.shape, np.float32), np.zeros(ids.shape, np.int64)
    positions = np.zeros(ids.shape, np.int64)
    for row, inside in enumerate(rows):
        at = 0
        for number, one in enumerate(inside, 1):
            end = at + len(one.ids)
            ids[row, at:end], numbers[row, at:end] = one.ids, number
            weights[row, end - one.counted : end] = 1
            positions[row, at:end] = np.arange(len(one.ids))
            at = end
        positions[row, at:] = np.arange(length - at)
    return Rows(ids, weights, positions, numbers)


def llama() -> LlamaForCausalLM:
    """Return the base model of all sides, in fp32."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=SEQUENCE,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=END,
    )
    torch.manual_seed(SEED)
    return LlamaForCausalLM(config)


def saved(folder: Path) -> Path:
    """Write the base model as a Hugging Face folder and return it."""
    llama().save_pretrained(folder)
    return folder


def tensors(*arrays: np.ndarray) -> tuple[Tensor, ...]:
    """Return arrays as tensors."""
    return tuple(map(torch.from_numpy, arrays))
