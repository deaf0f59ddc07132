"""A corpus is curated on a Ray cluster of several nodes: with small stores, and with a node lost, to the same bytes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from corpus.kills import digests
from trivium.seeds import generator_for

ray_cluster = pytest.importorskip("ray.cluster_utils", reason="Ray is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
STORE_BYTES = 75 << 20  # object store of a node: the least that Ray accepts
PATIENCE_SECONDS = 1500.0
WORDS = (
    "the of and to in a is that it was for on are with as his they be at one have this from or had by hot but some "
    "what there we can out other were all your when up use word how said an each she which do their time if will way "
    "about many then them would write like so these her long make thing see him two has look more day could go come"
).split()
CURATES = """
import os
import sys
from pathlib import Path
from trivium.cli.tokenize import chosen_engine
from trivium.corpus.config import CurateConfig
from trivium.corpus.pipeline import curate
from trivium.errors import TriviumError
engine, keep_all, raw, out = sys.argv[1:]
Path(out).mkdir(exist_ok=True)
config = CurateConfig(keep_all=True) if keep_all == "all" else CurateConfig(filters=("quality",))
try:
    curate(config, Path(raw), Path(out), seed=3, engine=chosen_engine(engine, None))
except TriviumError as error:
    print(error, flush=True)
    os._exit(error.exit_code)  # a thread may still wait for Ray
"""


def write_raw(folder: Path, *, files: int, file_bytes: int) -> Path:
    """Write JSON lines of sentences of common words."""
    (folder / "jsonl").mkdir(parents=True)
    for number in range(files):
        generator, size = generator_for(3, "raw", number), 0
        with open(folder / "jsonl" / f"part-{number:05d}.jsonl", "w", encoding="utf-8") as file:
            while size < file_bytes:
                words = generator.choice(WORDS, size=400).tolist()
                text = "".join(f"{word}.\n" if n % 12 == 11 else f"{word} " for n, word in enumerate(words))
                size += file.write(json.dumps({"id": f"{number}-{size}", "text": text}) + "\n")
    return folder


def start(engine: str, kept: str, raw: Path, out: Path, address: str = "") -> subprocess.Popen[bytes]:
    environment = os.environ | ({"RAY_ADDRESS": address} if address else {})
    with open(out.with_suffix(".log"), "wb") as log:
        command = [sys.executable, "-c", CURATES, engine, kept, str(raw), str(out)]
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def on_ray(nodes: int, kept: str, raw: Path, out: Path, *, lose_one: bool) -> str:
    """Curate on `nodes` nodes of one CPU each; return the output. lose_one: a node is killed once a part is done. If
    Ray does not continue without it, the same command does."""
    cluster = ray_cluster.Cluster()
    try:
        every = [
            cluster.add_node(num_cpus=1, include_dashboard=False, object_store_memory=STORE_BYTES) for _ in range(nodes)
        ]
        cluster.wait_for_nodes()
        process = start("ray", kept, raw, out, cluster.address)
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while lose_one and process.poll() is None and not any(out.glob(".work/**/counts.json")):
                assert time.monotonic() < deadline, out.with_suffix(".log").read_text()[-3000:]
                time.sleep(0.2)
            if lose_one:
                cluster.remove_node(every[-1], allow_graceful=False)
            code = process.wait(timeout=PATIENCE_SECONDS)
            printed = out.with_suffix(".log").read_text()
            if lose_one and code == 3:
                assert "run the same command again to continue on the remaining nodes" in printed
                process = start("ray", kept, raw, out, cluster.address)
                code = process.wait(timeout=PATIENCE_SECONDS)
        finally:
            process.kill()
    finally:
        cluster.shutdown()
    assert code == 0, out.with_suffix(".log").read_text()[-3000:]
    return printed


def equal_on_ray(folder: Path, nodes: int, kept: str, raw: Path, *, lose_one: bool) -> str:
    here = start("here", kept, raw, folder / "here")
    assert here.wait(timeout=PATIENCE_SECONDS) == 0, (folder / "here.log").read_text()[-3000:]
    printed = on_ray(nodes, kept, raw, folder / "ray", lose_one=lose_one)
    expected = digests(folder / "here")
    assert len(expected) > 2 and digests(folder / "ray") == expected
    return printed


def test_a_corpus_larger_than_the_stores_of_all_nodes_has_the_bytes_of_one_process(tmp_path: Path) -> None:
    raw = write_raw(tmp_path / "raw", files=12, file_bytes=14_000_000)
    assert sum(path.stat().st_size for path in raw.rglob("*.jsonl")) > 2 * STORE_BYTES
    equal_on_ray(tmp_path, 2, "all", raw, lose_one=False)


def test_a_corpus_has_the_bytes_of_one_process_though_a_node_is_lost(tmp_path: Path) -> None:
    raw = write_raw(tmp_path / "raw", files=8, file_bytes=2_000_000)
    printed = equal_on_ray(tmp_path, 3, "filtered", raw, lose_one=True)
    assert printed.count("warning: Ray lost node") == 1
