"""An unknown setting or option is answered with the field that was meant."""

import pytest

from trivium.cli.run_config import SYNONYMS, Given, RunConfig, resolve
from trivium.config import field_paths
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
    ("words", "meant"),
    [
        (["train", "--learning-rate=2e-4"], "--lr (training.lr)"),
        (["train", "--max-steps", "4"], "--steps (training.steps)?"),
        (["train", "--batch-size", "8"], "--batch (plan.batch.sequences)"),
        (["config", "show", "--num-layers", "2"], "--layers (plan.model.layers)"),
        (["train", "--warmup-steps", "8"], "--warmup-tokens (training.warmup_tokens)"),
        (["train", "--adam-beta2", "0.9"], "--set training.beta2=VALUE"),
        (["train", "--rank", "3"], "--ranks"),
        (["evaluate", "run", "--wordng", "harness"], "--wording (wording)"),
    ],
)
def test_unknown_option_names_the_nearest_option_or_field(call, words, meant):
    code, told = call(*words)
    option = next(word for word in words if word.startswith("--")).partition("=")[0]
    assert code == 2 and f"{option}: no such option; did you mean {meant}" in told


@pytest.mark.parametrize(
    ("words", "others"),
    [
        (["tokenize", "--data", "x"], "`trivium corpus harvest`, `trivium corpus run`, "),  # of the same group first
        (["launch", "--data", "x"], "`trivium train`, "),  # the command that most options belong to
        (["metrics", "--prepare"], "`trivium tune` has it; `trivium metrics --help`"),
        (["evaluate", "--lr", "3"], "`trivium "),  # an option of a field
    ],
)
def test_an_option_of_another_command_is_told_with_that_command(call, words, others):
    code, told = call(*words)
    assert code == 2 and f"{words[1]}: no such option; {others}" in told and "did you mean" not in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["trian"], "did you mean 'train'?"),
        (["corpus", "harvst"], "did you mean 'harvest'?"),
        (["corpus", "dedupe"], "did you mean 'dedup'?"),  # a step
        (["checkpoint", "list"], "did you mean 'show'?"),  # whose help begins with "List"
        (["checkpoint", "qqq"], "known: average, export, import, "),
    ],
)
def test_unknown_command_names_the_nearest_by_its_name_or_its_help(call, words, told):
    code, printed = call(*words)
    assert code == 2 and f"'{words[-1]}': no such command; {told}" in printed


def test_unknown_option_proposes_no_field_where_set_is_not_accepted(call):
    assert "`trivium doctor --help` lists" in call("doctor", "--learning-rate", "3")[1]
    for option in ("--max-byte", "--max-new-tokens"):  # of the harvest and of generation, which `train` does not read
        assert f"{option}: no such option; `trivium train --help` lists" in call("train", option, "3")[1]
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
