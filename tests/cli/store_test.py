"""A training whose checkpoints are at a URL: its records follow it to every run directory that it resumes in."""

import shlex
from pathlib import Path

import pytest

from chaos.scene import VOCABULARY, write_tokens
from trivium.cli import hosts
from trivium.provenance import STAMP, write_json
from trivium.training.metrics import METRICS, read

SMALL = {
    "plan.model": "{layers: 2, hidden: 16, heads: 2, sequence: 8, vocabulary: 300, vocabulary_multiple: 2}",
    "plan.batch": "{sequences: 8, micro: 8, ramp: null}",
    "plan.zero": 0,
    "tokens.vocabulary": VOCABULARY,
    "training.decay": "constant",
    "training.warmup_tokens": 0,
    "training.checkpoint_every": 2,
    "training.validation_samples": 8,
}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tokens(tmp_path_factory.mktemp("store"))
    write_json(folder / STAMP, {"key": "tokens"})
    return folder


def words(tokens: Path, url: str, **more: object) -> list[str]:
    given = SMALL | {"training.store": url} | more
    sets = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    return ["train", "--preset", "demo", "--ranks", "1", "--tokens", str(tokens), *sets]


def steps(folder: Path) -> list[int]:
    return [m["step"] for m in read(folder / "training" / METRICS) if "batch_hash" in m]


@pytest.mark.broad
def test_records_follow_a_training_that_returns_to_an_older_run_directory(call, bucket, tokens, tmp_path) -> None:
    for out, count in (("a", 2), ("b", 4), ("a", 6)):
        ended = call(*words(tokens, bucket.url, **{"training.steps": count}), "--out", out)
        assert ended.returncode == 0, ended.stderr
        assert steps(tmp_path / out) == list(range(1, count + 1))
    metrics = tmp_path / "another" / "training" / METRICS
    call(*words(tokens, f"{bucket.url}-of-another", **{"training.steps": 2, "seed": 9}), "--out", "another")
    before = metrics.read_bytes()
    assert call(*words(tokens, bucket.url, **{"training.steps": 4, "seed": 9}), "--out", "another").returncode != 0
    assert metrics.read_bytes() == before, "the records of another training were replaced"


def test_hosts_resume_from_the_url_and_count_failures_from_its_newest_checkpoint(
    call, bucket, tokens, tmp_path, monkeypatch
) -> None:
    saved = []

    class Agent:
        """Stands for the agent of a host, which only tells what it would have done."""

        def __init__(self, job, meeting, requests) -> None:
            self.job, self.meeting = job, meeting

        def run(self) -> None:
            saved.append(self.job.saved())
            self.meeting.close(state="left")

    call(*words(tokens, bucket.url, **{"training.steps": 2}), "--out", "first")
    monkeypatch.setattr(hosts, "Agent", Agent)
    ended = call(*words(tokens, bucket.url, **{"training.steps": 4}), "--hosts", "1:1", "--out", "second")
    assert (ended.returncode, saved) == (0, [2]), ended.stderr
    assert steps(tmp_path / "second") == [1, 2]


@pytest.mark.parametrize("scheme", ["memory", "file", "local"])
def test_what_is_no_object_store_is_refused(call, tokens, tmp_path, scheme: str) -> None:
    url = f"{scheme}://{tmp_path}/store"
    for command, remedy in (
        (words(tokens, url), "set training.store=null and name the folder with --out"),
        (["data", "push", str(tokens), url], "copy the folder"),
        (["data", "pull", url, "here"], "copy the folder"),
    ):
        ended = call(*command)
        assert ended.returncode == 2 and remedy in ended.stderr, ended


def test_checkpoints_at_a_url_are_listed_verified_and_brought(call, bucket, tokens, tmp_path) -> None:
    assert call(*words(tokens, bucket.url, **{"training.steps": 4}), "--out", "run").returncode == 0
    place = f"{bucket.url}/checkpoints/step-00000004"
    listed = call("checkpoint", "show", "run")
    assert listed.returncode == 0 and [line.split()[0] for line in listed.stdout.splitlines()[1:]] == ["2", "4"]
    for which in (["4", "--out", "run"], ["run"], [place], [bucket.url]):
        verified = call("checkpoint", "verify", *which)
        assert verified.returncode == 0 and f"{place}: verified" in verified.stdout, verified
    assert f"{place}: step 4" in call("checkpoint", "show", "4", "--out", "run").stdout
    refused = call("checkpoint", "rm", "4", "--out", "run")
    assert refused.returncode == 2 and f"{place} is not deleted" in refused.stderr
    refused = call("generate", "run", "--prompt", "pa")
    assert refused.returncode == 5, refused
    remedy = refused.stderr.split("`")[1]
    brought = call(*shlex.split(remedy)[1:])
    assert brought.returncode == 0, brought
    written = call("generate", brought.stdout.strip(), "--prompt", "pa")
    assert written.returncode == 0, written
