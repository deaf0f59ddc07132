"""Laws of engines: results in order, errors as they were raised, and the same corpus wherever the work runs."""

import hashlib
import inspect
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trivium.config import preset_names, read_preset
from trivium.corpus import daft_engine
from trivium.corpus.config import CurateConfig, HarvestConfig
from trivium.corpus.daft_engine import Daft
from trivium.corpus.engine import Here
from trivium.corpus.harvest.harvest import harvest
from trivium.corpus.pipeline import curate
from trivium.errors import ConfigError

SMALL = HarvestConfig(max_bytes=600_000, packages=("networkx",), evaluation_items=30, shard_bytes=150_000)


@pytest.fixture(scope="module")
def native():
    return Daft("native", workers=2)


@pytest.mark.parametrize("light", [True, False])
@pytest.mark.parametrize("where", ["here", "native"])
def test_results_are_in_order_and_errors_keep_their_kind(where, light, native):
    engine = native if where == "native" else Here()
    names, heard = preset_names(), []
    # the task is a function that workers can import: the tree of a preset
    assert engine.map(read_preset, names, heard.append, light=light) == [read_preset(n) for n in names]
    assert heard == list(range(1, len(names) + 1))
    assert engine.map(read_preset, [], heard.append, light=light) == []
    with pytest.raises(ConfigError, match="there is no preset 'dem'; did you mean 'demo'?"):
        engine.map(read_preset, [*names, "dem"], heard.append, light=light)
    with pytest.raises(FileNotFoundError) as refused:  # what a system refuses keeps its number, which has a remedy
        engine.map(os.stat, ["/nowhere/at all"], heard.append, light=light)
    assert refused.value.filename == "/nowhere/at all"


@pytest.mark.parametrize("light", [True, False])
@pytest.mark.parametrize("workers", [1, 2])
def test_after_an_error_nothing_is_left_open_for_the_collector(light, workers, monkeypatch):
    """Daft's generators wait for its own thread as they end; the collector may run in that thread."""
    opened, right = [], daft_engine._rows

    def rows(*arguments):
        opened.append(right(*arguments))
        return opened[-1]

    monkeypatch.setattr(daft_engine, "_rows", rows)
    with pytest.raises(ConfigError) as held:  # with its traceback, and so with the frames that led to it
        Daft("native", workers=workers).map(read_preset, ["dem", *preset_names()], lambda done: None, light=light)
    assert held.value and opened
    assert all(inspect.getgeneratorstate(each) == inspect.GEN_CLOSED for each in opened)


@pytest.mark.broad
def test_the_corpus_does_not_depend_on_the_engine_or_on_the_number_of_workers(tmp_path):
    raw = tmp_path / "raw"
    raw.mkdir()
    harvest(SMALL, raw, seed=3)
    found = []
    for number, engine in enumerate((Here(), Daft("native", workers=2), Daft("native", workers=1))):
        out = tmp_path / str(number)
        out.mkdir()
        curate(CurateConfig(shard_bytes=200_000), raw, out, seed=3, engine=engine)
        files = sorted(path for path in out.rglob("*") if path.is_file())
        found.append({p.relative_to(out): hashlib.sha256(p.read_bytes()).hexdigest() for p in files})
    assert len(found[0]) > 7
    assert found[0] == found[1] == found[2]


def test_an_engine_that_is_not_known_is_refused():
    with pytest.raises(ConfigError, match="did you mean 'native'"):
        Daft("nativ", workers=1)


# it knows who started it before it tells that it is there: whoever started it ends as soon as that is heard
WORKER = """
import os
from trivium.corpus.engine import end_with
parent = os.getppid()
print(1, flush=True)
end_with(parent)
"""
STARTER = f"""
import subprocess, sys
worker = subprocess.Popen([sys.executable, "-c", {WORKER!r}], stdout=subprocess.PIPE)
worker.stdout.readline()
print(worker.pid)
"""


def test_a_worker_ends_soon_after_the_process_that_started_it_was_killed():
    """It would go on for hours with a file of its own, beside the workers of the process that goes on."""
    told = subprocess.check_output([sys.executable, "-c", STARTER], text=True, timeout=60)
    place, until = Path("/proc", told.strip()), time.monotonic() + 60
    while place.exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not place.exists()
