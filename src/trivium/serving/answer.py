"""Generated tokens as JSON: their spelling, log-probabilities, alternatives and offsets in the text."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from trivium.serving.detokenize import Detokenizer, spelling
from trivium.serving.writer import Token, Written
from trivium.tokens.tokenizer import Tokenizer


class Placed(NamedTuple):
    """A token, and its offset in the response text."""

    token: Token
    offset: int


class TokenAligner:
    """Converts generated tokens into response text. Tokens are returned once they are certain to be part of the
    text."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], before: Sequence[int], offset: int = 0) -> None:
        """before: ids that the text follows. offset: number of characters sent before the text."""
        self._detokenizer, self._end = Detokenizer(tokenizer, stops, before), tokenizer.end_of_text
        self._offset = self._sent = offset
        self._waiting: list[Placed] = []

    def push(self, token: Token) -> tuple[str, list[Placed]]:
        """Return the text and tokens that this token makes certain. The end-of-document token has no characters."""
        silent = token.id == self._end
        text = "" if silent else self._detokenizer.push(token.id)
        begins = self._detokenizer.length if silent else self._detokenizer.begins
        self._waiting.append(Placed(token, self._offset + begins))
        return self._ready(text)

    def close(self) -> tuple[str, list[Placed]]:
        """Return the remaining text and tokens. Tokens that begin after a stop text are not part of the response."""
        text, ready = self._ready(self._detokenizer.close())
        return text, ready if self._detokenizer.over else [*ready, *self._waiting]

    def _ready(self, text: str) -> tuple[str, list[Placed]]:
        self._sent += len(text)
        count = sum(placed.offset < self._sent for placed in self._waiting)
        ready, self._waiting = self._waiting[:count], self._waiting[count:]
        return text, ready


def placed_in(tokens: Sequence[Token], tokenizer: Tokenizer, *, silent: Collection[int]) -> list[Placed]:
    """Return the tokens of a prompt with their offsets. silent: ids that have no text."""
    detokenizer, found = Detokenizer(tokenizer), []
    for token in tokens:
        if token.id not in silent:
            detokenizer.push(token.id)
        found.append(Placed(token, detokenizer.begins))
    return found


def logprobs_of(placed: Sequence[Placed], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return tokens, their log-probabilities in nats, the top alternatives, and their offsets in the text."""
    spell = spelling(tokenizer)
    tokens = [p.token for p in placed]
    return {
        "tokens": [spell(t.id) for t in tokens],
        "token_logprobs": [t.logprob for t in tokens],
        "top_logprobs": [None if t.logprob is None else _by_spelling(t, spell) for t in tokens],
        "text_offset": [p.offset for p in placed],
    }


def token_rows(written: Written, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Return the tokens of a text with their log-probabilities, as `trivium generate` stores and prints them.

    joined: the characters that a token completes, if it is or follows a part of a character.
    """
    spell, detokenizer = spelling(tokenizer), Detokenizer(tokenizer, before=[tokenizer.before_text])
    rows = []
    for token in written.tokens:
        text = "" if token.id == tokenizer.end_of_text else detokenizer.push(token.id)
        top = [{"token": spell(i), "logprob": p} for i, p in token.top]
        row = {"token": spell(token.id), "id": token.id, "logprob": token.logprob, "top": top}
        rows.append(row | ({"joined": text} if text not in ("", row["token"]) else {}))
    return rows


def _by_spelling(token: Token, spell: Callable[[int], str]) -> dict[str, float]:
    """Return the alternatives of a token, most likely first. If two have the same spelling, the more likely one is
    kept."""
    found: dict[str, float] = {}
    for number, logprob in token.top:
        found.setdefault(spell(number), logprob)
    return found
