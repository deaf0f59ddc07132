"""An event simulation of T3 (Pati et al., ASPLOS 2024, arXiv 2401.16677): a product whose result is reduced over a ring
while it is computed.

All devices of the ring do the same at the same time, so one is simulated: what it sends arrives at itself. Four things
happen on it. A *product* runs in waves of tiles: it reads its operands in steps, computes, and stores the tiles of each
wave. A *tracker* counts, for each piece of the result, the local stores and the neighbour's contribution; when both are
there, the piece is read and sent on. The *link* sends pieces one after another. The *memory* serves all of them in
small requests, in the order of an arbitration:

- "first come" serves requests in order (T3 without arbitration);
- "product first" serves the product's requests first. Messages wait until fewer bytes of the product are queued than a
  threshold, but at most for a bounded time (T3-MCA).

The first of the n slices of the result is stored into the neighbour's memory. The others are added in memory, by the
product's own stores and by what arrives (near-memory reduction). The last slice stays. All seconds are simulated.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import ceil
from typing import Literal, NamedTuple

from trivium.cost.hardware import Machine
from trivium.cost.overlap import TILE

Arbitration = Literal["first come", "product first"]

REQUEST_BYTES = 64 << 10  # memory and link serve requests of this size
INNER_ELEMENTS_PER_STEP = 64  # part of the inner length that is read, then multiplied
STEPS_AHEAD = 2  # steps whose operands are read before they are needed
WIDTH_BYTES = 2  # fp16


@dataclass(frozen=True)
class Tracking:
    """Figures of the paper's hardware that a machine file does not have.

    cache_bytes: last-level cache. tiles_at_once: tiles that a multiprocessor computes at once. tracked_tiles: entries
    of the tracker, each a tile that is stored but not yet sent. queued_bytes: of the product, below which messages are
    served under "product first". longest_wait_seconds: after which a message is served all the same. accesses_of_a_sum:
    memory accesses that adding in memory costs, where a store costs one. interleaved: seconds that memory takes for a
    byte when it serves both streams in turns ("first come"), over those when it serves one stream for a while, as rows
    of memory are closed and opened more often. The last four and `tiles_at_once` are not published: they are
    assumptions, chosen with the authors' speed-ups in view.
    """

    cache_bytes: float = 16 << 20
    tiles_at_once: int = 2
    tracked_tiles: int = 256
    queued_bytes: float = 64 << 10
    longest_wait_seconds: float = 5e-6
    accesses_of_a_sum: float = 1.5
    interleaved: float = 1.4


class Product(NamedTuple):
    """A product of `rows` x `inner` by `inner` x `columns` on each device, whose results are summed over `degree`
    devices."""

    name: str
    rows: int
    columns: int
    inner: int
    degree: int

    @property
    def result_bytes(self) -> float:
        return float(self.rows * self.columns * WIDTH_BYTES)

    @property
    def operand_bytes(self) -> float:
        """Bytes that must be read at least once."""
        return float((self.rows + self.columns) * self.inner * WIDTH_BYTES)

    @property
    def tiles(self) -> int:
        return ceil(self.rows / TILE) * ceil(self.columns / TILE)


class Ran(NamedTuple):
    """Seconds of a product and its reduce-scatter, and the bytes that a device moved for both."""

    seconds: float
    product_reads: float
    stores: float
    message_reads: float
    arrivals: float


class Sublayer(NamedTuple):
    """Seconds of a product, its reduce-scatter and the following all-gather, by configuration, and bytes by `moved`."""

    product: Product
    sequential: float
    near_memory: float  # sequential, with the sums of the reduce-scatter made in memory
    reduce_scatter: float  # by a kernel, as a part of `sequential`
    ideal: float  # product and messages overlap, and neither slows the other
    first_come: float
    product_first: float
    moved_bytes: float
    triggered_bytes: float

    def speed_up(self, seconds: float) -> float:
        """Return 0.3 for a configuration that is 1.3 times as fast as the sequential one."""
        return self.sequential / seconds - 1

    @property
    def less_moved(self) -> float:
        return 1 - self.triggered_bytes / self.moved_bytes


def simulate(product: Product, machine: Machine, tracking: Tracking | None = None) -> Sublayer:
    """Return the seconds of a sublayer in each configuration on a machine's node link, or its fabric link if the ring
    is larger than a node."""
    tracking = tracking or Tracking()
    link = machine.node_link if product.degree <= machine.devices_per_node else machine.fabric_link
    slice_bytes, hops = product.result_bytes / product.degree, product.degree - 1
    hop = slice_bytes / link.effective_bandwidth + link.latency_seconds
    memory = machine.memory_bandwidth
    gather = hops * (hop + slice_bytes / memory)
    alone = _Ring(product, machine, tracking, "first come", through_cache=True, alone=True).run()
    apart = _Ring(product, machine, tracking, "first come", alone=True).run()
    # A kernel reads both terms of a sum before it sends it, and the last device writes the sum. In memory, a received
    # slice is added as it arrives, and read once to be sent.
    kernels = hops * (hop + 2 * slice_bytes / memory) + slice_bytes / memory
    in_memory = hops * (hop + slice_bytes / memory)
    contended = run_ring(product, machine, "first come", tracking)
    triggered = run_ring(product, machine, "product first", tracking)
    return Sublayer(
        product,
        sequential=alone.seconds + kernels + gather,
        near_memory=alone.seconds + in_memory + gather,
        reduce_scatter=kernels,
        ideal=max(apart.seconds, hops * hop) + gather,
        first_come=contended.seconds + gather,
        product_first=triggered.seconds + gather,
        moved_bytes=alone.product_reads + product.result_bytes + (3 * product.degree - 1 + 2 * hops) * slice_bytes,
        triggered_bytes=sum(triggered[1:]) + 2 * hops * slice_bytes,
    )


def run_ring(product: Product, machine: Machine, arbitration: Arbitration, tracking: Tracking | None = None) -> Ran:
    """Return the seconds of a product with its reduce-scatter when product and messages share the memory."""
    return _Ring(product, machine, tracking or Tracking(), arbitration).run()


class _Ring:
    """One device of the ring, from the first read to the last sum."""

    def __init__(
        self,
        product: Product,
        machine: Machine,
        tracking: Tracking,
        arbitration: Arbitration,
        *,
        through_cache: bool = False,
        alone: bool = False,
    ) -> None:
        self.product, self.machine, self.tracking = product, machine, tracking
        self.alone = alone  # the product without messages
        self.update = 1.0 if alone else tracking.accesses_of_a_sum
        self.link = machine.node_link if product.degree <= machine.devices_per_node else machine.fabric_link
        self.at_once = machine.multiprocessors * tracking.tiles_at_once
        self.waves = ceil(product.tiles / self.at_once)
        self.steps = ceil(product.inner / INNER_ELEMENTS_PER_STEP)  # of a wave
        self.read_bytes = _reads(product, tracking, self.at_once, through_cache=through_cache)
        self.pieces = product.degree * max(1, round(self.waves / product.degree))
        self.piece_bytes = product.result_bytes / self.pieces
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = count()
        self.now = 0.0
        self.memory = _Memory(self, machine.memory_bandwidth, tracking, arbitration)
        self.moved = dict.fromkeys(("product_reads", "stores", "message_reads", "arrivals"), 0.0)
        self.read_until = self.computed = self.asked = self.stored_pieces = 0
        self.computing = False
        self.awaited = [2] * self.pieces  # contributions that a piece waits for: its own and the neighbour's
        self.awaited[: self.pieces // product.degree] = [1] * (self.pieces // product.degree)
        self.sending: deque[int] = deque()
        self.arrived: deque[int] = deque()
        self.busy_link = False
        self.half_there = 0  # pieces with one of two contributions

    def run(self) -> Ran:
        """Return the seconds until the last sum is in memory, and the bytes moved."""
        self._ask()
        while self.events:
            self.now, _, happens = heapq.heappop(self.events)
            happens()
        return Ran(self.now, **self.moved)

    def after(self, seconds: float, happens: Callable[[], None]) -> None:
        """Let something happen after some seconds."""
        heapq.heappush(self.events, (self.now + seconds, next(self.order), happens))

    # The product.

    def _ask(self) -> None:
        steps = self.waves * self.steps
        while self.asked < min(steps, self.computed + STEPS_AHEAD):
            self.asked += 1
            self.moved["product_reads"] += self.read_bytes / steps
            self.memory.request(self.read_bytes / steps, self._read, message=False)

    def _read(self) -> None:
        self.read_until += 1
        self._compute()

    def _compute(self) -> None:
        """Compute the next step if its operands are read and the tracker has room for the next piece."""
        if self.computing or self.computed >= self.read_until or not self._tracks(self.stored_pieces):
            return
        self.computing = True
        flops = 2.0 * TILE * TILE * self.product.inner * self.at_once / self.steps
        self.after(flops / self.machine.peak.fp16, self._step)

    def _step(self) -> None:
        self.computing = False
        self.computed += 1
        self._ask()
        if self.computed % self.steps == 0:
            self._store(self.computed // self.steps)
        self._compute()

    def _store(self, waves: int) -> None:
        """Store the tiles of a wave, piece by piece."""
        tiles = min(waves * self.at_once, self.product.tiles)
        whole = int(self.pieces * tiles / self.product.tiles + 1e-9)
        for piece in range(self.stored_pieces, whole):
            if not self.alone and piece < self.pieces // self.product.degree:
                self._contribute(piece)  # the first slice is stored into the neighbour's memory
            else:
                self.moved["stores"] += self.piece_bytes
                self.memory.request(self.update * self.piece_bytes, partial(self._contribute, piece), message=False)
        self.stored_pieces = whole

    # The tracker and the link.

    def _tracks(self, piece: int) -> bool:
        """Return whether the tracker has an entry for each tile of a piece, or room for them."""
        if self.alone or piece >= self.pieces or self.awaited[piece] == 1 or not self.half_there:
            return True
        return (self.half_there + 1) * self.product.tiles / self.pieces <= self.tracking.tracked_tiles

    def _contribute(self, piece: int) -> None:
        if self.alone:
            return
        self.awaited[piece] -= 1
        if self.awaited[piece]:
            self.half_there += 1
            return
        if piece >= self.pieces // self.product.degree:
            self.half_there -= 1
            self._compute()
            self._take()
        if piece >= self.pieces - self.pieces // self.product.degree:
            return  # the last slice stays
        if piece < self.pieces // self.product.degree:
            self._queue(piece)
        else:
            self.moved["message_reads"] += self.piece_bytes
            self.memory.request(self.piece_bytes, partial(self._queue, piece), message=True)

    def _queue(self, piece: int) -> None:
        self.sending.append(piece)
        self._send()

    def _send(self) -> None:
        if self.busy_link or not self.sending:
            return
        self.busy_link, piece = True, self.sending.popleft()
        self.after(self.piece_bytes / self.link.effective_bandwidth, partial(self._sent, piece))

    def _sent(self, piece: int) -> None:
        self.busy_link = False
        self.after(self.link.latency_seconds, lambda: self._arrive(piece + self.pieces // self.product.degree))
        self._send()

    def _arrive(self, piece: int) -> None:
        self.arrived.append(piece)
        self._take()

    def _take(self) -> None:
        """Add arrived pieces in memory while the tracker has room for them."""
        while self.arrived and self._tracks(self.arrived[0]):
            piece = self.arrived.popleft()
            self.moved["arrivals"] += self.piece_bytes
            self.memory.request(self.update * self.piece_bytes, partial(self._contribute, piece), message=True)


class _Memory:
    """Serves requests one at a time, in the order of an arbitration."""

    def __init__(self, ring: _Ring, bandwidth: float, tracking: Tracking, arbitration: Arbitration) -> None:
        in_turns = arbitration == "first come" and not ring.alone
        self.bandwidth = bandwidth / tracking.interleaved if in_turns else bandwidth
        self.ring, self.tracking, self.arbitration = ring, tracking, arbitration
        self.queues: dict[bool, deque[tuple[float, int, float, Callable[[], None] | None]]] = {
            message: deque() for message in (False, True)
        }
        self.queued_bytes = 0.0  # of the product
        self.busy = False

    def request(self, size_bytes: float, then: Callable[[], None], *, message: bool) -> None:
        """Queue the requests of one transfer; `then` follows the last."""
        parts = max(1, ceil(size_bytes / REQUEST_BYTES))
        if not message:
            self.queued_bytes += size_bytes
        for part in range(parts):
            last = then if part == parts - 1 else None
            self.queues[message].append((self.ring.now, next(self.ring.order), size_bytes / parts, last))
        self._serve()

    def _serve(self) -> None:
        if self.busy or not any(self.queues.values()):
            return
        message = self._message_is_next()
        _, _, size_bytes, then = self.queues[message].popleft()
        if not message:
            self.queued_bytes -= size_bytes
        self.busy = True
        self.ring.after(size_bytes / self.bandwidth, lambda: self._served(then))

    def _served(self, then: Callable[[], None] | None) -> None:
        self.busy = False
        if then is not None:
            then()
        self._serve()

    def _message_is_next(self) -> bool:
        product, messages = self.queues[False], self.queues[True]
        if not messages or not product:
            return bool(messages)
        if self.arbitration == "first come":
            return messages[0][:2] < product[0][:2]
        waited = self.ring.now - messages[0][0]
        return self.queued_bytes < self.tracking.queued_bytes or waited > self.tracking.longest_wait_seconds


def _reads(product: Product, tracking: Tracking, at_once: int, *, through_cache: bool) -> float:
    """Return the bytes of operands that are read from memory.

    A wave needs the rows and columns of its tiles. What an earlier wave has read is found in the cache, in the
    proportion in which the cache holds what a wave needs. Results that pass through the cache take their room there.
    """
    columns = ceil(product.columns / TILE)
    wide = min(columns, at_once)
    panels = wide + ceil(at_once / wide)
    needed = panels * TILE * product.inner * WIDTH_BYTES
    room = tracking.cache_bytes - (at_once * TILE * TILE * WIDTH_BYTES if through_cache else 0.0)
    again = max(0.0, ceil(product.tiles / at_once) * needed - product.operand_bytes)
    return product.operand_bytes + again * (1 - min(1.0, max(0.0, room) / needed))
