"""From text to the windows of token ids that a model reads, as lm-evaluation-harness cuts them.

Only where a tokenizer joins a continuation to its context the harness scores what is left of the whole: see `_pair`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from trivium.evaluation.requests import Request
from trivium.tokens.tokenizer import Tokenizer


class Encoded(NamedTuple):
    """A request as ids: what is given, and what is asked for."""

    context: list[int]
    continuation: list[int]


class Window(NamedTuple):
    """Ids of which the last `answer` are predicted, each from all before it; at most sequence + 1 of them."""

    ids: list[int]
    answer: int

    @property
    def read(self) -> list[int]:
        """The ids the model reads; the last is only predicted."""
        return self.ids[:-1]


def encode_all(requests: Sequence[Request], tokenizer: Tokenizer) -> list[Encoded]:
    """Each request as ids. Context and continuation are encoded together and then parted, with spaces between them
    counted to the continuation; an empty context is the beginning of a document."""
    pairs = [_parted(r) for r in requests]
    whole = list(dict.fromkeys(text for c, a in pairs for text in (c, c + a) if c))
    ends = list(dict.fromkeys(a for _, a in pairs))
    ids = dict(zip(whole, tokenizer.encode_prompts(whole), strict=True))
    alone = dict(zip(ends, tokenizer.encode_batch(ends), strict=True))
    return [_pair(c, a, ids, alone[a], tokenizer.before_text) for c, a in pairs]


def window_of(encoded: Encoded, sequence: int) -> Window:
    """The end of a request that fits: the beginning of a context that is too long is left out."""
    ids = [*encoded.context, *encoded.continuation][-(sequence + 1) :]
    return Window(ids, min(len(encoded.continuation), len(ids) - 1))


def windows_of(encoded: Encoded, sequence: int) -> list[Window]:
    """The windows whose predictions add up to the request: one, unless the continuation alone is too long."""
    if len(encoded.continuation) <= sequence:
        return [window_of(encoded, sequence)]
    # Its first tokens follow the context's last; the rest is read as a text of its own length is.
    return rolling_windows(encoded.continuation, before=encoded.context[-1], sequence=sequence)


def rolling_windows(ids: Sequence[int], *, before: int, sequence: int) -> list[Window]:
    """Windows that predict every id of a text once; `before` stands in front of the first.

    The last window reads ids that were predicted already, as many as fit.
    """
    first = list(ids[:sequence])
    found = [Window([before, *first], len(first))] if first else []
    done = len(first)
    while done < len(ids):
        end = min(done + sequence, len(ids))
        found.append(Window(list(ids[end - sequence - 1 : end]), end - done))
        done = end
    return found


def _parted(request: Request) -> tuple[str, str]:
    context = request.context.rstrip()
    return context, request.context[len(context) :] + request.continuation


def _pair(
    context: str, continuation: str, ids: dict[str, list[int]], alone: list[int], start: int
) -> Encoded:
    if not context:
        return Encoded([start], alone)
    before, whole = ids[context], ids[context + continuation]
    # A tokenizer may join across the border; what would be left then is no encoding of the continuation.
    joined = whole[: len(before)] != before or len(whole) == len(before)
    return Encoded(before, alone if joined else whole[len(before) :])
