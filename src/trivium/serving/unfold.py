"""From tokens that arrive one by one to text: whole characters only, and never a part of a stop."""

from collections.abc import Sequence
from itertools import takewhile

from trivium.tokens.tokenizer import Tokenizer

BROKEN = "\ufffd"
LONGEST = 4  # bytes of a character
NEAR = 8  # tokens before one that may matter to its spelling


class Unfolding:
    """What `push` and `close` return, joined, is the text before the first stop."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = (), before: Sequence[int] = ()) -> None:
        """before: what the tokens follow, as some tokenizers spell the first token of a text otherwise."""
        self._tokenizer, self._stops = tokenizer, tuple(stops)
        self._before, self._waiting = list(before[-NEAR:]), list[int]()
        self._held, self.over = "", False  # over: a stop was met
        # characters so far, those held back and those behind a stop too, and where the last token begins in them
        self.length = self.begins = 0

    def push(self, token: int) -> str:
        """The text that is certain with this token."""
        self._waiting.append(token)
        self.begins = self.length
        text = self._text_of(self._waiting)
        if token in self._tokenizer.byte_tokens or text.endswith(BROKEN):
            ready = self._take(self._certain(text), final=False)
            self.begins = self.length
            return ready
        # bytes before it that made no character stand there as such now
        self.begins += max(
            0, len(text) - len(self._tokenizer.decode_after([self._tokenizer.before_text], [token]))
        )
        return self._take(len(self._waiting), final=False)

    def close(self) -> str:
        """The rest."""
        return self._take(len(self._waiting), final=True)

    def _certain(self, text: str) -> int:
        """How many of the tokens that wait are not of a character that may still be completed: that one is within the
        last three, and what stands before it must not be torn out of another. A run of bytes that are read together may
        still be spoiled as a whole."""
        if self._waiting[-1] in self._tokenizer.byte_tokens:
            run = takewhile(self._tokenizer.byte_tokens.__contains__, reversed(self._waiting))
            return len(self._waiting) - len(list(run))
        for count in range(len(self._waiting) - LONGEST + 1, 0, -1):
            first, rest = self._waiting[:count], self._waiting[count:]
            if self._text_of(first) + self._tokenizer.decode_after([*self._before, *first], rest) == text:
                return count
        return 0

    def _text_of(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode_after(self._before, tokens)

    def _take(self, count: int, *, final: bool) -> str:
        """What the first tokens that wait add."""
        text = self._text_of(self._waiting[:count])
        self._before = [*self._before, *self._waiting[:count]][-NEAR:]
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
    """How many of the last characters may be the beginning of a stop."""
    longest = min(len(text), max((len(s) - 1 for s in stops), default=0))
    return next((n for n in range(longest, 0, -1) if any(s.startswith(text[-n:]) for s in stops)), 0)
