"""The processes of `trivium serve --tp 2`: how they end, and what their clients then receive."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

import requests  # noqa: E402

from evaluation.models import TOKENIZER, plan_of, write_checkpoint  # noqa: E402

pytestmark = pytest.mark.broad


@contextlib.contextmanager
def serving(folder):
    """Start the server of two ranks; yield it, its address, and the ids of its ranks."""
    checkpoint = write_checkpoint(folder, plan_of(sequence=2048))
    words = [sys.executable, "-m", "trivium", "serve", checkpoint, "--tp", "2", "--port", "0"]
    words += ["--set", "serve.max_tokens=2000"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            address = server.stdout.readline().split()[-1]
            with open(f"/proc/{server.pid}/task/{server.pid}/children", encoding="ascii") as children:
                yield server, address, [int(child) for child in children.read().split()]
        finally:
            server.kill()


def stream(address, tokens):
    """Start a stream of `tokens` tokens, and return its lines after the first token."""
    body = {"prompt": "The", "max_tokens": tokens, "temperature": 0, "stream": True}
    body["logit_bias"] = {str(TOKENIZER.end_of_text): -100}
    lines = requests.post(f"{address}v1/completions", json=body, stream=True, timeout=100).iter_lines()
    assert next(lines).startswith(b"data: {")
    return lines


def assert_gone(processes):
    patient = time.monotonic() + 20
    while any(Path(f"/proc/{process}").exists() for process in processes):
        assert time.monotonic() < patient, f"{processes} are still there"
        time.sleep(0.05)


def test_sigterm_lets_a_request_finish_and_leaves_no_process(tmp_path):
    with serving(tmp_path) as (server, address, ranks):
        assert len(ranks) == 2
        lines = stream(address, 60)
        server.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
        assert rest[-1] == b"data: [DONE]"
        assert json.loads(rest[-2].removeprefix(b"data: "))["choices"][0]["finish_reason"] == "length"
        assert server.wait(60) == 128 + signal.SIGTERM
        assert_gone(ranks)


def test_connections_are_refused_while_the_last_requests_finish(tmp_path):
    with serving(tmp_path) as (server, address, ranks):
        lines = stream(address, 1000)
        server.send_signal(signal.SIGTERM)
        with pytest.raises(ConnectionRefusedError):
            while True:
                socket.create_connection(("127.0.0.1", int(address.strip("/").rpartition(":")[2])), timeout=60).close()
                time.sleep(0.05)
        assert Path(f"/proc/{ranks[0]}").exists(), (
            "connections were accepted until the end by a process that answers none"
        )
        assert [line for line in lines if line][-1] == b"data: [DONE]"


def test_rank_that_dies_ends_the_server_by_name_and_closes_streams(tmp_path):
    with serving(tmp_path) as (server, address, ranks):
        lines = stream(address, 2000)
        os.kill(ranks[1], signal.SIGKILL)
        with contextlib.suppress(requests.RequestException):  # the connection may be closed first
            assert b'"length"' not in b"".join(lines)
        assert server.wait(60) == 1
        assert "rank 1 of 2: killed by SIGKILL" in server.stderr.read()
        assert_gone(ranks)
