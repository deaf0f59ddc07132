"""Incremental detokenization: convert tokens to text in full characters, without any part of a stop text."""

from collections.abc import Callable, Sequence
from itertools import takewhile

from trivium.tokens.bulk import BYTE_OF
from trivium.tokens.tokenizer import Tokenizer

BROKEN = "\ufffd"
MAX_CHARACTER_BYTES = 4  # in UTF-8
CONTEXT_TOKENS = 8  # preceding tokens that can change the spelling of a token


class Detokenizer:
    """The concatenated results of `push` and `close` are the text before the first stop text."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = (), before: Sequence[int] = ()) -> None:
        """before: ids that precede the tokens, because some tokenizers spell the first token of a text differently."""
        self._tokenizer, self._stops = tokenizer, tuple(stops)
        self._before, self._waiting = list(before[-CONTEXT_TOKENS:]), list[int]()
        self._held, self.over = "", False  # over: a stop text was found
        # length: characters so far, including held-back ones and those after a stop. begins: where the last token
        # begins.
        self.length = self.begins = 0

    def push(self, token: int) -> str:
        """Return the text that becomes certain with this token."""
        self._waiting.append(token)
        self.begins = self.length
        text = self._text_of(self._waiting)
        if token in self._tokenizer.byte_tokens or text.endswith(BROKEN):
            ready = self._take(self._certain(text), final=False)
            self.begins = self.length
            return ready
        # Preceding bytes that form no character are part of the text now.
        self.begins += max(0, len(text) - len(self._tokenizer.decode_after([self._tokenizer.before_text], [token])))
        return self._take(len(self._waiting), final=False)

    def close(self) -> str:
        """Return the remaining text."""
        return self._take(len(self._waiting), final=True)

    def _certain(self, text: str) -> int:
        """Return how many waiting tokens cannot be part of an incomplete character.

        An incomplete character lies within the last three tokens, and decoding the others separately must not
        change the text. A run of byte tokens is decoded together, so a later byte can still invalidate all of it.
        """
        if self._waiting[-1] in self._tokenizer.byte_tokens:
            run = takewhile(self._tokenizer.byte_tokens.__contains__, reversed(self._waiting))
            return len(self._waiting) - len(list(run))
        for count in range(len(self._waiting) - MAX_CHARACTER_BYTES + 1, 0, -1):
            first, rest = self._waiting[:count], self._waiting[count:]
            if self._text_of(first) + self._tokenizer.decode_after([*self._before, *first], rest) == text:
                return count
        return 0

    def _text_of(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode_after(self._before, tokens)

    def _take(self, count: int, *, final: bool) -> str:
        """Consume the first `count` waiting tokens and return their text."""
        text = self._text_of(self._waiting[:count])
        self._before = [*self._before, *self._waiting[:count]][-CONTEXT_TOKENS:]
        self._waiting = self._waiting[count:]
        self.length += len(text)
        if self.over:
            return ""
        self._held += text
        cuts = [self._held.index(s) for s in self._stops if s in self._held]
        if cuts:
            self.over = True
            return self._held[: min(cuts)]
        keep = 0 if final else _begun(self._held, self._stops)
        ready, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return ready


def _begun(text: str, stops: Sequence[str]) -> int:
    """Return how many of the last characters may be the beginning of a stop text."""
    longest = min(len(text), max((len(s) - 1 for s in stops), default=0))
    return next((n for n in range(longest, 0, -1) if any(s.startswith(text[-n:]) for s in stops)), 0)


def spelling(tokenizer: Tokenizer) -> Callable[[int], str]:
    """Return the function that spells a token; one that is not a full character is shown by its id."""

    def spell(token: int) -> str:
        # keeps the leading space of tokens that have one
        text = tokenizer.decode_after([tokenizer.before_text], [token])
        return f"<token {token}>" if BROKEN in text or not text else text

    return spell


def bytes_of(tokenizer: Tokenizer) -> Callable[[int], list[int] | None]:
    """Return the function that gives the bytes of a token; None for a part of a character that has no known bytes."""
    words = {number: word for word, number in tokenizer.words.items()}

    def spelt_bytes(token: int) -> list[int] | None:
        if token in tokenizer.byte_tokens:
            return [int(words[token][1:-1], 16)]  # <0xE6>
        text = tokenizer.decode_after([tokenizer.before_text], [token])
        if BROKEN not in text:
            return list(text.encode())
        letters = words[token] if tokenizer.is_concatenative else ""
        return [BYTE_OF[letter] for letter in letters] if letters and all(n in BYTE_OF for n in letters) else None

    return spelt_bytes
