"""From text to the windows of token ids that a model reads, as lm-evaluation-harness cuts them.

The exception is a tokenizer that joins a continuation to its context: see `encode_all`.
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
    """Each request as ids, which together spell its text.

    Context and continuation are encoded together and then split, with the spaces between them in the continuation; an
    empty context is the beginning of a document. Where a token of the joint encoding lies across the border ("peo" and
    "ple" as "people"), the ids of the context are kept, and the continuation is encoded as the end of a word. A
    tokenizer that cannot spell the end of a word (one id for each word) is asked for the tokens of the joint encoding
    behind the last one that it shares with the context.
    """
    pairs = [_parted(r) for r in requests]
    whole = list(dict.fromkeys(text for c, a in pairs for text in (c, c + a) if c))
    ids = dict(zip(whole, tokenizer.encode_prompts(whole), strict=True))
    first = list(dict.fromkeys(a for c, a in pairs if not c))
    alone = dict(zip(first, tokenizer.encode_batch(first), strict=True))
    joined = {(c, a): (ids[c], a, ids[c + a]) for c, a in pairs if c and _across(ids[c], ids[c + a])}
    inside = dict(zip(joined, tokenizer.encode_continuations(list(joined.values())), strict=True))

    def encoded(pair: tuple[str, str]) -> Encoded:
        context, continuation = pair
        if not context:
            return Encoded([tokenizer.before_text], alone[continuation])
        before, both = ids[context], ids[context + continuation]
        if pair not in inside:
            return Encoded(before, both[len(before) :])
        rest = inside[pair]
        return (
            _after_last_shared(before, both, tokenizer.before_text) if rest is None else Encoded(before, rest)
        )

    return [encoded(pair) for pair in pairs]


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


def _across(before: list[int], both: list[int]) -> bool:
    """Whether a token of the joint encoding lies across the end of the context, or nothing is left behind it."""
    return both[: len(before)] != before or len(both) == len(before)


def _after_last_shared(before: list[int], both: list[int], start: int) -> Encoded:
    """The joint encoding, split behind the last token that is the context's too, with a token at least on each side."""
    shared = next((n for n, (a, b) in enumerate(zip(before, both, strict=False)) if a != b), len(both))
    cut = min(shared, len(both) - 1)
    return Encoded(both[:cut] or [start], both[max(cut, 0) :])
