"""Encode conversations and mark the tokens that count as targets."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trivium.tokens.chat.conversation import Conversation, Turn
from trivium.tokens.chat.template import ChatTemplate
from trivium.tokens.tokenizer import Tokenizer


class Encoded(NamedTuple):
    """Ids of a conversation. counted: 1 where an id counts as a target: those of answers, with the end of turn."""

    ids: NDArray[np.int64]
    counted: NDArray[np.uint8]


def encode_conversation(conversation: Conversation, template: ChatTemplate, tokenizer: Tokenizer) -> Encoded:
    """Return the ids of a conversation and which of them count.

    Raises DataError if the template does not say where answers begin and end.
    """
    prompt = tokenizer.encode(template.render(conversation.turns[:-1], True))
    whole = tokenizer.encode(template.render(conversation.turns))
    counted = np.zeros(len(whole), np.uint8)
    counted[len(prompt) :] = 1
    return Encoded(np.array(whole, np.int64), counted)


def encode_prompt(turns: Sequence[Turn], template: ChatTemplate, tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Return the ids of a conversation that is to be answered. Text of a turn never becomes a special token."""
    return np.array(tokenizer.encode(template.render(turns, True)), np.int64)


def end_of_turn_ids(template: ChatTemplate, tokenizer: Tokenizer) -> list[int]:
    """Return the ids of the text that ends an answer: a single special token for nearly all templates."""
    return tokenizer.encode(template.end_of_turn)


def encode_answer(
    prompt: Sequence[Turn], answer: Sequence[Turn], template: ChatTemplate, tokenizer: Tokenizer
) -> Encoded:
    """Return the ids of a prompt and its answer, of which only the turns of the answer count, as preferences need."""
    return encode_conversation(Conversation((*prompt, *answer), ""), template, tokenizer)
