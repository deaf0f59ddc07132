"""Ranks of one host read each other's memory: whole, in order, only while it is lent, and never waiting for ever."""

import contextlib
import ctypes
import gc
import os
import socket
import sys
import threading
import time
from multiprocessing import get_context

import pytest
import torch

from ranks import on_ranks, ranks
from trivium.comms.collectives import (
    all_gather,
    all_gather_into,
    all_reduce_,
    all_reduce_begin,
    all_to_all,
    reduce_scatter,
    reduce_scatter_begin,
    rotate,
)
from trivium.comms.group import Group
from trivium.comms.host_memory import process_memory, same_host, transport
from trivium.comms.host_memory.loans import INLINE_BYTES, Key
from trivium.comms.host_memory.process_memory import read_memory, why_siblings_cannot_read
from trivium.comms.host_memory.transport import HostMemory
from trivium.comms.launch import Place, lends_memory
from trivium.comms.mesh import Mesh
from trivium.comms.transports import Exchange
from trivium.errors import ConfigError
from trivium.plan.layout import Layout
from trivium.training.supervision.watchdog import LOST

Tensor = torch.Tensor

SIZES = (0, 1, INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1, (3 << 20) + 5)  # bytes
TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.int64)


def connected_pair(place: Place, seconds: float = 20) -> Group:
    group = Mesh.connect(Layout(data=place.world_size), place.rank, place.world_size, timeout_seconds=seconds).data
    assert isinstance(group.carrier, HostMemory), "processes of one test share their host"
    return group


def content(size: int, rank: int, number: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(100 * rank + number)
    return torch.randint(0, 256, (size,), generator=generator, dtype=torch.uint8)


@ranks(2, 3)
def test_tensors_of_any_size_arrive_whole(place: Place) -> None:
    group = connected_pair(place)
    for size in SIZES:
        found = [torch.zeros(size, dtype=torch.uint8) for _ in range(group.size)]
        Exchange(group, send=[content(size, group.index, to) for to in range(group.size)], receive=found).wait()
        for of, tensor in enumerate(found):
            if of != group.index:
                assert torch.equal(tensor, content(size, of, group.index)), (size, of)


@ranks(2)
def test_messages_of_a_key_keep_their_order_and_keys_do_not_mix(place: Place) -> None:
    group, other = connected_pair(place), 1 - place.rank
    tensors = [content(size, place.rank, n) for n, size in enumerate(SIZES)]
    sends = [group.transport.send(tensor, other, group, tag) for tensor in tensors for tag in (7, 8)]
    for tag in (8, 7):  # the later key first
        for n, size in enumerate(SIZES):
            out = torch.zeros(size, dtype=torch.uint8)
            group.transport.receive(out, other, group, tag).wait()
            assert torch.equal(out, content(size, other, n)), (tag, n)
    for work in sends:
        work.wait()


@ranks(2)
def test_what_was_lent_stays_alive_and_unread_until_it_is_given_back(place: Place) -> None:
    group = connected_pair(place)
    ready = Key(group.number, 1)
    if place.rank == 0:
        loan = group.transport.peers[1].lend(Key(group.number, 0), content(1 << 20, 0))  # nobody here keeps the tensor
        gc.collect()
        torch.zeros(1 << 20, dtype=torch.uint8)  # what would take its memory
        assert not loan.is_completed(), "nobody has read it"
        group.transport.peers[1].lend(ready, torch.tensor([6, 7, 8, 9], dtype=torch.uint8))
        loan.wait()
        assert loan.is_completed()
    else:
        two = torch.zeros(2, dtype=torch.uint8)
        group.transport.peers[0].borrow(ready, 4).read(two, 1)
        assert two.tolist() == [7, 8]
        borrowed = group.transport.peers[0].borrow(Key(group.number, 0), 1 << 20)
        out = torch.zeros(1 << 10, dtype=torch.uint8)
        for start in (0, 5000):  # in pieces, from anywhere
            borrowed.read(out, start)
            assert torch.equal(out, content(1 << 20, 0)[start : start + len(out)])
        borrowed.give_back()


@ranks(2)
def test_ranks_that_lend_much_before_they_read_do_not_wait_for_each_other(place: Place) -> None:
    group, other = connected_pair(place), 1 - place.rank
    number = 3000  # far more than a socket holds
    for _ in range(number):
        group.transport.send(torch.full((INLINE_BYTES,), place.rank, dtype=torch.uint8), other, group)
    out = torch.zeros(INLINE_BYTES, dtype=torch.uint8)
    for _ in range(number):
        group.transport.receive(out.fill_(9), other, group).wait()
        assert bool((out == other).all())


@ranks(2)
def test_nothing_is_kept_of_messages_that_were_read(place: Place) -> None:
    group = connected_pair(place)
    for size in (8, 1 << 12):
        for _ in range(50):
            all_reduce_(torch.ones(size), group)
    peer = group.transport.peers[1 - place.rank]
    assert not peer._offers, "each exchange has a key of its own"
    assert not peer._lent


@ranks(2, 3)
def test_what_was_waited_for_may_be_overwritten_while_others_have_yet_to_wait(place: Place) -> None:
    group, size = connected_pair(place), 60_000
    late = 0.3 * (place.rank == place.world_size - 1)
    of_rank = [rank + 1.0 for rank in range(group.size)]
    mine = torch.full((group.size, size), of_rank[group.index])

    pending = reduce_scatter_begin(mine, group)
    time.sleep(late)
    total = pending.wait()
    mine.fill_(of_rank[group.index] * 2)
    assert bool((total == sum(of_rank)).all())

    gathered = torch.zeros(group.size, size)
    gathering = all_gather_into(gathered, mine[:1], group, wait=False)
    time.sleep(late)
    assert gathering is not None
    gathering.wait()
    found = gathered.clone()
    gathered.fill_(-1.0)
    assert found.amin(1).tolist() == found.amax(1).tolist() == [2 * x for x in of_rank]

    for turn in range(3):  # in place, again and again
        adding = all_reduce_begin(mine, group)
        time.sleep(late)
        assert bool((adding.wait() == 2 * sum(of_rank) * group.size**turn).all()), turn


@ranks(2)
def test_a_message_of_another_size_is_refused(place: Place) -> None:
    group = connected_pair(place)
    if place.rank == 0:
        group.transport.send(torch.zeros(3), 1, group, 5)
    else:
        with pytest.raises(RuntimeError, match="rank 0 sent 12 bytes .*tag=5.* where 16 are due"):
            group.transport.receive(torch.zeros(4), 0, group, 5).wait()


@ranks(2)
def test_a_rank_that_ends_is_noticed_at_once_and_after_what_it_said(place: Place) -> None:
    group = connected_pair(place)
    if place.rank == 0:
        group.transport.send(torch.ones(3), 1, group)
        time.sleep(0.4)
        return
    begin = time.monotonic()
    group.transport.send(torch.ones(3), 0, group)  # which it never reads
    time.sleep(0.8)
    out = torch.zeros(3)
    group.transport.receive(out, 0, group).wait()
    assert bool((out == 1).all()), "what was sent before the end arrives"
    with pytest.raises(RuntimeError, match="rank 0 has closed its connection"):
        group.transport.receive(out, 0, group).wait()
    with pytest.raises(RuntimeError, match="rank 0 has closed its connection"):
        group.transport.send(out, 0, group)
    assert time.monotonic() - begin < 5


@ranks(2)
def test_of_a_rank_that_ends_with_something_lent_it_is_said_that_it_has_ended(place: Place) -> None:
    """By that message other ranks know which rank failed first."""
    group = connected_pair(place)
    if place.rank == 0:
        group.transport.send(torch.ones(INLINE_BYTES), 1, group)
        return
    time.sleep(0.6)
    with pytest.raises(RuntimeError, match="rank 0 has closed its connection") as caught:
        group.transport.receive(torch.zeros(INLINE_BYTES), 0, group).wait()
    assert any(words in str(caught.value) for words in LOST)


@ranks(2)
def test_a_rank_that_does_not_answer_is_named_when_the_time_is_up(place: Place) -> None:
    group = connected_pair(place, seconds=0.5)
    if place.rank == 0:
        time.sleep(1.5)
        return
    loan = group.transport.send(torch.zeros(1 << 20), 0, group)
    for wait in (group.transport.receive(torch.zeros(3), 0, group).wait, loan.wait):
        with pytest.raises(RuntimeError, match=r"rank 0 did not answer within 0\.5 s"):
            wait()


def values(rows: int, rank: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(rows + rank)
    return (100 * torch.randn(rows, 2, generator=generator, dtype=torch.float64)).to(dtype)


def both_roads(place: Place) -> None:
    layout, size = Layout(tensor=place.world_size), place.world_size
    memory, network = (Mesh.connect(layout, place.rank, size, by_memory=choice).tensor for choice in (True, False))
    assert isinstance(memory.transport, HostMemory)
    assert not isinstance(network.transport, HostMemory)
    for dtype in TYPES:
        for each in (1, 7, 400, 70_000):  # the last in several pieces, and by slices that are not equal
            of_rank = [values(size * each, rank, dtype) for rank in range(size)]
            x, total = of_rank[place.rank], torch.stack(of_rank).to(torch.float64).sum(0)
            odd = x.flatten()[:-1]
            for work in (
                lambda g, odd=odd: all_reduce_(odd.clone(), g, largest=True),
                lambda g, x=x: all_gather(x, g),
                lambda g, x=x, n=each: all_to_all(x.view(g.size, n, 2), g),
                lambda g, x=x, odd=odd: torch.cat([t.flatten() for t in rotate((x, odd), g)]),
            ):
                assert torch.equal(work(memory), work(network)), (each, dtype)
            sums = {"all": all_reduce_(odd.clone(), memory), "slice": reduce_scatter(x, memory)}
            due = {"all": total.flatten()[:-1], "slice": total.view(size, each, 2)[memory.index]}
            for name, found in sums.items():
                close = torch.finfo(dtype).eps if dtype.is_floating_point else 0.0  # a single rounding, of the sum
                torch.testing.assert_close(
                    found.double(), due[name], rtol=close, atol=600 * close * (dtype != torch.bfloat16)
                )
            torch.testing.assert_close(
                sums["slice"], reduce_scatter(x, network), rtol=0, atol=0 if size == 2 else 1e-3 * total.abs().max()
            )


@pytest.mark.broad
@pytest.mark.parametrize("size", [2, 3, 4])
def test_collectives_by_memory_are_those_by_the_network(size: int) -> None:
    on_ranks(size, both_roads)


def more_ranks_than_numbers(place: Place) -> None:
    """Sum fewer numbers than ranks, outside of the message itself. By default that needs at least 130 ranks."""
    transport.INLINE_BYTES = 0
    group = Mesh.connect(Layout(data=place.world_size), place.rank, place.world_size).data
    assert isinstance(group.carrier, HostMemory)
    for numbers in (1, group.size - 1):
        of_rank = [values(numbers, rank, torch.float64) for rank in range(group.size)]
        x = of_rank[place.rank].flatten()[:numbers]
        total = torch.stack([one.flatten()[:numbers] for one in of_rank]).sum(0)
        torch.testing.assert_close(all_reduce_(x.clone(), group), total)


def test_fewer_numbers_than_ranks_are_summed_by_slices_of_which_some_are_empty() -> None:
    on_ranks(3, more_ranks_than_numbers)


def the_last_cannot(place: Place, layout: Layout, how: str) -> None:
    """The last rank can lend nothing, or read nothing: its groups use the network, the others memory."""
    last = layout.world_size - 1
    if place.rank == last and how == "lends not":
        os.environ["TRIVIUM_MESSAGES"] = "network"
    if place.rank == last and how == "reads not":
        same_host.read_memory = refuse
    if place.rank == last and how == "is elsewhere":
        same_host._this_host = lambda: b"another host"
    mesh = Mesh.connect(layout, place.rank, layout.world_size)
    for group in (mesh.tensor, mesh.data):
        assert isinstance(group.carrier, HostMemory) == (last not in group.ranks and group.size > 1), (
            group.role,
            group.ranks,
        )
        assert float(all_reduce_(torch.tensor(float(place.rank)), group)) == sum(group.ranks)


def refuse(pid: int, source: int, target: int, size: int) -> None:
    raise PermissionError(1, "Operation not permitted")


@pytest.mark.parametrize("how", ["lends not", "reads not", "is elsewhere"])
@pytest.mark.parametrize("layout", [Layout(tensor=2, data=2), Layout(data=3)], ids=["2 x 2", "3"])
def test_a_group_uses_memory_only_if_all_its_ranks_can(layout: Layout, how: str) -> None:
    on_ranks(layout.world_size, the_last_cannot, layout, how)


def one_pair_cannot(place: Place) -> None:
    reads = same_host._Meeting._reads
    if place.rank == 1:
        same_host._Meeting._reads = lambda self, peer, hello: peer != 2 and reads(self, peer, hello)
    group = Mesh.connect(Layout(data=3), place.rank, 3).data
    assert not isinstance(group.carrier, HostMemory), "rank 0 can read both others, but they not each other"
    assert float(all_reduce_(torch.tensor(1.0), group)) == 3


def test_a_group_of_which_two_cannot_read_each_other_uses_the_network() -> None:
    on_ranks(3, one_pair_cannot)


def test_only_memory_that_holds_what_its_owner_says_is_trusted() -> None:
    meeting = same_host._Meeting(0, {1: same_host._Card(b"", os.getpid(), b"")})
    there = ctypes.create_string_buffer(b"sixteen letters.", 16)
    for said, holds in ((there.raw, True), (b"other letters...", False)):
        assert meeting._reads(1, same_host._HELLO.pack(1, ctypes.addressof(there), said, False)) == holds


def test_the_kernel_says_who_is_at_the_other_end() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        assert same_host._is_process(here, os.getpid())
        assert not same_host._is_process(here, os.getpid() + 1)


def test_a_stranger_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = same_host._listener()
    assert listener is not None
    meeting = same_host._Meeting(0, {1: same_host._Card(b"", os.getpid() + 1, b"")})  # another process is due

    def knock() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.connect(listener.getsockname())
            with contextlib.suppress(ConnectionResetError):
                stranger.send(same_host._HELLO.pack(1, 0, b"", True))
                stranger.recv(100)

    threading.Thread(target=knock, daemon=True).start()
    monkeypatch.setattr(same_host, "_MEETING_SECONDS", 0.5)
    meeting.answer(listener, 1)
    assert not meeting.agreed()


def say_hello_to(name: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.connect(name)
        peer.send(same_host._HELLO.pack(1, 0, b"", True))
        peer.recv(100)


def test_a_stranger_that_says_nothing_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = same_host._listener()
    assert listener is not None
    with listener, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(listener.getsockname())
        peer = get_context("fork").Process(target=say_hello_to, args=(listener.getsockname(),), daemon=True)
        peer.start()
        meeting = same_host._Meeting(0, {1: same_host._Card(b"", peer.pid or 0, b"")})
        monkeypatch.setattr(same_host, "_MEETING_SECONDS", 2.0)
        begin = time.monotonic()
        meeting.answer(listener, 1)
        assert meeting._answered.keys() == {1} and time.monotonic() - begin < 2.0
        peer.kill()
        peer.join()


def test_memory_that_is_not_there_is_an_error() -> None:
    here = ctypes.create_string_buffer(8)
    with pytest.raises(OSError, match="process_vm_readv"):
        read_memory(os.getpid(), 8, ctypes.addressof(here), 8)


def test_it_is_known_beforehand_whether_ranks_may_read_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_siblings_cannot_read() == ""
    monkeypatch.setattr(process_memory, "read_memory", refuse)
    assert why_siblings_cannot_read() == "[Errno 1] Operation not permitted"
    monkeypatch.setattr(process_memory, "read_memory", lambda *_: None)
    assert "instead of what was lent" in why_siblings_cannot_read()
    monkeypatch.setattr("sys.platform", "darwin")
    assert "no process_vm_readv" in why_siblings_cannot_read()


def test_a_wrong_choice_of_messages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIVIUM_MESSAGES", "pigeon")
    with pytest.raises(ConfigError, match="TRIVIUM_MESSAGES=pigeon"):
        lends_memory()


@pytest.mark.skipif(sys.platform != "linux", reason="process_vm_readv is a call of Linux")
@pytest.mark.parametrize("size", [0, 1, 2, 4096])
def test_memory_of_any_size_is_read_whole(size: int) -> None:
    there, here = content(size + 1, 0), torch.zeros(size + 1, dtype=torch.uint8)
    read_memory(os.getpid(), there.data_ptr(), here.data_ptr(), size)
    assert torch.equal(here[:size], there[:size]) and here[size] == 0, "nothing behind it is written"
