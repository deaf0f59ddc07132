"""Whether what ranks asked of their streams and of each other comes to an end, by NCCL's rules: from traces that
pretended_cuda/ writes, one of each rank.

A stream does one thing after the other. A request waits for what its communicator was asked before it, as with NCCL,
and is over when all its parts have met the others': the n-th collective of a communicator on every rank, and the n-th
message from one rank to another at both ends. Nothing is buffered: a message that has not been received is not sent.
A host goes on at once, but where it waits for a stream, or for ranks to join a communicator.

What is asked for while a stream is recorded is done at every replay, on streams of the recording's own: after what the
stream of the replay was given before, and before what it is given later.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

MESSAGES = ("send", "receive")


class Apart(Exception):
    """The ranks do not come together; says where each stands, or which requests differ."""


@dataclass(frozen=True)
class Part:
    """One call of NCCL. tag: what the sender or receiver takes the message for; NCCL itself knows none."""

    communicator: str
    what: str
    count: int
    dtype: int
    which: int  # sum, root or peer
    tag: int | None = None


@dataclass(frozen=True)
class Request:
    """Parts that begin together, and are over together."""

    stream: str
    parts: tuple[Part, ...]

    def __str__(self) -> str:
        return " + ".join(f"{p.what} of {p.count} ({p.communicator})" for p in self.parts)


@dataclass(frozen=True)
class Told:
    """Any other line of a trace."""

    what: str
    given: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join([self.what, *self.given])


def read(lines: Sequence[str]) -> Iterator[Request | Told]:
    """A trace. Parts between the outermost `group` and its `end` are one request for each stream and communicator."""
    depth, together = 0, dict[tuple[str, str], list[Part]]()
    tags = deque[int]()
    for line in replayed(lines):
        what, *given = line.split()
        if what == "group":
            depth += 1
        elif what == "end":
            depth -= 1
        elif what == "tag":
            tags.append(int(given[0]))
        elif what == "ask":
            stream, communicator, called, *numbers = given
            tag = tags.popleft() if called in MESSAGES and tags else None
            part = Part(communicator, called, *map(int, numbers), tag=tag)
            together.setdefault((stream, communicator), []).append(part)
        else:
            yield Told(what, tuple(given))
        if depth == 0 and together:
            for (stream, _), parts in together.items():
                yield Request(stream, tuple(parts))
            together.clear()


def replayed(lines: Sequence[str]) -> Iterator[str]:
    """A trace without recordings: each is where it is replayed. Apart where a device would not record it."""
    recordings: dict[str, list[str]] = {}
    begun: str | None = None
    for line in lines:
        match line.split():
            case "recording", number, origin:
                begun, recordings[number] = number, [f"origin {origin}"]
            case "recorded", number:
                _check_recording(recordings[number])
                begun = None
            case "replay", number, stream:
                yield from _at_once(recordings[number], number, stream)
            case _ if begun is not None:
                recordings[begun].append(line)
            case _:
                yield line


def _at_once(recording: Sequence[str], number: str, stream: str) -> Iterator[str]:
    """Yield the lines of a recording on streams and with events of its own, between earlier and later work of the
    stream."""
    lines = [line.split() for line in recording]
    own = dict.fromkeys(words[1] for words in lines if words[0] in ("origin", "ask", "record", "after"))
    yield f"record {stream} before.{number}"
    yield from (f"after {each}.{number} before.{number}" for each in own)
    for what, *given in lines[1:]:
        if what in ("ask", "record", "after"):
            given[0] += f".{number}"
        if what in ("record", "after"):
            given[1] += f".{number}"
        yield " ".join([what, *given])
    for each in own:
        yield f"record {each}.{number} {each}.over.{number}"
        yield f"after {stream} {each}.over.{number}"


def _check_recording(recording: Sequence[str]) -> None:
    """CUDA's own rules: a stream is recorded from where it waits for one that is, and is waited for in the end; nothing
    in it waits for what was asked for before, and no host for it."""
    origin = recording[0].split()[1]
    seen: dict[str, Counter[str]] = {origin: Counter()}  # by stream, how much of which streams is over before it
    marks: dict[str, Counter[str]] = {}
    for line in recording[1:]:
        match line.split():
            case "ask", stream, *_:
                if stream not in seen:
                    raise Apart(f"{line}: its stream is not recorded")
                seen[stream][stream] += 1
            case "record", stream, event:
                if stream in seen:
                    marks[event] = Counter(seen[stream])
                else:
                    marks.pop(event, None)
            case "after", stream, event:
                if event in marks:
                    seen[stream] = seen.get(stream, Counter()) | marks[event]
                    seen[stream][stream] += 1  # it may have been given a kernel, of which no trace tells
                elif stream in seen:
                    raise Apart(f"{line}: what is recorded cannot wait for what is not")
            case "await" | "join" | "split", *_:
                raise Apart(f"{line}: not while a stream is recorded")
    left = [stream for stream, asked in seen.items() if asked[stream] > seen[origin][stream]]
    if left:
        raise Apart(f"recorded, and never waited for: streams {', '.join(left)}")


def requests_of(lines: Sequence[str]) -> list[Request]:
    """The requests of a trace alone."""
    return [each for each in read(lines) if isinstance(each, Request)]


@dataclass
class Found:
    """What came to its end."""

    communicators: int = 0
    parts: Counter[str] = field(default_factory=Counter)  # by what was asked for


def meet(traces: Sequence[Sequence[str]], *, one_at_a_time: bool = False) -> Found:
    """Follow the ranks' traces to their end. Apart where they do not reach it.

    one_at_a_time: a device runs one request at a time, in the order in which its host asked. What comes to its end so
    does with whatever room communicators find beside each other.
    """
    board = _Board()
    ranks = [_Rank(n, list(read(lines)), board, one_at_a_time) for n, lines in enumerate(traces)]
    while any(rank.advance() for rank in ranks):
        pass
    stuck = [rank.standing() for rank in ranks if not rank.is_over]
    if stuck:
        raise Apart("\n".join(stuck))
    return board.found()


class _Board:
    """Where ranks meet: communicators by their names, and parts that were begun."""

    def __init__(self) -> None:
        self._members: dict[str, dict[int, int]] = {}  # communicator, rank in it: rank
        self._sizes: dict[str, int] = {}
        self._splits: dict[str, dict[int, tuple[int, int] | None]] = {}  # split, rank: color and key
        self._begun: dict[tuple[object, ...], dict[int, Part]] = defaultdict(dict)
        self._numbers: Counter[tuple[object, ...]] = Counter()
        self._parts: Counter[str] = Counter()

    def join(self, name: str, rank: int, index: int, size: int) -> None:
        self._members.setdefault(name, {})[index], self._sizes[name] = rank, size

    def is_joined(self, name: str) -> bool:
        return len(self._members[name]) == self._sizes[name]

    def split(self, name: str, rank: int, chosen: tuple[int, int] | None) -> None:
        self._splits.setdefault(name, {})[rank] = chosen

    def split_of(self, whole: str, name: str, rank: int) -> str | None:
        """The part of a communicator that this rank is in, once all of it has chosen."""
        chosen, within = self._splits[name], self._members[whole]
        if len(chosen) < len(within):
            return None
        color = chosen[rank][0] if chosen[rank] else None
        peers = [r for _, r in sorted(within.items()) if chosen[r] and chosen[r][0] == color]
        peers.sort(key=lambda r: chosen[r][1])
        part = f"{name} color {color}"
        self._members[part] = dict(enumerate(peers))
        return part

    def begin(self, rank: int, part: Part, communicator: str) -> tuple[tuple[object, ...], int]:
        """Under which name others find this part, and how many must be there."""
        members = self._members[communicator]
        index = next(i for i, r in members.items() if r == rank)
        if part.what in MESSAGES:
            sends = part.what == "send"
            ends = (index, part.which) if sends else (part.which, index)
            place: tuple[object, ...] = (communicator, "message", *ends)
            size, at = 2, int(sends)
        else:
            place, size, at = (communicator,), len(members), index
        number = self._numbers[(*place, at)]
        self._numbers[(*place, at)] += 1
        here = self._begun[(*place, number)]
        for other, theirs in here.items():
            if _differ(part, theirs):
                raise Apart(f"request {number} of {place}: {at} asks for {part}, {other} for {theirs}")
        here[at] = part
        self._parts[part.what] += 1
        return (*place, number), size

    def is_met(self, place: tuple[object, ...], size: int) -> bool:
        return len(self._begun[place]) == size

    def found(self) -> Found:
        return Found(len(self._members), self._parts)


def _differ(one: Part, other: Part) -> bool:
    if one.what in MESSAGES:
        return (one.count, one.dtype, one.tag) != (other.count, other.dtype, other.tag)
    return (one.what, one.count, one.dtype, one.which) != (other.what, other.count, other.dtype, other.which)


class _Mark:
    """A place in a stream that others wait for."""

    def __init__(self, stream: str) -> None:
        self.stream, self.is_reached = stream, False

    def __str__(self) -> str:
        return f"a place in stream {self.stream}"


@dataclass
class _Until:
    mark: _Mark

    def __str__(self) -> str:
        return f"waiting for {self.mark}"


@dataclass
class _Launch:
    request: Request
    before: "_Launch | None"  # what must be over first
    places: list[tuple[tuple[object, ...], int]] | None = None  # once begun
    is_over: bool = False

    def __str__(self) -> str:
        return f"{'in' if self.places else 'before'} {self.request}"


class _Rank:
    """A host and its streams."""

    def __init__(self, number: int, trace: list[Request | Told], board: _Board, one_at_a_time: bool) -> None:
        self._number, self._trace, self._board, self._one = number, trace, board, one_at_a_time
        self._at = 0
        self._waits: Iterator[bool] | None = None  # of the host, for what its line names
        self._streams: dict[str, deque[_Mark | _Until | _Launch]] = defaultdict(deque)
        self._marks: dict[str, _Mark] = {}  # by event, the last
        self._last: dict[str, _Launch] = {}  # by communicator
        self._names: dict[str, str] = {}  # of communicators, here: on the board
        self._splits: Counter[str] = Counter()

    @property
    def is_over(self) -> bool:
        return self._at == len(self._trace) and not any(self._streams.values())

    def standing(self) -> str:
        """What its host and its streams wait for."""
        heads = (f"stream {name} at {stream[0]}" for name, stream in self._streams.items() if stream)
        host = self._trace[self._at] if self._at < len(self._trace) else "the end"
        return "; ".join([f"rank {self._number}: host at {host}", *heads])

    def advance(self) -> bool:
        """As far as it can go alone; whether it went on."""
        went, goes = False, True
        while goes:
            goes = self._host() | any(self._stream(stream) for stream in self._streams.values())
            went |= goes
        return went

    def _host(self) -> bool:
        if self._at == len(self._trace):
            return False
        if self._waits is None:
            self._waits = self._do(self._trace[self._at])
        if not next(self._waits, True):
            return False
        self._at, self._waits = self._at + 1, None
        return True

    def _do(self, line: Request | Told) -> Iterator[bool]:
        """Ask for a line; yields False for as long as the host waits."""
        if isinstance(line, Request):
            self._ask(line)
            return
        match line.what, line.given:
            case "join", (name, size, index):
                self._board.join(name, self._number, int(index), int(size))
                while not self._board.is_joined(name):
                    yield False
                self._names[name] = name
            case "split", (whole, name, color, key):
                yield from self._split(self._names[whole], name, color, key)
            case "record", (stream, event):
                self._marks[event] = self._mark(stream)
            case "after", (stream, event):
                if event in self._marks:
                    self._streams[stream].append(_Until(self._marks[event]))
            case "await", (kind, *which):
                marks = self._awaited(kind, *which)
                while not all(mark.is_reached for mark in marks):
                    yield False
            case _:
                raise AssertionError(f"a trace has no line {line}")

    def _split(self, whole: str, name: str, color: str, key: str) -> Iterator[bool]:
        split = f"{whole} split {self._splits[whole]}"
        self._splits[whole] += 1
        self._board.split(split, self._number, None if name == "-" else (int(color), int(key)))
        while (part := self._board.split_of(whole, split, self._number)) is None:
            yield False
        self._names[name] = part

    def _awaited(self, kind: str, *which: str) -> list[_Mark]:
        if kind == "event":
            return [self._marks[which[0]]] if which[0] in self._marks else []
        return [self._mark(stream) for stream in (which if kind == "stream" else list(self._streams))]

    def _mark(self, stream: str) -> _Mark:
        mark = _Mark(stream)
        self._streams[stream].append(mark)
        return mark

    def _ask(self, request: Request) -> None:
        chain = "all" if self._one else request.parts[0].communicator
        launch = _Launch(request, self._last.get(chain))
        self._last[chain] = launch
        self._streams[request.stream].append(launch)

    def _stream(self, stream: deque[_Mark | _Until | _Launch]) -> bool:
        """Do what comes next in it; whether that is over."""
        if not stream:
            return False
        head = stream[0]
        if isinstance(head, _Mark):
            head.is_reached = True
        elif isinstance(head, _Until):
            if not head.mark.is_reached:
                return False
        elif not self._runs(head):
            return False
        stream.popleft()
        return True

    def _runs(self, launch: _Launch) -> bool:
        if launch.places is None:
            if launch.before is not None and not launch.before.is_over:
                return False
            launch.before = None
            launch.places = [
                self._board.begin(self._number, p, self._names[p.communicator]) for p in launch.request.parts
            ]
        launch.is_over = all(self._board.is_met(*place) for place in launch.places)
        return launch.is_over


def faults(traces: Sequence[Sequence[str]], rank: int) -> Mapping[str, list[list[str]]]:
    """The same traces with one thing wrong at a rank, by what; `meet` must find each."""
    mine = list(traces[rank])
    asks = [n for n, line in enumerate(mine) if line.startswith("ask")]
    middle = asks[len(asks) // 2]
    stream, communicator, what, count, *rest = mine[middle].split()[1:]
    wider = " ".join(["ask", stream, communicator, what, str(int(count) + 1), *rest])
    found = {
        "a request is left out": mine[:middle] + mine[middle + 1 :],
        "a request has another size": [*mine[:middle], wider, *mine[middle + 1 :]],
        "a request is made twice": [*mine[:middle], mine[middle], *mine[middle:]],
    }
    sums = _unlike(mine, lambda w: w[0] == "ask" and w[3] not in MESSAGES, lambda w: tuple(w[2:3]))
    tags = _unlike(mine, lambda w: w[0] == "tag", lambda w: ())
    for name, pair in (("two sums are exchanged", sums), ("two messages are exchanged", tags)):
        if pair is not None:
            found[name] = _exchanged(mine, *pair)
    return {
        name: [changed if n == rank else list(trace) for n, trace in enumerate(traces)]
        for name, changed in found.items()
    }


def _unlike(
    lines: Sequence[str], counts: Callable[[list[str]], bool], kind: Callable[[list[str]], tuple[str, ...]]
) -> tuple[int, int] | None:
    """The last two lines of a kind that differ."""
    seen: dict[tuple[str, ...], int] = {}
    for n in reversed(range(len(lines))):
        words = lines[n].split()
        if counts(words):
            later = seen.setdefault(kind(words), n)
            if lines[later] != lines[n]:
                return n, later
    return None


def _exchanged(lines: Sequence[str], one: int, other: int) -> list[str]:
    changed = list(lines)
    changed[one], changed[other] = lines[other], lines[one]
    return changed
