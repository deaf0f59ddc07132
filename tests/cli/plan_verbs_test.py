"""`plan show` and `plan probe`."""

import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from cli.main_test import imported, trivium
from trivium.cli import main as entry
from trivium.cli.plan_estimate import Asked, lines, seconds_by_batch, tell, tree, with_batch
from trivium.cli.plan_measure import learned_from, probe_lines
from trivium.cli.price import machine_of
from trivium.cli.run_config import Given, resolve
from trivium.config import to_tree
from trivium.cost.estimate import estimate
from trivium.errors import ConfigError, DataError
from trivium.planner.probed import Compared, Probed
from trivium.training.record import Record, write_record
from trivium.units import counted, format_seconds


def demo():
    return resolve(Given("demo")).plan


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "show", "--html", "plan.html", "--json", "plan.json"],
        ["plan", "probe", "--run", "nowhere"],
        ["plan", "probe", "--help"],
    ],
    ids=" ".join,
)
def test_no_verb_but_probe_imports_torch(words, tmp_path):
    assert not imported(trivium(*words, cwd=tmp_path)) & {"torch", "scipy", "plotly"}


def test_an_estimate_writes_a_page_and_data_that_agree(call, tmp_path):
    done = call("plan", "show", "--machine", "dgx-h100", "--html", "plan.html", "--json", "plan.json")
    assert done.returncode == 0, done.stderr
    data = json.loads((tmp_path / "plan.json").read_text())
    drawn = re.search(r'id="data">(.*?)</script>', (tmp_path / "plan.html").read_text(), re.S).group(1)
    lanes = json.loads(drawn)["lanes"]
    assert len(lanes) == len(data["ranks"]) == 2
    for lane, rank in zip(lanes, data["ranks"], strict=True):
        busy = sum(end - start for *_, start, end in lane["spans"])
        seconds = rank["seconds"]
        assert busy == pytest.approx(seconds["forward"] + seconds["backward"], rel=1e-4)
    assert data["seconds"] == pytest.approx(sum(data["estimate"]["parts"].values()))


def test_what_fits_in_a_search_is_what_fits_wherever_its_winner_is_priced(call, tmp_path):
    """The file of a winner carries the share of a device's memory that its search allowed."""
    config = {"base": "demo", "machine": "dgx-h100", "search": {"memory_fraction": 1e-6}}
    (tmp_path / "winner.yaml").write_text(yaml.safe_dump(config))
    winner = ("--preset", "winner.yaml")
    priced = json.loads(call("plan", "show", *winner, "--json", "-").stdout)["estimate"]
    assert priced["memory_limit"] == 1e-6 * machine_of("dgx-h100").memory_bytes
    assert not priced["fits"]
    for verb in (("plan", "show"), ("train", "--dry-run")):
        assert "DOES NOT FIT" in call(*verb, *winner).stdout, verb


def test_a_training_and_its_failures_are_priced_together(call):
    asked = ("plan", "show", "--machine", "selene", "--tokens", "1B")
    plain = call(*asked).stdout
    losing = call(*asked, "--failures", "60", "2").stdout
    assert "1B tokens" in plain and "kWh" in plain and "Daly" not in plain
    assert "Young" in losing and "saving and failures add" in losing


def test_the_data_of_an_estimate_have_every_figure_of_its_lines():
    told = tell(demo(), machine_of("selene"), Asked("demo", failures=(60, 24)))
    data, text = tree(told), "\n".join(lines(told))
    assert told.near is not None and data["estimate"]["host_limit"] == told.parts.price.host_limit
    assert data["near_copies"] == {"steps": told.near_steps, **told.near._asdict()}
    assert f"near copies   every {counted(told.near_steps or 0, 'step')} " in text
    assert tree(tell(demo(), machine_of("selene"), Asked("demo")))["near_copies"] is None


def test_a_ramp_makes_a_training_longer_than_its_tokens_at_full_batch():
    plan, machine = demo(), machine_of("selene")
    told = tell(plan, machine, Asked("demo", tokens=1_000_000))
    full = 1_000_000 / plan.tokens(plan.batch.sequences) * told.seconds
    assert told.training is not None and told.training.seconds > full


@pytest.mark.parametrize(
    "order", [("tensor", "pipeline", "data", "context"), ("pipeline", "data", "context", "tensor")]
)
def test_smaller_batches_of_a_ramp_are_priced_where_the_ranks_sit(order):
    """This includes tensor groups that span nodes, within the error of the closed form."""
    plan, machine = resolve(Given("mt-nlg-530b")).plan, machine_of("selene")
    there = plan.model_copy(update={"layout": plan.layout.model_copy(update={"order": order})})
    priced = seconds_by_batch(there, machine, estimate(with_batch(there, 1920), machine).seconds)
    for few in (96, 320):
        expected = estimate(with_batch(there, few), machine).seconds
        assert priced(few) == pytest.approx(expected, rel=0.002)


def test_a_learned_factor_multiplies_every_second_and_no_byte(call, tmp_path):
    plan, machine = demo(), machine_of("selene")
    run_of(tmp_path / "run", factor=1.5)
    stack = learned_from(tmp_path / "run")
    plain, slower = (tree(tell(plan, machine, Asked("demo"), s)) for s in (None, stack))
    assert slower["seconds"] == pytest.approx(1.5 * plain["seconds"])
    assert slower["seconds"] == slower["estimate"]["seconds"]
    assert slower["estimate"]["tokens_per_second"] == pytest.approx(plain["estimate"]["tokens_per_second"] / 1.5)
    assert slower["estimate"]["memory"] == plain["estimate"]["memory"]
    for slow, rank in zip(slower["ranks"], plain["ranks"], strict=True):
        assert slow["seconds"] == pytest.approx({name: 1.5 * took for name, took in rank["seconds"].items()})
        assert slow["memory"] == rank["memory"] and slow["traffic"] == rank["traffic"]
    assert call("plan", "probe", "--run", "run", "--out", "stack.yaml").returncode == 0
    shown = ("plan", "show", "--machine", "selene")
    done = call(*shown, "--stack", "stack.yaml", "--html", "plan.html")
    assert done.returncode == 0 and "x 1.500" in done.stdout
    page = (tmp_path / "plan.html").read_text()
    for text in (done.stdout, page):
        assert f"step          {format_seconds(slower['seconds'])} predicted" in text
        assert re.findall(r"would save\s+[\d.]+%", text) == re.findall(r"would save\s+[\d.]+%", call(*shown).stdout)


def run_of(at: Path, *, factor: float, steps: int = 20) -> None:
    """A run directory whose steps took `factor` times what is predicted, through the ramp."""
    config = resolve(Given("demo", ("machine=selene",)))
    (at / "training").mkdir(parents=True)
    (at / "config.json").write_text(json.dumps(to_tree(config)))
    write_record(Record(at / "training", at / "tokens", config.plan, config.training, config.seed, ()))
    machine = machine_of("selene")
    rows = []
    for step in range(40, 40 + steps):
        sequences = config.plan.batch.at(step).sequences
        seconds = factor * estimate(with_batch(config.plan, sequences), machine).seconds
        rows.append(json.dumps({"step": step, "sequences": sequences, "seconds": seconds, "loss": 1.0}))
    (at / "training" / "metrics.jsonl").write_text("\n".join(rows) + "\n")


def test_a_factor_is_of_what_was_trained_whatever_other_verbs_were_asked_since(tmp_path):
    run_of(tmp_path / "run", factor=1.5)
    other = resolve(Given("demo", ("machine=selene", "plan.model.layers=48")))
    (tmp_path / "run" / "config.json").write_text(json.dumps(to_tree(other)))
    assert learned_from(tmp_path / "run").factor == pytest.approx(1.5)


def test_calibrating_what_is_no_run_says_so(tmp_path):
    with pytest.raises(DataError, match="not a run directory"):
        learned_from(tmp_path)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["plan", "show", "--machine", "selen"], "did you mean 'selene'"),
        (["plan", "show", "--machine", "nowhere.yaml"], "nowhere.yaml"),
        (["plan", "show", "--stack", "nowhere.yaml"], "nowhere.yaml"),
        (["plan", "show", "--tokens", "many"], "'many' is not a quantity"),
        (["plan", "show", "--failures", "0", "24"], "time of a save is 0"),
        (["plan", "probe", "--out", "machine.json"], "end it in .yaml"),
        (["plan", "probe", "--machine", "selene"], "--machine selene: this machine is measured"),
        (["plan", "probe", "--run", "run", "--ranks", "2"], "--ranks 2: with --run run nothing is measured"),
        (["plan", "show", "--per-node", "4"], "--per-node: only --map reads this"),
        (["plan", "show", "--map", "--json", "-"], "--json: --map prices nothing"),
        (
            ["plan", "show", "--preset", "demo", "--preset", "gpt-125m", "--tokens", "1B"],
            "--tokens: takes one --preset",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_priced_is_refused_with_its_value(call, words, says):
    done = call(*words)
    assert done.returncode == 2 and says in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--out", "x", "search"], "--out x stands before 'search' .* `trivium plan search --out"),
        (["--out", "runs/demo", "show"], "--out runs/demo stands before 'show' .* 'show' has none: leave it out"),
        (["--redo", "search"], "--redo stands before 'search' .* 'search' has none: leave it out"),
        (["--preset", "demo", "show"], "--preset demo stands before .* `trivium plan show --preset"),
        (["--set", "seed=1", "--set", "seed=2", "show"], "--set seed=1 seed=2 stands before 'show'"),
        (["--ranks", "4", "probe"], "--ranks 4 stands before 'probe'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_an_option_before_a_verb_is_not_passed_over(call, words, says):
    done = call("plan", *words)
    assert done.returncode == 2 and re.search(says, done.stderr), done.stderr
    assert not done.stdout


def test_a_machine_file_is_a_machine_by_its_path(tmp_path):
    tree_of = {"base": "dgx-h100", "name": "ours", "nodes": 3, "price_per_hour": 2.5}
    (tmp_path / "ours.yaml").write_text(yaml.safe_dump(tree_of))
    machine = machine_of(str(tmp_path / "ours.yaml"))
    assert (machine.name, machine.devices, machine.price_per_hour) == ("ours", 24, 2.5)
    (tmp_path / "bad.yaml").write_text("nodes: 0\nbase: dgx-h100\n")
    with pytest.raises(ConfigError, match="nodes"):
        machine_of(str(tmp_path / "bad.yaml"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--out", "nowhere/m.yaml"), "nowhere does not exist"),
        (("--json", "nowhere/m.json"), "nowhere does not exist"),
        (("--out", "folder.yaml"), "folder.yaml is a folder"),
        (("--json", "."), "--json . is a folder"),
    ],
)
def test_a_probe_measures_nothing_that_it_could_not_write(monkeypatch, capsys, tmp_path, words, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.yaml").mkdir()
    monkeypatch.setattr("trivium.probe.probe.probe", lambda *_, **__: pytest.fail("it measured"))
    monkeypatch.setattr(sys, "argv", ["trivium", "plan", "probe", *words])
    with pytest.raises(SystemExit) as stopped:
        entry.main()
    assert stopped.value.code == 4 and says in capsys.readouterr().err


def test_a_probe_says_how_well_the_model_repeats_what_it_measured():
    found = Probed(machine_of("dgx-h100"), (Compared("product a", 1.0, 1.1), Compared("step b", 2.0, 1.8)))
    text = "\n".join(probe_lines(found))
    assert "products are off by" in text and "10.0%" in text and "exchange" not in text


@pytest.mark.parametrize(("traffic", "doubted"), [(11.99, True), (0.5004, True), (2.0, False)])
def test_a_probe_doubts_what_would_have_gone_beyond_what_is_believed(traffic: float, doubted: bool):
    constants = {"eager_traffic": traffic, "memory": 0.8, "launch_seconds": 0.0}
    machine = machine_of("this-machine").model_copy(update={"constants": constants})
    text = "\n".join(probe_lines(Probed(machine, (Compared("step b", 2.0, 1.8),))))
    assert ("doubtful: eager_traffic at the edge" in text) == doubted and "launch_seconds at" not in text


def test_figures_on_standard_output_stand_alone(call):
    ended = call("plan", "show", "--preset", "mt-nlg-530b", "--machine", "selene", "--json", "-")
    assert ended.returncode == 0 and json.loads(ended.stdout)["format"] == "trivium-estimate-1"


@pytest.mark.parametrize("given", [("--preset", "gpt-125m"), ("--set", "plan.zero=0"), ("--ranks", "4")], ids="".join)
def test_an_option_that_stands_before_a_verb_of_plan_is_refused(call, given):
    ended = call("plan", *given, "show")
    assert ended.returncode == 2 and f"trivium plan show {given[0]}" in ended.stderr
    assert call("plan", "show", "--preset", "gpt-125m").returncode == 0


def test_a_file_that_is_no_whole_config_says_how_to_build_on_one(call, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("training: {lr: 0.001}\n", encoding="utf-8")
    told = call("plan", "show", "--preset", str(mine))
    assert told.returncode == 2 and "base: demo" in told.stderr
    mine.write_text("base: demo\ntraining: {lr: 0.001}\n", encoding="utf-8")
    assert call("plan", "show", "--preset", str(mine)).returncode == 0


def test_a_size_of_the_ramp_that_forbids_interleaving_is_mended_at_the_ramp(call):
    layout = ("--set", "plan.layout.data=4")
    told = call("train", "--preset", "demo", *layout, "--dry-run")
    assert told.returncode == 2 and "plan.batch.ramp.start" in told.stderr
    mended = ("--set", "plan.batch.ramp.start=16", "--set", "plan.batch.ramp.increment=16")
    assert call("train", "--preset", "demo", *layout, *mended, "--dry-run").returncode == 0
