"""Errors of a request refer to the type that matches its value best."""

import json

import pytest

from evaluation.models import TOKENIZER
from trivium.errors import DataError
from trivium.serving import ask
from trivium.serving.ask import ChatCompletion, Completion, Refused, prompts_of
from trivium.serving.chat import Chat
from trivium.serving.config import ServeConfig

NEAREST = ask._nearest


def parse(body, kind=Completion):
    return ask.parse(body, ServeConfig(), kind)


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
def test_error_refers_to_best_matching_type(body, message):
    with pytest.raises(Refused) as found:
        parse(body)
    assert found.value.message == message


@pytest.mark.parametrize(
    ("tree", "message", "errors"),
    [
        ({"prompt": ["a"] * 8 + [[1]] * 9}, "prompt: 17 is more than 16, which this server allows", 0),
        ({"prompt": [1] * 9 + ["a"] * 9}, "prompt: input should be a valid integer", 4),
        ({"prompt": "a", **dict.fromkeys(map(str, range(9)), 1)}, "0: extra inputs are not permitted", 0),
        ({"prompt": "a", "stop": [""] * 9}, "stop: string should have at least 1 character", 2),
        ({"prompt": "a", "stop": ["b"] * 17}, "stop: 17 is more than 16, which this server allows", 0),
    ],
    ids=lambda value: str(value)[:30],
)
def test_validation_stops_at_few_errors(tree, message, errors, monkeypatch):
    """Reporting a megabyte of errors would block the server for seconds; one per type is enough."""
    seen = []
    monkeypatch.setattr(ask, "_nearest", lambda found: seen.append(len(found)) or NEAREST(found))
    with pytest.raises(Refused) as found:
        parse(json.dumps(tree).encode())
    assert found.value.message == message and sum(seen) == errors


LONG = 10**4000


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (Completion, {"prompt": [LONG]}),
        *((Completion, {"prompt": "a", field: LONG}) for field in ("max_tokens", "n", "logprobs")),
        *((ChatCompletion, {field: LONG}) for field in ("max_completion_tokens", "n", "top_logprobs")),
        (ChatCompletion, {"logprobs": True, "top_logprobs": LONG}),
    ],
    ids=lambda value: str(value)[:30],
)
def test_numbers_of_thousands_of_digits_are_cut_in_errors(kind, more):
    tree = more if kind is Completion else {"messages": [{"role": "user", "content": "a"}], **more}
    with pytest.raises(Refused, match="1" + "0" * 59 + " ") as found:
        ask.task_of(parse(json.dumps(tree), kind), Chat(None, TOKENIZER), ServeConfig(), 48)
    assert len(found.value.message) < 150


def test_lone_surrogate_error_suits_clients():
    asked = parse(b'{"prompt": "a\\ud800", "max_tokens": 1}')
    told = r"a text contains a lone surrogate .* at position 1\), .*; give full characters$"
    with pytest.raises(Refused, match=f"^prompt: {told}"):
        prompts_of(asked, TOKENIZER, ServeConfig(), 48)
    with pytest.raises(DataError, match=f"^{told}"):  # as in `trivium generate --prompt`
        TOKENIZER.prompt_ids(["a\ud800"])
