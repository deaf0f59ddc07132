"""What is wrong with a request is told of the kind that its value is most like."""

import pytest

from evaluation.models import TOKENIZER
from trivium.errors import DataError
from trivium.serving.ask import Refused, parse, prompts_of
from trivium.serving.config import ServeConfig


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"prompt": "a", "stop": ["", "b"]}', "stop: string should have at least 1 character"),
        (b'{"prompt": [[1, 2], ["a"]]}', "prompt: input should be a valid integer"),
        (b'{"prompt": [[1, 2], [-1]]}', "prompt: input should be greater than or equal to 0"),
        (b'{"prompt": ["a", 3]}', "prompt: input should be a valid string"),
        (b'{"prompt": ["a", 3, "b"]}', "prompt: input should be a valid string"),
        (b'{"prompt": [1, 2, "a"]}', "prompt: input should be a valid integer"),
        (b'{"prompt": 3}', "prompt: input should be a valid string"),
        (b'{"prompt": "a", "n": 0}', "n: input should be greater than or equal to 1"),
    ],
)
def test_a_wrong_value_is_told_of_the_kind_it_is_most_like(body, message):
    with pytest.raises(Refused) as found:
        parse(body)
    assert found.value.message == message


def test_half_a_character_in_a_prompt_is_told_to_those_who_have_no_corpus():
    asked = parse(b'{"prompt": "a\\ud800", "max_tokens": 1}')
    told = r"a text holds half a character .* at position 1\), .*; give it in whole characters, as UTF-8 has them$"
    with pytest.raises(Refused, match=f"^prompt: {told}"):
        prompts_of(asked, TOKENIZER, ServeConfig(), 48)
    with pytest.raises(DataError, match=f"^{told}"):  # as of `trivium generate --prompt`
        TOKENIZER.prompt_ids(["a\ud800"])
