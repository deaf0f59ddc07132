"""An unknown setting or option is answered with the field that was meant, and a command that works."""

import shlex

import pytest

from trivium.cli.run_config import SYNONYMS, Given, RunConfig, resolve
from trivium.config import field_paths, leaves, to_tree
from trivium.cost.hardware import machine_named, machine_names, machine_problem
from trivium.errors import ConfigError


@pytest.fixture
def call(call):
    """Run `trivium`; returns the exit code and all that was printed."""

    def do(*words: str) -> tuple[int, str]:
        ended = call(*words)
        return ended.returncode, ended.stdout + ended.stderr

    return do


def test_every_synonym_is_of_a_field_and_is_none_itself():
    paths = field_paths(RunConfig)
    assert set(SYNONYMS.values()) <= paths.keys()
    assert not SYNONYMS.keys() & set(paths.values()), "a field's own name comes first"


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("learning_rate", "training.lr"),
        ("lr", "training.lr"),
        ("training.learning_rate", "training.lr"),
        ("learnig_rate", "training.lr"),
        ("batch_size", "plan.batch.sequences"),
        ("plan.batch.micro_batch_size", "plan.batch.micro"),
        ("num_layers", "plan.model.layers"),
        ("hidden_size", "plan.model.hidden"),
        ("seq_length", "plan.model.sequence"),
        ("max_steps", "training.steps"),
        ("plan.layout.tp", "plan.layout.tensor"),
        ("training.weight_decy", "weight_decay"),
        ("plan.layot.tensor", "layout"),
        ("max_new_tokens", "generation.sampling.max_tokens"),
    ],
)
def test_an_unknown_setting_names_the_field_that_was_meant(name, field):
    with pytest.raises(
        ConfigError, match=rf"^{name.replace('.layot.tensor', '.layot')}: there is no such key"
    ) as refused:
        resolve(Given("demo", (f"{name}=1",)))
    assert f"did you mean '{field}'?" in str(refused.value)


@pytest.mark.parametrize("name", SYNONYMS)
def test_what_other_systems_call_a_field_leads_to_it(name):
    with pytest.raises(ConfigError, match=rf"did you mean .*'{SYNONYMS[name]}'"):
        resolve(Given("demo", (f"{name}=1",)))


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["train", "--lr", "2e-4"], "trivium train --set training.lr=2e-4"),
        (["train", "--learning-rate=2e-4"], "trivium train --set training.lr=2e-4"),
        (["train", "--batch-size", "8"], "trivium train --set plan.batch.sequences=8"),
        (["config", "show", "--num-layers", "2"], "trivium config show --set plan.model.layers=2"),
        (["train", "--warmup-steps", "8"], "trivium train --set training.warmup_tokens=VALUE"),
        (["train", "--lr"], "trivium train --set training.lr=VALUE"),
        (["train", "--lr", "--dry-run"], "trivium train --set training.lr=VALUE"),
    ],
)
def test_an_unknown_option_names_the_set_command_that_works(call, words, command):
    code, told = call(*words)
    assert code == 2 and "Fields of the config are given with --set: " in told and told.rstrip().endswith(command)
    if "VALUE" not in command:
        setting = shlex.split(command)[-1]
        path, _, value = setting.partition("=")
        assert dict(leaves(to_tree(resolve(Given("demo", (setting,))))))[path] == float(value)


def test_options_of_the_verb_itself_are_still_proposed(call):
    assert "Possible options: --ranks" in call("train", "--rank", "3")[1]
    assert "--set" not in call("checkpoint", "ls", "--lr", "3")[1], "it takes none"
    code, told = call("train", "--\x1b[2J")
    assert code == 2 and "\x1b" not in told


@pytest.mark.parametrize(
    ("name", "machine"),
    [
        ("h100", "dgx-h100"),
        ("H100", "dgx-h100"),
        ("h200", "dgx-h200"),
        ("b200", "dgx-b200"),
        ("a100-80", "dgx-a100-80"),
        ("A100-40GB", "dgx-a100-40"),
        ("nvidia-h100", "dgx-h100"),
        ("selene", "selene"),
    ],
)
def test_a_machine_may_be_called_by_its_devices(name, machine):
    assert machine_named(name) == machine_named(machine)
    assert resolve(Given("demo", (f"machine={name}",))).problems() == []


def test_a_name_of_several_machines_or_of_none_is_refused_with_those_that_are():
    assert machine_problem("a100") == "'a100' may be dgx-a100-40 or dgx-a100-80; write one of these"
    assert "did you mean 'dgx-h100'" in machine_problem("dgx-h10")
    (problem,) = resolve(Given("demo", ("machine=a100",))).problems()
    assert problem == f"machine: {machine_problem('a100')}"
    assert all(machine_problem(name) == "" for name in machine_names())
