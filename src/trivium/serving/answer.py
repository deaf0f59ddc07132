"""Generated texts as JSON: as texts or as messages, with the spelling, log-probabilities and alternatives of tokens."""

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from trivium.serving.detokenize import Detokenizer, bytes_of, spelling
from trivium.serving.writer import Token, Written
from trivium.tokens.tokenizer import Tokenizer


class Placed(NamedTuple):
    """A token, and its offset in the response text."""

    token: Token
    offset: int


class Piece(NamedTuple):
    """A part of text `number`, or all of it.

    placed: its tokens; None if no log-probabilities are requested. finish: why the text ended, if it has.
    """

    number: int
    text: str
    placed: Sequence[Placed] | None
    finish: str | None


class Form(Protocol):
    """The form of a response: its texts as JSON, whole or in parts.

    prefix: of the response's id. whole, part: what OpenAI calls the response and a part of a stream. greets: whether a
    stream begins with a part of each text that is empty.
    """

    prefix: str
    whole: str
    part: str
    greets: bool

    def choice(self, piece: Piece) -> dict[str, Any]:
        """Return a whole text."""

    def delta(self, piece: Piece, *, is_first: bool) -> dict[str, Any]:
        """Return a part of a text. is_first: whether it is the text's first part."""


class TextForm:
    """The form of `/v1/completions`."""

    prefix, whole, part, greets = "cmpl", "text_completion", "text_completion", False

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def choice(self, piece: Piece) -> dict[str, Any]:
        """Return a whole text."""
        logprobs = None if piece.placed is None else logprobs_of(piece.placed, self._tokenizer)
        return {"index": piece.number, "text": piece.text, "logprobs": logprobs, "finish_reason": piece.finish}

    def delta(self, piece: Piece, *, is_first: bool) -> dict[str, Any]:
        """Return a part of a text, which has the same form."""
        return self.choice(piece._replace(placed=piece.placed or None))


class MessageForm:
    """The form of `/v1/chat/completions`."""

    prefix, whole, part, greets = "chatcmpl", "chat.completion", "chat.completion.chunk", True

    def __init__(self, tokenizer: Tokenizer, ends: Collection[int]) -> None:
        """ends: ids that end a text, which are no part of its content."""
        self._tokenizer, self._ends = tokenizer, ends

    @cached_property
    def _bytes_of(self) -> Callable[[int], list[int] | None]:
        return bytes_of(self._tokenizer)  # which takes milliseconds for a large vocabulary

    def choice(self, piece: Piece) -> dict[str, Any]:
        """Return a whole message."""
        message = {"role": "assistant", "content": piece.text, "refusal": None}
        return {"index": piece.number, "message": message} | self._rest(piece)

    def delta(self, piece: Piece, *, is_first: bool) -> dict[str, Any]:
        """Return a part of a message. The first one says whose message it is."""
        text = {"content": piece.text} if piece.text or is_first else {}
        delta = ({"role": "assistant"} if is_first else {}) | text
        return {"index": piece.number, "delta": delta} | self._rest(piece._replace(placed=piece.placed or None))

    def _rest(self, piece: Piece) -> dict[str, Any]:
        logprobs = None if piece.placed is None else {"content": self._content(piece.placed), "refusal": None}
        return {"logprobs": logprobs, "finish_reason": piece.finish}

    def _content(self, placed: Sequence[Placed]) -> list[dict[str, Any]]:
        """Return tokens with their log-probabilities in nats, their bytes, and the top alternatives."""
        spell = spelling(self._tokenizer)

        def row(token: int, logprob: float | None) -> dict[str, Any]:
            return {"token": spell(token), "logprob": logprob, "bytes": self._bytes_of(token)}

        tokens = [p.token for p in placed if p.token.id not in self._ends]
        return [row(t.id, t.logprob) | {"top_logprobs": [row(*other) for other in t.top]} for t in tokens]


class TokenAligner:
    """Converts generated tokens into response text. Tokens are returned once they are certain to be part of the
    text."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str],
        before: Sequence[int],
        offset: int = 0,
        ends: Collection[int] = (),
    ) -> None:
        """before: ids that the text follows. offset: number of characters sent before the text. ends: ids that end the
        text, besides those of the tokenizer."""
        self._detokenizer = Detokenizer(tokenizer, stops, before)
        self._ends = tokenizer.ends.union(ends)
        self._offset = self._sent = offset
        self._waiting: list[Placed] = []

    def push(self, token: Token) -> tuple[str, list[Placed]]:
        """Return the text and tokens that this token makes certain. Tokens that end a text have no characters."""
        silent = token.id in self._ends
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
        text = "" if token.id in tokenizer.ends else detokenizer.push(token.id)
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
