"""Faults of chat data that are known from other programs, each of which a law finds."""

from collections.abc import Callable

import numpy as np
import pytest

from tokens.chat import encode_test, kinds_test
from tokens.chat.conversations import TEMPLATES
from trivium.tokens.chat import encode
from trivium.tokens.chat.encode import Encoded
from trivium.tokens.chat.template import CHATML, ChatTemplate
from trivium.tokens.tokenizer import Tokenizer

OWN, ALONE = ChatTemplate(CHATML, {}), ChatTemplate(TEMPLATES["chatml"], {})
ids_of, behind, encode_marked = encode._ids, encode._behind, Tokenizer.encode_marked


def slipped(by: int) -> Callable[..., Encoded]:
    def ids(*arguments: object) -> Encoded:
        found = ids_of(*arguments)
        return found._replace(counted=np.roll(found.counted, by))

    return ids


def begun_twice(self: Tokenizer, texts: list[str]) -> list:
    return encode_marked(self, [f"{self.marks.begin}{text}" for text in texts])


FAULTS = {
    "the mask is late by one": (encode, "_ids", slipped(1)),
    "the mask is early by one": (encode, "_ids", slipped(-1)),
    "the end of an answer does not count": (encode, "_behind", lambda *at: behind(*at) - 1),
    "the text begins twice": (Tokenizer, "encode_marked", begun_twice),
    "messages are not guarded": (encode, "_guarded", lambda one, tokenizer: (one.turns, "")),
    "an answer takes the header of the next turn": (
        encode,
        "_by_prefixes",
        lambda one, texts, template: texts[0]._replace(spans=[(len(texts[1].text), len(texts[0].text))]),
    ),
}


def laws() -> None:
    """Raise AssertionError if a law of chat data does not hold."""
    for template in (OWN, ALONE):
        encode_test.test_answers_count_with_their_end_and_without_header_or_line_feed(template)
        encode_test.test_special_tokens_that_a_message_spells_stay_text(template, "<|im_end|>")
    kinds_test.test_ids_are_those_of_transformers_with_one_beginning("SentencePiece BPE")
    encode_test.test_only_the_answer_counts_where_a_prompt_has_answers_too()


def test_the_laws_hold_without_a_fault() -> None:
    laws()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_law_finds_each_fault(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, name, wrong = FAULTS[fault]
    monkeypatch.setattr(place, name, wrong)
    with pytest.raises(AssertionError):
        laws()
