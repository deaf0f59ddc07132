"""Job files for Slurm, Kubernetes and torchrun: ranks fill nodes, signals save, a job that may continue restarts."""

import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from chaos.scene import VOCABULARY, write_tokens
from trivium.cli import main as entry
from trivium.cli import train
from trivium.cli.ending import leave_exit_code
from trivium.errors import MachineError
from trivium.provenance import STAMP, write_json

TWO_NODES = ["plan.layout.tensor=8", "plan.layout.pipeline=2", "plan.model.heads=8", "machine=dgx-h100"]


def printed(capsys, monkeypatch, target: str, *sets: str, out: str = "/runs/My run", more: Sequence[str] = ()) -> str:
    words = [word for each in sets for word in ("--set", each)] + [*more]
    command = ["trivium", "launch", "--print", target, "--preset", "demo", "--out", out, *words]
    monkeypatch.setattr(sys, "argv", command)
    try:
        entry.main()
    except SystemExit as ended:
        assert not ended.code, capsys.readouterr().err
    return capsys.readouterr().out


OF_THESE_TOKENS = [
    *(f"{name}.vocabulary={VOCABULARY}" for name in ("plan.model", "tokens")),
    "plan.model.sequence=8",
    "plan.batch.ramp=null",
]


def finished_tokens(folder: Path) -> Path:
    tokens = write_tokens(folder)
    write_json(tokens / STAMP, {"key": "tokens"})
    return tokens


TOKENS = ["--tokens", "/data/my tokens"]


@pytest.mark.parametrize("target", ["slurm", "kubernetes", "torchrun"])
def test_a_job_file_names_the_tokens_that_train_is_to_read(capsys, monkeypatch, target: str) -> None:
    monkeypatch.setattr(sys, "argv", ["trivium", "launch", "--print", target, "--out", "/runs/a", *TOKENS])
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert not ended.value.code and "--tokens '/data/my tokens'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "code", "says"),
    [
        ("training.start_from=/nowhere", 5, "/nowhere is not a checkpoint"),
        ("training.evaluation={every: 5, tasks: helaswag}", 2, "helaswag: there is no such task"),
        ("training.evaluation={every: 5, data: /nowhere}", 4, "training.evaluation: "),
        ("plan.batch.micro=7", 2, "must be a multiple of plan.batch.micro"),
    ],
)
def test_what_a_training_would_be_refused_for_is_refused_here_and_not_on_every_node(
    capsys, monkeypatch, tmp_path: Path, wrong: str, code: int, says: str
) -> None:
    tokens = finished_tokens(tmp_path / "made")

    def answer(*command: str) -> tuple[int, str, str]:
        sets = [word for each in (*OF_THESE_TOKENS, *more) for word in ("--set", each)]
        given = ["--out", str(tmp_path / "run"), "--preset", "demo", "--tokens", str(tokens)]
        monkeypatch.setattr(sys, "argv", ["trivium", *command, *given, *sets])
        with pytest.raises(SystemExit) as ended:
            entry.main()
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    more: list[str] = []
    assert answer("launch", "--print", "slurm")[0] == 0
    more = [wrong]
    here, there = answer("launch", "--print", "slurm"), answer("train", "--dry-run")
    assert here[0] == there[0] == code and says in here[2] and here[2] == there[2]
    assert not here[1] and not (tmp_path / "run").exists()


def test_tokens_that_only_the_nodes_have_are_no_reason_to_refuse_nor_what_this_machine_lacks(
    capsys, monkeypatch, tmp_path: Path
) -> None:
    def lacks(*, wanted: bool) -> None:
        raise MachineError("no compiler")

    monkeypatch.setattr(train, "check_compiler", lacks)
    for tokens in (finished_tokens(tmp_path / "made"), Path("/data/of/the/nodes")):
        sets = [word for each in OF_THESE_TOKENS for word in ("--set", each)]
        given = ["--out", str(tmp_path / "run"), "--preset", "demo", "--tokens", str(tokens)]
        monkeypatch.setattr(sys, "argv", ["trivium", "launch", "--print", "torchrun", *given, *sets])
        with pytest.raises(SystemExit) as ended:
            entry.main()
        assert not ended.value.code and str(tokens) in capsys.readouterr().out


def is_shell(text: str) -> None:
    subprocess.run(["bash", "-n"], input=text.encode(), check=True)


def two_nodes(*more: str) -> list[str]:
    return [*TWO_NODES, "plan.layout.data=1", *more]


def test_slurm_places_a_rank_per_device_asks_for_a_save_in_time_and_queues_75_again(capsys, monkeypatch) -> None:
    text = printed(capsys, monkeypatch, "slurm", *two_nodes("training.supervision.preemption_seconds=280"))
    is_shell(text)
    for line in ("#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=8", "#SBATCH --gpus-per-node=8", "#SBATCH --requeue"):
        assert line in text.splitlines(), line
    assert "#SBATCH --signal=USR1@300" in text
    assert {"#SBATCH --exclusive", "#SBATCH --mem=0"} <= set(text.splitlines())
    assert "--out '/runs/My run' --preset demo --set plan.layout.tensor=8" in text
    assert "{{" not in text


SCONTROL = """#!/bin/bash
case $1 in
  show) [ "$2" = job ] && echo "   $STATE Dependency=(null)" || echo host ;;
  requeue) echo "requeue $2" >> requeued ;;
esac
"""
SRUN = """#!/bin/bash
[ "$1" = --nodes=1 ] && echo "$PORT" && exit
[ -n "$EVENT" ] && printf '{"event": "%s", "time": %s}\\n' "$EVENT" "$(date +%s%N)" >> training/events.jsonl
[ -n "$FIRST" ] && printf "$FIRST" > "$TRIVIUM_EXIT_CODE"
exit "$CODE"
"""
REQUEUED = "JobState=COMPLETING Reason=BeginTime Requeue=1 Restarts=1 BatchFlag=1"  # by Slurm, after a preemption
PREEMPTED = "JobState=PREEMPTED Reason=None Requeue=1 Restarts=0"  # where PreemptMode is CANCEL
RUNS, LATE, CANCELLED = (
    "JobState=RUNNING Reason=None",
    "JobState=COMPLETING Reason=TimeLimit",
    "JobState=COMPLETING Reason=None",  # as Slurm 22.05 shows a job that scancel ended
)


@pytest.mark.parametrize(
    ("code", "state", "queued"),
    [
        (75, RUNS, True),
        (75, LATE, True),
        (75, CANCELLED, False),
        (137, RUNS, True),
        (137, CANCELLED, False),
        (2, RUNS, False),
        (0, RUNS, False),
    ],
)
def test_slurm_queues_again_what_may_go_on_and_never_what_was_cancelled(
    capsys, monkeypatch, tmp_path: Path, code: int, state: str, queued: bool
) -> None:
    text = printed(capsys, monkeypatch, "slurm", *two_nodes(), out=str(tmp_path))
    assert runs_under_slurm(text, tmp_path, code, state) == queued


@pytest.mark.parametrize(
    ("state", "says", "asks"),
    [
        (RUNS, "preempted, saved; queued again", True),
        (REQUEUED, "preempted, saved; Slurm has queued it again", False),
        ("JobState=PENDING Reason=None", "preempted, saved; Slurm has queued it again", False),
        (PREEMPTED, "preempted, saved; queued again", True),
        (CANCELLED, "preempted, saved; cancelled, and so not queued again", False),
    ],
)
def test_slurm_says_whether_the_job_was_queued_again(
    capfd, monkeypatch, tmp_path: Path, state: str, says: str, asks: bool
) -> None:
    text = printed(capfd, monkeypatch, "slurm", *two_nodes(), out=str(tmp_path))
    assert runs_under_slurm(text, tmp_path, 75, state) == asks
    assert capfd.readouterr().out.splitlines()[-1] == says


def test_slurm_says_when_it_refused_to_queue_the_job_again(capfd, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys.modules[__name__], "SCONTROL", SCONTROL.replace("requeue) ", "requeue) exit 1 ; "))
    text = printed(capfd, monkeypatch, "slurm", *two_nodes(), out=str(tmp_path))
    assert not runs_under_slurm(text, tmp_path, 75, RUNS)
    assert "Slurm refused to queue it again" in capfd.readouterr().out.splitlines()[-1]


def test_slurm_is_understood_though_it_ends_all_processes_of_a_job_that_it_queues_again(
    capfd, monkeypatch, tmp_path: Path
) -> None:
    ended = SCONTROL.replace("#!/bin/bash", "#!/bin/bash\nkill -TERM $$")
    monkeypatch.setattr(sys.modules[__name__], "SCONTROL", ended)
    text = printed(capfd, monkeypatch, "slurm", *two_nodes(), out=str(tmp_path))
    assert runs_under_slurm(text, tmp_path, 75, RUNS)
    assert capfd.readouterr().out.splitlines()[-1] == "preempted, saved; queued again"


def test_slurm_takes_a_job_for_preempted_whose_last_ranks_were_ended_by_slurm(
    capsys, monkeypatch, tmp_path: Path
) -> None:
    (tmp_path / "training").mkdir()
    text = printed(capsys, monkeypatch, "slurm", *two_nodes("training.restarts=0"), out=str(tmp_path))
    assert runs_under_slurm(text, tmp_path, 143, RUNS, ends=75, event="preempted")
    assert not (tmp_path / "failures-7").exists()
    assert not runs_under_slurm(text, tmp_path, 143, RUNS), "that was said by an earlier part of the run"
    assert not runs_under_slurm(text, tmp_path, 143, RUNS, event="saved")


def runs_under_slurm(
    text: str,
    folder: Path,
    code: int,
    state: str,
    *,
    ends: int | None = None,
    event: str = "",
    first: str = "",
    port: str = "29500",
) -> bool:
    """Run a job file whose ranks log an event and end with `code`; return whether it queued itself again.

    ends: the exit code of the job, if it is not `code`. first: the exit code that the first rank to fail left. port:
    the port that the first host offers, if it can.
    """
    for name, script in (("scontrol", SCONTROL), ("srun", SRUN)):
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    (folder / "requeued").unlink(missing_ok=True)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "STATE": state, "CODE": str(code)}
    environment |= {"EVENT": event, "FIRST": first, "PORT": port}
    ran = subprocess.run(["bash"], input=text.encode(), cwd=folder, env=environment)
    assert ran.returncode == (code if ends is None else ends)
    return (folder / "requeued").exists()


SRUN_OF_HOSTS = """#!/bin/bash
while [ "$1" != bash ]; do shift; done
wrapper=$3 codes=$5
highest=0
for code in HOSTS_END; do
  [ "$code" = 3 ] && echo 3 > "$TRIVIUM_EXIT_CODE"
  bash -c "$wrapper" host "$codes" bash -c "exit $code" || highest=$(($? > highest ? $? : highest))
done
exit "$highest"
"""


@pytest.mark.parametrize(
    ("of_hosts", "of_job", "queued"),
    [
        ("0 0", 0, False),
        ("0 3", 0, False),  # one host was left out, or lacks something; the other finished
        ("75 3", 75, True),
        ("75 0", 0, False),
        ("3 1", 1, True),
        ("3 3", 3, False),
        ("137 3", 137, True),
    ],
)
def test_the_hosts_that_went_on_decide_how_an_elastic_job_ended(
    capsys, monkeypatch, tmp_path: Path, of_hosts: str, of_job: int, queued: bool
) -> None:
    text = printed(capsys, monkeypatch, "slurm", *two_nodes(), out=str(tmp_path), more=["--hosts", "1:2"])
    monkeypatch.setattr(sys.modules[__name__], "SRUN", SRUN_OF_HOSTS.replace("HOSTS_END", of_hosts))
    assert runs_under_slurm(text, tmp_path, of_job, RUNS) == queued
    assert not list(tmp_path.glob("exit-code*"))


@pytest.mark.parametrize("code", [2, 3, 4, 5])
def test_slurm_does_not_repeat_what_was_wrong_though_it_tells_of_the_ranks_it_killed(
    capsys, monkeypatch, tmp_path: Path, code: int
) -> None:
    out = tmp_path / "not there yet"
    text = printed(capsys, monkeypatch, "slurm", *two_nodes(), out=str(out))
    assert not runs_under_slurm(text, tmp_path, 137, RUNS, ends=code, first=str(code))
    assert runs_under_slurm(text, tmp_path, 137, RUNS), "that was said by an earlier part of the run"
    assert sorted(path.name for path in out.iterdir()) == ["failures-7"]


def test_slurm_takes_a_first_host_that_gives_no_port_for_one_that_failed(capsys, monkeypatch, tmp_path: Path) -> None:
    text = printed(capsys, monkeypatch, "slurm", *two_nodes("training.restarts=1"), out=str(tmp_path))
    assert runs_under_slurm(text, tmp_path, 2, RUNS, ends=1, first="2", port="")
    assert not runs_under_slurm(text, tmp_path, 2, RUNS, ends=1, first="2", port="")


def test_slurm_names_the_host_of_the_last_rank_that_failed(capfd, monkeypatch, tmp_path: Path) -> None:
    text = printed(capfd, monkeypatch, "slurm", *two_nodes(), out=str(tmp_path))
    (tmp_path / "training").mkdir()
    told = [{"event": "rank failed", "rank": 3, "host": "node-17"}, {"event": "saved", "step": 5}]
    (tmp_path / "training" / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in told))
    assert runs_under_slurm(text, tmp_path, 137, RUNS)
    assert "ExcNodeList=node-17" in capfd.readouterr().out


def test_the_first_exit_code_that_would_come_again_is_left_for_the_job_file(monkeypatch, tmp_path: Path) -> None:
    path = tmp_path / "code"
    leave_exit_code(4)  # TRIVIUM_EXIT_CODE is not set
    monkeypatch.setenv("TRIVIUM_EXIT_CODE", str(path))
    for code in (1, 75, 130, 137):
        leave_exit_code(code)
        assert not path.exists()
    for code in (5, 2):
        leave_exit_code(code)
        assert path.read_text() == "5"
    monkeypatch.setenv("TRIVIUM_EXIT_CODE", str(tmp_path / "no folder" / "code"))
    leave_exit_code(3)


def test_slurm_gives_up_where_a_job_gets_no_further_and_not_where_it_does(capsys, monkeypatch, tmp_path: Path) -> None:
    text = printed(capsys, monkeypatch, "slurm", *two_nodes("training.restarts=2"), out=str(tmp_path))

    def fails_at(*checkpoints: str) -> bool:
        for name in checkpoints:
            (tmp_path / "training" / "checkpoints" / name).mkdir(parents=True, exist_ok=True)
        return runs_under_slurm(text, tmp_path, 137, RUNS)

    assert fails_at() and fails_at()
    assert fails_at("step-00000100") and fails_at(".step-00000200.partial")  # a half-written checkpoint is no progress
    assert fails_at("step-99999990") and fails_at("step-100000000") and fails_at()
    assert not fails_at()


TORCHRUN = """#!/bin/bash
[ -n "$FIRST" ] && printf "$FIRST" > "$TRIVIUM_EXIT_CODE"
[ -n "$EVENT" ] && printf '{"event": "%s", "time": %s}\\n' "$EVENT" "$(date +%s%N)" >> training/events.jsonl
[ "$EVENT" = preempted ] && kill -TERM "$PPID"
exit 1
"""


@pytest.mark.parametrize("target", ["torchrun", "kubernetes"])
def test_a_job_that_failed_at_its_start_is_not_taken_for_one_that_was_preempted_before(
    capsys, monkeypatch, tmp_path: Path, target: str
) -> None:
    text = printed(capsys, monkeypatch, target, "training.restarts=0", out=str(tmp_path))
    if target == "kubernetes":
        text = list(yaml.safe_load_all(text))[1]["spec"]["template"]["spec"]["containers"][0]["args"][0]
    (tmp_path / "torchrun").write_text(TORCHRUN)
    (tmp_path / "torchrun").chmod(0o755)
    (tmp_path / "training").mkdir()

    def ends(event: str, first: str = "") -> int:
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "OUT": str(tmp_path), "EVENT": event}
        environment |= {"FIRST": first, "JOB_COMPLETION_INDEX": "0"}
        return subprocess.run(["bash", "-c", text], cwd=tmp_path, env=environment).returncode

    assert [ends(event) for event in ("preempted", "", "saved", "preempted")] == [75, 1, 1, 75]
    assert [ends("", "4"), ends("")] == [4, 1]


FAILS_AND_SAVES = """#!/bin/bash
echo began >> attempts
while [ "$1" != --log-dir ]; do shift; done
[ -n "$2" ] && [ "$(wc -l < attempts)" -gt "$MISSES" ] && mkdir "$2/attempt"
[ -n "$EVENT" ] && mkdir -p training && printf '%s\n' '{"event": "saved"}' "$EVENT" >> training/events.jsonl
[ "$(wc -l < attempts)" = "$SAVES_IN" ] && mkdir -p training/checkpoints/step-00000010
[ "$(wc -l < attempts)" = "$ENDS_IN" ] && exit 0
[ "$KILLS" = script ] && kill -KILL "$PPID"
exit "$CODE"
"""


def attempts_of(
    text: str,
    folder: Path,
    target: str,
    *,
    saves_in: int = 0,
    index: int = 0,
    code: int = 1,
    kills: str = "",
    job: str = "a",
    misses: int = 0,
    event: str = "",
    ends_in: int = 0,
) -> subprocess.CompletedProcess[str]:
    """Run a job file whose torchrun fails and writes a checkpoint in one of its attempts; pauses take no time.

    code: the exit code of torchrun. kills: "script" if the attempt ends with the whole container. job: the UID of the
    Kubernetes Job. misses: first attempts that start no rank. event: what the ranks of an attempt log. ends_in: the
    attempt that trains to the end.
    """
    if target == "kubernetes":
        text = list(yaml.safe_load_all(text))[1]["spec"]["template"]["spec"]["containers"][0]["args"][0]
    stand_ins = {
        "torchrun": FAILS_AND_SAVES,
        "sleep": "#!/bin/bash\n",
        "timeout": "#!/bin/bash\n/bin/sleep 0.1; exit 1\n",
    }
    for name, script in stand_ins.items():
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "OUT": str(folder), "SAVES_IN": str(saves_in)}
    environment |= {"CODE": str(code), "KILLS": kills, "MISSES": str(misses), "EVENT": event, "ENDS_IN": str(ends_in)}
    environment |= {"JOB_COMPLETION_INDEX": str(index), "JOB": job} if target == "kubernetes" else {}
    (folder / "attempts").write_text("")
    return subprocess.run(["bash", "-c", text], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("target", ["torchrun", "kubernetes"])
def test_progress_renews_the_restarts_of_a_job_file(capsys, monkeypatch, tmp_path: Path, target: str) -> None:
    text = printed(capsys, monkeypatch, target, "training.restarts=2", out=str(tmp_path))
    for saves_in, attempts in ((0, 3), (3, 5)):
        ran = attempts_of(text, tmp_path, target, saves_in=saves_in)
        assert ran.returncode == 1 and len((tmp_path / "attempts").read_text().split()) == attempts
        assert "failure 3 at the same checkpoint" in ran.stdout
    assert not list(tmp_path.glob("failures-*")), "who starts it again has all restarts"


@pytest.mark.parametrize("target", ["torchrun", "kubernetes"])
def test_exhausted_restarts_end_with_1_whatever_killed_torchrun(
    capsys, monkeypatch, tmp_path: Path, target: str
) -> None:
    """Kubernetes would replace a pod that ends with 137, and its replacement would have all restarts again."""
    text = printed(capsys, monkeypatch, target, "training.restarts=1", out=str(tmp_path))
    ran = attempts_of(text, tmp_path, target, code=137)
    assert ran.returncode == 1 and "attempt ended with 137; failure 2" in ran.stdout


def test_containers_that_are_killed_as_a_whole_use_up_the_restarts_of_a_pod(
    capsys, monkeypatch, tmp_path: Path
) -> None:
    text = printed(capsys, monkeypatch, "kubernetes", "training.restarts=2", out=str(tmp_path))

    def ends(kills: str = "script", job: str = "a") -> tuple[int, int]:
        ran = attempts_of(text, tmp_path, "kubernetes", kills=kills, job=job)
        return ran.returncode, len((tmp_path / "attempts").read_text().split())

    killed = (-signal.SIGKILL, 1)
    assert [ends() for _ in range(4)] == [killed] * 3 + [(1, 0)], "the fourth container begins no attempt"
    assert [ends(), ends(kills="")] == [killed, (1, 2)], "who starts it again has all restarts"
    assert [ends() for _ in range(3)] == [killed] * 3
    assert ends(kills="", job="b") == (1, 3), "a new Job has all restarts, though no pod of the old one came back"


def test_failures_are_counted_though_no_temporary_folder_can_be_made(capsys, monkeypatch, tmp_path: Path) -> None:
    text = printed(capsys, monkeypatch, "kubernetes", *two_nodes("training.restarts=1"), out=str(tmp_path))
    (tmp_path / "mktemp").write_text("#!/bin/bash\nexit 1\n")
    (tmp_path / "mktemp").chmod(0o755)
    ran = attempts_of(text, tmp_path, "kubernetes")
    assert (ran.returncode, len((tmp_path / "attempts").read_text().split())) == (1, 2), ran.stdout
    assert "failure 2 at the same checkpoint" in ran.stdout and "before ranks were started" not in ran.stdout


@pytest.mark.parametrize(
    ("target", "hosts", "ended"),
    [
        ("torchrun", [], (75, 1)),
        ("kubernetes", [], (75, 1)),
        ("kubernetes", [*TWO_NODES, "plan.layout.data=1"], (0, 4)),
    ],
)
def test_a_pod_that_was_not_asked_to_end_waits_for_the_one_that_was(
    capsys, monkeypatch, tmp_path: Path, target: str, hosts: list[str], ended: tuple[int, int]
) -> None:
    """On hosts without a scheduler, a user ends all of them by a signal to one. A single pod waits for none."""
    text = printed(capsys, monkeypatch, target, *hosts, "training.restarts=0", out=str(tmp_path))
    ran = attempts_of(text, tmp_path, target, event='{"event": "preempted"}', ends_in=4)
    assert (ran.returncode, len((tmp_path / "attempts").read_text().split())) == ended, ran.stdout
    assert not [*tmp_path.glob("failures-*"), *tmp_path.glob("running-*")]


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        ({"host": "another", "host_lost": True}, False),
        ({"host": "another"}, True),  # its script counts it as well, and all end together
        ({"host": platform.node(), "host_lost": True}, True),
        ({"host": "127.0.0.1", "host_lost": True}, True),  # the first host, by its address
        ({}, True),
    ],
)
def test_hosts_that_wait_for_a_lost_one_keep_their_restarts(capsys, monkeypatch, tmp_path, fields, counts) -> None:
    sets = two_nodes("training.restarts=1")
    text = printed(capsys, monkeypatch, "kubernetes", *sets, out=str(tmp_path)).replace("hostname -i", "echo 127.0.0.1")
    event = json.dumps({"event": "rank failed", **fields})
    ran = attempts_of(text, tmp_path, "kubernetes", event=event, ends_in=5)
    attempts = len((tmp_path / "attempts").read_text().split())
    assert (ran.returncode, attempts) == ((1, 2) if counts else (0, 5)), ran.stdout + ran.stderr
    assert ("after host another was lost" in ran.stdout) != counts


def test_an_attempt_before_ranks_were_started_counts_only_if_it_comes_again(capsys, monkeypatch, tmp_path) -> None:
    """A pod that is replaced early comes to the rendezvous of an attempt that is just ending."""
    text = printed(capsys, monkeypatch, "kubernetes", *two_nodes("training.restarts=1"), out=str(tmp_path))
    for misses, attempts in ((0, 2), (1, 3), (99, 3)):
        ran = attempts_of(text, tmp_path, "kubernetes", misses=misses)
        assert ran.returncode == 1 and len((tmp_path / "attempts").read_text().split()) == attempts, ran.stdout


def test_a_host_waits_for_the_first_one_as_long_as_is_set_and_names_it(capsys, monkeypatch, tmp_path: Path) -> None:
    sets = two_nodes("training.supervision.host_seconds=2", "training.restarts=0")
    text = printed(capsys, monkeypatch, "kubernetes", *sets, out=str(tmp_path))
    begin = time.monotonic()
    ran = attempts_of(text, tmp_path, "kubernetes", index=1)
    assert ran.returncode == 1 and time.monotonic() - begin > 1
    assert "did not come within 2 s (training.supervision.host_seconds)" in ran.stdout
    assert "the first host, trivium-" in ran.stdout and not (tmp_path / "attempts").read_text(), "no attempt is lost"
    assert "join_timeout=2" in text, "the first host waits as long for the others"


@pytest.mark.parametrize("index", [0, 1])
def test_a_pod_that_is_replaced_after_the_end_of_the_training_ends_with_0(
    capsys, monkeypatch, tmp_path: Path, index: int
) -> None:
    """The first host may have ended already, so nobody would come. A longer training is not finished."""
    sets = two_nodes("training.supervision.host_seconds=1", "training.restarts=0")
    text = printed(capsys, monkeypatch, "kubernetes", *sets, out=str(tmp_path))
    name = yaml.safe_load(text.split("---")[0])["metadata"]["name"]
    (tmp_path / "training").mkdir()
    stamp, running, python = tmp_path / "training" / STAMP, tmp_path / f"running-{name}-a-{index}", tmp_path / "python"

    def ends(says: str) -> int:
        python.write_text(f'#!/bin/bash\n[ "${{@: -1}}" = --dry-run ] && echo "  {says}"\n')
        python.chmod(0o755)
        return attempts_of(text, tmp_path, "kubernetes", index=index).returncode

    assert ends(f"training {train.FINISHED}") == 1, "nothing is finished without a stamp"
    stamp.touch()
    assert ends("it would resume") == 1
    for was_killed in (False, True):
        if was_killed:
            running.touch()
        assert ends(f"training {train.FINISHED}") == 0 and not (tmp_path / "attempts").read_text()
    assert not running.exists()


KUBERNETES_SETS = [[], two_nodes(), ["machine=dgx-h100", "plan.layout.data=1"], ["training.restarts=0"]]


@pytest.mark.parametrize("sets", KUBERNETES_SETS, ids=["one node", "two nodes", "a part of one", "no restarts"])
def test_every_file_for_kubernetes_keeps_the_rules_of_its_failure_policy(capsys, monkeypatch, sets: list[str]) -> None:
    """The rules are those of API servers 1.26 to 1.34, where `status` has no default."""
    service, job = yaml.safe_load_all(printed(capsys, monkeypatch, "kubernetes", *sets))
    spec = job["spec"]
    for name in (service["metadata"]["name"], job["metadata"]["name"]):
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name)
    assert spec["template"]["spec"]["restartPolicy"] == "Never", "a policy needs it"
    assert type(spec["backoffLimit"]) is int and 0 <= spec["backoffLimit"] < 1 << 31
    assert len(spec["podFailurePolicy"]["rules"]) <= 20
    for rule in spec["podFailurePolicy"]["rules"]:
        assert rule["action"] in ("FailJob", "Ignore", "Count")
        assert "onPodConditions" in rule, "the schemas of 1.26 to 1.28 require it; an empty list stands for none"
        assert sum(bool(rule.get(name)) for name in ("onExitCodes", "onPodConditions")) == 1, rule
        for condition in rule["onPodConditions"]:
            assert condition.keys() == {"type", "status"} and condition["status"] in ("True", "False", "Unknown")
        if codes := rule.get("onExitCodes"):
            assert codes["operator"] in ("In", "NotIn") and codes["values"] == sorted(set(codes["values"]))
            assert 1 <= len(codes["values"]) <= 255 and not (codes["operator"] == "In" and 0 in codes["values"])
    for variable in spec["template"]["spec"]["containers"][0]["env"]:
        assert type(variable["name"]) is str and (type(variable.get("value")) is str) == ("valueFrom" not in variable)


FAILS_WHEN_ASKED = """#!/bin/bash
echo began >> attempts
trap 'sleep 1; touch ended; exit 1' TERM
[ -n "$LASTS" ] && while :; do sleep 0.1; done
exit 1
"""


@pytest.mark.broad
@pytest.mark.parametrize("lasts", ["", "yes"], ids=["between two attempts", "in an attempt that fails upon it"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_host_that_is_asked_to_end_begins_no_other_attempt(
    capsys, monkeypatch, tmp_path: Path, lasts: str, number: int, code: int
) -> None:
    """The signal comes from a scheduler or, as Ctrl-C in a terminal, to all processes that the script started."""
    text = printed(capsys, monkeypatch, "torchrun", "training.restarts=50", out=str(tmp_path))
    (tmp_path / "torchrun").write_text(FAILS_WHEN_ASKED)
    (tmp_path / "torchrun").chmod(0o755)
    attempts = tmp_path / "attempts"
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "LASTS": lasts}
    heard = ["env", "--default-signal=INT", "bash"]  # a shell that runs these tests in the background ignores SIGINT
    job = subprocess.Popen([*heard, "-c", text], cwd=tmp_path, env=environment, start_new_session=True)
    count = 1 if lasts else 3  # before the fourth attempt it pauses for 4 s
    try:
        while not attempts.is_file() or len(attempts.read_text().split()) < count:
            time.sleep(0.05)
        time.sleep(0.5)
        (os.killpg if number == signal.SIGINT else os.kill)(job.pid, number)
        assert job.wait(timeout=60) == code
    finally:
        job.kill()
    assert len(attempts.read_text().split()) == count
    assert (tmp_path / "ended").is_file() == bool(lasts), "the attempt ended before the script did"


def test_a_host_that_is_asked_to_end_just_before_an_attempt_ends(capsys, monkeypatch, tmp_path: Path) -> None:
    text = printed(capsys, monkeypatch, "torchrun", out=str(tmp_path))
    for name, script in (("torchrun", FAILS_WHEN_ASKED), ("mktemp", "#!/bin/bash\nkill -TERM $PPID\necho /nowhere\n")):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "LASTS": "yes"}
    assert subprocess.run(["bash", "-c", text], cwd=tmp_path, env=environment, timeout=20).returncode == 75


def test_a_job_of_some_devices_of_a_node_leaves_the_others(capsys, monkeypatch) -> None:
    some = printed(capsys, monkeypatch, "slurm", "machine=dgx-h100", "plan.layout.data=1")
    assert "#SBATCH --gpus-per-node=4" in some and "--exclusive" not in some and "--mem=0" not in some


def test_kubernetes_gives_pods_the_time_to_save_and_ignores_preemption(capsys, monkeypatch) -> None:
    text = printed(capsys, monkeypatch, "kubernetes", *two_nodes())
    service, job = yaml.safe_load_all(text)
    assert service["metadata"]["name"] == job["metadata"]["name"] == "trivium-my-run"
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (2, 2, "Indexed")
    assert pod["terminationGracePeriodSeconds"] == 120
    assert [rule["action"] for rule in spec["podFailurePolicy"]["rules"]] == ["Ignore", "Ignore", "FailJob"]
    assert spec["podFailurePolicy"]["rules"][-1]["onExitCodes"]["values"] == [1, 2, 3, 4, 5]
    (container,) = pod["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    is_shell(container["args"][0])
    assert "--nnodes 2 --nproc-per-node 8" in container["args"][0] and "{{" not in text


@pytest.mark.parametrize(("sets", "expected"), [(two_nodes(), True), ([], False)])
def test_ranks_that_were_given_accelerators_do_not_do_without(
    capsys, monkeypatch, sets: list[str], expected: bool
) -> None:
    wanted = {"name": "TRIVIUM_DEVICES", "value": "accelerators"}
    _, job = yaml.safe_load_all(printed(capsys, monkeypatch, "kubernetes", *sets))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert (wanted in container["env"]) == expected
    for target in ("slurm", "torchrun"):
        lines = printed(capsys, monkeypatch, target, *sets).splitlines()
        exports = [line for line in lines if "export TRIVIUM_DEVICES" in line]
        assert bool(exports) == expected
        for given in ("", "any") if expected else ():
            shell = f"TRIVIUM_DEVICES={given}; {exports[0]}; printenv TRIVIUM_DEVICES"
            said = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True).stdout
            assert said.strip() == (given or "accelerators"), "whoever starts the file may choose otherwise"


AWKWARD = ["/runs/x 'y'", "/runs/a: b, c}", '/runs/"q" #1', "/runs/{x}/\\n", "/runs/$(date)", "/run ü: [/☃"]


@pytest.mark.parametrize("out", AWKWARD)
def test_any_run_directory_stands_in_every_job_file_as_it_is(capsys, monkeypatch, out: str) -> None:
    text = printed(capsys, monkeypatch, "kubernetes", *two_nodes(), out=out)
    _, job = yaml.safe_load_all(text)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["env"][0] == {"name": "OUT", "value": out}
    (volume, _), first = container["volumeMounts"], f"/{out.split('/')[1]}"
    assert volume == {"name": "runs", "mountPath": first}, "runs in different folders are apart on the volume"
    (argument,) = [w for w in container["args"][0].splitlines() if "--out" in w]
    assert shlex.split(argument)[3:5] == ["--out", out]
    for target in ("slurm", "torchrun"):
        text = printed(capsys, monkeypatch, target, *two_nodes(), out=out)
        is_shell(text)
        assignment = next(line for line in text.splitlines() if line.startswith("OUT="))
        said = subprocess.run(["bash", "-c", f'{assignment}; printf %s "$OUT"'], capture_output=True, text=True)
        assert said.stdout == out
        assert shlex.quote(out) in text


@pytest.mark.parametrize("target", ["slurm", "kubernetes", "torchrun"])
def test_thousands_of_ranks_may_connect_to_the_first_host(capsys, monkeypatch, target: str) -> None:
    text = printed(capsys, monkeypatch, target, *two_nodes())
    (raise_limit,) = [line.partition("#")[0] for line in text.splitlines() if "ulimit" in line]
    shell = f"ulimit -S -n 64; {raise_limit.strip()}; ulimit -S -n; ulimit -H -n"
    told = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True).stdout.split()
    assert told[0] == told[1] != "64"


def test_a_line_break_in_what_a_job_file_passes_on_is_refused(capsys, monkeypatch) -> None:
    words = ["trivium", "launch", "--print", "torchrun", "--preset", "demo", "--out", "a\nb"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 2 and "line break" in capsys.readouterr().err


def test_a_pod_is_given_no_run_directory_that_would_be_gone_with_it(capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["trivium", "launch", "--print", "kubernetes", "--out", "runs/mine"])
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 2 and "--out /runs/mine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["--out", "/mine"], "--out /runs/mine"),
        (["--out", "/"], "--out /runs/demo"),
        (["--out", "/runs/a", "--tokens", "tokens"], "--tokens /runs/tokens"),
        (["--out", "/runs/a", "--preset", "presets/mine.yaml"], "--preset /runs/mine.yaml"),
        *(
            (["--out", "/runs/a", "--set", f"{field}=presets/{name}"], f"--set {field}=/runs/{name}")
            for field, name in (
                ("machine", "box.yaml"),
                ("plan.rows", "rows.txt"),
                ("training.start_from", "step-00000100"),
                ("training.evaluation.data", "tasks"),
            )
        ),
    ],
)
def test_a_pod_is_given_no_file_of_the_folder_it_was_described_in_nor_a_volume_in_place_of_its_root(
    capsys, monkeypatch, tmp_path: Path, words: list[str], remedy: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "mine.yaml").write_text("base: demo\n")
    monkeypatch.setattr(sys, "argv", ["trivium", "launch", "--print", "kubernetes", *words])
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 2 and remedy in capsys.readouterr().err


@pytest.mark.parametrize("is_inside", [True, False])
def test_paths_outside_the_volume_of_pods_are_warned_of(capsys, monkeypatch, tmp_path: Path, is_inside: bool) -> None:
    """They exist where the command is typed, and only the image may have them in a pod."""
    box = tmp_path / "box.yaml"
    box.write_text("base: dgx-h100\nname: box\n")
    base, preset = tmp_path / "base.yaml", tmp_path / "mine.yaml"
    base.write_text("base: demo\n")
    preset.write_text("base: base.yaml\n")
    out = tmp_path / "a" if is_inside else "/runs/a"
    words = ["--print", "kubernetes", "--out", str(out), "--tokens", str(tmp_path), "--set", f"machine={box}"]
    words += ["--preset", str(preset)]
    monkeypatch.setattr(sys, "argv", ["trivium", "launch", *words])
    with pytest.raises(SystemExit) as ended:
        entry.main()
    said = capsys.readouterr().err
    assert not ended.value.code
    of_preset = f"--preset {preset}"
    for given in (f"--tokens {tmp_path}", f"--set machine={box}", of_preset, f"{of_preset}, base: {base}"):
        assert (f"warning: {given} is outside /runs, where pods have the shared volume" in said) != is_inside


def test_a_long_name_is_cut_to_one_that_kubernetes_takes(capsys, monkeypatch) -> None:
    text = printed(capsys, monkeypatch, "kubernetes", out=f"/runs/{'a' * 43}-b")
    service = next(iter(yaml.safe_load_all(text)))
    assert service["metadata"]["name"] == f"trivium-{'a' * 43}"


def test_torchrun_on_one_host_needs_no_address_and_on_two_finds_them(capsys, monkeypatch) -> None:
    one = printed(capsys, monkeypatch, "torchrun")
    assert "Start it on one host:\n#   bash this-file\n\n" in one and "hosts" not in one.partition("OUT=")[0]
    is_shell(one)
    assert "--standalone" in one and "FIRST_HOST" not in one and "--nproc-per-node 8" in one
    two = printed(capsys, monkeypatch, "torchrun", *two_nodes("training.restarts=5"))
    assert "# All hosts share '/runs/My run'." in two and "on each of 2 hosts" in two
    is_shell(two)
    assert "--nnodes 2" in two and "$FIRST_ADDR" in two and '"$failures" -gt 5' in two


@pytest.mark.parametrize(
    ("sets", "told"),
    [
        (
            ["plan.layout.data=3", "plan.batch.sequences=96", "plan.batch.ramp=null", "machine=dgx-h100"],
            "12 ranks do not fill nodes of 8",
        ),
        ([*TWO_NODES, "plan.layout.order=[tensor,pipeline,data]"], "tensor groups"),
    ],
)
def test_ranks_that_cannot_be_placed_well_are_refused(capsys, monkeypatch, sets, told) -> None:
    monkeypatch.setattr(
        sys, "argv", ["trivium", "launch", "--print", "slurm", *[w for s in sets for w in ("--set", s)]]
    )
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 2 and told in capsys.readouterr().err
