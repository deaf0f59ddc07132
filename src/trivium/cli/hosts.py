"""`trivium train --hosts`: the agent of this host in an elastic job (training/supervision/agent.py)."""

import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from trivium.checkpoint.format import published, step_of
from trivium.checkpoint.lease import Gone
from trivium.checkpoint.near import Neighbour, host_folder
from trivium.cli.price import machine_of
from trivium.cli.stage import STARTED, Met, Run, Stage, perform, state_of
from trivium.comms.launch import Place
from trivium.config import build, to_tree
from trivium.errors import ConfigError
from trivium.plan.plan import Plan
from trivium.planner.fastest import for_hosts
from trivium.stores.remote import Location
from trivium.training.metrics import warn
from trivium.training.rank import observer_classes
from trivium.training.record import checkpoints_of
from trivium.training.supervision.agent import Agent, Elastic, Fit
from trivium.training.supervision.preemption import listening
from trivium.training.supervision.rendezvous import GROW, Rendezvous, Round, knock, read_host

_COUNTS = re.compile(r"(\d{1,6}):(\d{1,6})")


def host_counts(text: str, plan: Plan) -> tuple[int, int]:
    """Return the least and the largest number of hosts of --hosts MIN:MAX."""
    found = _COUNTS.fullmatch(text)
    least, most = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= least <= most:
        raise ConfigError(f"--hosts {text}: must be MIN:MAX with 1 <= MIN <= MAX, as 2:4")
    if plan.layout.world_size % most:
        raise ConfigError(
            f"--hosts {text}: plan.layout has {plan.layout.world_size} ranks, which {most} hosts cannot share equally; "
            f"give a layout of a multiple of {most} ranks"
        )
    return least, most


def train_on_hosts(
    run: Run, counts: str, stage: Stage, lead: Callable[[Run], None], join: Callable[[Run], None]
) -> None:
    """Train with the other hosts until the training is finished. lead: called on rank 0; join: on all others."""
    least, most = host_counts(counts, run.config.plan)
    if run.config.training.fastest_after:
        raise ConfigError("training.fastest_after and --hosts both choose the layout; set it to 0")
    if state_of(stage, run) == "current":
        perform(stage, run)
        return
    folder, out = run.at.root / "hosts", run.at.folder(stage.folder)
    supervision = run.config.training.supervision
    job = Elastic(
        out=out,
        least=least,
        most=most,
        ranks=run.config.plan.layout.world_size // most,
        restarts=run.config.training.restarts,
        supervision=supervision,
        rank=partial(_rank, run, lead, join, folder),
        fit=partial(_fit, run, most, least),
        saved=partial(_saved, checkpoints_of(out, run.config.training.store)),
        begun=(out / STARTED).is_file,
        finished=lambda: state_of(stage, run) == "current",
    )
    observer_classes()  # imported before ranks are forked
    with listening(lambda number: None) as requests:
        copies = host_folder(run.config.training.near.folder) if run.config.training.near.every else None
        Agent(job, Rendezvous(folder, supervision.lease_seconds, copies=copies), requests).run()


def _rank(
    run: Run, lead: Callable[[Run], None], join: Callable[[Run], None], folder: Path, place: Place, found: Round
) -> None:
    """Train as one rank of a round, as under torchrun."""
    gone, neighbour = Gone(found.ended, found.silent), None
    if run.config.training.near.every and len(found.members) > 1:
        neighbour = _neighbour(folder, found)
    run = replace(run, met=Met(build(Plan, found.plan), gone, folder / GROW, neighbour))
    (join if place.rank else lead)(run)


def _neighbour(folder: Path, found: Round) -> Neighbour | None:
    """Return the host after this one, which keeps second copies of what this host's ranks hold."""
    here = found.names.index(socket.gethostname())
    name = found.names[(here + 1) % len(found.names)]
    host = read_host(folder / f"{name}.json")
    for address in host.addresses if host is not None else ():
        if host is not None and knock(address, host.port) == host.life:
            return Neighbour(address, host.port, found.secret)
    warn(f"{name} does not answer: it keeps no copies of the states of this host")
    return None


def met_by_torchrun(run: Run, counts: str, environment: Mapping[str, str]) -> Run:
    """Return the run with the plan for the hosts that torchrun (--nnodes MIN:MAX) has brought together."""
    least, most = host_counts(counts, run.config.plan)
    ranks = run.config.plan.layout.world_size // most
    world_size = int(environment["WORLD_SIZE"])
    hosts = world_size // ranks
    if world_size % ranks or not least <= hosts <= most:
        raise ConfigError(
            f"--hosts {counts}: torchrun started {world_size} ranks, and each of {least} to {most} hosts must have "
            f"{ranks}; give torchrun --nnodes {counts} --nproc-per-node {ranks}"
        )
    fit = _fit(run, most, hosts, hosts)
    if fit is None:
        raise ConfigError(f"no layout fits {hosts} hosts with {ranks} ranks each; change --hosts, or search")
    return replace(run, met=Met(build(Plan, fit.plan), Gone()))


def _fit(run: Run, most: int, least: int, hosts: int) -> Fit | None:
    """Return the configured plan for all hosts, and what the planner chooses for fewer."""
    plan = run.config.plan
    if hosts == most:
        return Fit(most, to_tree(plan), "the configured plan, for all hosts")
    ranks = plan.layout.world_size // most
    found = for_hosts(plan, machine_of(run.config.machine), (least, hosts), ranks, run.config.search)
    return None if found is None else Fit(found[0], to_tree(found[1]), found[2])


def _saved(checkpoints: Location) -> int:
    return max((step_of(path.name) or 0 for path in published(checkpoints)), default=-1)
