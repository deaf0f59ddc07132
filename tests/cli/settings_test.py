"""Fields of the config that have an option of their own, in every command with --set."""

import importlib
from collections import Counter

import pytest
import typer

from trivium.cli.main import VERBS
from trivium.cli.run_config import RunConfig
from trivium.cli.settings import SETS, Command, Group, options_of, root_of, shown_by
from trivium.config import field_paths, short_options
from trivium.evaluation.config import BenchmarkConfig, IncontextConfig


def _commands():
    """Yield (words, command) of every command and of every group that works alone."""
    for verb in VERBS:
        command = typer.main.get_command(importlib.import_module(verb.module).app)
        yield verb.name, command
        yield from ((f"{verb.name} {name}", each) for name, each in getattr(command, "commands", {}).items())


def _assigned(command, *words: str) -> list[str]:
    """Return what a command is given as --set."""
    context = command.make_context("x", list(words), resilient_parsing=False)
    sets = next(one.name for one in command.params if SETS in one.opts)
    return list(context.params[sets] or ())


def command_of(words: str):
    return dict(_commands())[words]


@pytest.mark.parametrize("root", [RunConfig, BenchmarkConfig, IncontextConfig])
def test_no_option_is_claimed_by_two_fields(root):
    """A section that is used in several places, as the layout, is one field."""
    claims = {(short.name, path.rpartition(".")[2]) for path, short in short_options(root)}
    assert not [name for name, times in Counter(name for name, _ in claims).items() if times > 1]
    assert {path for path, _ in short_options(root)} <= field_paths(root).keys()


def test_every_command_with_set_has_the_options_and_no_other_command():
    for words, command in _commands():
        assert isinstance(command, Command | Group), words
        takes_set = any(SETS in one.opts for one in command.params)
        own = {option for one in command.params for option in one.opts}
        wanted = {f"--{short.name}" for _, short in short_options(root_of(command))} - own if takes_set else set()
        assert options_of(command).keys() == wanted, words
        assert set(shown_by(command).places) <= field_paths(root_of(command)).keys(), words


@pytest.mark.parametrize(
    ("words", "given", "sets"),
    [
        ("train", ["--lr", "3e-4"], ["training.lr=3e-4"]),
        ("train", ["--lr=3e-4", "--set", "seed=7"], ["seed=7", "training.lr=3e-4"]),
        ("train", ["--lr", "1", "--lr", "2"], ["training.lr=2"]),
        ("train", ["--compiled"], ["plan.compiled=true"]),
        ("train", ["--no-compiled"], ["plan.compiled=false"]),
        ("train", ["--tp", "2"], ["plan.layout.tensor=2"]),
        ("generate", ["--tp", "2"], ["generation.layout.tensor=2"]),
        ("serve", ["--port", "0"], ["serve.port=0"]),
        ("plan search", ["--model", "demo", "--schedules", "1f1b,zb-v"], ["search.schedules=[1f1b,zb-v]"]),
        ("corpus curate", ["--filters", "[language]"], ["curate.filters=[language]"]),
        ("plan", ["--machine", "selene"], ["machine=selene"]),
        ("incontext", ["run", "--wording", "harness", "--dp", "2"], ["layout.data=2", "wording=harness"]),
    ],
)
def test_option_of_a_field_is_what_set_would_be(words, given, sets):
    assert sorted(_assigned(command_of(words), *given)) == sets


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "--lr", "1e-3", "--set", "training.lr=1"], "'training.lr' is given twice"),
        (["train", "--lr", "fast"], "training.lr is 'fast'"),
        (["serve", "--lr", "1"], "--lr: `trivium serve` does not read this; give it to `trivium train`"),
        (["plan", "search", "--model", "demo", "--lr", "1"], "--lr=1: a search takes only"),
        (["serve", "--set", "training.lr=1"], "--set training.lr: `trivium serve` does not read this"),
        (
            ["corpus", "curate", "--set", "curate.keep_all=true", "--filters", "c4"],
            "--filters: curate.keep_all is true",
        ),
        (["plan", "--lr", "1", "show"], "--set training.lr=1 stands before 'show'"),
        (["train", "--lr"], "--lr"),
    ],
)
def test_option_of_a_field_is_rejected_where_set_would_be(call, words, says):
    ended = call(*words)
    assert ended.returncode == 2 and says in ended.stderr
