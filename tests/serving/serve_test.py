"""The server rejects invalid requests, answers valid ones, and drops jobs that nobody waits for."""

import asyncio
import contextlib
import json
import random
import re
import socket
import threading
import time
import tracemalloc

import pytest

pytest.importorskip("fastapi")
uvicorn = pytest.importorskip("uvicorn")

import requests  # noqa: E402
from starlette.testclient import TestClient  # noqa: E402

from evaluation.models import TEXTS, TOKENIZER, plan_of, scorer_of, write_checkpoint  # noqa: E402
from tokens.foreign import folder_of  # noqa: E402
from tokens.kinds import kind  # noqa: E402
from trivium.checkpoint.load import Checkpoint  # noqa: E402
from trivium.cli.serve import uvicorn_options  # noqa: E402
from trivium.errors import DataError  # noqa: E402
from trivium.evaluation.answer import NativeScorer  # noqa: E402
from trivium.evaluation.requests import Request  # noqa: E402
from trivium.interchange.export import export_hf  # noqa: E402
from trivium.serving.app import create_app  # noqa: E402
from trivium.serving.ask import CLIENT_FIELDS, NEUTRAL  # noqa: E402
from trivium.serving.config import Drawing, ServeConfig  # noqa: E402
from trivium.serving.guard import read_keys  # noqa: E402
from trivium.serving.worker import Worker  # noqa: E402
from trivium.serving.writer import Writer  # noqa: E402
from trivium.tokens.tokenizer import given_tokenizer  # noqa: E402

SCORER = scorer_of(plan_of(sequence=96))
LIMITS = ServeConfig(max_tokens=64, texts=8, queue=4, deadline_seconds=20)
JSON = {"content-type": "application/json"}
ASK = {"prompt": "Item 7 opens", "max_tokens": 8, "seed": 1, "temperature": 0.8}


@contextlib.contextmanager
def client_of(limits=LIMITS, writer=None, **more):
    app = create_app(Worker(writer or Writer(SCORER), limits), name="tiny", **more)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client
    app.app.state.server.worker.close()


@pytest.fixture(scope="module")
def client():
    with client_of() as found:
        yield found


def ask(client, **more):
    return client.post("/v1/completions", json={**ASK, **more})


def parts(client, **more):
    lines = ask(client, stream=True, **more).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines[:-2]]


def test_response_equals_writer_and_seed_repeats_it(client):
    first = ask(client).json()
    (expected,) = Writer(SCORER).write([ASK["prompt"]], Drawing(max_tokens=8, temperature=0.8, top_p=1, seed=1))
    assert first["choices"][0]["text"] == expected.text == ask(client).json()["choices"][0]["text"]
    assert first["choices"][0]["finish_reason"] == expected.finish
    assert first["usage"]["total_tokens"] == len(TOKENIZER.encode(ASK["prompt"])) + len(expected.tokens)
    without = {**ASK, "seed": None, "temperature": 2.0}
    texts = {client.post("/v1/completions", json=without).json()["choices"][0]["text"] for _ in range(4)}
    assert len(texts) > 1


def test_several_texts_of_several_prompts_are_in_order(client):
    choices = ask(client, prompt=["The", TOKENIZER and "Item"], n=3, echo=True).json()["choices"]
    assert [c["index"] for c in choices] == list(range(6))
    assert [c["text"].startswith("The") for c in choices] == [True] * 3 + [False] * 3
    ids = TOKENIZER.encode("Item 7 opens")
    assert ask(client, prompt=ids).json()["choices"] == ask(client).json()["choices"]
    assert ask(client, prompt=[ids]).json()["choices"] == ask(client).json()["choices"]


def test_echo_with_logprobs_equals_scorer(client):
    found = ask(client, prompt=TEXTS[1][:60] + " yes", echo=True, logprobs=3, max_tokens=0).json()["choices"][0]
    told = found["logprobs"]
    (expected,) = SCORER.loglikelihood([Request(TEXTS[1][:60], " yes")])
    assert sum(told["token_logprobs"][-expected.tokens :]) == pytest.approx(expected.loglikelihood, abs=1e-4)
    assert told["token_logprobs"][0] is None and told["top_logprobs"][0] is None
    assert all(len(top) == 3 for top in told["top_logprobs"][1:])
    assert found["text"] == TEXTS[1][:60] + " yes"
    assert all(found["text"][o:].startswith(t) for o, t in zip(told["text_offset"], told["tokens"]))


@pytest.mark.parametrize("more", [{}, {"logprobs": 2}, {"echo": True}, {"echo": True, "logprobs": 1}, {"n": 3},
                                  {"stop": [" "]}, {"max_tokens": 0, "echo": True}], ids=str)  # fmt: skip
def test_stream_equals_response(client, more):
    whole = ask(client, **more).json()["choices"]
    found = parts(client, **more)
    for choice in whole:
        mine = [p for p in found if p["index"] == choice["index"]]
        assert "".join(p["text"] for p in mine) == choice["text"]
        assert mine[-1]["finish_reason"] == choice["finish_reason"]
        if "logprobs" in more:
            streamed = [t for p in mine if p["logprobs"] for t in p["logprobs"]["tokens"]]
            assert streamed == choice["logprobs"]["tokens"]


@pytest.mark.parametrize("more", [{}, {"echo": True}, {"stop": ["e"]}, {"echo": True, "stop": [" t"]}, {"n": 2},
                                  {"prompt": "", "echo": True}, {"prompt": ["", "é文"], "echo": True},
                                  {"prompt": [0, 5, 7], "echo": True}], ids=str)  # fmt: skip
@pytest.mark.parametrize("streamed", [False, True])
def test_logprobs_belong_to_tokens_of_the_text(client, more, streamed):
    more = {**more, "logprobs": 1, "max_tokens": 24}
    for whole in ask(client, **more).json()["choices"]:
        text, told = whole["text"], [whole["logprobs"]]
        if streamed:
            told = [p["logprobs"] for p in parts(client, **more) if p["index"] == whole["index"] and p["logprobs"]]
        tokens, offsets = ([x for one in told for x in one[name]] for name in ("tokens", "text_offset"))
        assert len(tokens) == sum(len(one["token_logprobs"]) for one in told) > 0
        assert offsets == sorted(offsets) and offsets[0] == 0
        # The text is cut from each token to the next, and contains nothing after a stop.
        spelt = [text[a:b] for a, b in zip(offsets, [*offsets[1:], len(text)], strict=True)]
        assert "".join(spelt) == text
        for token, found in zip(tokens, spelt, strict=True):
            cut = token.startswith(found) and found == spelt[-1]
            nothing = token == "<|endoftext|>" and not found
            assert token == found or token.startswith("<token") or nothing or cut, (tokens, spelt)


def test_stop_ends_tokens_with_text(client):
    free = ask(client, logprobs=0, max_tokens=24).json()["choices"][0]
    stop = free["logprobs"]["tokens"][5][-2:]
    found = ask(client, logprobs=0, max_tokens=24, stop=stop).json()["choices"][0]
    assert found["finish_reason"] == "stop" and stop not in found["text"]
    assert all(offset < len(found["text"]) for offset in found["logprobs"]["text_offset"])


def test_openai_client_fields_are_accepted(client):
    optional = ("model", "max_tokens", "temperature", "top_p", "n", "stop", "logprobs", "echo", "stream", "user",
                "stream_options", "best_of", "top_k", "logit_bias", "seed", *NEUTRAL, *CLIENT_FIELDS)  # fmt: skip
    bare = {"prompt": "Item 7 opens", "seed": 1}
    # langchain_openai sends these with every request. LangChain before it also sent logit_bias and best_of.
    langchain = {"max_tokens": 16, "temperature": 1.0, "top_p": 1, "frequency_penalty": 0, "presence_penalty": 0.0}
    langchain |= {"n": 1, "logit_bias": {}, "best_of": 1, "user": "me", "suffix": None, "stop": None}
    neutral = {name: values[0] for name, values in NEUTRAL.items() if values}
    more = [{}, {**dict.fromkeys(optional), "seed": 1}, langchain, neutral, {"logit_bias": {"5": 0, "7": 0.0}}]
    answers = [client.post("/v1/completions", json={**bare, **fields}).json() for fields in more]
    assert all(answer["choices"] == answers[0]["choices"] for answer in answers)
    assert ask(client, n=2, best_of=2).status_code == 200


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"prompt": None}, "prompt: field required"),
        ({"unknown": None}, "unknown: extra inputs are not permitted"),
        ({"presence_penalty": 2.5}, "presence_penalty: input should be less than or equal to 2"),
        ({"frequency_penalty": False}, "frequency_penalty: input should be a valid number"),
        ({"best_of": 2}, "best_of: this server does not apply 2; leave the field out, or give 1 or n"),
        ({"logit_bias": {"5": -101}}, "logit_bias: input should be greater than or equal to -100"),
        ({"logit_bias": {"x": 1}}, "logit_bias: string should match pattern"),
        ({"logit_bias": {"99999": 1}}, "logit_bias: 99999 is not a token id; the vocabulary has"),
        ({"logit_bias": {str(k): 1 for k in range(1025)}}, "logit_bias: 1025 is more than 1024"),
        ({"logit_bias": [0]}, "logit_bias: input should be a valid dictionary"),
        ({"suffix": "end"}, 'suffix: this server does not apply "end"; leave the field out, or give "" or null'),
        ({"user": 5}, "user: input should be a valid string"),
        ({"tools": [{}]}, "tools: this server does not apply this value; leave the field out, or give [] or null"),
        ({"seed": 1.5}, "seed: input should be a valid integer"),
        ({"seed": -(1 << 63) - 1}, "seed: "),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options: input should be false"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_field_without_effect_is_rejected_by_name(client, wrong, message):
    answer = client.post("/v1/completions", json={"prompt": "x", **wrong})
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == next(iter(wrong))
    assert error["message"].startswith(message)


def test_negative_seed_is_valid(client):
    def texts(seed):
        return ask(client, seed=seed).json()["choices"]

    assert texts(-5) == texts(-5) != texts(5)
    assert ask(client, seed=-(1 << 63)).status_code == 200


def test_stream_ends_with_requested_usage(client):
    text = ask(client, stream=True, stream_options={"include_usage": True}).text
    trees = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n")[:-2]]
    assert trees[-1]["choices"] == [] and trees[-1]["usage"] == ask(client).json()["usage"]
    assert all(tree["usage"] is None for tree in trees[:-1])
    assert "usage" not in ask(client, stream=True).text


def test_models_health_and_page_are_served(client):
    assert client.get("/health").json() == {"status": "ok"}
    (about,) = client.get("/v1/models").json()["data"]
    assert (about["id"], about["object"], about["owned_by"]) == ("tiny", "model", "trivium")
    assert abs(about["created"] - time.time()) < 3600
    assert client.get("/v1/models/tiny").json() == about
    page = client.get("/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and policy.count("sha256-") == 2
    assert page.headers["x-content-type-options"] == "nosniff"
    script = re.search(r"<script>(.*?)</script>", page.text, re.DOTALL).group(1)
    assert "innerHTML" not in script and "outerHTML" not in script and "document.write" not in script
    assert not re.search(r"(src|href)=", page.text)
    assert client.get("/docs").status_code == client.get("/openapi.json").status_code == 404


def test_unknown_path_error_lists_endpoints(client):
    paths = [("POST", "/v1/embeddings", 404), ("GET", "/v1/models/gpt-4", 404), ("GET", "/v1/completions", 405)]
    for method, path, status in [*paths, ("GET", "/<script>", 404)]:
        found = client.request(method, path, json={"messages": []})
        error = found.json()["error"]
        assert found.status_code == status and set(error) == {"message", "type", "param", "code"}
        assert "'tiny' is" in error["message"] or "there are POST /v1/completions" in error["message"]
    assert client.get("/v1/completions").headers["allow"] == "POST"


REFUSED = [
    (b"", 400), (b"[]", 400), (b"3", 400), (b"null", 400), (b"{", 400), (b"\xff\xfe", 400), (b"{}", 400),
    (b'{"prompt": "x", "best_of": 2}', 400), (b'{"prompt": NaN}', 400),
    (b'{"prompt": "x", "temperature": NaN}', 400), (b'{"prompt": "x", "temperature": Infinity}', 400),
    (b'{"prompt": "x", "temperature": -Infinity}', 400), (b'{"prompt": "x", "temperature": 1e999}', 400),
    (b'{"prompt": "x", "temperature": -1}', 400), (b'{"prompt": "x", "temperature": "1"}', 400),
    (b'{"prompt": "x", "top_p": 0}', 400), (b'{"prompt": "x", "top_p": 1.1}', 400),
    (b'{"prompt": "x", "max_tokens": 65}', 400), (b'{"prompt": "x", "max_tokens": -1}', 400),
    (b'{"prompt": "x", "max_tokens": 1.5}', 400), (b'{"prompt": "x", "max_tokens": true}', 400),
    (b'{"prompt": "x", "max_tokens": 1' + b"0" * 5000 + b"}", 400),
    (b'{"prompt": "x", "n": 9}', 400), (b'{"prompt": "x", "n": 0}', 400),
    (b'{"prompt": ["a","b","c"], "n": 3}', 400), (b'{"prompt": []}', 400), (b'{"prompt": [[]], "n": 9}', 400),
    (b'{"prompt": [1, "a"]}', 400), (b'{"prompt": [-1]}', 400), (b'{"prompt": [100000]}', 400),
    (b'{"prompt": [1.5]}', 400), (b'{"prompt": {"a": 1}}', 400), (b'{"prompt": "\\ud800"}', 400),
    (b'{"prompt": "x", "logprobs": 21}', 400), (b'{"prompt": "x", "logprobs": -1}', 400),
    (b'{"prompt": "x", "stop": ""}', 200), (b'{"prompt": "x", "stop": [""]}', 400),
    (b'{"prompt": "x", "stop": ["a", 1]}', 400), (b'{"prompt": "x", "stop": ["\\ud800"]}', 400),
    (b'{"prompt": "x", "stop": "\\ud800"}', 400), (b'{"prompt": "x", "stop": "a\\udfff"}', 400),
    (b'{"prompt": "x", "seed": -1}', 200), (b'{"prompt": "x", "seed": 9223372036854775808}', 400),
    (b'{"prompt": "x", "repetition_penalty": 0}', 400), (b'{"prompt": "x", "repetition_penalty": 1e-300}', 400),
    (b'{"prompt": "x", "repetition_penalty": 0.01}', 200), (b'{"prompt": "x", "top_k": 99999999999999999999}', 400),
    (b'{"prompt": "x", "model": "gpt-4"}', 404), (b'{"prompt": "x", "model": "<script>"}', 404),
    (b'{"prompt": "x", "stream": "yes"}', 400), (b'{"prompt": "x", "echo": 1}', 400),
    (b"[" * 100_000, 400), (b'{"a":' * 50_000, 400), (b'{"prompt": ' + b"[" * 900 + b"]" * 900 + b"}", 400),
    (json.dumps({"prompt": "x " * 5000}).encode(), 400), (b'{"prompt": "' + b"x" * (1 << 20) + b'"}', 413),
    (b'{"\\ud800": 1, "prompt": "x"}', 400), (b'{"prompt": "\\u0000"}', 200), (b'{"prompt": ""}', 200),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status"), REFUSED, ids=[repr(b[:40]) for b, _ in REFUSED])
def test_invalid_requests_are_rejected_by_name(client, body, status):
    answer = client.post("/v1/completions", content=body, headers=JSON)
    assert answer.status_code == status, answer.text[:300]
    if status != 200:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert len(answer.text) < 2000


def hostile(number):
    """Return a body composed of valid and invalid parts, by number."""
    draw = random.Random(number)
    values = ["x", "", "\ud800", "<script>alert(1)</script>", None, True, -1, 0, 1, 10**30, 1e308, -0.0, [], {}, [[]],
              [[1], ["a"]], "\u0000" * 50, "é" * 300, [1] * 500, {"a": {"b": []}}]  # fmt: skip
    names = ["prompt", "max_tokens", "temperature", "top_p", "top_k", "n", "stop", "seed", "logprobs", "echo",
             "stream", "model", "repetition_penalty", "best_of", "__proto__", "\ud800"]  # fmt: skip
    tree = {"prompt": "x", **{draw.choice(names): draw.choice(values) for _ in range(draw.randint(1, 4))}}
    body = json.dumps(tree).encode()
    if number % 5 == 0:
        place = draw.randrange(len(body))
        body = body[:place] + bytes(draw.randrange(256) for _ in range(draw.randint(1, 9))) + body[place + 2 :]
    return body


def test_two_hundred_hostile_requests_cause_no_500(client):
    def send(numbers):
        statuses = []
        for number in numbers:
            statuses.append(client.post("/v1/completions", content=hostile(number), headers=JSON).status_code)
        return statuses

    send(range(40))  # fill caches
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        statuses = send(range(200))
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not [s for s in statuses if s >= 500]
    assert {200, 400} <= set(statuses)
    assert after - before < 4 << 20 and peak - before < 64 << 20
    assert ask(client).status_code == 200


def test_invalid_hosts_types_and_sizes_are_rejected_before_reading(client):
    post = lambda **more: client.post("/v1/completions", **{"json": ASK, **more}).status_code  # noqa: E731
    assert post(headers={"host": "evil.example"}) == 400
    assert post(headers={"content-type": "text/plain"}) == 415
    assert post(headers={"content-length": "2000000"}) == 413
    assert post(headers={"content-length": "-1"}) == 400
    assert client.get("/v1/completions").status_code == 405

    def endless():
        for _ in range(40):
            yield b"x" * 50_000

    sent = client.post("/v1/completions", content=endless(), headers=JSON)
    assert sent.status_code == 413


def test_key_is_required_if_configured():
    key = "0123456789abcdef-key"
    with client_of(keys=["another-key-of-ours-1", key]) as client:
        code = lambda **h: client.post("/v1/completions", json=ASK, headers=h).status_code  # noqa: E731
        assert code() == code(authorization="Bearer wrong") == code(authorization=key) == 401
        assert code(authorization=f"Bearer {key}") == 200
        assert client.get("/v1/models").status_code == 401
        assert client.get("/health").status_code == client.get("/").status_code == 200


def test_guessable_keys_are_rejected(tmp_path):
    path = tmp_path / "keys"
    for text in ("", "# none\n", "short\n"):
        path.write_text(text)
        with pytest.raises(DataError, match=r"serve\.keys"):
            read_keys(path)
    path.write_text("# ours\n0123456789abcdef\n\n")
    assert read_keys(path) == ["0123456789abcdef"]
    path.write_text("0123456789abcdef\n", encoding="utf-8-sig")  # some editors put a byte order mark first
    assert read_keys(path) == ["0123456789abcdef"]
    with pytest.raises(DataError, match="cannot be read"):
        read_keys(tmp_path / "absent")


class Hindered(Writer):
    """Takes `seconds` for each token, and stops at the second one until `may_go_on` is set.

    tokens: number of started tokens.
    """

    def __init__(self, seconds, *, stops=False):
        super().__init__(SCORER)
        self.seconds, self.tokens, self.may_go_on = seconds, 0, threading.Event()
        if not stops:
            self.may_go_on.set()

    def draft(self, *arguments, **more):
        draft = super().draft(*arguments, **more)
        done = draft.done
        draft.done = lambda ids: self._begin() or done(ids)
        return draft

    def _begin(self):
        self.tokens += 1
        assert self.tokens == 1 or self.may_go_on.wait(60)
        time.sleep(self.seconds)


@contextlib.contextmanager
def listening(limits, writer=None, **more):
    """Start a real server at a free port of this machine. more: options of uvicorn."""
    app = create_app(Worker(writer or Writer(SCORER), limits), name="tiny")
    with socket.create_server(("127.0.0.1", 0)) as place:
        server = uvicorn.Server(uvicorn.Config(app, **{**uvicorn_options(limits), **more}))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{place.getsockname()[1]}", app.app.state.server
        server.should_exit = True
        thread.join(10)
        app.app.state.server.worker.close()


def test_server_streams_limits_queue_and_cancels_jobs():
    limits = LIMITS.model_copy(update={"queue": 1, "deadline_seconds": 60.0, "together": 1})
    writer = Hindered(0.02, stops=True)
    with listening(limits, writer) as (url, server):
        long = {**ASK, "prompt": [5], "max_tokens": 60, "stream": True, "stop": ["never"]}
        leaving = requests.post(f"{url}/v1/completions", json=long, stream=True, timeout=30)
        parts = leaving.iter_content(16)  # Keep the reference: the connection is closed with it.
        assert next(parts)
        waiting = threading.Thread(
            target=requests.post, args=(f"{url}/v1/completions",), kwargs={"json": ASK, "timeout": 30}
        )
        waiting.start()
        patient = time.monotonic() + 30
        while not server.worker._waiting.full():
            assert time.monotonic() < patient, "the second request never waited"
            time.sleep(0.01)
        refused = requests.post(f"{url}/v1/completions", json=ASK, timeout=30)
        assert refused.status_code == 429 and refused.headers["retry-after"]
        leaving.close()
        writer.may_go_on.set()
        waiting.join(30)
        assert not waiting.is_alive()
        assert writer.tokens < 50  # far fewer than 60 plus a few
        assert requests.post(f"{url}/v1/completions", json=ASK, timeout=30).status_code == 200
        assert server.worker._waiting.empty()


def test_stalled_client_does_not_prevent_shutdown():
    limits = LIMITS.model_copy(update={"deadline_seconds": 3.0})
    app = create_app(Worker(Writer(SCORER), limits), name="tiny")
    body = json.dumps({**ASK, "prompt": [[5] * 80] * 8, "echo": True, "logprobs": 20, "stream": True}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with socket.create_server(("127.0.0.1", 0)) as place, socket.socket() as client:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # includes the buffers of connections
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        server = uvicorn.Server(uvicorn.Config(app, **uvicorn_options(limits)))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]}, daemon=True)
        thread.start()
        client.connect(place.getsockname())
        client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        assert client.recv(12).endswith(b"200")
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()
    app.app.state.server.worker.close()


def test_disconnect_is_noticed_during_fast_generation():
    writer = Hindered(0.03)
    with listening(LIMITS, writer) as (url, server):
        body = json.dumps({**ASK, "prompt": [5], "max_tokens": 64, "stop": ["never"]}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: {url.removeprefix('http://')}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as leaving:
            leaving.sendall(head.encode() + body)
            patient = time.monotonic() + 30
            while writer.tokens < 3:
                assert time.monotonic() < patient, "nothing was written"
                time.sleep(0.005)
        assert requests.post(f"{url}/v1/completions", json={**ASK, "max_tokens": 0}, timeout=30).status_code == 200
        before = 0  # Other requests are answered in the same batch, so one more token may begin meanwhile.
        while before != writer.tokens:
            before = writer.tokens
            time.sleep(0.5)
        assert before < 40


def test_disconnect_during_body_is_handled(client):
    """An exception in a handler would be printed with its traceback."""
    heard = iter(({"type": "http.request", "body": b'{"pro', "more_body": True}, {"type": "http.disconnect"}))
    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json"), (b"content-length", b"500")]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "headers": headers}
    said = []

    async def receive():
        return next(heard)

    async def send(message):
        said.append(message)

    asyncio.run(client.app(scope, receive, send))
    assert said[0]["status"] == 499


def test_others_are_served_while_large_request_is_tokenized(monkeypatch):
    """Tokenizing a megabyte takes a second or two, which would block all others and their streams."""
    from trivium.serving import app

    begun, may_end, read = threading.Event(), threading.Event(), app.task_of
    held = lambda *words: begun.set() or may_end.wait(20) and read(*words)  # noqa: E731
    monkeypatch.setattr(app, "task_of", held)
    with listening(LIMITS, Writer(SCORER)) as (url, _):
        asked = []
        one = threading.Thread(
            target=lambda: asked.append(requests.post(f"{url}/v1/completions", json=ASK, timeout=20).status_code)
        )
        one.start()
        assert begun.wait(20)
        assert requests.get(f"{url}/health", timeout=10).status_code == 200 and not asked
        may_end.set()
        one.join()
    assert asked == [200]


def test_deadline_during_prompt_reading_ends_stream(monkeypatch):
    from trivium.serving import worker

    read = worker.read_prompt
    monkeypatch.setattr(worker, "read_prompt", lambda *words: time.sleep(0.4) or read(*words))
    with client_of(LIMITS.model_copy(update={"deadline_seconds": 0.2})) as client:
        asked = {"prompt": ["Item", "The"], "echo": True, "logprobs": 1, "stream": True}
        lines = ask(client, **asked).text.split("\n\n")
        assert "not complete: late" in lines[0] and lines[1:] == ["data: [DONE]", ""]


def test_slow_request_ends_at_deadline():
    with client_of(LIMITS.model_copy(update={"deadline_seconds": 0.2}), Hindered(0.15)) as client:
        assert ask(client, max_tokens=60, stop="never").status_code == 504
        assert "not complete: late" in ask(client, max_tokens=60, stream=True).text


def test_queued_request_ends_at_deadline():
    limits = LIMITS.model_copy(update={"deadline_seconds": 0.3, "together": 1})
    writer = Hindered(0.02, stops=True)
    with listening(limits, writer) as (url, _):
        long = {**ASK, "max_tokens": 60, "stop": ["never"]}
        for _ in range(2):  # the first is being generated, the second is queued
            assert requests.post(f"{url}/v1/completions", json=long, timeout=20).status_code == 504
        writer.may_go_on.set()


def test_model_failure_does_not_stop_server():
    class Failing(Writer):
        def choose(self, logits, drafts):
            if len(drafts) > 1:
                raise RuntimeError("out of memory")
            return super().choose(logits, drafts)

    with client_of(writer=Failing(SCORER)) as client:
        assert ask(client, n=2).status_code == 503
        assert "out of memory" not in ask(client, n=2).text
        assert ask(client).status_code == 200


PAIRS = [("Item 7 opens", " the parser"), (TEXTS[0], " yes"), ("", "Item 9"), ("a b", " c"), ("The", " no 文")]


def test_lm_eval_requests_give_scorers_log_likelihoods(client):
    """Use the client's request and its parsing of the response, without its transport."""
    api = pytest.importorskip("lm_eval.models.openai_completions").LocalCompletionsAPI
    expected = SCORER.loglikelihood([Request(*p) for p in PAIRS])
    for (context, continuation), answer in zip(PAIRS, expected):
        before = TOKENIZER.encode(context) or [TOKENIZER.end_of_text]
        ids = TOKENIZER.encode(context + continuation)
        ids = ids if context else [*before, *ids]
        payload = api._create_payload(type("Asking", (), {"model": "tiny"}), [ids])
        told = client.post("/v1/completions", json=payload).json()
        ((total, greedy),) = api.parse_logprobs(told, [ids], [len(before)])
        assert total == pytest.approx(answer.loglikelihood, abs=1e-4) and greedy == answer.greedy


@pytest.mark.broad
@pytest.mark.parametrize("name", ["SentencePiece BPE", "Llama 3", "byte-level", "Unigram"])
def test_lm_eval_client_agrees_for_every_opening(tmp_path, name):
    """As in docs/serving.md: with add_bos_token if texts begin with a special token, otherwise without."""
    for library in ("lm_eval", "transformers", "tenacity", "aiohttp"):
        pytest.importorskip(library, reason="needs lm_eval[api]")
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    made = kind(name)
    words = given_tokenizer(str(folder_of(tmp_path / "words", made.description, tokenizer_config=made.config)))
    model = {"vocabulary": words.vocabulary, "end_of_text": words.end_of_text}
    checkpoint = write_checkpoint(tmp_path, plan_of("llama", sequence=96, model=model))
    words.save(tmp_path / "tokenizer.json")
    export_hf(Checkpoint.open(checkpoint), tmp_path / "hf", tokenizer=tmp_path / "tokenizer.json")
    scorer = NativeScorer.open(checkpoint, tmp_path / "tokenizer.json")
    pairs, texts = [(c[:60], a) for c, a in [*PAIRS, (TEXTS[1], " no")]], [TEXTS[2][:60], "x"]
    expected = [(a.loglikelihood, a.greedy) for a in scorer.loglikelihood([Request(*p) for p in pairs])]

    def asked(url, **more):
        client = LocalCompletionsAPI(
            base_url=f"{url}/v1/completions", model="tiny", tokenizer=str(tmp_path / "hf"), batch_size=2,
            max_length=scorer.sequence, max_retries=1, **more,
        )  # fmt: skip
        found = client.loglikelihood([Instance("loglikelihood", {}, p, 0) for p in pairs], disable_tqdm=True)
        rolled = client.loglikelihood_rolling(
            [Instance("loglikelihood_rolling", {}, (t,), 0) for t in texts], disable_tqdm=True
        )
        return found, rolled

    with listening(LIMITS, Writer(scorer)) as (url, _):
        found, rolled = asked(url, **({"add_bos_token": True} if words.opening else {}))
        if words.opening:  # given ids are used without a further opening
            assert asked(url)[1] != pytest.approx(rolled, abs=1e-2)
    assert [x for x, _ in found] == pytest.approx([x for x, _ in expected], abs=1e-4)
    assert [g for _, g in found] == [g for _, g in expected]
    assert rolled == pytest.approx(scorer.loglikelihood_rolling(texts), abs=1e-3)


def test_own_host_names_are_accepted_case_insensitively_and_ipv6_in_brackets():
    limits = LIMITS.model_copy(update={"hosts": ("Model.Example",), "host": "2001:db8::5"})
    own = ("model.example", "MODEL.example:8000", "LocalHost", "[2001:db8::5]:8000", "[2001:DB8::5]")
    with client_of(limits) as client:
        for host in (*own, "testserver", "example", "2001", "[2001:db8::6]:8000"):
            assert client.get("/health", headers={"host": host}).status_code == (200 if host in own else 400), host


def test_missing_body_is_awaited_until_deadline():
    with listening(LIMITS.model_copy(update={"deadline_seconds": 0.2})) as (url, _):
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=30) as line:
            line.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n"
                         b"Content-Type: application/json\r\n\r\n{")  # fmt: skip
            answer = b""
            while data := line.recv(4096):  # until the server closes the connection
                answer += data
        assert answer.startswith(b"HTTP/1.1 408 ")


ASK_HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


@contextlib.contextmanager
def lines_to(url, count):
    with contextlib.ExitStack() as stack:
        place = ("127.0.0.1", int(url.rpartition(":")[2]))
        yield [stack.enter_context(socket.create_connection(place, timeout=30)) for _ in range(count)]


def test_connections_without_a_full_head_take_nobodys_place_and_are_closed():
    limits = LIMITS.model_copy(update={"queue": 1})
    with listening(limits, timeout_keep_alive=2) as (url, _), lines_to(url, 30) as lines:
        for line in lines[20:]:
            line.sendall(ASK_HEAD + b"Content-Length: 2\r\n\r\n{}")
            assert line.recv(4096).startswith(b"HTTP/1.1 400 ")
        for line in lines[10:]:
            line.sendall(ASK_HEAD)  # unfinished
        assert requests.post(f"{url}/v1/completions", json=ASK, timeout=30).status_code == 200
        with contextlib.suppress(OSError):
            for number in range(200):  # one byte after another extends no time
                lines[0].sendall(ASK_HEAD[number : number + 1] or b"x")
                time.sleep(0.05)
            raise AssertionError("a head that takes 10 seconds was awaited")
        for line in lines[1:]:
            while line.recv(4096):  # until the server closes the connection
                pass


def test_more_open_requests_than_the_limit_are_refused_and_health_is_not():
    limits = LIMITS.model_copy(update={"queue": 1})
    with listening(limits) as (url, _), lines_to(url, 20) as lines:
        for line in lines:
            line.sendall(ASK_HEAD + b"Expect: 100-continue\r\nContent-Length: 100\r\n\r\n")
            assert line.recv(4096).startswith(b"HTTP/1.1 100 ")  # the server waits for the body
        refused = requests.post(f"{url}/v1/completions", json=ASK, timeout=30)
        assert refused.status_code == 429 and "20 requests are open" in refused.json()["error"]["message"]
        assert requests.get(f"{url}/health", timeout=30).status_code == 200
        lines[0].sendall(b"x" * 100)
        assert lines[0].recv(4096).startswith(b"HTTP/1.1 400 ")
        assert requests.post(f"{url}/v1/completions", json=ASK, timeout=30).status_code == 200


def test_client_that_does_not_read_is_disconnected_after_the_deadline():
    asked = 2000  # more pages than the buffers of a connection hold
    with listening(LIMITS.model_copy(update={"deadline_seconds": 1.0})) as (url, _), lines_to(url, 1) as (line,):
        line.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * asked)
        time.sleep(2)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while data := line.recv(1 << 20):
                answer += data
        assert 0 < answer.count(b"HTTP/1.1 200 ") < asked
        assert requests.get(f"{url}/health", timeout=30).status_code == 200
