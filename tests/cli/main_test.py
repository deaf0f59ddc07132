"""Laws of the command line: it starts at once, without torch, and ends every error in one line and its code."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from io import BytesIO, TextIOWrapper
from pathlib import Path
from unittest.mock import Mock

import pytest

from chaos.scene import write_tokens
from trivium.checkpoint.durable import remedy_of
from trivium.cli import main as entry
from trivium.cli.main import VERBS
from trivium.cli.options import refuse_no_place_for
from trivium.cli.train import joins_torchrun
from trivium.config import preset_names
from trivium.errors import DataError, MachineError, Preempted
from trivium.provenance import STAMP, describe, write_json
from trivium.training.supervision.preemption import BY_SCHEDULERS, listening

# Runs the command line, then says on the last line of standard error what it had imported.
PROBE = """
import sys
from trivium.cli.main import main
try:
    main()
finally:
    print("modules", *sorted({m.split(".")[0] for m in sys.modules}), file=sys.stderr)
"""


def trivium(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", PROBE, *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, stdin=subprocess.DEVNULL)


def imported(done: subprocess.CompletedProcess) -> set[str]:
    return set(done.stderr.splitlines()[-1].split()[1:])


WITHOUT_TORCH = [
    ["--help"],
    ["plan"],
    ["plan", "show"],
    ["plan", "show", "--preset", "gpt-125m", "--preset", "gpt-1.3b"],
    ["config", "show"],
    ["config", "explain", "--json"],
    ["models"],
    ["models", "llama-3-8b"],
    ["doctor"],
    ["corpus", "--help"],
    ["report", "--out", "nowhere"],
    ["train", "--dry-run"],
    ["train", "--set", "plan.layout.tensor=3"],
    ["demo", "--dry-run"],
    ["demo", "--help"],
]
# Runs command lines one after the other, and says after which torch was imported.
RUNS_ALL = """
import json, sys
from trivium.cli.main import main
ran = []
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit:
        ran.append(words)
    if "torch" in sys.modules:
        break
print(json.dumps(["torch" in sys.modules, ran]), file=sys.stderr)
"""


def test_torch_is_not_imported_where_nothing_is_trained_or_scored(tmp_path: Path):
    command = [sys.executable, "-c", RUNS_ALL, json.dumps(WITHOUT_TORCH)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, stdin=subprocess.DEVNULL)
    assert json.loads(done.stderr.splitlines()[-1]) == [False, WITHOUT_TORCH]


def test_the_probe_would_see_torch():
    done = subprocess.run([sys.executable, "-c", "import torch\n" + PROBE, "--help"], capture_output=True, text=True)
    assert "torch" in imported(done)


def test_help_imports_no_station_and_no_heavy_library():
    heavy = {"torch", "numpy", "pyarrow", "scipy", "plotly", "tokenizers", "yaml", "rich"}
    assert imported(trivium("--help")) & heavy == set()


def test_help_lists_every_command_under_its_group(call):
    lines = [line.split() for line in call("--help").stdout.splitlines()]
    names = {v.name for v in VERBS} | {f"{v.group}:" for v in VERBS}
    listed = [line[0] for line in lines if line and line[0] in names]
    groups = dict.fromkeys(verb.group for verb in VERBS)
    assert listed == [word for group in groups for word in (f"{group}:", *(v.name for v in VERBS if v.group == group))]
    assert list(groups) == ["Start", "Data", "Plan", "Train", "Tune", "Use", "Prove"]


@pytest.mark.parametrize("verb", [v.name for v in VERBS])
def test_every_verb_has_its_help(call, verb: str):
    done = call(verb, "--help")
    assert done.returncode == 0 and f"trivium {verb}" in done.stdout
    assert "[[" not in done.stdout and "…}" not in done.stdout  # typer puts the brackets


@pytest.mark.parametrize("verb", ["", "checkpoint", "config", "corpus", "data", "plan"])
def test_no_line_of_a_list_of_verbs_is_cut_short(monkeypatch, capsys, verb: str):
    monkeypatch.setattr(sys, "argv", ["trivium", *verb.split(), "--help"])
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        entry.main()
    listed = capsys.readouterr().out.split("Commands:" if verb else "Start:")[1]
    assert listed.strip() and "..." not in listed


@pytest.mark.parametrize(("words", "waits"), [(["train"], True), (["train", "--dry-run"], False)])
def test_a_scheduler_s_signal_waits_for_a_training_to_listen_but_ends_what_trains_nothing(
    monkeypatch, words: list[str], waits: bool
):
    held = set[signal.Signals]()
    look = Mock(side_effect=lambda *_, **__: held.update(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    monkeypatch.setattr(entry, "command_line", lambda: look)
    monkeypatch.setattr(sys, "argv", ["trivium", *words])
    entry.main()
    look.assert_called_once()
    assert held >= set(BY_SCHEDULERS) if waits else held.isdisjoint(BY_SCHEDULERS)


def test_an_impossible_layout_is_refused_at_once_with_every_problem(call, tmp_path: Path):
    words = ["train", "--preset", "demo", "--set", "plan.layout.tensor=3", "--set", "plan.batch.micro=5"]
    done = call(*words)
    text = done.stderr
    assert done.returncode == 2
    assert "plan.model.heads (4)" in text and "plan.layout.tensor (3)" in text
    assert "plan.batch.sequences (16)" in text
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["train", "--preset", "dmo"], 2, "did you mean 'demo'"),
        (["train", "--set", "plan.layot.tensor=2"], 2, "did you mean 'layout'"),
        (["train", "--set", "plan.layout.tensor=two"], 2, "plan.layout.tensor is 'two'"),
        (["train", "--set", "plan.layout.tensor"], 2, "write section.field=value"),
        (["train", "--ranks", "5"], 2, "--ranks 5"),
        (["demo", "--from", "trian"], 2, "did you mean 'train'"),
        (["demo", "--set", "tokens.vocabulary=4096"], 2, "tokens.vocabulary (4096)"),
        (["plan", "show", "--tokens", "lots"], 2, "--tokens: 'lots' is not a quantity"),
        (["plan", "show", "--html", "/nowhere/x.html"], 3, "/nowhere: there is no such folder; make it"),
        (["train", "--out", "empty"], 4, "trivium tokenize --out empty"),
        (["train", "--tokens", "nowhere"], 4, "--tokens nowhere does not exist"),
        (["corpus", "harvest", "--corpus", "nowhere.txt"], 4, "--data nowhere.txt does not exist"),
        (["corpus", "curate", "--out", "empty"], 4, "trivium corpus harvest --out empty"),
        (["report", "--out", "empty"], 4, "empty"),
        (["report", "empty"], 4, "empty is not a run directory"),
        (["train", "--set", "lr=1e-3"], 2, "lr: there is no such key; did you mean 'training.lr'?"),
        (["diff", "demo", "nowhere.yaml"], 2, "nowhere.yaml does not exist"),
        (["fly"], 2, "fly"),
        (["train", "--fly"], 2, "--fly"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_done_ends_with_its_code_cause_and_remedy(
    call, words: list[str], code: int, says: str, tmp_path: Path
):
    done = call(*words)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_path_that_is_a_folder_or_lies_below_a_file_is_told_as_such(call, tmp_path: Path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    for path, says in (("folder", "folder is a folder; name a file"), ("file/x.json", "is below a file; name another")):
        done = call("plan", "show", "--json", path)
        assert done.returncode == 3 and says in done.stderr and "--debug" not in done.stderr


def test_debug_shows_the_traceback_wherever_it_stands(call, tmp_path: Path):
    words = ["train", "--set", "plan.layout.tensor=3"]
    for order in (["--debug", *words], [*words, "--debug"]):
        done = call(*order)
        assert done.returncode == 2 and "Traceback" in done.stderr


class _Panic(BaseException):
    """Stands for the exception that a Rust library raises when it panics."""


@pytest.mark.parametrize("error", [RuntimeError("it broke"), _Panic("it broke")])
def test_an_unexpected_error_is_one_line_and_how_to_see_more(monkeypatch, capsys, error):
    monkeypatch.setattr(entry, "command_line", Mock(side_effect=error))
    monkeypatch.setattr(sys, "argv", ["trivium", "demo"])
    with pytest.raises(SystemExit) as stopped:
        entry.main()
    text = capsys.readouterr().err
    assert stopped.value.code == 1
    assert f"error: {type(error).__name__}: it broke" in text and "--debug" in text and "Traceback" not in text


def test_a_file_that_breaks_off_is_told_as_such_and_not_as_a_user_who_left(monkeypatch, capsys):
    monkeypatch.setattr(entry.LazyVerbs, "resolve_command", Mock(side_effect=EOFError("No data left in file")))
    monkeypatch.setattr(sys, "argv", ["trivium", "corpus"])
    with pytest.raises(SystemExit) as stopped:
        entry.main()
    said = capsys.readouterr().err
    assert stopped.value.code == DataError.exit_code
    assert "breaks off (No data left in file)" in said and "--debug" in said and "Aborted" not in said


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOSPC, errno.EMFILE])
def test_what_the_system_refuses_to_write_is_the_machines_error_with_a_remedy(monkeypatch, capsys, number):
    def refused():
        raise OSError(number, os.strerror(number), "/there/config.json")

    monkeypatch.setattr(entry, "command_line", refused)
    monkeypatch.setattr(sys, "argv", ["trivium", "train"])
    with pytest.raises(SystemExit) as stopped:
        entry.main()
    text = capsys.readouterr().err
    assert stopped.value.code == 3 and "--debug" not in text
    assert f"/there/config.json: {os.strerror(number)}; {remedy_of(number)}" in text


def test_as_many_files_may_be_open_as_the_system_allows():
    """A corpus of a thousand sources writes thousands of shards side by side; shells allow 1024 files at first."""
    call = (
        "import resource, sys; from trivium.cli.main import main\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, min(2048, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))\n"
        "sys.argv = ['trivium', '--version']\n"
        "try: main()\n"
        "finally: print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True)
    soft, hard = done.stdout.split("\n")[1].split()
    assert int(soft) == int(hard) > 64


def test_a_locale_without_a_sign_costs_the_sign_and_not_the_work(monkeypatch):
    bytes_out = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(bytes_out, encoding="ascii", write_through=True))
    monkeypatch.setattr(sys, "argv", ["trivium"])
    monkeypatch.setattr(entry, "command_line", lambda: lambda *_, **__: print("train: …"))
    entry.main()
    assert bytes_out.getvalue() == b"train: ?\n"


def test_a_dry_run_prints_config_and_price_and_touches_nothing(call, tmp_path: Path):
    for verb in ("train", "demo"):
        done = call(verb, "--dry-run", "--set", "seed=7")
        assert done.returncode == 0, done.stderr
        assert "seed=7" in done.stdout and "predicted" in done.stdout and "nothing was started" in done.stdout
        assert "learning rate: up to 0.008 at 80K tokens, linear to 0 at 2.44M" in done.stdout
        assert "this host: " in done.stdout
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("preset", preset_names())
def test_dry_run_of_every_preset_has_at_most_40_lines(call, preset):
    done = call("train", "--dry-run", "--preset", preset, "--any-machine")
    lines = [line for line in done.stdout.splitlines() if not line.startswith("warning: ")]
    assert len(lines) <= 40 and any(line.startswith("  plan.model ") for line in lines)
    assert any("predicted" in line for line in lines) or "use fewer ranks or a larger machine" in done.stderr


def test_a_dry_run_of_a_training_refuses_what_the_training_would_and_says_what_it_would_do(call, tmp_path):
    stamp = describe(verb="tokenize", config={}, inputs={})
    write_json(write_tokens(tmp_path) / STAMP, stamp)
    small = tmp_path / "small.yaml"
    small.write_text(
        "base: demo\nplan:\n  model: {layers: 2, hidden: 32, heads: 2, sequence: 16, vocabulary: 300}\n"
        "  layout: {tensor: 1, pipeline: 1, data: 1, chunks: 1}\n  schedule: 1f1b\n"
        "  batch: {sequences: 4, micro: 2, ramp: null}\n"
        "tokens: {vocabulary: 300}\ntraining: {steps: 2, validation_samples: 4}\n"
    )
    words = ["train", "--dry-run", "--preset", str(small), "--out", "run"]
    assert call(*words).returncode == 0
    there = [*words, "--tokens", str(tmp_path / "tokens")]
    done = call(*there)
    assert done.returncode == 0 and "it would begin at step 0\n" in done.stdout, done.stderr
    for wrong, code in (
        ([*words, "--tokens", "missing"], 4),
        ([*there, "--set", "training.start_from=missing"], 5),
        ([*there, "--set", "plan.model.vocabulary=512"], 2),
    ):
        assert call(*wrong).returncode == code, wrong
    assert not (tmp_path / "run").exists()


def test_the_plan_is_made_alone_and_then_up_to_date(call, tmp_path: Path):
    made, again = call("plan", "--out", "run"), call("plan", "--out", "run")
    assert made.returncode == again.returncode == 0
    assert "MT-NLG 530B" in made.stdout and "up to date" in again.stdout
    assert (tmp_path / "run" / "plan" / "plan.json").is_file()


def test_doctor_finds_this_machine_fit_and_writes_nothing(call, tmp_path: Path):
    done = call("doctor", "--out", str(tmp_path / "run"))
    assert done.returncode in (0, 3)
    assert " torch " in done.stdout and list(tmp_path.iterdir()) == []


def test_the_schema_describes_the_paths_users_type(call):
    schema = json.loads(call("config", "explain", "--json").stdout)
    assert {"seed", "plan", "harvest", "curate", "tokens", "training"} <= schema["properties"].keys()
    layout = schema["$defs"]["Layout"]["properties"]
    assert {"tensor", "pipeline", "data", "chunks"} <= layout.keys()


@pytest.mark.parametrize(
    ("environment", "joins"),
    [
        ({}, False),
        ({"RANK": "1"}, False),
        ({"TORCHELASTIC_RUN_ID": "x", "RANK": "0"}, False),
        ({"TORCHELASTIC_RUN_ID": "x", "RANK": "3"}, True),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "host"}, True),
    ],
)
def test_only_the_first_rank_of_torchrun_writes(environment: dict[str, str], joins: bool):
    assert joins_torchrun(environment) is joins


def test_a_training_that_is_asked_to_end_before_it_listens_hears_it_when_it_does(monkeypatch, capsys):
    def asked_at_once():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

        def work(words, prog_name):
            with listening(lambda _: None) as requests:
                deadline = time.monotonic() + 5
                while not requests.asked and time.monotonic() < deadline:
                    time.sleep(0.001)
                raise Preempted(f"asked by {requests.asked}")

        return work

    killed = signal.signal(signal.SIGUSR1, lambda *_: pytest.fail("it was killed"))
    monkeypatch.setattr(entry, "command_line", asked_at_once)
    monkeypatch.setattr(sys, "argv", ["trivium", "--debug", "train"])
    try:
        with pytest.raises(SystemExit) as stopped:
            entry.main()
    finally:
        signal.signal(signal.SIGUSR1, killed)
    assert stopped.value.code == 75 and "asked by SIGUSR1" in capsys.readouterr().err
    assert signal.SIGUSR1 not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_map_draws_ranks_and_refuses_tensor_groups_across_nodes() -> None:
    drawn = trivium("plan", "show", "--map", "--preset", "mt-nlg-530b")
    assert drawn.returncode == 0 and "node 0" in drawn.stdout and "p0d0t7" in drawn.stdout
    refused = trivium("plan", "show", "--map", "--preset", "mt-nlg-530b", "--per-node", "4")
    assert refused.returncode == 2 and "280 of 280 tensor groups of 8" in refused.stderr
    allowed = trivium(
        "plan", "show", "--map", "--preset", "mt-nlg-530b", "--per-node", "4", "--allow-tensor-across-nodes"
    )
    assert allowed.returncode == 0
    assert "torch" not in drawn.stderr.splitlines()[-1].split()


def test_a_schedule_can_be_read_from_a_file(tmp_path: Path) -> None:
    rows = tmp_path / "rows.txt"
    rows.write_text(
        "rank 0: F0.0 F1.0 B0.0 F2.0 B1.0 F3.0 B2.0 B3.0\nrank 1: F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 F3.1 B3.1\n"
    )
    sets = ["plan.schedule=given", f"plan.rows={rows}", "plan.layout.chunks=1", "plan.batch.ramp=null"]
    words = [w for s in sets for w in ("--set", s)]
    shown = trivium("train", "--preset", "demo", "--dry-run", "--out", str(tmp_path / "run"), *words)
    assert shown.returncode == 0, shown.stderr
    rows.write_text("F0.0 F1.0\n")
    assert trivium("train", "--preset", "demo", "--dry-run", *words).returncode == 2


def test_a_saved_training_is_told_as_interrupted_and_not_as_an_error(monkeypatch, capsys):
    def save_and_end(*_: object):
        raise Preempted("saved after step 40; run the same command again to resume")

    monkeypatch.setattr("trivium.cli.train.dry_run_lines", save_and_end)
    monkeypatch.setattr(sys, "argv", ["trivium", "train", "--dry-run"])
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == Preempted.exit_code
    assert capsys.readouterr().err == "interrupted: saved after step 40; run the same command again to resume\n"


@pytest.mark.parametrize(("words", "more"), [(["doctor"], "\n"), (["train", "--dry-run"], " to go on\n")])
def test_an_interrupted_verb_says_whether_it_goes_on_when_it_is_run_again(monkeypatch, capsys, words, more):
    def interrupted(*_: object):
        raise KeyboardInterrupt

    monkeypatch.setattr("trivium.cli.doctor.gather", interrupted)
    monkeypatch.setattr("trivium.cli.train.dry_run_lines", interrupted)
    monkeypatch.setattr(sys, "argv", ["trivium", *words])
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err.endswith(f"interrupted; run the same command again{more}")


@pytest.mark.parametrize("command", [("-m", "trivium"), ("-c", "from trivium.__main__ import main")])
def test_ctrl_c_while_modules_are_imported_ends_without_a_traceback(tmp_path, command):
    (tmp_path / "typer.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    ended = subprocess.run(
        [sys.executable, *command], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_a_list_that_yaml_takes_for_nothing_is_not_answered_with_another_wrong_one(call):
    ended = call("generate", "--prompt", "x", "--set", "generation.sampling.stop=###")
    assert ended.returncode == 2 and "stop is null; it must be a list: write [], or quote" in ended.stderr


def test_where_nothing_can_be_written_is_found_before_the_work(tmp_path, monkeypatch):
    def refuses(*_: object, **__: object):
        raise PermissionError(13, "Permission denied")

    refuse_no_place_for("--json", tmp_path / "out.json")
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr("tempfile.TemporaryFile", refuses)
    with pytest.raises(MachineError, match="--json .* accepts no new files .* name a folder elsewhere"):
        refuse_no_place_for("--json", tmp_path / "out.json")
