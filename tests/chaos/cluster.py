"""Hosts of their own names and addresses on one machine: network namespaces behind a router, with a shared folder."""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path

import torch

from trivium.cli import hosts, train  # noqa: F401  imported once, before hosts are forked
from trivium.cli.main import main
from trivium.comms.launch import end_with
from trivium.training.supervision.preemption import SIGNALS
from trivium.training.supervision.watchdog import stat_of

CAN_BE_MADE = os.name == "posix" and os.geteuid() == 0 and None not in (shutil.which("ip"),)
ROUTER = "router"  # reaches all hosts
_NEWNET, _NEWUTS = 0x40000000, 0x04000000  # clone(2)


def ip(*words: str) -> str:
    return subprocess.run(("ip", *words), check=True, capture_output=True, text=True).stdout


class Cluster:
    """`count` hosts named h0, h1, … logs: the folder of their output."""

    def __init__(self, count: int, logs: Path) -> None:
        self.logs, self.tag = logs, f"trivium-{os.getpid()}"
        self.names = [f"h{number}" for number in range(count)]
        self.running: dict[str, ForkProcess] = {}
        self._router = self._space(ROUTER)
        ip("netns", "add", self._router)
        ip("netns", "exec", self._router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        ip("-n", self._router, "link", "set", "lo", "up")
        for number, name in enumerate(self.names):
            space, port = self._space(name), f"port{number}"
            ip("netns", "add", space)
            ip("link", "add", "eth", "netns", space, "type", "veth", "peer", "name", port, "netns", self._router)
            ip("-n", self._router, "addr", "add", f"10.78.{number}.1/24", "dev", port)
            ip("-n", space, "addr", "add", f"10.78.{number}.2/24", "dev", "eth")
            for where, device in ((self._router, port), (space, "lo"), (space, "eth")):
                ip("-n", where, "link", "set", device, "up")
            ip("-n", space, "route", "add", "default", "via", f"10.78.{number}.1")

    def start(self, name: str, words: Sequence[str]) -> None:
        """Run `trivium` with these words on a host. It is forked, so that nothing has to be imported again."""
        work = (Path("/run/netns") / self._space(name), name, words, self.log(name), os.getpid())
        process = get_context("fork").Process(target=_live, args=work, name=name)
        process.start()
        self.running[name] = process

    def inside(self, name: str, *words: str) -> list[str]:
        """Return the command that runs these words on a host, or on the router, under its name."""
        named = 'hostname "$0" && exec "$@"'
        return ["nsenter", f"--net=/run/netns/{self._space(name)}", "unshare", "--uts", "sh", "-c", named, name, *words]

    def kill(self, name: str) -> None:
        """End every process of a host, or of the router, at once."""
        while pids := self.pids(name):
            self._signal(pids, signal.SIGKILL)
            if name in self.running:
                self.running[name].join()

    def ask_to_end(self, name: str) -> None:
        """Send the agent of a host SIGTERM."""
        self._signal([self.running[name].pid or 0] if self.runs(name) else [], signal.SIGTERM)

    def freeze(self, name: str) -> None:
        self._signal(self.pids(name), signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        self._signal(self.pids(name), signal.SIGCONT)

    def connect(self, name: str, *, on: bool) -> None:
        """Plug in or unplug the cable of a host."""
        ip("-n", self._router, "link", "set", f"port{self.names.index(name)}", "up" if on else "down")

    def pids(self, name: str) -> list[int]:
        found = map(int, ip("netns", "pids", self._space(name)).split())
        return [pid for pid in found if stat_of(pid)[:1] not in (["Z"], ["X"], [])]

    def runs(self, name: str) -> bool:
        return name in self.running and self.running[name].is_alive()

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def told(self) -> str:
        """The end of what each host said."""
        return "\n".join(f"--- {n}\n{self.log(n).read_text()[-3000:]}" for n in self.names if self.log(n).exists())

    def end(self) -> None:
        for name in (*self.names, ROUTER):
            self.kill(name)
            ip("netns", "del", self._space(name))

    def _space(self, name: str) -> str:
        return f"{self.tag}-{name}"

    def _signal(self, pids: Sequence[int], number: signal.Signals) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _live(space: Path, name: str, words: Sequence[str], log: Path, parent: int) -> None:
    end_with(parent)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    library = ctypes.CDLL(None, use_errno=True)
    with open(space, "rb") as network:
        if library.setns(network.fileno(), _NEWNET) or library.unshare(_NEWUTS):
            os.write(2, b"setns or unshare was refused\n")
            os._exit(1)
    socket.sethostname(name)
    for number in (*SIGNALS, signal.SIGHUP):  # as in a process that a user starts
        signal.signal(number, signal.SIG_DFL)
    os.environ |= {"TRIVIUM_DEVICES": "any"}
    torch.set_num_threads(1)
    sys.argv = ["trivium", *words]
    code = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    sys.stdout.flush()
    os._exit(code)
