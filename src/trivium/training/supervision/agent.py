"""The agent of one host of an elastic job: it meets the agents of other hosts, and runs this host's ranks, round after
round, until the training is finished (docs/decisions/0021-hosts-meet-in-a-folder.md)."""

import secrets
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from trivium.comms.launch import RankFailed, Ranks, Seats, start_seats
from trivium.errors import NOT_WORTH_REPEATING, MachineError, Preempted, TriviumError, error_of
from trivium.training.config import Supervision
from trivium.training.metrics import EVENTS, METRICS, append_event, last_step, records, warn
from trivium.training.supervision.preemption import SIGNALS, EndedAtOnce, Requests, held_back
from trivium.training.supervision.rendezvous import (
    BEAT_SECONDS,
    GROW,
    MAX_FAILURES,
    Host,
    Rendezvous,
    Round,
    blamed,
    in_order,
    led,
    read_host,
    unused_port,
)
from trivium.units import counted

POLL_SECONDS = 0.3
SETTLE_SECONDS = 3 * BEAT_SECONDS  # without a change among the waiting hosts, before a round begins
GRACE_SECONDS = 10.0  # for this host's ranks to find out themselves that a host is gone, and to say which
MAX_LEADER_ATTEMPTS = 5  # its host may be busy
GROWS_AFTER_SECONDS = 5 * BEAT_SECONDS  # that a host must wait before a running round makes room for it


class Fit(NamedTuple):
    """The plan for some hosts. hosts: how many of them it uses. plan: as a tree. words: why it was chosen."""

    hosts: int
    plan: dict[str, Any]
    words: str


class LeftOut(MachineError):
    """This host failed too often, and the others continue without it."""


class RoundOver(TriviumError):
    """Another host left the round, so that this host's ranks cannot continue."""


@dataclass(frozen=True)
class Elastic:
    """The properties of a job that its agents need.

    out: the folder of the training. least, most: number of hosts. ranks: on each host. restarts: see
    `training.restarts`. rank: what each rank calls, with its place and the round. fit: the plan for at most this many
    hosts, or None if none fits. saved: the step of the newest checkpoint, or -1. begun: whether the training has a
    folder, to which events can be written. finished: whether nothing is left to do.
    """

    out: Path
    least: int
    most: int
    ranks: int
    restarts: int
    supervision: Supervision
    rank: Callable[..., None]
    fit: Callable[[int], Fit | None]
    saved: Callable[[], int]
    begun: Callable[[], bool]
    finished: Callable[[], bool]


@dataclass
class Agent:
    """requests: the signals that this process received."""

    job: Elastic
    meeting: Rendezvous
    requests: Requests
    _events: list[dict[str, Any]] = field(default_factory=list)  # not yet written
    _fits: dict[int, Fit | None] = field(default_factory=dict)
    _round_at_start: int = 0  # the newest one when this agent began

    def run(self) -> None:
        """Take part until the training is finished. Raises Preempted if this host was asked to leave, and the error
        that ended the job."""
        done = self._round_at_start = self.meeting.newest().number
        self.meeting.say(round=done)
        try:
            while True:
                found = self._wait(done)
                if found is None or self._train(found):
                    self.meeting.close(state="finished")
                    return
                done = found.number
        except (Preempted, LeftOut):
            self.meeting.close(state="left")
            raise
        except TriviumError as error:
            self.meeting.close(state="failed", code=error.exit_code, cause=str(error))
            raise

    def _wait(self, done: int) -> Round | None:
        """Return the next round that this host is a member of, or None when the training is finished."""
        began = changed = time.monotonic()
        before: object = None
        is_warned = False
        while True:
            self._leave_if_asked()
            alive, newest = self.meeting.look(), self.meeting.newest()
            if self.meeting.me.name in self.meeting.left_out:
                raise LeftOut(self._why_left_out())
            if newest.number > done:
                if newest.stops:
                    raise TriviumError(newest.stops)
                if newest.members.get(self.meeting.me.name) == self.meeting.me.life:
                    return newest
                done = newest.number
                self.meeting.say(round=done)
            self._refuse_after_others(newest)
            busy = [name for name in newest.members if name in alive and not _is_over(alive[name], newest)]
            waiting = {
                name: host
                for name, host in alive.items()
                if host.state == "waiting" and name not in self.meeting.left_out
            }
            now = time.monotonic()
            seen = sorted((host.name, host.life, host.reaches) for host in waiting.values()), busy
            if seen != before:
                before, changed = seen, now
            if busy:
                began = now
            elif self.job.finished():
                return None
            elif now - changed >= SETTLE_SECONDS and (
                len(waiting) >= self.job.most
                or self._goes_on(newest, alive)
                or now - began >= self.job.supervision.join_seconds
            ):
                try:
                    self._lead(waiting, alive, newest)
                except OSError as error:
                    if not is_warned:
                        warn(f"{self.meeting.folder}: the next round was not written: {error.strerror}; trying again")
                    is_warned = True
            if now - began > self.job.supervision.host_seconds:
                raise TriviumError(
                    f"{counted(len(waiting), 'host')} came within training.supervision.host_seconds "
                    f"({self.job.supervision.host_seconds:g}), and --hosts asks for {self.job.least}; start the others"
                )
            time.sleep(POLL_SECONDS)

    def _goes_on(self, newest: Round, alive: Mapping[str, Host]) -> bool:
        """Whether a host took part in the newest round already: otherwise the job begins or was started again."""
        return any(name in alive and alive[name].life == life for name, life in newest.members.items())

    def _lead(self, waiting: Mapping[str, Host], alive: Mapping[str, Host], before: Round) -> None:
        """Create the next round if this host is its leader and enough hosts reach it."""
        members = led(in_order(waiting, before))[: self.job.most]
        if not members or members[0].name != self.meeting.me.name:
            return
        gone = {name for name, life in before.members.items() if name not in alive or alive[name].life != life}
        over, events = self._judge(before, gone)
        if over.stops:
            self.meeting.create(over)
            self._events += [*events, {"event": "stopped", "cause": over.stops}]
            self._flush()
            return
        barred = {name for name, count in over.strikes.items() if count >= MAX_FAILURES}
        if new := barred - self.meeting.left_out:
            for name in sorted(new):
                self._events.append(
                    {"event": "host left out", "host": name, "cause": f"it failed {MAX_FAILURES} times"}
                )
                self.meeting.leave_out(name)
            return  # the others meet in the next turn
        fit = self._fit(len(members)) if len(members) >= self.job.least else None
        if fit is None:
            return  # more hosts may come
        chosen = members[: fit.hosts]
        found = over.model_copy(
            update={
                "members": {host.name: host.life for host in chosen},
                "names": tuple(host.name for host in chosen),
                "port": unused_port(),
                "secret": secrets.token_hex(16),
                "plan": fit.plan,
                "ended": tuple(name for name in before.members if name not in gone),
                "silent": tuple(sorted(gone)) if self._goes_on(before, alive) else (),
                "strikes": {name: count for name, count in over.strikes.items() if name not in barred},
            }
        )
        if not self.meeting.create(found):
            return
        (self.meeting.folder / GROW).unlink(missing_ok=True)
        spare = sorted(set(waiting) - set(found.members))
        met = {"event": "hosts met", "round": found.number, "hosts": list(found.names), "spare": spare}
        self._events += [*events, met | {"layout": fit.plan["layout"], "cause": fit.words}]
        self._flush()

    def _judge(self, before: Round, gone: set[str]) -> tuple[Round, list[dict[str, Any]]]:
        """Return the next round without its members, with the budgets after the last one, and events about that."""
        saved, number = self.job.saved(), before.number + 1
        if gone == set(before.members):  # all hosts are new: the job was started again
            return Round(number=number, saved=saved), []
        has_moved = saved > before.saved
        since = Round(number=before.number) if has_moved else before
        is_orderly, failed = self._end_of(before)
        # If a rank was named, because it reported a failure or hangs, other ranks may have been killed because of it.
        crashed = {} if is_orderly or failed else self._crashed(before)
        if len(crashed) < len(before.members):  # If every host lost a rank, no host is to blame.
            failed |= crashed.keys()
        strikes = since.strikes if is_orderly else blamed(since, gone, failed)
        failures = since.failures + (not is_orderly and not gone)
        events = [{"event": "host lost", "host": name, "round": before.number} for name in sorted(gone)]
        killed = {"event": "rank killed", "round": before.number, "step": last_step(self.job.out / METRICS)}
        events += [killed | {"host": name, "cause": cause} for name, cause in crashed.items()]
        stops = ""
        if failures > self.job.restarts:
            stops = f"stopped after {counted(failures, 'failure')} without a new checkpoint (training.restarts)"
        return Round(number=number, saved=saved, failures=failures, strikes=strikes, stops=stops), events

    def _end_of(self, before: Round) -> tuple[bool, set[str]]:
        """Return whether the ranks of a round saved and ended on request, and otherwise the host of the one that failed
        first, by the events since it began."""
        hosts, last, first = self.meeting.look(), "", ""
        for event in records(self.job.out / EVENTS):
            if event["event"] == "hosts met" and event.get("round") == before.number:
                last, first = "", ""
            elif event["event"] == "rank failed":
                last, first = "failed", first or str(event.get("host", ""))
            elif event["event"] == "preempted":
                last = "preempted"
        places = {address: name for name in before.members if name in hosts for address in hosts[name].addresses}
        return last == "preempted", {places.get(first, first)} & set(before.members)

    def _crashed(self, before: Round) -> dict[str, str]:
        """Return the hosts of a round on which a signal killed a rank, with the cause that their agents report."""
        hosts = self.meeting.look()
        return {
            name: hosts[name].cause for name in before.names if name in hosts and hosts[name].crashed == before.number
        }

    def _train(self, found: Round) -> bool:
        """Run this host's ranks; return whether they trained to the end."""
        hosts = self.meeting.look()
        leader = hosts.get(found.names[0])
        knocks = (self.meeting.address_of(leader) for _ in range(MAX_LEADER_ATTEMPTS) if leader is not None)
        address = next(filter(None, knocks), "")
        first, here = found.names.index(self.meeting.me.name) * self.job.ranks, self.job.ranks
        world_size = here * len(found.names)
        self.meeting.welcome(found.secret)
        self.meeting.say(state="running", round=found.number)
        warn(f"round {found.number}: ranks {first} to {first + here - 1} of {world_size}, of {', '.join(found.names)}")
        cause = f"{found.names[0]}, which leads round {found.number}, does not answer"
        if address:
            cause = self._run_ranks(found, Seats(first, here, world_size, address, found.port, found.number))
        self._flush()
        if cause:
            self.meeting.say(state="waiting", cause=cause)
        return not cause

    def _run_ranks(self, found: Round, seats: Seats) -> str:
        """Return how the round ended, or an empty text after the last step."""
        with held_back():
            ranks = start_seats(self.job.rank, seats, found)
        watch = _Watch(self, found, ranks)
        try:
            ranks.wait(watch=watch.look)
            return ""
        except RoundOver as over:
            warn(str(over))
            return str(over)
        except RankFailed as failure:
            code, me = failure.exits.get(failure.rank), self.meeting.me.name
            if code == Preempted.exit_code:
                if self.requests.asked:
                    raise self.requests.preempted(f"received {self.requests.asked}; saved") from None
                return "saved, because hosts join or leave"
            told = f"{me}: {failure}"
            if failure.signal:
                told = f"rank {seats.first + failure.rank} of {seats.world_size} on {me}: {failure.cause}"
            warn(told)
            if code in NOT_WORTH_REPEATING:
                raise error_of(code, str(failure)) from None
            self._leave_if_asked()
            if failure.signal not in (None, signal.SIGABRT):  # With NCCL a process that lost another one aborts.
                self.meeting.say(crashed=found.number)
            return told
        finally:
            self._flush()

    def _fit(self, hosts: int) -> Fit | None:
        if hosts not in self._fits:
            self._fits[hosts] = self.job.fit(hosts)
        return self._fits[hosts]

    def _leave_if_asked(self) -> None:
        if self.requests.again:
            raise EndedAtOnce(self.requests.again)
        if self.requests.asked:
            raise self.requests.preempted(f"received {self.requests.asked}; this host leaves the job")

    def _refuse_after_others(self, newest: Round) -> None:
        """Raise the error with which another member of the newest round ended the job. What ended it before this agent
        began may have been repaired since."""
        if newest.number <= self._round_at_start:
            return
        for name, life in newest.members.items():
            host = read_host(self.meeting.folder / f"{name}.json")
            if host is not None and host.life == life and host.state == "failed" and host.code in NOT_WORTH_REPEATING:
                raise error_of(host.code, f"{name}: {host.cause}")

    def _why_left_out(self) -> str:
        mark = self.meeting.folder / f"{self.meeting.me.name}.out"
        return (
            f"this host failed {MAX_FAILURES} times without a new checkpoint, and is left out; repair it and delete "
            f"{mark}"
        )

    def _flush(self) -> None:
        """Write the events of decisions, once the training has begun."""
        if self._events and self.job.begun():
            events, self._events = self._events, []
            for event in events:
                append_event(self.job.out, event)

    def make_room(self, found: Round, alive: Mapping[str, Host]) -> None:
        """Ask the ranks to end at their next checkpoint, if waiting hosts that reach this one give a larger round."""
        if (self.meeting.folder / GROW).exists():
            return
        waiting = [h.name for h in alive.values() if h.state == "waiting" and self.meeting.me.name in h.reaches]
        waiting = [name for name in waiting if name not in found.members and name not in self.meeting.left_out]
        count = min(len(found.members) + len(waiting), self.job.most)
        fit = self._fit(count) if count > len(found.members) else None
        if fit is not None and fit.hosts > len(found.members):
            (self.meeting.folder / GROW).touch()
            self._events.append({"event": "hosts join", "hosts": waiting, "round": found.number, "cause": fit.words})


class _Watch:
    """Looks after this host's ranks in one round."""

    def __init__(self, agent: Agent, found: Round, ranks: Ranks) -> None:
        self.agent, self.round, self.ranks = agent, found, ranks
        self._next = time.monotonic() + BEAT_SECONDS
        self._lost: float | None = None  # when a member was first seen to have left
        self._grows = time.monotonic() + GROWS_AFTER_SECONDS
        self._told = False

    def look(self) -> None:
        """Pass on signals. Raise RoundOver when a newer round began, or some time after a member left."""
        self._pass_on()
        self.agent._flush()  # before a rank can fail: failures are counted from the event that the hosts met
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + BEAT_SECONDS
        agent, found = self.agent, self.round
        alive = agent.meeting.look()
        if agent.meeting.newest().number > found.number:
            raise RoundOver(f"round {found.number} ended without this host, which did not renew its lease")
        left = [n for n, life in found.members.items() if n not in alive or _has_left(alive[n], life, found)]
        if left:
            self._lost = self._lost or now
            if now - self._lost > GRACE_SECONDS:
                raise RoundOver(f"round {found.number} is over: {', '.join(left)} left it")
        elif found.names[0] == agent.meeting.me.name and now > self._grows:
            self._grows = now + GROWS_AFTER_SECONDS
            agent.make_room(found, alive)

    def _pass_on(self) -> None:
        requests = self.agent.requests
        if requests.again:
            raise EndedAtOnce(requests.again)
        if requests.asked and not self._told:
            self._told = True
            self.ranks.signal(SIGNALS[0])
        if requests.asked and time.monotonic() - requests.since > self.agent.job.supervision.preemption_seconds:
            raise requests.preempted(f"received {requests.asked}; the ranks did not save in time")


def _is_over(host: Host, newest: Round) -> bool:
    """Whether a live member of a round has no ranks of it any more."""
    return host.life != newest.members[host.name] or (host.state != "running" and host.round >= newest.number)


def _has_left(host: Host, life: str, found: Round) -> bool:
    return host.life != life or (host.round >= found.number and host.state not in ("running", "finished"))
