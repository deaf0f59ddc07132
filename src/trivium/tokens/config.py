"""Settings of tokenization."""

from typing import Annotated, Literal

from pydantic import Field

from trivium.config import Config, Positive, Short

BYTE_ALPHABET = 256  # a byte-level tokenizer has all bytes and the end of text
UINT16_VOCABULARY = 65500  # Megatron-LM's threshold for two-byte shards


class TokensConfig(Config):
    """Conversion of documents to tokens."""

    vocabulary: Positive = 2048  # ids of a tokenizer to train (small corpora may give fewer), or of the given tokenizer
    # gpt2, cl100k_base, …, hf:ORG/NAME, a tokenizer.json or its folder; None trains one
    tokenizer: Annotated[str | None, Short("tokenizer")] = None
    end_of_text: Annotated[str, Field(min_length=1)] | None = (
        None  # the token that closes documents; None uses the one that the tokenizer's files name
    )
    # fraction of the documents that is held out
    validation_fraction: Annotated[float, Field(gt=0, lt=0.5)] = 0.03
    dtype: Literal["auto", "uint16", "int32"] = "auto"  # dtype of the shards; auto selects uint16 below 65,500 ids
    tokenizer_bytes: Positive = 64 << 20  # text that trains the tokenizer, at most

    def shard_dtype(self, vocabulary: int) -> str:
        """Return the shard dtype for a vocabulary of this size."""
        if self.dtype != "auto":
            return self.dtype
        return "uint16" if vocabulary < UINT16_VOCABULARY else "int32"
