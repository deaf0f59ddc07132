"""Slurm on this machine: a controller and nodes in network namespaces, with their own key, configuration and state."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from chaos.cluster import ROUTER, Cluster
from trivium.errors import TriviumError

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
SEARCH = f"{os.environ['PATH']}:/usr/sbin"  # where Debian installs daemons
MISSING = [name for name in PROGRAMS if shutil.which(name, path=SEARCH) is None]
REMEDY = f"{', '.join(MISSING)} not found; `make cluster` says how Slurm is installed"
PATIENCE_SECONDS = 600.0
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL")
CORES = 2  # of each node
# cred_expire: Slurm starts no job again until the credentials of its last start have expired (120 s by default).
# MessageTimeout: after 10 s, the default, a controller sends the request to end a step again, and then ends the step of
# the same number that has been started since.
CONFIGURATION = """
ClusterName=trivium
SlurmctldHost={controller}(10.78.0.1)
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SlurmdTimeout=30
MessageTimeout=60
ReturnToService=2
KillWait=30
MpiDefault=none
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=usual Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=2 PreemptMode=OFF
"""


class Slurm:
    """A controller and `count` nodes named h0, h1, … folder: of keys, state, logs and jobs' output."""

    def __init__(self, count: int, folder: Path) -> None:
        self.folder, self.hosts = folder, Cluster(count, folder)
        path = f"{Path(sys.executable).parent}:{SEARCH}"
        self.environment = os.environ | {"PATH": path, "SLURM_CONF": str(folder / "slurm.conf")}
        try:
            self._begin()
        except BaseException:
            self.end()
            raise

    def _begin(self) -> None:
        folder = self.folder
        nodes = [f"NodeName={name} NodeAddr=10.78.{n}.2 CPUs={CORES}" for n, name in enumerate(self.hosts.names)]
        written = CONFIGURATION.format(controller=ROUTER, folder=folder, nodes="\n".join(nodes))
        (folder / "slurm.conf").write_text(written)
        names = [f"10.78.{number}.2 {name}" for number, name in enumerate(self.hosts.names)]
        (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", f"10.78.0.1 {ROUTER}", *names, ""]))
        (folder / "key").write_bytes(os.urandom(1024))
        (folder / "key").chmod(0o600)
        (folder / "state").mkdir()
        own = [f"--{what}={folder}/munge.{what}" for what in ("socket", "log-file", "pid-file", "seed-file")]
        self._start(ROUTER, "munged", "--foreground", "--force", f"--key-file={folder}/key", *own)
        self._wait(lambda: (folder / "munge.socket").exists(), "munged did not start")
        self._start(ROUTER, "slurmctld", "-D")
        for name in self.hosts.names:
            self.start_node(name)
        self._wait(lambda: all(self.state_of(name) == "IDLE" for name in self.hosts.names), "no node became idle")

    def start_node(self, name: str) -> None:
        self._start(name, "slurmd", "-D", "-N", name)

    def kill_node(self, name: str) -> None:
        """End the daemon of a node and all that it started, as a loss of power does."""
        self.hosts.kill(name)

    def state_of(self, node: str) -> str:
        return self._shown("node", node).get("State", "")

    def job(self, number: str) -> dict[str, str]:
        """Return the fields of a job that `scontrol show job` prints."""
        return self._shown("job", number)

    def submit(self, file: Path, *options: str) -> str:
        """Return the number of a job made of a file, with its output in this folder."""
        return self.run("sbatch", "--parsable", *options, str(file)).strip()

    def log(self, number: str) -> str:
        """Return what a job printed."""
        return "\n".join(path.read_text() for path in self.folder.glob(f"*-{number}.log"))

    def run(self, *words: str) -> str:
        """Run a command of Slurm's as a user of the controller does; return its output."""
        command = self._words(ROUTER, *words)
        ran = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        if ran.returncode:
            raise TriviumError(f"{' '.join(words)}: {ran.stderr}")
        return ran.stdout

    def wait_for(self, number: str, seen: Callable[[], bool], what: str) -> None:
        """Wait until `seen` returns true. Raises TriviumError with what the job printed if it ended before, or if that
        takes too long."""

        def seen_or_over() -> bool:
            return seen() or self.job(number).get("JobState", "") in ENDED

        def told() -> str:
            return f"{self.job(number)}\n{self.log(number)[-4000:]}"

        self._wait(seen_or_over, what, told)
        if not seen():
            raise TriviumError(f"{what}, and the job is over: {told()}")

    def end(self) -> None:
        self.hosts.end()

    def _shown(self, kind: str, name: str) -> dict[str, str]:
        try:
            words = self.run("scontrol", "show", "--oneliner", kind, name).split()
        except TriviumError:
            return {}
        return dict(word.split("=", 1) for word in words if "=" in word)

    def _start(self, name: str, *words: str) -> None:
        with open(self.folder / f"{name}-{words[0]}.out", "ab") as out:
            subprocess.Popen(self._words(name, *words), env=self.environment, stdout=out, stderr=out, cwd=self.folder)

    def _words(self, name: str, *words: str) -> list[str]:
        """Return the command that runs words on a host, where the names of all hosts have addresses."""
        known = f'mount --bind {self.folder}/hosts /etc/hosts && exec "$@"'
        return self.hosts.inside(name, "unshare", "--mount", "sh", "-c", known, "sh", *words)

    def _wait(self, seen: Callable[[], bool], what: str, more: Callable[[], str] = str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not seen():
            if time.monotonic() > deadline:
                log = self.folder / "slurmctld.log"
                raise TriviumError(f"{what}: {log.read_text()[-3000:] if log.exists() else ''}\n{more()}")
            time.sleep(0.5)
