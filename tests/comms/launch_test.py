"""Ranks start, fail and end as the launcher promises."""

import os
import signal
import socket
import time
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ranks import free_port
from trivium.comms import launch
from trivium.comms.launch import ALONE, Place, RankFailed, connected, run_ranks, start_ranks, torchrun_place
from trivium.comms.route import Route, route_to
from trivium.errors import ConfigError, DataError, TriviumError

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29400"}


def fail_on_one(place: Place) -> None:
    with connected(place, timeout_seconds=20):
        if place.rank == 1:
            raise DataError(f"rank {place.rank} met bad data")
        time.sleep(30)


def test_the_first_failure_is_reported_with_its_rank_and_the_others_end_at_once() -> None:
    begin = time.monotonic()
    with pytest.raises(RankFailed, match="rank 1 of 3: rank 1 met bad data") as failure:
        run_ranks(fail_on_one, 3)
    assert failure.value.rank == 1 and failure.value.exits[1] == DataError.exit_code
    assert time.monotonic() - begin < 15


def compute_too_late(place: Place) -> None:
    raise RuntimeError("Unable to handle autograd's threading in combination with fork-based multiprocessing.")


def test_ranks_forked_after_an_accelerator_was_used_say_how_to_start_them() -> None:
    with pytest.raises(RankFailed, match="start the ranks before anything else .* CUDA_VISIBLE_DEVICES="):
        run_ranks(compute_too_late, 2)


def test_an_unexpected_error_of_a_rank_ends_the_job_with_code_1() -> None:
    """Codes 2 to 5 are not used, because they say whose mistake it was."""
    with pytest.raises(RankFailed, match="Unable to handle autograd") as failure:
        run_ranks(compute_too_late, 1)
    assert failure.value.exits == {0: 1} and failure.value.exit_code == 1


def sleep_forever(place: Place) -> None:
    time.sleep(60)


def test_a_job_ends_with_the_exit_code_of_a_rank_that_says_what_is_wrong() -> None:
    codes = {2: 2, 3: 3, 4: 4, 5: 5, 1: 1, 75: 1, -9: 1, None: 1}
    assert {code: RankFailed(1, {1: code}, "wrong").exit_code for code in codes} == codes


def test_a_killed_rank_is_named_with_its_signal() -> None:
    ranks = start_ranks(sleep_forever, 2)
    os.kill(ranks.pids[1], signal.SIGKILL)
    with pytest.raises(RankFailed, match="rank 1 of 2: killed by SIGKILL") as failure:
        ranks.wait()
    assert failure.value.signal == signal.SIGKILL
    assert all(p.exitcode is not None for p in ranks.processes)


def test_a_hang_ends_with_the_ranks_that_hang_named() -> None:
    with pytest.raises(TriviumError, match=r"ranks \[0, 1\] did not finish"):
        run_ranks(sleep_forever, 2, timeout_seconds=0.5)


def test_torchrun_gives_a_place_and_without_it_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torchrun_place() is None
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert torchrun_place() == Place(1, 2, 1, "env://")
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert torchrun_place() == Place(1, 2, 0, "env://")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"MASTER_PORT": ""}, "lacks MASTER_PORT"),
        ({"RANK": "5"}, "RANK=5, WORLD_SIZE=2"),
        ({"RANK": "-1"}, "RANK=-1"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE=two"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT=http"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT=0: must be 1 to 65535"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT=70000: must be 1 to 65535"),
        ({"LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE=0: must be 1 to 2"),
        ({"LOCAL_WORLD_SIZE": "3"}, "LOCAL_WORLD_SIZE=3: must be 1 to 2"),
        ({"MASTER_ADDR": "", "TORCHELASTIC_RUN_ID": "x"}, "lacks MASTER_ADDR"),
    ],
)
def test_a_place_among_ranks_that_cannot_meet_is_refused_at_once(
    wrong: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (TORCHRUN | wrong).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=told):
        torchrun_place()


def with_accelerators(monkeypatch: pytest.MonkeyPatch, number: int) -> list[str]:
    """Simulate a machine with `number` GPUs; return a list that collects the backends of process groups."""
    talked: list[str] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: number)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(launch.dist, "init_process_group", lambda backend, **_: talked.append(backend))
    monkeypatch.setattr(launch.dist, "destroy_process_group", lambda: None)
    return talked


@pytest.mark.parametrize(
    ("accelerators", "ranks", "kind", "backend"), [(0, 2, "cpu", "gloo"), (1, 2, "cpu", "gloo"), (2, 2, "cuda", "nccl")]
)
def test_ranks_use_accelerators_where_each_has_its_own_and_otherwise_none_does(
    accelerators: int, ranks: int, kind: str, backend: str, monkeypatch, capsys
) -> None:
    talked = with_accelerators(monkeypatch, accelerators)
    places = [Place(r, ranks, r, "file:///nowhere", ranks) for r in range(ranks)]
    assert {p.device.type for p in places} == {kind}
    assert len({p.device for p in places}) == (ranks if kind == "cuda" else 1)
    for place in places:
        with connected(place):
            pass
    assert talked == [backend] * ranks
    said = capsys.readouterr().err.splitlines()
    assert said == (
        [
            "warning: 2 ranks, and 1 GPU: all compute on the processor, over gloo; "
            "set TRIVIUM_DEVICES=shared to let ranks share a GPU, which is slow"
        ]
        if accelerators == 1
        else []
    )


def test_ranks_share_accelerators_only_where_that_is_asked_for(monkeypatch, capsys) -> None:
    talked = with_accelerators(monkeypatch, 2)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))
    monkeypatch.setattr(os, "environ", {"TRIVIUM_DEVICES": "shared", "NCCL_MAX_CTAS": "4"})
    places = [Place(r, 4, r, "file:///nowhere", 4) for r in range(4)]
    assert [p.device.index for p in places] == [0, 1, 0, 1]
    with connected(places[3]):
        assert os.environ["NCCL_HOSTID"] == "trivium-rank-3"
        assert os.environ["NCCL_MAX_CTAS"] == "4", "what the user set stays"
    assert talked == ["nccl"] and not capsys.readouterr().err
    monkeypatch.setattr(os, "environ", {})
    with connected(places[3]):
        assert "NCCL_HOSTID" not in os.environ
    assert talked == ["nccl", "gloo"]


def test_ranks_that_are_to_share_an_accelerator_need_one(monkeypatch) -> None:
    monkeypatch.setenv("TRIVIUM_DEVICES", "shared")
    with (
        pytest.raises(TriviumError, match="has 0 GPUs for 2 ranks: .*TRIVIUM_DEVICES=shared requires"),
        connected(Place(0, 2, 0, "file:///nowhere", 2)),
    ):
        pass


def test_a_process_alone_uses_the_first_accelerator(monkeypatch) -> None:
    assert ALONE.device.type == "cpu"
    with_accelerators(monkeypatch, 3)
    assert ALONE.device == torch.device("cuda", 0)


def test_ranks_on_processors_talk_over_gloo_where_accelerators_lie_idle(monkeypatch, capsys) -> None:
    talked = with_accelerators(monkeypatch, 8)
    with connected(Place(0, 2, 0, "file:///nowhere", 2), device=torch.device("cpu")):
        pass
    assert talked == ["gloo"] and not capsys.readouterr().err


@dataclass(frozen=True)
class Sight:
    """The host of a rank that a scheduler or agent started, and the accelerators that are visible to it."""

    host: str
    accelerators: tuple[str, ...]
    local_rank: int = 0
    local_ranks: int = 1


def meet(place: Place, port: int, sights: list[Sight], environment: dict[str, str], told: str) -> None:
    """Connect as one of several ranks. told: the error that all of them raise, or the device that this one uses."""
    sight = sights[place.rank]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **environment}
    number, uuids = place.world_size, sight.accelerators
    chosen, right = list[torch.device](), launch.dist.init_process_group

    def init(backend: str, **given: Any) -> None:
        assert backend == ("nccl" if uuids else "gloo")
        right("gloo", **given)

    torch.cuda.nccl.version = lambda: (2, 30, 3)
    socket.gethostname = lambda: sight.host
    torch.cuda.device_count = lambda: len(uuids)
    torch.cuda.get_device_properties = lambda device: SimpleNamespace(uuid=uuids[device.index])
    torch.cuda.set_device = chosen.append
    launch.dist.init_process_group = init
    here = Place(place.rank, number, sight.local_rank, "env://", sight.local_ranks)
    refused = told.partition(" ")[0] not in ("cpu", "cuda:0", "cuda:local")
    with pytest.raises(TriviumError, match=told) if refused else nullcontext(), connected(here):
        assert str(here.device) == told.replace("local", str(sight.local_rank))
        assert chosen == ([here.device] if uuids else [])
        leave_together()


def leave_together() -> None:
    """Wait for the other ranks, if there are any: a rank that ends disturbs those that still connect to it."""
    if launch.dist.is_initialized():
        launch.dist.barrier()


def host_of(name: str, *accelerators: str, ranks: int = 2) -> list[Sight]:
    return [Sight(name, accelerators, rank, ranks) for rank in range(ranks)]


def alone_with(name: str, *accelerators: str) -> list[Sight]:
    """Return the ranks of a host, to each of which one accelerator is visible, as its first."""
    return [Sight(name, (each,), rank, len(accelerators)) for rank, each in enumerate(accelerators)]


WANTED = {"TRIVIUM_DEVICES": "accelerators"}
SHARED = {"TRIVIUM_DEVICES": "shared"}


@pytest.mark.parametrize(
    ("sights", "environment", "told"),
    [
        (host_of("a", "x", "y") + host_of("b", "x", "y"), WANTED, "cuda:local"),
        (alone_with("a", "x", "y") + alone_with("b", "x", "y"), WANTED, "cuda:0"),
        (alone_with("a", "x", "y"), {}, "cuda:0"),
        (host_of("a") + host_of("b"), {}, "cpu"),
        (alone_with("a", "x", "x"), {}, "2 ranks on a host with 1 GPU;.*--nproc-per-node 1.*=shared"),
        (alone_with("a", "x", "x"), SHARED, "cuda:0"),
        (host_of("a", "x", ranks=2) + host_of("b", ranks=2), SHARED, "b has 0 GPUs for 2 ranks: .*=shared requires"),
        (host_of("a", "x", "y", ranks=3), {}, "3 ranks on a host with 2 GPUs;.*--nproc-per-node 2"),
        (host_of("a", "x", "y", ranks=3), WANTED, "a has 2 GPUs for 3 ranks: .*TRIVIUM_DEVICES=acc"),
        (host_of("a", "x", "y") + host_of("b"), {}, "b has 0 GPUs for 2 ranks: not one for each rank, as"),
        (host_of("a"), WANTED, "a has 0 GPUs for 2 ranks: .*TRIVIUM_DEVICES=acc"),
    ],
)
def test_ranks_of_several_hosts_agree_on_their_devices_or_all_say_what_is_wrong(
    sights: list[Sight], environment: dict[str, str], told: str
) -> None:
    run_ranks(meet, len(sights), free_port(), sights, environment, told, timeout_seconds=60)


def test_an_accelerator_that_is_wanted_and_not_there_ends_every_rank_of_one_host_too(monkeypatch) -> None:
    with_accelerators(monkeypatch, 1)
    monkeypatch.setenv("TRIVIUM_DEVICES", "accelerators")
    for place in (ALONE, Place(0, 1, 0, "env://")):
        with connected(place):
            pass
    with (
        pytest.raises(TriviumError, match="has 1 GPU for 2 ranks") as wrong,
        connected(Place(1, 2, 1, "file:///nowhere", 2)),
    ):
        pass
    assert wrong.value.exit_code == TriviumError.exit_code, "a scheduler may try it again"
    monkeypatch.setenv("TRIVIUM_DEVICES", "gpu")
    with pytest.raises(ConfigError, match="TRIVIUM_DEVICES=gpu: must be any"), connected(ALONE):
        pass


def say_place(place: Place, folder: str) -> None:
    with open(f"{folder}/{place.rank}", "w") as file:
        file.write(f"{place.local_rank} of {place.local_ranks}")


def test_forked_ranks_know_how_many_share_their_host(tmp_path) -> None:
    run_ranks(say_place, 2, str(tmp_path))
    assert [(tmp_path / str(r)).read_text() for r in range(2)] == ["0 of 2", "1 of 2"]


def come_late(place: Place, port: int, late: dict[int, float], told: str) -> None:
    """Connect as a rank of a scheduler, with a shorter timeout for collectives than for the rendezvous."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(place.world_size)}
    time.sleep(late.get(place.rank, 0.0))
    here = Place(place.rank, place.world_size, 0, "env://", place.world_size)
    if told and place.rank in late:
        return
    with (
        pytest.raises(TriviumError, match=told) if told else nullcontext(),
        connected(here, timeout_seconds=8.0, meeting_seconds=5.0 if told else 30.0),
    ):
        assert not told
        leave_together()


@pytest.mark.broad
@pytest.mark.parametrize("last", [0, 3])
def test_a_rank_may_come_later_than_a_collective_may_take(last: int) -> None:
    run_ranks(come_late, 4, free_port(), {last: 9.0}, "", timeout_seconds=60)


def test_ranks_that_do_not_come_are_named_on_every_other_one() -> None:
    told = "of 4 ranks these did not come within 5 s: 1, 3;"
    run_ranks(come_late, 4, free_port(), {1: 0.0, 3: 0.0}, told, timeout_seconds=60)


def start_again(place: Place, port: int, attempt: int) -> None:
    """Connect as a rank that an agent restarts, which keeps the store."""
    own = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": str(attempt)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **own}
    right = launch.dist.init_process_group

    def init(*given: Any, store: Any, **named: Any) -> None:
        addresses = [f"address in attempt {n}" for n in range(attempt + 1)]
        store.set(addresses[-1], "")
        assert [store.check([address]) for address in addresses] == [False] * attempt + [True]
        right(*given, store=store, **named)

    launch.dist.init_process_group = init
    with connected(Place(place.rank, place.world_size, 0, "env://", place.world_size), timeout_seconds=20.0):
        here = torch.tensor([1.0])
        launch.dist.all_reduce(here)
        assert here.item() == place.world_size
        launch.dist.barrier()
        os._exit(0)  # like a killed rank: it removes nothing from the store


def test_ranks_that_an_agent_starts_again_do_not_look_for_those_of_the_attempt_before() -> None:
    port = free_port()
    kept = launch.dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    for attempt in range(2):
        run_ranks(start_again, 2, port, attempt, timeout_seconds=60)
    assert kept is not None


def take_a_route(place: Place, port: int, routes: list[dict[str, Route]], chosen: list[str | None]) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.pop("GLOO_SOCKET_IFNAME", None)
    launch.route_to = lambda host, _: routes[place.rank].get(host)
    right = launch.dist.init_process_group

    def init(*given: Any, **named: Any) -> None:
        assert os.environ.pop("GLOO_SOCKET_IFNAME", None) == chosen[place.rank]  # no interface has that name
        right(*given, **named)

    launch.dist.init_process_group = init
    with connected(Place(place.rank, place.world_size, place.rank % 2, "env://", 2)):
        leave_together()


def test_the_first_host_talks_where_it_reaches_another_and_others_where_they_reach_it() -> None:
    """On the first host its own name resolves to no other address."""
    first = {"10.0.0.2": Route("eth0", "10.0.0.1")}
    other = {"127.0.0.1": Route("ib0", "10.0.0.2")}
    routes = [first, first, other, other]
    run_ranks(take_a_route, 4, free_port(), routes, ["eth0", "eth0", "ib0", "ib0"], timeout_seconds=60)
    run_ranks(take_a_route, 2, free_port(), routes, [None, None], timeout_seconds=60)


def test_no_route_leads_from_a_host_to_itself_or_to_nowhere() -> None:
    assert route_to("127.0.0.1", 1) is None
    assert route_to("no such host", 1) is None
