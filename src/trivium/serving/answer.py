"""Completions as JSON: choices with text, log-probabilities, and the reason for their end."""

from collections.abc import Sequence
from typing import Any

from trivium.serving.speak import spelling
from trivium.serving.unfold import Unfolding
from trivium.serving.write import Token
from trivium.tokens.tokenizer import Tokenizer


def envelope(number: int, model: str, created: int, choices: list[dict[str, Any]]) -> dict[str, Any]:
    """A completion, or a part of one."""
    return {
        "id": f"cmpl-{number}",
        "object": "text_completion",
        "created": created,
        "model": model,
        "choices": choices,
    }


def choice(
    index: int, text: str, logprobs: dict[str, Any] | None, finish: str | None = None
) -> dict[str, Any]:
    """One text."""
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


def logprobs_of(tokens: Sequence[Token], tokenizer: Tokenizer, start: int = 0) -> dict[str, Any]:
    """Tokens, their log-probabilities in nats, the likeliest alternatives, and where each begins in the text."""
    spell = spelling(tokenizer)
    unfolding, offsets, offset = Unfolding(tokenizer), [], start
    for token in tokens:
        offsets.append(offset)
        offset += len(unfolding.push(token.id))
    return {
        "tokens": [spell(t.id) for t in tokens],
        "token_logprobs": [t.logprob for t in tokens],
        "top_logprobs": [None if t.logprob is None else {spell(i): p for i, p in t.top} for t in tokens],
        "text_offset": offsets,
    }
