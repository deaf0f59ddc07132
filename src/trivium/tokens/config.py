"""What the tokens station may be told."""

from typing import Annotated, Literal

from pydantic import Field

from trivium.config import Config, Positive

BYTE_ALPHABET = 256  # a byte-level tokenizer knows every byte, plus the end of a text
UINT16_VOCABULARY = 65500  # Megatron-LM's own threshold for two-byte shards


class TokensConfig(Config):
    """How documents become tokens."""

    vocabulary: Positive = (
        2048  # of one that is trained the target (little text may give fewer), otherwise its own
    )
    tokenizer: str | None = None  # a tokenizer.json or its folder; None: one is trained on the corpus
    end_of_text: Annotated[str, Field(min_length=1)] | None = (
        None  # the token that closes documents; None: as found
    )
    validation_fraction: Annotated[float, Field(gt=0, lt=0.5)] = 0.03  # share of documents held out
    dtype: Literal["auto", "uint16", "int32"] = "auto"  # of the shards; auto: uint16 below 65,500 ids
    tokenizer_bytes: Positive = 64 << 20  # at most this much text trains the tokenizer

    def shard_dtype(self, vocabulary: int) -> str:
        """The dtype of shards that hold ids of a vocabulary of this size."""
        if self.dtype != "auto":
            return self.dtype
        return "uint16" if vocabulary < UINT16_VOCABULARY else "int32"
