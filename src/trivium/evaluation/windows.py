"""Tokenize requests and cut them into the windows that a model reads, as lm-evaluation-harness does.

The exception is a tokenizer that merges a continuation into its context: see `encode_all`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from trivium.evaluation.requests import Request
from trivium.tokens.tokenizer import Tokenizer


class Encoded(NamedTuple):
    """The token ids of a request."""

    context: list[int]
    continuation: list[int]


class Window(NamedTuple):
    """At most sequence + 1 ids. The last `answer` ids are predicted, each from all ids before it."""

    ids: list[int]
    answer: int

    @property
    def read(self) -> list[int]:
        """The ids that the model reads. The last id is only predicted."""
        return self.ids[:-1]


def encode_all(requests: Sequence[Request], tokenizer: Tokenizer) -> list[Encoded]:
    """Tokenize requests so that context and continuation together spell the text.

    Both are encoded together and then split; spaces between them belong to the continuation. An empty context is
    the beginning of a document. If a token of the joint encoding crosses the border ("peo" and "ple" as "people"), the
    ids of the context are kept, and the continuation is encoded as the end of a word. A tokenizer that cannot encode
    the end of a word (one id per word) is asked for the tokens of the joint encoding after their common prefix with
    the context.
    """
    pairs = [
        (context, r.context[len(context) :] + r.continuation) for r in requests for context in (r.context.rstrip(),)
    ]
    whole = list(dict.fromkeys(text for c, a in pairs for text in (c, c + a) if c))
    ids = dict(zip(whole, tokenizer.encode_prompts(whole), strict=True))
    first = list(dict.fromkeys(a for c, a in pairs if not c))
    alone = dict(zip(first, tokenizer.encode_batch(first), strict=True))
    joined = {(c, a): (ids[c], a, ids[c + a]) for c, a in pairs if c and _across(ids[c], ids[c + a])}
    inside = dict(zip(joined, tokenizer.encode_continuations(list(joined.values())), strict=True))

    found = []
    for context, continuation in pairs:
        if not context:
            found.append(Encoded([tokenizer.before_text], alone[continuation]))
            continue
        before, both = ids[context], ids[context + continuation]
        rest = inside.get((context, continuation), both[len(before) :])
        if rest is None:  # split after the common prefix, leaving at least one token on each side
            shared = next((n for n, (a, b) in enumerate(zip(before, both, strict=False)) if a != b), len(both))
            cut = max(min(shared, len(both) - 1), 0)
            before, rest = both[:cut] or [tokenizer.before_text], both[cut:]
        found.append(Encoded(before, rest))
    return found


def window_of(encoded: Encoded, sequence: int) -> Window:
    """Return the end of a request that fits into the sequence; the beginning of a longer context is cut off."""
    ids = [*encoded.context, *encoded.continuation][-(sequence + 1) :]
    return Window(ids, min(len(encoded.continuation), len(ids) - 1))


def windows_of(encoded: Encoded, sequence: int) -> list[Window]:
    """Return windows whose log-likelihoods add up to the request's: one, unless the continuation is too long."""
    if len(encoded.continuation) <= sequence:
        return [window_of(encoded, sequence)]
    # The first tokens follow the context's last token; the others are read like a long text.
    return rolling_windows(encoded.continuation, before=encoded.context[-1], sequence=sequence)


def rolling_windows(ids: Sequence[int], *, before: int, sequence: int) -> list[Window]:
    """Return windows that predict each id of a text once. `before` precedes the first id.

    The last window also reads ids that were already predicted, as many as fit.
    """
    first = list(ids[:sequence])
    found = [Window([before, *first], len(first))] if first else []
    done = len(first)
    while done < len(ids):
        end = min(done + sequence, len(ids))
        found.append(Window(list(ids[end - sequence - 1 : end]), end - done))
        done = end
    return found


def _across(before: list[int], both: list[int]) -> bool:
    """Whether a token of the joint encoding crosses the end of the context, or no token follows it."""
    return both[: len(before)] != before or len(both) == len(before)
