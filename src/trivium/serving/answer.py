"""Completions as JSON: choices with text, log-probabilities, and the reason for their end."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

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


class Placed(NamedTuple):
    """A token, and where it begins in the text that is answered."""

    token: Token
    offset: int


class Telling:
    """A text that is told while it is drawn: its characters, and its tokens once they are certain to belong to it."""

    def __init__(
        self, tokenizer: Tokenizer, stops: Sequence[str], before: Sequence[int], offset: int = 0
    ) -> None:
        """before: the ids the text follows. offset: characters answered before it."""
        self._unfolding, self._end = Unfolding(tokenizer, stops, before), tokenizer.end_of_text
        self._offset = self._told = offset
        self._waiting: list[Placed] = []

    def push(self, token: Token) -> tuple[str, list[Placed]]:
        """What is certain with this token; the end of the document is a token without characters."""
        silent = token.id == self._end
        text = "" if silent else self._unfolding.push(token.id)
        begins = self._unfolding.length if silent else self._unfolding.begins
        self._waiting.append(Placed(token, self._offset + begins))
        return self._ready(text)

    def close(self) -> tuple[str, list[Placed]]:
        """The rest; tokens that begin behind the end that a stop made are no part of the text."""
        text, ready = self._ready(self._unfolding.close())
        return text, ready if self._unfolding.over else [*ready, *self._waiting]

    def _ready(self, text: str) -> tuple[str, list[Placed]]:
        self._told += len(text)
        count = sum(placed.offset < self._told for placed in self._waiting)
        ready, self._waiting = self._waiting[:count], self._waiting[count:]
        return text, ready


def placed_in(tokens: Sequence[Token], tokenizer: Tokenizer, *, silent: Collection[int]) -> list[Placed]:
    """The tokens of a prompt in its text; silent: ids that stand for nothing in it."""
    unfolding, found = Unfolding(tokenizer), []
    for token in tokens:
        if token.id not in silent:
            unfolding.push(token.id)
        found.append(Placed(token, unfolding.begins))
    return found


def logprobs_of(placed: Sequence[Placed], tokenizer: Tokenizer) -> dict[str, Any]:
    """Tokens, their log-probabilities in nats, the likeliest alternatives, and where each begins in the text."""
    spell = spelling(tokenizer)
    tokens = [p.token for p in placed]
    return {
        "tokens": [spell(t.id) for t in tokens],
        "token_logprobs": [t.logprob for t in tokens],
        "top_logprobs": [None if t.logprob is None else _by_spelling(t, spell) for t in tokens],
        "text_offset": [p.offset for p in placed],
    }


def _by_spelling(token: Token, spell: Callable[[int], str]) -> dict[str, float]:
    """The alternatives of a token, likeliest first; of two spelled alike (a letter and its byte) the likelier."""
    found: dict[str, float] = {}
    for number, logprob in token.top:
        found.setdefault(spell(number), logprob)
    return found
