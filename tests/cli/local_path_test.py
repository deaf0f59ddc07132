"""Options and arguments that are paths refuse URLs by name; folders that accept no new files are refused, too."""

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from trivium.cli import main as entry
from trivium.cli.ending import told
from trivium.cli.paths import local_path
from trivium.errors import ConfigError, MachineError

SOURCES = sorted(Path(entry.__file__).parent.glob("*.py"))
TAKES_NO_FILES = Path("/proc")


def path_options(tree: ast.AST) -> Iterator[ast.Call]:
    """Every typer.Option or typer.Argument that is annotated as a Path."""
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[kind, ast.Call() as call])):
                pass
            case ast.Call(func=ast.Name(id="_option"), args=[_, kind, ast.Call() as call, *_]):
                pass
            case _:
                continue
        if "Path" in ast.unparse(kind) and ast.unparse(call.func) in ("typer.Option", "typer.Argument"):
            yield call


def test_every_option_and_argument_that_is_a_path_refuses_urls() -> None:
    calls = [(file.name, call) for file in SOURCES for call in path_options(ast.parse(file.read_text()))]
    without = [
        f"{name}:{c.lineno}"
        for name, c in calls
        if not any(f"parser={parser}" in ast.unparse(c) for parser in ("local_path", "model_path"))
    ]
    assert len(calls) > 30 and without == []


def commands_with_out(command: Any, words: list[str]) -> Iterator[list[str]]:
    parameters = getattr(command, "params", [])
    if any("--out" in p.opts for p in parameters) and not any(p.required for p in parameters):
        yield words
    for name, below in getattr(command, "commands", {}).items():
        yield from commands_with_out(below, [*words, name])


def every_command_with_out() -> Iterator[list[str]]:
    for verb in entry.VERBS:
        command = typer.main.get_command(importlib.import_module(verb.module).app)
        yield from commands_with_out(command, [verb.name])


@pytest.mark.parametrize("scheme", ["s3", "gs", "hdfs", "https", "file"])
def test_a_url_is_refused_by_name_by_every_command_that_writes_a_folder(
    monkeypatch, capsys, tmp_path: Path, scheme: str
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = list(every_command_with_out()) if scheme == "s3" else [["demo"]]
    assert scheme != "s3" or len(commands) > 15
    for words in commands:
        monkeypatch.setattr(sys, "argv", ["trivium", *words, "--out", f"{scheme}://bucket/my-run"])
        with pytest.raises(SystemExit) as ended:
            entry.main()
        said = capsys.readouterr().err
        assert ended.value.code == ConfigError.exit_code, words
        assert f"{scheme}://bucket/my-run is a URL" in said and "./my-run" in said, words
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["runs/a", "/runs/s3:/a", "c:/runs", "a: b"])
def test_a_path_stays_as_it_is(path: str) -> None:
    assert local_path(path) == Path(path)


def test_tensorboard_files_go_to_no_url(monkeypatch, capsys, tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "metrics.jsonl").write_text("")
    words = ["trivium", "metrics", str(tmp_path), "--to", "tensorboard=s3://bucket/board"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == ConfigError.exit_code
    assert "s3://bucket/board is a URL" in capsys.readouterr().err


@pytest.mark.skipif(not TAKES_NO_FILES.is_dir(), reason="this system has no /proc")
def test_a_folder_that_accepts_no_new_files_is_named_with_a_remedy() -> None:
    for make in (Path.mkdir, Path.touch):
        with pytest.raises(OSError) as refused:
            make(TAKES_NO_FILES / "x")
        error = told(refused.value)
        assert isinstance(error, MachineError)
        assert "/proc/x" in str(error) and "name a folder elsewhere" in str(error)


def test_a_file_that_is_missing_where_files_can_be_made_is_not_blamed_on_its_folder(tmp_path: Path) -> None:
    with pytest.raises(OSError) as refused:
        (tmp_path / "absent").read_text()
    assert "accepts no new files" not in str(told(refused.value))
    assert list(tmp_path.iterdir()) == []
