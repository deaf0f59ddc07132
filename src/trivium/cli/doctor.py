"""`trivium doctor`: can this machine run the demo, and what to fix if not."""

import time
from typing import Annotated

import typer

from trivium.cli.machine import Check, gather, judge
from trivium.cli.options import DEFAULT_OUT, Out
from trivium.cli.settings import App
from trivium.cli.show import say
from trivium.cli.workspace import Workspace
from trivium.errors import ConfigError, MachineError
from trivium.finite import dumps
from trivium.provenance import STAMP, describe, write_json

app = App()


@app.command()
def doctor(
    out: Out = DEFAULT_OUT,
    hosts: Annotated[
        bool, typer.Option("--hosts", help="Measure the links between the hosts of this job, under torchrun or srun.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check Python, torch, cores, memory, disk, ports; nothing is written."""
    if hosts:
        _measure_hosts(as_json=as_json)
        return
    _say_and_raise(list(judge(gather(out))), as_json=as_json)


def _measure_hosts(*, as_json: bool) -> None:
    """Print bandwidth and latency of every pair of hosts, and the links that are slow against the median."""
    from trivium.comms.launch import connected, torchrun_place
    from trivium.comms.links import MAX_BANDWIDTH_RATIO, MAX_LATENCY_RATIO, host_names, measured_links, slow_of

    place = torchrun_place()
    if place is None or place.hosts < 2:
        raise ConfigError(
            f"--hosts measures between hosts, and this job has {place.hosts if place else 1}: start it on every host, "
            f"as `torchrun --nnodes N --nproc-per-node 1 … -m trivium doctor --hosts`"
        )
    with connected(place):
        links, names = measured_links(place), host_names(place)
    if place.rank:
        return
    slow = slow_of(links)
    if as_json:
        say(dumps({"hosts": names, "links": [x._asdict() for x in links], "slow": [x._asdict() for x in slow]}))
        return
    for link in links:
        rate, latency = f"{link.bytes_per_second / 1e9:.3g} GB/s", f"{link.latency_seconds * 1e6:.3g} µs"
        ends = " and ".join(f"{names[host]} (host {host})" for host in (link.first, link.second))
        say(f"  {ends}: {rate}, {latency}{'  SLOW' if link in slow else ''}")
    say(
        f"  slow: bandwidth {MAX_BANDWIDTH_RATIO:g} times below the median, or latency {MAX_LATENCY_RATIO:g} times "
        f"above it: {len(slow)}"
    )


def examine(at: Workspace) -> None:
    """The demo's first stage: look, keep what was found, and stop when the machine cannot do it."""
    began = time.monotonic()
    checks = list(judge(gather(at.root)))
    if not any(check.name in ("disk", "output") and check.verdict == "FAIL" for check in checks):
        folder = at.folder("doctor")
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "doctor.json", {"checks": [check._asdict() for check in checks]})
        write_json(folder / STAMP, describe(verb="doctor", config={}, inputs={}))
    _say_and_raise(checks)
    at.record_seconds("doctor", time.monotonic() - began)


def _say_and_raise(checks: list[Check], *, as_json: bool = False) -> None:
    if as_json:
        say(dumps({"checks": [check._asdict() for check in checks]}))
    else:
        for check in checks:
            say(f"  {check.verdict:4}  {check.name:9} {check.found}{f': {check.remedy}' if check.remedy else ''}")
    failed = [check for check in checks if check.verdict == "FAIL"]
    if failed:
        raise MachineError("\n".join(f"{check.name}: {check.found}; {check.remedy}" for check in failed))
