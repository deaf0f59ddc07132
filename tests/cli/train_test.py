"""Changes of the config under which a training continues, and changes that make it another training."""

import json
from pathlib import Path

import pytest

from chaos.scene import VOCABULARY, write_tokens
from trivium.checkpoint.durable import remove
from trivium.checkpoint.format import MANIFEST, read_manifest, step_name
from trivium.cli import train
from trivium.cli.options import given_for, open_run
from trivium.cli.stage import STARTED, perform
from trivium.errors import CheckpointError, ConfigError, DataError, MachineError
from trivium.planner.fastest import CHOSEN
from trivium.provenance import STAMP, write_json
from trivium.training.metrics import EVENTS, read
from trivium.training.record import Record, write_record


@pytest.fixture
def begun(tmp_path: Path):
    """Return the record with which the demo's training begins when some fields are set."""
    out = tmp_path / "run"

    def what(*sets: str) -> dict:
        config = train.TRAIN.config(open_run(out, given_for(out, "demo", list(sets))))
        return {"config": config, "inputs": {"tokens": "the same"}}

    return what


@pytest.mark.parametrize(
    "division",
    [
        ("plan.layout.tensor=1",),
        ("plan.zero=3",),
        ("plan.batch.micro=1",),
        ("plan.recompute.mode=layer",),
        ("plan.offload.optimizer=0.5", "plan.offload.activations=1"),
        ("plan.row_chunks=2",),
        ("plan.sequence_parallel=true", "plan.overlap_tensor=true"),
        ("plan.layout.context=2", "plan.layout.data=1", "plan.context_attention=ulysses"),
        ("plan.compiled=true",),
        ("plan.cuda_graphs=true",),
        ("training.checkpoint_every=3",),
        ("training.profile.steps=[5]",),
    ],
)
def test_how_the_work_is_divided_may_change(division: tuple[str, ...], begun) -> None:
    assert train.lasting(begun(*division)) == train.lasting(begun())


def test_a_micro_batch_may_change_where_the_loss_does_not_depend_on_it(begun) -> None:
    experts = ["norm=rms_norm", "bias=none", "feed_forward=experts", "experts.count=4", "experts.chosen=2"]
    for scope, same in (("micro_batch", False), ("sequence", True), ("global_batch", True)):
        loss = [*experts, "experts.balance_loss=0.1", f"experts.balance_scope={scope}"]
        model = [f"plan.model.{each}" for each in loss]
        small, large = (train.lasting(begun(*model, f"plan.batch.micro={n}")) for n in (1, 2))
        assert (small == large) is same, scope
    recorded = begun()
    recorded["config"]["plan"]["no_longer"] = 1
    assert train.lasting(recorded) != train.lasting(begun()), "a plan of other code is compared like any other"


def test_the_command_that_continues_under_other_settings_says_how_many_steps(tmp_path: Path) -> None:
    run = open_run(tmp_path, given_for(tmp_path, "demo", ["training.decay_tokens=9000000"]))
    told = train._goes_on(run, tmp_path / "step", ["training.decay_tokens: 0 -> 9000000"])
    assert f"--set training.steps={run.config.training.steps} " in told


def test_a_training_may_change_all_that_a_move_to_other_hosts_changes() -> None:
    assert set(CHOSEN) <= set(train.CHANGEABLE_PLAN)


@pytest.mark.parametrize("what", ["plan.model.layers=8", "plan.precision.weights=bf16", "training.lr=0.01", "seed=2"])
def test_what_is_computed_may_not(what: str, begun) -> None:
    assert train.lasting(begun(what)) != train.lasting(begun())


@pytest.mark.parametrize(
    "decay, goes_on",
    [
        (("training.decay=cosine",), False),
        (("training.decay=cosine", "training.decay_tokens=9000000"), True),
        (("training.decay=constant",), True),
        (("training.decay=inverse_sqrt",), True),
        (("training.decay=wsd", "training.final_decay_tokens=100000"), False),
    ],
)
def test_a_training_goes_on_to_more_steps_where_its_rate_does_not_follow_them(
    decay: tuple[str, ...], goes_on: bool, begun
) -> None:
    few, more = (train.lasting(begun(*decay, f"training.steps={n}")) for n in (200, 300))
    assert (few == more) is goes_on


def test_a_training_to_be_compiled_asks_for_a_compiler_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    run = open_run(tmp_path / "run", given_for(tmp_path / "run", "demo", ["plan.compiled=true"]))
    with pytest.raises(MachineError, match="plan.compiled"):
        train.job_for(run, tmp_path)


NEWEST = "training/checkpoints/step-00000200"
SMALL = {
    "plan.model.vocabulary": VOCABULARY,
    "tokens.vocabulary": VOCABULARY,
    "plan.model.sequence": 8,
    "plan.batch.ramp": "null",
}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> Path:
    folder = write_tokens(tmp_path_factory.mktemp("train"))
    write_json(folder / STAMP, {"key": "tokens"})
    return folder


TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}


@pytest.mark.parametrize(
    ("environment", "says"), [(TORCHRUN, "lacks MASTER_PORT"), (TORCHRUN | {"MASTER_PORT": "1"}, "ranks")]
)
def test_ranks_that_do_not_fit_the_layout_are_refused_before_a_training_begins(
    environment: dict[str, str], says: str, tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    out = tmp_path / "run"
    sets = [f"{field}={value}" for field, value in SMALL.items()]
    with pytest.raises(ConfigError, match=says):
        perform(train.TRAIN, open_run(out, given_for(out, "demo", sets), tokens=tokens))
    assert not out.exists()


def test_a_job_carries_a_hash_of_what_published_tasks_ask_wherever_their_data_lie(tokens: Path, tmp_path: Path) -> None:
    row = {"premise": "The judge slept .", "hypothesis": "The judge slept .", "label": 0, "gold_label": "entailment"}
    row |= {"heuristic": "constituent", "subcase": "s", "pairID": "1"}
    asked = {}
    for name, premise in (("a", "The judge slept ."), ("b", "The judge slept ."), ("c", "The judge sat .")):
        (tmp_path / name / "hans").mkdir(parents=True)
        (tmp_path / name / "hans" / "dev.jsonl").write_text(json.dumps({**row, "premise": premise}) + "\n")
        about = f"training.evaluation={{every: 5, tasks: hans, data: {tmp_path / name}}}"
        sets = [*(f"{field}={value}" for field, value in SMALL.items()), about]
        run = open_run(tmp_path / "run", given_for(tmp_path / "run", "demo", sets), tokens=tokens)
        job, _ = train.examined(train.job_for(run, tmp_path / "out"), run)
        asked[name] = job.questions
    assert list(asked["a"]) == ["questions of task hans"] and asked["a"] == asked["b"] != asked["c"]


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ({"training.start_from": "/nowhere"}, CheckpointError, "/nowhere is not a checkpoint"),
        ({"training.start_from": f"run/{NEWEST}"}, ConfigError, "another --out"),
        ({"training.evaluation.every": 5, "training.evaluation.data": "/nowhere"}, DataError, "training.evaluation"),
        (
            {"training.evaluation.every": 5, "training.evaluation.tasks": "helaswag"},
            ConfigError,
            "training.evaluation: tasks helaswag: there is no such task",
        ),
        ({"plan.model.vocabulary": 4096, "tokens.vocabulary": 4096}, ConfigError, "plan.model.vocabulary"),
        ({"plan.model.sequence": 8192}, DataError, "validation"),
    ],
)
def test_a_mistyped_command_leaves_a_finished_training_where_it_is(
    wrong: dict[str, object], error: type, says: str, tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = Path("run")
    (out / NEWEST).mkdir(parents=True)
    write_json(out / "config.json", {})
    write_json(out / "training" / STARTED, {"lasting": "of another learning rate", "extent": 200})
    write_json(out / "training" / STAMP, {"key": "of another learning rate"})
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    sets = [f"{field}={value}" for field, value in (SMALL | wrong).items()]
    run = open_run(out, given_for(out, "demo", sets), tokens=tokens)
    with pytest.raises(error, match=says):
        perform(train.TRAIN, run)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_a_training_without_its_last_checkpoint_is_not_up_to_date_and_does_again_what_is_lost(
    tokens: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out, few = tmp_path / "run", {"training.steps": 4, "training.checkpoint_every": 2}
    few |= {"plan.model.layers": 2, "plan.model.hidden": 32, "plan.model.heads": 2, "plan.zero": 0}
    few |= {
        "training.warmup_tokens": 0,
        "training.validation_samples": 4,
        "plan.batch.sequences": 4,
        "plan.batch.micro": 2,
    }
    sets = [f"{field}={value}" for field, value in (SMALL | few).items()]

    def again() -> tuple[str, list[dict]]:
        perform(train.TRAIN, open_run(out, given_for(out, "demo", sets, ranks=1), tokens=tokens))
        events = read(out / "training" / EVENTS)
        return capsys.readouterr().out, [event for event in events if event["event"] in ("resumed", "saved")]

    def weights(step: int) -> dict[str, str]:
        return read_manifest(out / "training/checkpoints" / step_name(step))["files"]

    assert len(again()[1]) == 2
    before = weights(4)
    remove(out / "training/checkpoints" / step_name(4))
    said, events = again()
    assert f"{step_name(4)} is gone; resumes from step 2" in said
    assert [event["step"] for event in events[2:]] == [2, 4] and weights(4) == before
    said, events = again()
    assert "up to date" in said and len(events) == 4
    manifest = out / "training/checkpoints" / step_name(4) / MANIFEST
    manifest.unlink()  # readers of the training find no checkpoint there either
    said, events = again()
    assert f"{manifest} is gone; resumes from step 2" in said
    assert [event["step"] for event in events[4:]] == [2, 4] and weights(4) == before
    (pieces,) = manifest.parent.glob("pieces-*")
    with open(pieces, "r+b") as file:
        file.truncate(pieces.stat().st_size - 1)
    said, events = again()
    assert f"{pieces} has " in said and ": truncated; resumes" in said
    assert [event["step"] for event in events[6:]] == [2, 4] and weights(4) == before
    manifest.write_text(manifest.read_text().replace('"step": 4', '"step": 3'))
    said, events = again()
    assert f"{manifest} does not match its own sha256" in said and "resumes" in said
    assert [event["step"] for event in events[8:]] == [2, 4] and weights(4) == before
    for step in (2, 4):
        remove(out / "training/checkpoints" / step_name(step))
    said, events = again()
    assert f"{step_name(4)} is gone; starts over" in said and "is now in" in said
    assert [event["step"] for event in events] == [2, 4] and weights(4) == before


def test_how_a_training_that_was_set_aside_would_go_on_is_told_where_its_state_is_of_the_same_model(
    tmp_path: Path,
) -> None:
    run = open_run(tmp_path / "run", given_for(tmp_path / "run", "demo", ["training.lr=0.001", "plan.zero=0"]))
    before, changed = tmp_path / "training.previous", ["training.lr: 0.002 -> 0.001"]
    assert train.apart(run, before, changed) == []
    saved = before / "checkpoints" / "step-00000007"
    saved.mkdir(parents=True)
    (remedy,) = train.apart(run, before, changed)
    assert f"training.start_from={saved} --set training.start_with=state" in remedy
    for other in ("plan.model.dropout: 0.5 -> 0.0", "seed: 1 -> 2", "tokens: a -> b"):
        assert train.apart(run, before, [*changed, other]) == []
    assert train.apart(run, before, []) == []


def test_tokens_made_elsewhere_are_given_only_once_and_give_way_to_a_run_s_own(tokens: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    (out / "training").mkdir(parents=True)
    config = open_run(out, given_for(out, "demo", [])).config
    write_record(Record(out / "training", tokens, config.plan, config.training, config.seed, ()))
    assert open_run(out, given_for(out, "demo", [])).folder("tokens") == tokens.resolve()
    (out / "tokens").mkdir()
    assert open_run(out, given_for(out, "demo", [])).folder("tokens") == out / "tokens"


def test_a_training_with_checkpoints_is_set_aside_only_when_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the decay ends with the training, another value of training.steps makes another training."""
    out, changed = tmp_path / "run", ["training.steps: 200 -> 300"]
    run = open_run(out, given_for(out, "demo", ["training.steps=300"]))
    train.ask(run, changed)  # nothing has been saved yet
    for step in (100, 200):
        (run.at.checkpoints / f"step-{step:08d}").mkdir(parents=True)
    with pytest.raises(ConfigError) as refused:
        train.ask(run, changed)
    told = str(refused.value)
    assert "a training of 200 steps" in told and changed[0] in told and "--redo" in told
    assert "--set training.steps=300 --set training.start_from=" in told and "step-00000200" in told
    assert f"trivium train --out {out}" in told
    fewer = open_run(out, given_for(out, "demo", ["training.steps=150"]))
    with pytest.raises(ConfigError, match="step-00000100"):
        train.ask(fewer, ["training.steps: 200 -> 150"])
    with pytest.raises(ConfigError) as refused:
        train.ask(run, ["plan.model.layers: 2 -> 4"])
    assert "start_from" not in str(refused.value), "a state is of one model"
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)
    for answer in (True, False):
        monkeypatch.setattr(train.typer, "confirm", lambda question, answer=answer: answer)
        if answer:
            train.ask(run, changed)
        else:
            with pytest.raises(ConfigError, match="left as it is"):
                train.ask(run, changed)


def test_the_memory_of_ranks_is_told_with_the_layout_that_they_had() -> None:
    """After a move to another layout, the summary shows the last layout, and the memory counted in the first."""
    first, last = {"tensor": 2, "pipeline": 1, "data": 1}, {"tensor": 1, "pipeline": 1, "data": 1}
    held = {"weights": 1 << 20}
    ranks = [{"rank": n, "coordinate": {"tensor": n}, "categories": held, "predicted": held} for n in range(2)]
    result = {"parameters": 1, "steps": 2, "tokens": 3, "validation_loss": 1.0, "unigram_entropy": None}
    *_, title, row = train.TRAIN.summary({**result, "layout": last, "memory_layout": first, "memory": ranks})
    assert title == "  memory counted (predicted) in the first layout, tensor 2 x pipeline 1 x data 1 = 2 ranks:"
    assert row == "    ranks 0-1: weights 1 MiB (1 MiB)"
    *_, title, row = train.TRAIN.summary({**result, "layout": first, "memory_layout": first, "memory": ranks})
    assert title == "  memory counted (predicted):"


def test_activations_below_the_predicted_ones_are_explained() -> None:
    result = {"parameters": 1, "steps": 2, "tokens": 3, "validation_loss": 1.0, "unigram_entropy": None}
    for counted, explained in ((1024, True), (2048, False)):
        rank = {"rank": 0, "coordinate": {}, "categories": {"activations": counted}, "predicted": {"activations": 2048}}
        lines = train.TRAIN.summary({**result, "layout": {}, "memory": [rank]})
        assert any("every target counts; this step had fewer" in line for line in lines) is explained
