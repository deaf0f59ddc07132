"""A secret in a URL that a user types is neither stored nor shown, wherever it is typed."""

import base64
import gzip
import http.server
import json
import sys
import threading
from pathlib import Path

import fsspec.config
import pytest

from trivium.cli import main as entry
from trivium.cli.run_config import Given, RunConfig, resolve
from trivium.config import build, leaves, read_preset, to_tree
from trivium.errors import ConfigError

USER, SECRET = "us3rn4me", "s3cr3t"


@pytest.fixture
def call(monkeypatch, capfd, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fsspec.config, "conf", {})
    for name in ("FSSPEC_HTTP", "FSSPEC_HTTPS"):
        monkeypatch.setenv(name, "{}")  # put back what was there afterwards

    def do(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["trivium", *words])
        with pytest.raises(SystemExit) as stopped:
            entry.main()
        told = capfd.readouterr()
        return int(stopped.value.code or 0), told.out + told.err

    return do


def places_of_secret(folder: Path) -> list[str]:
    """Files, and names of files, that hold it."""
    found = [str(path) for path in folder.rglob("*") if SECRET in path.name or USER in path.name]
    for path in (path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        content += gzip.decompress(content) if content[:2] == b"\x1f\x8b" else b""
        if SECRET.encode() in content or USER.encode() in content:
            found.append(str(path))
    return found


URLS = (
    f"https://{USER}:{SECRET}@host.invalid/x.jsonl",
    f"https://host.invalid/x.jsonl?X-Amz-Signature={SECRET}",
    f"s3://{USER}:{SECRET}@bucket/x",
)


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(
    "words",
    [
        "corpus harvest --corpus URL --dry-run",
        "corpus harvest --corpus ssh+URL",
        "corpus step read URL --to there",
        "corpus show URL",
        "tokenize --set tokens.tokenizer=URL",
        "train --tokens URL",
        "train --set training.start_from=URL",
        "train --preset URL",
        "plan --machine URL",
        "plan show --stack URL",
        "diff URL URL",
        "config show --preset URL",
        "config show --set machine=URL",
        "config show --set URL",
        "config show --set URL=1",
        "config show --URL",
        "URL",
        "launch slurm --out URL",
        "checkpoint show URL",
        "checkpoint verify URL",
        "checkpoint import URL",
        "evaluate URL",
        "evaluate --data URL",
        "generate --file URL",
        "generate --checkpoint URL",
        "metrics URL",
        "report --out URL",
        "data step --out URL",
    ],
)
def test_a_secret_in_an_argument_is_in_no_message_and_no_file(call, tmp_path, words, url, debug):
    said = call(*words.replace("URL", url).split(), *(["--debug"] if debug else []))
    assert said[0] != 0 or "plan" in words or "launch" in words or "report" in words, said
    assert SECRET not in said[1] and USER not in said[1]
    assert places_of_secret(tmp_path) == []


def test_no_field_of_a_config_takes_a_secret():
    tree = to_tree(build(RunConfig, read_preset("demo")))
    for path, _ in leaves(tree):
        with pytest.raises(ConfigError) as refused:
            resolve(Given("demo", (f"{path}={URLS[0]}",)))
        assert f"{path} is '" in str(refused.value) and "': it holds a user name" in str(refused.value)
        assert SECRET not in str(refused.value) and USER not in str(refused.value)


def test_a_corpus_behind_a_password_is_read_and_the_password_forgotten(call, tmp_path, kernels):
    documents = [{"text": f"Document {n} of several, about rivers and {'boats ' * 40}."} for n in range(40)]
    content = "\n".join(map(json.dumps, documents)).encode()
    right = "Basic " + base64.b64encode(f"{USER}:{SECRET}@".encode()).decode()

    class Server(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            allowed = self.headers.get("Authorization") == right
            self.send_response(200 if allowed else 401)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            return allowed

        def do_GET(self):
            if self.do_HEAD():
                self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://{USER}:{SECRET}%40@127.0.0.1:{server.server_port}/docs.jsonl"
        code, told = call("corpus", "harvest", "--corpus", url, "--out", "run")
    finally:
        server.shutdown()
    assert code == 0, told
    assert SECRET not in told and USER not in told
    assert (tmp_path / "run" / "harvest" / "provenance.json").is_file()
    assert places_of_secret(tmp_path) == []
