"""Encode conversations, and mark the tokens that count as targets: those of answers, with the mark that ends them,
unless their data excludes them.

Text of a message never becomes a special token. A character that no text may use is put into each special token that
a message spells, and beside a message that begins or ends with a part of one, before the template is rendered. A
special token that is found around such a place was not written by the template alone and is encoded as text.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import groupby, islice
from typing import NamedTuple

import numpy as np
import tokenizers
from numpy.typing import NDArray

from trivium.errors import DataError
from trivium.tokens.chat.conversation import ASSISTANT, Conversation, Turn, agreement, counts
from trivium.tokens.chat.template import END, FILE, START, ChatTemplate, Request, Text, free_marks
from trivium.tokens.tokenizer import Tokenizer
from trivium.units import shown

_CONVERSATIONS_PER_BATCH = 256
_SHOWN_CHARACTERS = 40
_TAGS = f"write {{% generation %}} and {{% endgeneration %}} around answers in {FILE}"
_LETTER = "x"  # before a text that is encoded as the continuation of another


class Encoded(NamedTuple):
    """Ids of a conversation. counted: 1 where an id counts as a target, otherwise 0."""

    ids: NDArray[np.int64]
    counted: NDArray[np.uint8]


class _Marked(NamedTuple):
    """A rendered text. cuts: places in it around which no special token may be. spans: what counts."""

    text: str
    cuts: tuple[int, ...]
    spans: list[tuple[int, int]]


def encode_conversation(conversation: Conversation, template: ChatTemplate, tokenizer: Tokenizer) -> Encoded:
    """Return the ids of a conversation, whose assistant turns count unless their `counted` is false.

    They are found by the template's generation tags, or else as what an answer adds to the text before it. Raises
    DataError with the first difference if the text before an answer is not a beginning of the conversation.
    """
    return next(encode_conversations([conversation], template, tokenizer))


def encode_conversations(
    conversations: Iterable[Conversation], template: ChatTemplate, tokenizer: Tokenizer
) -> Iterator[Encoded]:
    """Yield the result of `encode_conversation` for each; many take much less time together."""
    left = iter(conversations)
    while batch := list(islice(left, _CONVERSATIONS_PER_BATCH)):
        answers = [[n for n, turn in enumerate(one.turns) if counts(turn)] for one in batch]
        yield from _encoded(batch, answers, template, tokenizer)


def encode_answer(
    prompt: Sequence[Turn], answer: Sequence[Turn], template: ChatTemplate, tokenizer: Tokenizer, name: str = ""
) -> Encoded:
    """Return the ids of a prompt and its answer, of which only the assistant turns of the answer count.

    name: of the conversation, for errors.
    """
    turns = (*prompt, *answer)
    counted = [n for n in range(len(prompt), len(turns)) if counts(turns[n])]
    return next(_encoded([Conversation(turns, name)], [counted], template, tokenizer))


def encode_prompt(turns: Sequence[Turn], template: ChatTemplate, tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Return the ids of a conversation that is to be answered, which end with the header of an answer."""
    safe, mark = _guarded(Conversation(tuple(turns), ""), tokenizer)
    [[text]] = template.texts([Request(safe, [(len(safe), True)])])
    whole = _unmarked(text, mark)
    return _ids(whole, tokenizer.encode_marked([whole.text])[0], tokenizer, "").ids


def end_of_turn_ids(template: ChatTemplate, tokenizer: Tokenizer) -> list[int]:
    """Return the ids that end an answer: those up to the first special token, which is one for nearly all templates.

    A template that writes nothing after an answer is given the end-of-text token.
    """
    if not template.end_of_turn:
        return [tokenizer.end_of_text]
    ids = list(tokenizer.encode_marked([template.end_of_turn])[0].ids)
    special = _guard_of(tokenizer).ids
    return ids[: next((n for n, token in enumerate(ids, 1) if token in special), len(ids))]


def _encoded(
    batch: Sequence[Conversation], answers: Sequence[Sequence[int]], template: ChatTemplate, tokenizer: Tokenizer
) -> Iterator[Encoded]:
    """Yield the ids of conversations. answers: the numbers of the turns of each that count."""
    guarded = [_guarded(one, tokenizer) for one in batch]
    asked = _asked_by_tags if template.has_tags else _asked_by_prefixes
    requests = [Request(turns, asked(turns, counted)) for (turns, _), counted in zip(guarded, answers, strict=True)]
    rendered = [
        [_unmarked(text, mark) for text in texts]
        for texts, (_, mark) in zip(_rendered(batch, requests, template), guarded, strict=True)
    ]
    if template.has_tags:
        wholes = [_by_tags(texts, template) for texts in rendered]
    else:
        wholes = [_by_prefixes(one, texts, template) for one, texts in zip(batch, rendered, strict=True)]
    encodings = tokenizer.encode_marked([whole.text for whole in wholes])
    if not template.has_tags:
        _check_prefixes(batch, rendered, encodings, tokenizer)
    for one, counted, whole, encoding in zip(batch, answers, wholes, encodings, strict=True):
        found = _ids(whole, encoding, tokenizer, one.name)
        if not template.end_of_turn:
            last = np.uint8(len(one.turns) - 1 in counted)
            found = Encoded(np.append(found.ids, tokenizer.end_of_text), np.append(found.counted, last))
        yield found


def _asked_by_tags(turns: Sequence[Turn], counted: Sequence[int]) -> list[tuple[int, bool]]:
    """Return the texts to render: all turns, and for each run of answers that do not count those before it and those
    up to its end."""
    answers = [n for n, turn in enumerate(turns) if turn.role == ASSISTANT]
    runs = [list(run) for is_counted, run in groupby(answers, lambda n: n in counted) if not is_counted]
    return [(len(turns), False), *((end, False) for run in runs for end in (run[0], run[-1] + 1))]


def _asked_by_prefixes(turns: Sequence[Turn], counted: Sequence[int]) -> list[tuple[int, bool]]:
    """Return the texts to render: all turns, and for each that counts the text before it and the text after it."""
    return [(len(turns), False), *(pair for n in counted for pair in ((n, True), (n + 1, False)))]


def _by_tags(texts: Sequence[_Marked], template: ChatTemplate) -> _Marked:
    """Return the whole text with a span for each answer that counts, and the mark that ends it if that follows the tag.

    texts: those of `_asked_by_tags`. The tags that a run adds to the text before it are its own.
    """
    whole, *parts = texts
    others = {
        number
        for before, after in zip(parts[::2], parts[1::2], strict=True)
        for number in range(len(before.spans), len(after.spans))
    }
    spans = [span for number, span in enumerate(whole.spans) if number not in others]
    end = template.end_of_turn
    return whole._replace(spans=[(a, b + len(end) * whole.text.startswith(end, b)) for a, b in spans])


def _by_prefixes(one: Conversation, texts: Sequence[_Marked], template: ChatTemplate) -> _Marked:
    """Return the whole text with a span for each answer: what it adds to the text before it, without the line end.

    texts: those of `_asked_by_prefixes`.
    """
    whole, spans, end = texts[0], [], template.end_of_turn
    for before, after in zip(texts[1::2], texts[2::2], strict=True):
        for begin, longer in ((before.text, after.text), (after.text, whole.text)):
            if not longer.startswith(begin):
                at = agreement(begin, longer)
                raise DataError(
                    f"{one.name}: {template.origin} renders the beginning of a conversation differently from the whole "
                    f"of it, from character {at} on ({_from(begin, at)} and {_from(longer, at)}), so it is unknown "
                    f"which text an answer is; {_TAGS}"
                )
        stripped = after.text.rstrip()
        stop = len(stripped) if end and stripped.endswith(end) else len(after.text)
        spans.append((len(before.text), stop))
    return whole._replace(spans=spans)


def _check_prefixes(
    batch: Sequence[Conversation],
    rendered: Sequence[Sequence[_Marked]],
    encodings: Sequence[tokenizers.Encoding],
    tokenizer: Tokenizer,
) -> None:
    """Raise DataError unless the ids before each answer are the first ones of the conversation's."""
    for one, (_, *parts), whole in zip(batch, rendered, encodings, strict=True):
        before = [text.text for text in parts[::2]]
        for text, encoding in zip(before, tokenizer.encode_marked(before), strict=True):
            at = agreement(encoding.ids, whole.ids)
            if at < len(encoding.ids):
                alone, together = (tokenizer.decode(ids[at : at + 1]) for ids in (encoding.ids, whole.ids))
                raise DataError(
                    f"{one.name}: the text before an answer, which ends with {text[-_SHOWN_CHARACTERS:]!r}, is encoded "
                    f"differently with the answer: its token {at} is {alone!r} alone and {together!r} together, so the "
                    f"model would be asked with other tokens than it learned from; {_TAGS}"
                )


def _from(text: str, at: int) -> str:
    return repr(text[max(at, 0) : max(at, 0) + _SHOWN_CHARACTERS])


def _rendered(batch: Sequence[Conversation], requests: Sequence[Request], template: ChatTemplate) -> list[list[Text]]:
    """Render a batch. Raises DataError with the name of the first conversation that cannot be rendered."""
    with suppress(DataError):
        return template.texts(requests)
    found, problems = [], []
    for one, request in zip(batch, requests, strict=True):  # each has the time that all had together
        try:
            found += template.texts([request])
        except DataError as error:
            problems.append(f"{one.name}: {error}" if one.name else str(error))
    if problems:
        more = f" (and {len(problems) - 1} of the {len(batch)} read with it)" if len(problems) > 1 else ""
        raise DataError(f"{problems[0]}{more}")
    return found


class _Guard(NamedTuple):
    """The tokens that a message may not contain.

    ids: those of the special tokens. refused: the same without the one of text that has no other. begins, ends:
    parts at either end of the tokens.
    """

    spelled: re.Pattern[str]
    ids: frozenset[int]
    refused: frozenset[int]
    begins: frozenset[str]
    ends: frozenset[str]
    longest: int

    def safe(self, text: str, mark: str) -> str:
        """Return a message with a mark in each special token that it spells, and where it may complete one."""
        while self.spelled.search(text):  # another one may begin inside of the first
            text = self.spelled.sub(lambda found: found[0][0] + mark + found[0][1:], text)
        before = mark if any(text[:size] in self.ends for size in range(1, self.longest)) else ""
        after = mark if any(text[-size:] in self.begins for size in range(1, self.longest)) else ""
        return f"{before}{text}{after}"


@lru_cache(maxsize=8)
def _guard_of(tokenizer: Tokenizer) -> _Guard:
    chatml = [token for token in (START, END) if token in tokenizer.words]
    tokens = sorted({*tokenizer.guarded, *chatml}, key=lambda token: (-len(token), token))
    long = [token for token in tokens if len(token) > 1]
    ids = frozenset(tokenizer.words[token] for token in tokens if token in tokenizer.words)
    unknown = {tokenizer.words[tokenizer.unknown]} - {tokenizer.end_of_text}
    return _Guard(
        re.compile("|".join(map(re.escape, long)) or r"(?!)"),
        ids,
        ids - unknown,
        frozenset(token[:size] for token in long for size in range(1, len(token))),
        frozenset(token[size:] for token in long for size in range(1, len(token))),
        max(map(len, long), default=1),
    )


def _guarded(one: Conversation, tokenizer: Tokenizer) -> tuple[Sequence[Turn], str]:
    """Return the turns with marks in their messages, and the character that marks; "" if there are none."""
    guard = _guard_of(tokenizer)
    mark = free_marks([turn.content for turn in one.turns], 1)[0]
    safe = tuple(turn._replace(content=guard.safe(turn.content, mark)) for turn in one.turns)
    return (one.turns, "") if safe == one.turns else (safe, mark)


def _unmarked(text: Text, mark: str) -> _Marked:
    """Return a rendered text without marks, and the places where they were."""
    if not mark:
        return _Marked(text.text, (), text.spans)
    places = [found.start() for found in re.finditer(mark, text.text)]
    cuts = tuple(place - number for number, place in enumerate(places))
    spans = [(a - bisect_left(places, a), b - bisect_left(places, b)) for a, b in text.spans]
    return _Marked(text.text.replace(mark, ""), cuts, spans)


def _ids(whole: _Marked, encoding: tokenizers.Encoding, tokenizer: Tokenizer, name: str) -> Encoded:
    """Return the ids of a text, with special tokens that its messages spell as text, and those that count."""
    ids = np.array(encoding.ids, np.int64)
    counted = np.zeros(len(ids), np.uint8)
    for begin, end in whole.spans:
        first = next((t for at in range(begin, end) if (t := encoding.char_to_token(at)) is not None), None)
        if first is not None:
            counted[first : _behind(encoding, end, len(ids))] = 1
    touched = {token for cut in whole.cuts if (token := encoding.char_to_token(cut)) is not None}
    guard = _guard_of(tokenizer)
    for token in sorted(touched, reverse=True):
        begin, end = _place(encoding, token)
        if ids[token] in guard.ids and any(begin < cut < end for cut in whole.cuts):
            spelled = _as_text(whole.text[begin:end], tokenizer)
            if guard.refused.intersection(spelled):
                raise DataError(
                    f"{name}{': ' if name else ''}a message contains {shown(whole.text[begin:end])}, which this "
                    "tokenizer cannot write as text; remove it"
                )
            ids = np.concatenate([ids[:token], np.array(spelled, np.int64), ids[token + 1 :]])
            as_before = np.full(len(spelled), counted[token], np.uint8)
            counted = np.concatenate([counted[:token], as_before, counted[token + 1 :]])
    return Encoded(ids, counted)


def _behind(encoding: tokenizers.Encoding, end: int, total: int) -> int:
    """Return the number of the first token behind the character before `end`. A character may take several tokens."""
    before = (t for at in range(end - 1, -1, -1) if (t := encoding.char_to_token(at)) is not None)
    token = next(before, -1) + 1
    while token < total and _place(encoding, token)[0] < end:
        token += 1
    return token


def _place(encoding: tokenizers.Encoding, token: int) -> tuple[int, int]:
    """Return the characters of a token."""
    return encoding.token_to_chars(token) or (0, 0)


def _as_text(text: str, tokenizer: Tokenizer) -> list[int]:
    """Return the ids of a text that continues another one."""
    letter, both = tokenizer.encode(_LETTER), tokenizer.encode(_LETTER + text)
    return both[len(letter) :] if both[: len(letter)] == letter else tokenizer.encode(text)
