"""`trivium init`: the file that it writes is short, explains itself, and works."""

import io
import shlex
import sys

import pytest

from trivium.cli.fields import meaning_of
from trivium.cli.run_config import Given, RunConfig, resolve
from trivium.config import preset_names


def settings(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def test_file_says_what_differs_from_its_preset_and_nothing_else(call, tmp_path):
    ended = call("init", "mine.yaml", "--lr", "1e-4", "--steps", "500", "--seed", "7")
    assert ended.returncode == 0, ended.stderr
    text = (tmp_path / "mine.yaml").read_text()
    assert [line.partition("  #")[0] for line in settings(text)] == [
        "base: demo",
        "seed: 7",
        "training:",
        "  steps: 500",
        "  lr: 0.0001",
    ]
    assert f"  lr: 0.0001  # {meaning_of(RunConfig, 'training.lr')}\n" in text
    given = ("training.lr=1e-4", "training.steps=500", "seed=7")
    assert resolve(Given(str(tmp_path / "mine.yaml"))) == resolve(Given("demo", given))


def test_every_preset_makes_a_file_that_is_this_preset(call, tmp_path):
    for name in preset_names():
        assert call("init", f"{name}.yaml", "--preset", name).returncode == 0
        assert resolve(Given(str(tmp_path / f"{name}.yaml"))) == resolve(Given(name))
        assert len(settings((tmp_path / f"{name}.yaml").read_text())) == 1


def test_other_number_of_ranks_has_the_layout_of_the_planner(call, tmp_path):
    ended = call("init", "--preset", "gpt-125m", "--ranks", "16", "--machine", "dgx-h100")
    assert ended.returncode == 0, ended.stderr
    config = resolve(Given(str(tmp_path / "trivium.yaml"))).checked()
    assert config.plan.layout.world_size == 16 and config.machine == "dgx-h100"
    assert config.plan.model == resolve(Given("gpt-125m")).plan.model


def test_command_that_it_prints_is_accepted(call, tmp_path):
    (tmp_path / "my text.txt").write_text("A page of text.\n" * 300)
    ended = call("init", "mine.yaml", "--data", "my text.txt")
    (train,) = (line.strip() for line in ended.stdout.splitlines()[1:])
    assert "my text.txt" in shlex.split(train)
    assert call(*shlex.split(train)[1:], "--dry-run").returncode == 0


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--preset", "dmo"], 2, "did you mean 'demo'"),
        (["mine.json"], 2, "end it in .yaml"),
        (["there.yaml"], 2, "is there already"),
        (["--data", "nowhere"], 4, "--data nowhere does not exist"),
        (["--dp", "3"], 2, "plan.layout.data"),
        (["--lr", "fast"], 2, "training.lr is 'fast'"),
        (["nowhere/mine.yaml"], 4, "nowhere does not exist"),
    ],
)
def test_nothing_is_written_where_something_is_wrong(call, tmp_path, words, code, says):
    (tmp_path / "there.yaml").write_text("base: demo\n")
    ended = call("init", *words)
    assert ended.returncode == code and says in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["there.yaml"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_four_questions_are_asked_on_a_terminal(call, tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("A page of text.")
    monkeypatch.setattr(sys, "stdin", Terminal("a.txt\ndemo\n8\n300\n"))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    ended = call("init", "mine.yaml")
    assert ended.returncode == 0, ended.stderr
    assert resolve(Given(str(tmp_path / "mine.yaml"))) == resolve(Given("demo", ("training.steps=300",)))
    assert "--data a.txt" in (tmp_path / "mine.yaml").read_text()


def test_questions_that_options_answer_are_not_asked(call, tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("A page of text.")
    monkeypatch.setattr(sys, "stdin", Terminal(""))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    words = ("--data", "a.txt", "--preset", "demo", "--ranks", "8", "--steps", "300")
    assert call("init", "mine.yaml", *words).returncode == 0
