"""Asking a judge: nothing is asked twice, nothing is lost, and the key is never stored or shown."""

import threading

import pytest

from evaluation.judges.stub import completion, serving
from trivium.config import build
from trivium.errors import ConfigError, DataError, MachineError
from trivium.evaluation.judges.asking import NoBackend, Record, judge
from trivium.evaluation.judges.config import JudgeConfig
from trivium.evaluation.judges.endpoint import Endpoint, checked_url
from trivium.evaluation.judges.prompts import prompt_named
from trivium.evaluation.judges.ratings import Item

ITEMS = [Item("A", str(n), f"Source {n}.", f"Output {n}.") for n in range(5)]
KEY = "sk-made-secret"


def ask(tmp_path, url, items=ITEMS, key=None, pauses=None, **settings):
    config = build(JudgeConfig, {"retries": 2, "timeout_seconds": 5, **settings})
    backend = Endpoint(url, "made", config, key)
    backend._wait = (pauses if pauses is not None else []).append
    record = Record.open(tmp_path / "answers.jsonl")
    return judge(items, prompt_named("da"), backend, record, config, model="made")


def number(body):
    return int(body["messages"][-1]["content"].split("Output ")[1].split(".")[0])


def test_recorded_answers_are_not_asked_for_again(tmp_path):
    with serving(lambda body, _: completion(str(10 * number(body)))) as (url, bodies):
        first = ask(tmp_path, url, ITEMS[:3])
        again = ask(tmp_path, url)
        assert [one.score for one in again] == [0, 10, 20, 30, 40]
        assert [one.score for one in first] == [0, 10, 20]
    assert sorted(map(number, bodies)) == [0, 1, 2, 3, 4]
    config = build(JudgeConfig, {})
    record = Record.open(tmp_path / "answers.jsonl")
    replayed = judge(ITEMS, prompt_named("da"), NoBackend(), record, config, model=record.only_model())
    assert [one.line() for one in replayed] == [one.line() for one in again]
    with pytest.raises(DataError, match="lacks 1 of the answers, the first about system 'A', segment '9'"):
        judge([*ITEMS, Item("A", "9", "s", "t")], prompt_named("da"), NoBackend(), record, config, model="made")


def test_order_of_rows_and_other_rows_do_not_change_a_score(tmp_path):
    prompts = {}

    def reply(body, _):
        prompts.setdefault(number(body), set()).add(body["messages"][-1]["content"])
        return completion(str(10 * number(body)))

    with serving(reply) as (url, _):
        one = ask(tmp_path, url)
        (tmp_path / "answers.jsonl").unlink()
        other = ask(tmp_path, url, ITEMS[::-1][:3])
    assert {j.item: j.score for j in other}.items() <= {j.item: j.score for j in one}.items()
    assert all(len(texts) == 1 for texts in prompts.values())


def test_equal_texts_of_two_systems_are_asked_about_once(tmp_path):
    same = [item._replace(system="B") for item in ITEMS]
    with serving(lambda body, _: completion("50")) as (url, bodies):
        assert len(ask(tmp_path, url, ITEMS + same)) == 10
    assert len(bodies) == 5


def test_what_was_answered_before_a_failure_is_kept(tmp_path):
    def reply(body, _):
        return completion("50") if number(body) < 3 else (500, {"error": "overloaded"}, {})

    pauses = []
    failed = "HTTP 500.*overloaded.*asked 3 times about system 'A', segment '3'"
    with serving(reply) as (url, _), pytest.raises(MachineError, match=failed):
        ask(tmp_path, url, pauses=pauses, requests=1)
    assert len(Record.open(tmp_path / "answers.jsonl").answers) == 3
    assert len(pauses) == 2 and pauses[1] > pauses[0]
    with serving(lambda body, _: completion("60")) as (url, bodies):
        assert [one.score for one in ask(tmp_path, url)] == [50, 50, 50, 60, 60]
    assert len(bodies) == 2


def test_answers_to_requests_in_flight_are_kept_when_another_fails(tmp_path):
    config = build(JudgeConfig, {"requests": 3, "retries": 0})
    endpoints, together = [], threading.Barrier(3)

    def reply(body, _):
        together.wait(10)  # all three are in flight
        if number(body) == 0:
            return 400, {"error": "no"}, {}
        endpoints[0]._stop.wait(10)  # until the failure was seen
        return completion("50")

    record = Record.open(tmp_path / "answers.jsonl")
    with serving(reply) as (url, bodies), pytest.raises(ConfigError, match="refused the request"):
        endpoints.append(Endpoint(url, "made", config))
        judge(ITEMS, prompt_named("da"), endpoints[0], record, config, model="made")
    assert len(bodies) == 3  # nothing was sent after the failure
    assert len(Record.open(tmp_path / "answers.jsonl").answers) == 2


def test_line_cut_by_a_crash_is_asked_for_again(tmp_path):
    path = tmp_path / "answers.jsonl"
    with serving(lambda body, _: completion("50")) as (url, bodies):
        ask(tmp_path, url)
        path.write_bytes(path.read_bytes()[:-20])
        assert [one.score for one in ask(tmp_path, url)] == [50] * 5
    assert len(bodies) == 6
    assert len(Record.open(path).answers) == 5


def test_unparsable_answers_are_repeated_with_a_higher_temperature(tmp_path):
    def reply(body, _):
        return completion("85" if body["temperature"] >= 0.2 or number(body) else "Good!")

    with serving(reply) as (url, bodies):
        found = ask(tmp_path, url, ITEMS[:2], attempts=5)
    assert [(one.score, one.attempts) for one in found] == [(85, 3), (85, 1)]
    assert [b["temperature"] for b in bodies if number(b) == 0] == [0.0, 0.1, 0.2]
    assert found[0].answer_tokens == 21 and found[0].reasoning_tokens == 9  # of all three attempts


def test_answers_that_stay_unparsable_are_told_with_their_reason(tmp_path):
    with serving(lambda body, _: completion("Good!" if number(body) else "85")) as (url, bodies):
        found = ask(tmp_path, url, ITEMS[:2], attempts=2)
    assert [one.score for one in found] == [85, None]
    assert found[1].line()["reasons"] == ["no number"] and len(bodies) == 3


def test_samples_are_averaged_over_those_that_were_parsed(tmp_path):
    answers = iter(["80", "90", "Good!"])
    with serving(lambda body, _: completion(next(answers))) as (url, bodies):
        (found,) = ask(tmp_path, url, ITEMS[:1], samples=3, attempts=1, requests=1, temperature=1.0)
    assert found.score == 85 and sorted(s.score or 0 for s in found.samples) == [0, 80, 90]
    assert len({body["seed"] for body in bodies}) == 3


@pytest.mark.parametrize(
    "response",
    [
        (200, b"not JSON", {}),
        (200, {"choices": []}, {}),
        (200, {"choices": [{"message": "x"}]}, {}),
        (200, {"choices": [{"message": {"content": ["85"]}}]}, {}),
        (429, {"error": "slow down"}, {"Retry-After": "9"}),
        (503, b"\xff\xfe", {}),
    ],
)
def test_failures_are_repeated(tmp_path, response):
    replies, pauses = iter([response]), []
    with serving(lambda body, _: next(replies, None) or completion("70")) as (url, _):
        (found,) = ask(tmp_path, url, ITEMS[:1], pauses=pauses)
    assert found.score == 70
    assert len(pauses) == 1 and (pauses[0] == 9 if response[0] == 429 else pauses[0] <= 1)


@pytest.mark.parametrize(
    ("status", "message"), [(400, "refused the request"), (401, "key"), (302, "refused the request")]
)
def test_refusals_are_not_repeated(tmp_path, status, message):
    response = (status, {"error": "no"}, {"Location": "http://127.0.0.1:9/"})
    with serving(lambda body, _: response) as (url, bodies), pytest.raises(ConfigError, match=message):
        ask(tmp_path, url, requests=1)
    assert len(bodies) == 1  # a redirect is not followed: it could take the key to another host


def test_refusal_of_one_item_names_its_row_and_without_it_the_others_get_scores(tmp_path):
    def reply(body, _):
        return (400, {"error": "context length exceeded"}, {}) if number(body) == 2 else completion("50")

    refused = r"about system 'A', segment '2' \(HTTP 400: .*context length.*leave out this row"
    with serving(reply) as (url, _), pytest.raises(ConfigError, match=refused):
        ask(tmp_path, url, requests=1)
    with serving(reply) as (url, _):
        assert [one.score for one in ask(tmp_path, url, ITEMS[:2] + ITEMS[3:])] == [50] * 4


@pytest.mark.parametrize("tokens", [-1, 1e3, True, "7", 10**400])
def test_count_of_tokens_that_cannot_be_one_is_unknown(tmp_path, tokens):
    with serving(lambda body, _: completion("70", tokens=tokens)) as (url, _):
        (found,) = ask(tmp_path, url, ITEMS[:1])
    assert found.score == 70 and found.line()["answer_tokens"] is None


def test_response_without_text_is_an_unparsable_answer(tmp_path):
    with serving(lambda body, _: completion(None)) as (url, _):
        (found,) = ask(tmp_path, url, ITEMS[:1], attempts=1)
    assert found.score is None


def test_parts_of_a_text_are_its_answer_without_the_thoughts(tmp_path):
    thoughts = {"type": "thinking", "thinking": [{"type": "text", "text": "40?"}]}
    parts = [thoughts, {"type": "text", "text": "8"}, {"type": "text", "text": "5"}]
    with serving(lambda body, _: completion(parts)) as (url, _):
        (found,) = ask(tmp_path, url, ITEMS[:1])
    assert found.score == 85


def test_error_in_a_successful_response_is_shown_without_the_key(tmp_path):
    for before in range(390, 420, 5):  # The message is cut inside of some of the keys.
        response = 200, {"error": {"message": f"quota of {KEY} exceeded {'.' * before} {KEY}"}}, {}
        with serving(lambda body, _, response=response: response) as (url, _), pytest.raises(MachineError) as caught:
            ask(tmp_path, url, ITEMS[:1], key=KEY, retries=0)
        assert "quota of *** exceeded" in str(caught.value) and KEY[:6] not in str(caught.value)


def test_endpoint_that_does_not_answer_is_given_up(tmp_path):
    silence = threading.Event()
    with serving(lambda body, _: silence.wait(5) or completion("70")) as (url, _):
        with pytest.raises(
            MachineError, match=r"no answer in 0.2 s, asked 2 times about .*; run the same command again"
        ):
            ask(tmp_path, url, ITEMS[:1], timeout_seconds=0.2, retries=1)
        silence.set()


def test_endless_response_is_cut_off(tmp_path):
    with serving(lambda body, _: (200, b" " * (5 << 20), {})) as (url, _), pytest.raises(DataError, match="more than"):
        ask(tmp_path, url, ITEMS[:1])


def test_key_is_sent_and_never_stored_or_shown(tmp_path):
    sent = []

    def reply(body, headers):
        sent.append(headers["Authorization"])
        return completion("70") if len(sent) == 1 else (403, {"error": f"wrong key {KEY}"}, {})

    with serving(reply) as (url, _), pytest.raises(ConfigError) as caught:
        ask(tmp_path, url, key=KEY, requests=1)
    assert sent[0] == f"Bearer {KEY}"
    assert KEY not in str(caught.value) and "wrong key ***" in str(caught.value)
    assert KEY not in (tmp_path / "answers.jsonl").read_text()


@pytest.mark.parametrize(
    ("url", "has_key", "message"),
    [
        ("ftp://host/v1", False, "no http"),
        ("localhost:8000", False, "no http"),
        ("https://me:pw@host/v1", False, "contains a secret"),
        ("https://host/v1?api_key=abc", False, "contains a secret"),
        ("http://host/v1", True, "unencrypted"),
    ],
)
def test_addresses_that_would_reveal_a_secret_are_refused(url, has_key, message):
    with pytest.raises(ConfigError, match=message) as caught:
        checked_url(url, has_key=has_key)
    assert "pw" not in str(caught.value) and "abc" not in str(caught.value)


def test_addresses_with_and_without_the_path_are_the_same():
    for url in ("https://host/v1", "https://host/v1/", "https://host/v1/chat/completions"):
        assert checked_url(url, has_key=True) == "https://host/v1/chat/completions"
    assert checked_url("http://localhost:8000/v1", has_key=True).startswith("http://localhost:8000/")
