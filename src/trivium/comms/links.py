"""Measures the links between the hosts of a job, in pairs that do not disturb one another.

In each round every host is in one pair at most (round-robin tournament by the circle method), so that N hosts need
N - 1 rounds, or N if N is odd. The first rank of each host measures; the others wait.
"""

import socket
import time
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist

from trivium.comms.launch import Place

PING_REPEATS = 20  # of one element; the fastest counts
PUSH_REPEATS = 3  # of MESSAGE_BYTES there and back; the fastest counts
MESSAGE_BYTES = 16 << 20
MAX_NAME_BYTES = 255
MAX_BANDWIDTH_RATIO = 1.5  # a link is slow if its bandwidth is this many times below the median
MAX_LATENCY_RATIO = 3.0  # or if its latency is this many times above the median


class Link(NamedTuple):
    """A measured pair of hosts, by their numbers. Latency is half of a round trip. The bandwidth is that of a message
    that goes there and back, so that a limit in either direction shows."""

    first: int
    second: int
    bytes_per_second: float
    latency_seconds: float


def rounds(hosts: int) -> list[list[tuple[int, int]]]:
    """Return the pairs of each round: every pair once, and no host twice in a round."""
    seats = [*range(hosts), *([-1] if hosts % 2 else [])]
    found = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        found.append([(min(pair), max(pair)) for pair in pairs if -1 not in pair])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found


def slow_of(links: Sequence[Link]) -> list[Link]:
    """Return the links that are slow against the median of all, the slowest first; none if there are fewer than three,
    because a median of two names neither."""
    if len(links) < 3:
        return []
    usual, late = median(x.bytes_per_second for x in links), median(x.latency_seconds for x in links)
    slow = [
        x
        for x in links
        if x.bytes_per_second * MAX_BANDWIDTH_RATIO < usual or x.latency_seconds > MAX_LATENCY_RATIO * late
    ]
    return sorted(slow, key=lambda x: x.bytes_per_second)


def measured_links(place: Place) -> list[Link]:
    """Measure every pair of hosts. Collective: every rank of a connected job calls this, and all get the same."""
    hosts, own = place.hosts, place.rank // place.local_ranks
    table = torch.zeros(hosts, hosts, 2, dtype=torch.float64, device=place.device)
    for pairs in rounds(hosts):
        dist.all_reduce(torch.zeros(1, device=place.device))  # no round begins before the one before has ended
        pair = next((pair for pair in pairs if own in pair), None)
        if pair is None or place.rank % place.local_ranks:
            continue
        peer = (pair[0] if own == pair[1] else pair[1]) * place.local_ranks
        one, block = torch.zeros(1, device=place.device), torch.zeros(MESSAGE_BYTES, dtype=torch.uint8).to(place.device)
        begins = own == pair[0]
        latency = min(_round_trip(one, one, peer, begins=begins) for _ in range(PING_REPEATS)) / 2
        seconds = min(_round_trip(block, block, peer, begins=begins) for _ in range(PUSH_REPEATS))
        if begins:
            table[pair[0], pair[1]] = torch.tensor([2 * MESSAGE_BYTES / seconds, latency])
    dist.all_reduce(table)
    values = table.cpu().tolist()
    return [Link(a, b, *values[a][b]) for a in range(hosts) for b in range(a + 1, hosts)]


def host_names(place: Place) -> list[str]:
    """Return the name of each host, by number. Collective: every rank of a connected job calls this."""
    letters = torch.zeros(place.hosts, MAX_NAME_BYTES, dtype=torch.uint8)
    if place.rank % place.local_ranks == 0:
        own = socket.gethostname().encode()[:MAX_NAME_BYTES]
        letters[place.rank // place.local_ranks, : len(own)] = torch.tensor(list(own), dtype=torch.uint8)
    letters = letters.to(place.device)
    dist.all_reduce(letters)
    return [bytes(row).rstrip(b"\0").decode("utf-8", "replace") for row in letters.tolist()]


def _round_trip(there: torch.Tensor, back: torch.Tensor, peer: int, *, begins: bool) -> float:
    """Send a message to a peer and wait for its answer, or answer; return the seconds."""
    began = time.perf_counter()
    if begins:
        dist.send(there, peer)
        dist.recv(back, peer)
        back.cpu()  # waits for a GPU
    else:
        dist.recv(there, peer)
        dist.send(back, peer)
    return time.perf_counter() - began
