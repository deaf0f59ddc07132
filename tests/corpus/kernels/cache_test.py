"""Compiled kernels are stored where the user may write, for one state of the code, and compiled by one process."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from trivium.corpus.kernels import cache, warm_up


def cache_of_a_new_process(**environment: str) -> Path:
    inherited = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    code = "from trivium.corpus.kernels.cache import CACHE; print(CACHE)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=inherited | environment, capture_output=True, text=True, check=True
    )
    return Path(done.stdout.strip())


@pytest.mark.parametrize(
    ("variables", "parent"),
    [
        ({"XDG_CACHE_HOME": "x"}, "x/trivium"),
        ({"XDG_CACHE_HOME": "", "HOME": "h"}, "h/.cache/trivium"),
        ({"XDG_CACHE_HOME": "x", "NUMBA_CACHE_DIR": "n"}, "n"),
    ],
)
def test_kernels_are_in_the_users_cache_directory(tmp_path, variables, parent) -> None:
    folder = cache_of_a_new_process(**{name: str(tmp_path / one) if one else "" for name, one in variables.items()})
    assert folder.parent == tmp_path / parent and folder.is_dir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700  # code compiled by others must not get in


def test_every_kernel_module_imports_njit_from_the_cache() -> None:
    """A module that imports numba's njit may be imported before the folder is chosen."""
    sources = Path(cache.__file__).parent.glob("*.py")
    assert [path.name for path in sources if "from numba import njit" in path.read_text()] == []


def test_without_a_writable_folder_kernels_are_in_a_temporary_one(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").touch()  # nobody, not even root, can create a folder inside a file
    assert cache.first_writable([tmp_path / "file" / "a", tmp_path / "b"]) == tmp_path / "b"
    assert cache.first_writable([tmp_path / "file" / "a"]) is None
    monkeypatch.setattr(cache, "HERE", tmp_path / "file")
    monkeypatch.setattr(cache, "_key", lambda: "key")
    monkeypatch.setattr(cache.numba.config, "CACHE_DIR", str(tmp_path / "file"))
    removed: list[object] = []
    monkeypatch.setattr(cache.atexit, "register", lambda run, folder, **_: removed.append(folder))
    folder = cache.keep_compiled_kernels()
    assert str(folder) == cache.numba.config.CACHE_DIR and removed == [folder]
    folder.rmdir()


def test_change_of_any_kernel_changes_the_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(cache, "HERE", tmp_path)
    (tmp_path / "called.py").write_text("one")
    (tmp_path / "calls.py").write_text("two")
    before = cache._key()
    assert cache._key() == before
    (tmp_path / "called.py").write_text("eno")
    assert cache._key() != before


def test_one_of_two_processes_compiles_and_the_other_waits(tmp_path) -> None:
    waits = threading.Event()
    compiled: list[str] = []

    def second() -> None:
        with cache.compiling(tmp_path, lambda done, total, note: waits.set()) as missing:
            compiled.extend(["second"] if missing else [])

    other = threading.Thread(target=second)
    with cache.compiling(tmp_path, lambda *_: None) as missing:
        assert missing
        other.start()
        assert waits.wait(10)
        compiled.append("first")
    other.join(10)
    assert compiled == ["first"]


def test_kernels_are_compiled_once_and_again_after_an_interruption(tmp_path, monkeypatch) -> None:
    with pytest.raises(KeyboardInterrupt), cache.compiling(tmp_path, lambda *_: None) as missing:
        assert missing
        raise KeyboardInterrupt
    ran: list[int] = []
    notes: list[tuple[int, int | None, str]] = []
    monkeypatch.setattr(warm_up, "CACHE", tmp_path)
    monkeypatch.setattr(warm_up, "_RUNS", (lambda: ran.append(1), lambda: ran.append(2)))
    for _ in range(2):
        warm_up.compile_once(lambda done, total, note: notes.append((done, total, note)))
    assert ran == [1, 2]
    assert notes == [(0, 2, warm_up.NOTE), (1, 2, warm_up.NOTE)]
    assert warm_up.NOTE.startswith("compiling kernels, once: about ")


ALL_KERNELS = """
import gc, json, sys
from pathlib import Path
from numba.core.dispatcher import Dispatcher
from trivium.config import build
from trivium.corpus.clean.extract import extractor
from trivium.corpus.config import CurateConfig, ExtractConfig
from trivium.corpus.dedup.deduplicate import deduplicate
from trivium.corpus.kernels.warm_up import compile_once
from trivium.corpus.pipeline import curate
from trivium.corpus.read.files import Input

root = Path(sys.argv[1])
compile_once()
words = [f"the water of and that have with {chr(97 + n % 26) * (n % 7 + 2)}" for n in range(90)]
texts = [" ".join(words[k:k + 60]) + ".\\nIt is to be read by all." for k in range(20)]
page = "<html><body><article><h1>A</h1><p>" + "</p><p>".join(texts[:5]) + "</p></article></body></html>"
(root / "raw" / "jsonl").mkdir(parents=True)
rows = [{"id": str(k), "text": t} for k, t in enumerate([*texts, *texts])]
(root / "raw" / "jsonl" / "x.jsonl").write_text("".join(json.dumps(r) + "\\n" for r in rows))
for by in ("near", "text", "lines"):
    (root / by).mkdir()
    deduplicate(CurateConfig(), Input(root / "raw"), root / by, by=by, seed=1, work=root / f".{by}")
(root / "out").mkdir()
loose = {"quality": {"words_low": 5}, "repetition": {"top_ngram": [1, 1, 1], "repeated_ngram": [1] * 6}}
curate(build(CurateConfig, loose), root / "raw", root / "out", seed=1)
extractor(ExtractConfig())(page)
missed = {d.py_func.__name__: sum(d.stats.cache_misses.values()) for d in gc.get_objects() if isinstance(d, Dispatcher)}
print(json.dumps({name: n for name, n in missed.items() if n}))
"""


def test_warm_up_compiles_every_kernel_that_commands_use(tmp_path, kernels) -> None:
    """A kernel that is called with other types than in the warm-up would be compiled without a message."""
    done = subprocess.run([sys.executable, "-c", ALL_KERNELS, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "{}"
