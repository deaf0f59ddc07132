"""transformers' GPT-2 of a given shape: learned positions, GELU (tanh), no dropout, an untied head."""

from typing import Protocol

from transformers import GPT2Config


class Shape(Protocol):
    """The shape of a GPT."""

    layers: int
    hidden: int
    heads: int
    vocabulary: int
    sequence: int


def gpt2_config(shape: Shape) -> GPT2Config:
    """Return the config of a GPT-2 with scaled_dot_product_attention."""
    return GPT2Config(
        vocab_size=shape.vocabulary,
        n_positions=shape.sequence,
        n_embd=shape.hidden,
        n_layer=shape.layers,
        n_head=shape.heads,
        activation_function="gelu_pytorch_tanh",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )
