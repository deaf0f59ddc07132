"""Completion by a shell: commands, options, presets and choices, without torch."""

import subprocess
import sys

import pytest

from trivium.cli import main as entry

SCRIPT = """
import sys
from trivium.cli.main import main
try:
    main()
finally:
    print("torch" in sys.modules, file=sys.stderr)
"""


@pytest.fixture
def complete(monkeypatch, capsys):
    """Return what bash is proposed for the last of some words."""

    def run(*words: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["trivium"])
        monkeypatch.setenv("_TRIVIUM_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(["trivium", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        with pytest.raises(SystemExit):
            entry.main()
        return capsys.readouterr().out.split()

    return run


@pytest.mark.parametrize(
    ("words", "proposed"),
    [
        (["tr"], ["train"]),
        (["corpus", "har"], ["harvest"]),
        (["train", "--l"], ["--layers", "--lr"]),
        (["train", "--dry"], ["--dry-run"]),
        (["serve", "--po"], ["--port"]),
        (["serve", "--lr"], []),
        (["train", "--preset", "dem"], ["demo"]),
        (["plan", "search", "--model", "mt-"], ["mt-nlg-530b"]),
        (["train", "--dtype", "b"], ["bf16"]),
        (["corpus", "step", "ded"], ["dedup"]),
        (["plan", "show", "--machine", "sel"], ["selene"]),
    ],
    ids=" ".join,
)
def test_bash_is_proposed_what_may_follow(complete, words, proposed):
    assert sorted(complete(*words)) == proposed


def test_completion_does_not_import_torch(monkeypatch):
    environment = {"_TRIVIUM_COMPLETE": "complete_bash", "COMP_WORDS": "trivium train --l", "COMP_CWORD": "2"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert "--lr" in done.stdout and done.stderr.endswith("False\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script(call, monkeypatch, shell):
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: shell)
    assert "_TRIVIUM_COMPLETE=complete_" + shell in call("--show-completion").stdout
