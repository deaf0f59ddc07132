"""Compiled kernels are kept where the user may write, belong to one state of the code, and are made by one process."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from trivium.corpus.kernels import cache

FOLDER_OF = "from trivium.corpus.kernels.cache import CACHE; print(CACHE)"


def folder_of_a_new_process(**environment: str) -> Path:
    left = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", FOLDER_OF], env=left | environment, capture_output=True, text=True, check=True
    )
    return Path(done.stdout.strip())


def test_the_users_cache_directory_holds_the_kernels(tmp_path: Path) -> None:
    found = folder_of_a_new_process(XDG_CACHE_HOME=str(tmp_path))
    assert found.parent == tmp_path / "trivium" and found.is_dir()
    assert stat.S_IMODE(found.stat().st_mode) == 0o700  # compiled code of others must not get in


def test_an_empty_name_of_the_cache_directory_counts_as_none(tmp_path: Path) -> None:
    found = folder_of_a_new_process(XDG_CACHE_HOME="", HOME=str(tmp_path))
    assert found.parent == tmp_path / ".cache" / "trivium"


def test_every_module_of_kernels_takes_its_compiler_from_the_cache() -> None:
    """One that takes numba's own may be declared before the folder is chosen."""
    sources = Path(cache.__file__).parent.glob("*.py")
    assert [path.name for path in sources if "from numba import njit" in path.read_text()] == []


def test_the_folder_that_the_user_names_to_numba_comes_first(tmp_path: Path) -> None:
    found = folder_of_a_new_process(XDG_CACHE_HOME=str(tmp_path / "x"), NUMBA_CACHE_DIR=str(tmp_path / "n"))
    assert found.parent == tmp_path / "n"


def test_without_any_writable_folder_kernels_lie_in_a_temporary_one_that_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()  # nobody, not even root, makes a folder within a file
    monkeypatch.setattr(cache, "HERE", tmp_path / "file")
    monkeypatch.setattr(cache, "_key", lambda: "key")
    monkeypatch.setattr(cache.numba.config, "CACHE_DIR", str(tmp_path / "file"))
    removed: list[object] = []
    monkeypatch.setattr(cache.atexit, "register", lambda run, folder, **_: removed.append(folder))
    found = cache.keep_compiled_kernels()
    assert str(found) == cache.numba.config.CACHE_DIR and removed == [found]
    found.rmdir()


def test_a_folder_that_cannot_be_made_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert cache.first_writable([tmp_path / "file" / "a", tmp_path / "b"]) == tmp_path / "b"
    assert cache.first_writable([tmp_path / "file" / "a"]) is None


def test_a_change_of_any_kernel_needs_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "HERE", tmp_path)
    (tmp_path / "called.py").write_text("one")
    (tmp_path / "calls.py").write_text("two")
    before = cache._key()
    assert cache._key() == before
    (tmp_path / "called.py").write_text("eno")
    assert cache._key() != before


def test_of_two_at_once_one_compiles_and_the_other_waits_and_says_so(tmp_path: Path) -> None:
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


def test_a_compilation_that_breaks_off_is_done_again(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), cache.compiling(tmp_path, lambda *_: None) as missing:
        assert missing
        raise KeyboardInterrupt
    with cache.compiling(tmp_path, lambda *_: None) as missing:
        assert missing


def test_compiling_says_that_it_happens_once_and_how_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trivium.corpus.kernels import warm_up

    ran: list[int] = []
    told: list[tuple[int, int | None, str]] = []
    monkeypatch.setattr(warm_up, "CACHE", tmp_path)
    monkeypatch.setattr(warm_up, "_RUNS", (lambda: ran.append(1), lambda: ran.append(2)))
    for _ in range(2):
        warm_up.compile_once(lambda done, total, note: told.append((done, total, note)))
    assert ran == [1, 2]
    assert told == [(0, 2, warm_up.NOTE), (1, 2, warm_up.NOTE)]
    assert warm_up.NOTE.startswith("compiling kernels, once: about ")


ALL_THAT_IS_COMPILED = """
import gc, json, sys
from pathlib import Path
from numba.core.dispatcher import Dispatcher
from trivium.config import build
from trivium.corpus.config import CurateConfig
from trivium.corpus.pipeline import curate
from trivium.corpus.dedup.deduplicate import deduplicate
from trivium.corpus.read.files import Input
from trivium.corpus.kernels.warm_up import compile_once

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
from trivium.corpus.clean.extract import (extractor)
from trivium.corpus.config import ExtractConfig
extractor(ExtractConfig())(page)
missed = {d.py_func.__name__: sum(d.stats.cache_misses.values()) for d in gc.get_objects() if isinstance(d, Dispatcher)}
print(json.dumps({name: n for name, n in missed.items() if n}))
"""


def test_warming_up_compiles_every_kernel_that_the_verbs_use(tmp_path: Path, kernels: None) -> None:
    """A kernel that is called with other types than when all were compiled would be compiled without a word."""
    done = subprocess.run([sys.executable, "-c", ALL_THAT_IS_COMPILED, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "{}"
