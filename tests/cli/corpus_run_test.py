"""`trivium corpus run` as a user types it: killed and resumed, on every engine, always the same bytes."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from trivium.cli import corpus
from trivium.cli.main import command_line
from trivium.errors import ConfigError
from trivium.seeds import generator_for

SMALL = ("--set", "harvest.max_bytes=600000", "--set", "harvest.shard_bytes=150000")
TRIVIUM = (sys.executable, "-m", "trivium.cli.main")


def command(out, *words):
    return [*TRIVIUM, "corpus", "run", "demo", "--out", str(out), *SMALL, *words]


def finish(out, *words):
    subprocess.run(command(out, *words), check=True, capture_output=True, timeout=240)


def assert_identical(a, b):
    ended = subprocess.run([*TRIVIUM, "diff", str(a), str(b)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "identical" in ended.stdout


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "whole"
    finish(out, "--engine", "here")
    return out


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_with_the_same_bytes(whole, tmp_path):
    generator = generator_for(1, "moments")
    for _ in range(8):
        process = subprocess.Popen(
            command(tmp_path, "--engine", "here"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(float(generator.uniform(1, 8)))
        process.send_signal(signal.SIGKILL)
        process.wait()
    finish(tmp_path, "--engine", "here")
    assert_identical(whole, tmp_path)


@pytest.mark.slow
def test_the_ray_engine_gives_the_same_bytes(whole):
    pytest.importorskip("ray", reason="Ray is an extra: pip install -e '.[ray]'")
    # Ray's sockets lie below the folder for temporary files, and their paths may have 107 characters
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        out = Path(folder) / "out"
        environment = {**os.environ, "TMPDIR": folder}
        words = command(out, "--engine", "ray", "--workers", "2")
        subprocess.run(words, check=True, capture_output=True, timeout=280, env=environment)
        assert_identical(whole, out)


def test_an_engine_that_does_not_exist_and_no_workers_are_refused_before_anything_starts(tmp_path):
    for words, what in (("--engine", "rya"), "did you mean 'ray'"), (("--workers", "0"), "1 or more"):
        ended = subprocess.run(command(tmp_path, *words), capture_output=True, text=True)
        assert ended.returncode == 2
        assert what in ended.stderr
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("verb", [("harvest",), ("curate",), ("step", "quality", "IN", "OUT")], ids=lambda v: v[0])
def test_workers_that_would_have_nothing_to_do_are_refused(verb, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("IN").mkdir()
    words = ["corpus", *verb, "--engine", "here", "--workers"]
    with pytest.raises(ConfigError, match="--workers 2: under --engine here this process does all the work"):
        command_line()([*words, "2"], prog_name="trivium", standalone_mode=False)
    assert [path.name for path in tmp_path.iterdir()] == ["IN"]


def test_under_every_engine_a_run_takes_as_many_workers_to_its_tokens(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(corpus, "tokenizing", lambda workers: asked.append(workers) or corpus.HARVEST)
    monkeypatch.setattr(corpus, "perform", lambda *_, **__: None)
    words = ["corpus", "run", "demo", "--out", str(tmp_path / "run"), "--engine", "here", "--workers", "2"]
    command_line()(words, prog_name="trivium", standalone_mode=False)
    assert asked == [2]
