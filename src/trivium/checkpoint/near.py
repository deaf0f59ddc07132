"""Copies of a state near the ranks: on the host of each rank and on a second host, more often than checkpoints.

    HOME/step-00000100-of-00008/pieces-00003.safetensors   written by rank 3 of 8, or received from its host
                                part-00003.json            its description, written last

HOME is FOLDER/HOST/LIFE, and LIFE names one folder of a training, so that copies of another one there are not taken for
its own. After a failure, the newest copy of which the hosts that are left have every file is published as a checkpoint
(`promote`), and training resumes from that as from any other.
"""

import hmac
import json
import re
import shutil
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from trivium.checkpoint.agree import found_by_first, gathered, problem_of_any
from trivium.checkpoint.durable import check_room, write_blocks, write_text
from trivium.checkpoint.format import published, step_name, step_of
from trivium.checkpoint.pieces import Part, write_parts
from trivium.checkpoint.save import publish
from trivium.comms.mesh import Mesh
from trivium.errors import CheckpointError
from trivium.provenance import file_sha256, unheard, write_json
from trivium.stores.remote import Location
from trivium.units import counted
from trivium.untrusted import open_regular, parse_json, read_json

LIFE = "near.json"  # in the folder of a training
SEND_SECONDS = 60.0  # longest silence of a neighbour
_ELSEWHERE = "name another folder in training.near.folder"
_BLOCK_BYTES = 4 << 20
_MOST_HEADER_BYTES = 4096
_COPY = re.compile(r"(step-\d{8,})-of-(\d{5,})")
_PART = re.compile(r"part-(\d{5,})\.json")
_SENT = re.compile(r"[0-9a-f]{32}/step-\d{8,}-of-\d{5,}/(pieces-\d{5,}\.safetensors|part-\d{5,}\.json)")


class Neighbour(NamedTuple):
    """The agent of another host, which keeps a second copy. secret: of the round, without which it accepts nothing."""

    address: str
    port: int
    secret: str


def host_folder(folder: str | Path) -> Path:
    """Return where this host keeps copies; other hosts may have the same `folder` if they share a file system."""
    return Path(folder) / socket.gethostname()


def life_of(out: Path) -> str:
    """Return the name of this folder of a training, and give it one if it has none."""
    path = out / LIFE
    if not path.is_file():
        write_json(path, {"life": uuid.uuid4().hex})
    return str(read_json(path)["life"])


def copy_name(step: int, ranks: int) -> str:
    return f"{step_name(step)}-of-{ranks:05d}"


def write(folder: Path, rank: int, parts: Sequence[Part], about: Mapping[str, Any]) -> list[Path]:
    """Write this rank's part of a copy; return its files, the description last."""
    folder.mkdir(parents=True, exist_ok=True)
    check_room(folder, sum(part.bytes for part in parts), _ELSEWHERE)
    described = write_parts(folder, rank, parts, read_back=False)
    path = folder / f"part-{rank:05d}.json"
    partial = path.with_suffix(".partial")
    write_text(partial, json.dumps({**described, "about": about if rank == 0 else {}}))
    partial.replace(path)
    return [folder / described["file"], path]


def send(files: Sequence[Path], to: Neighbour) -> None:
    """Send files of a copy to a neighbour. Raises OSError if it does not keep them."""
    for path in files:
        with socket.create_connection((to.address, to.port), SEND_SECONDS) as there, open_regular(path) as file:
            there.recv(64)  # its greeting
            size, name = path.stat().st_size, "/".join(path.parts[-3:])
            there.sendall(json.dumps({"secret": to.secret, "name": name, "bytes": size}).encode() + b"\n")
            there.sendfile(file)
            answer = there.recv(256).decode(errors="replace")
            if answer != "kept":
                raise OSError(f"{to.address}:{to.port} did not keep {name}: {answer or 'it closed the connection'}")


def receive(caller: socket.socket, folder: Path, secret: str) -> None:
    """Keep one file that a neighbour sends into the folder of this host, and answer."""
    caller.settimeout(SEND_SECONDS)
    stream = caller.makefile("rb")
    header = stream.readline(_MOST_HEADER_BYTES)
    if not header:
        return  # it only wanted to know whether this host answers
    try:
        asked = parse_json(header)
        name, size = str(asked["name"]), int(asked["bytes"])
        if not secret or not hmac.compare_digest(str(asked["secret"]).encode(), secret.encode()):
            raise CheckpointError("the secret is not that of this round")
        if not _SENT.fullmatch(name) or size < 0:
            raise CheckpointError("no file of a copy is named so")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        check_room(path.parent, size, _ELSEWHERE)
        partial = path.with_name(f"{path.name}.partial")
        written = write_blocks(partial, _blocks(stream, size))
        if written.bytes != size:
            partial.unlink()
            raise CheckpointError(f"{written.bytes} of {size} bytes came")
        partial.replace(path)
        answer = "kept"
    except (OSError, ValueError, KeyError, TypeError, CheckpointError) as error:
        answer = str(error)[:200] or type(error).__name__
    with suppress(OSError):
        caller.sendall(answer.encode())


def _blocks(stream: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield this number of bytes, or what there is."""
    while size and (block := stream.read(min(_BLOCK_BYTES, size))):
        size -= len(block)
        yield block


def keep_only(home: Path, names: Sequence[str]) -> None:
    """Delete all copies but these."""
    for path in home.glob("step-*"):
        if path.name not in names:
            shutil.rmtree(path, ignore_errors=True)


def inventory(home: Path) -> dict[str, list[int]]:
    """Return the ranks whose parts of each copy are here."""
    found: dict[str, list[int]] = {}
    for folder in home.glob("step-*-of-*"):
        parts = sorted(int(m[1]) for path in folder.iterdir() if (m := _PART.fullmatch(path.name)))
        if _COPY.fullmatch(folder.name) and parts:
            found[folder.name] = parts
    return found


def newest_complete(held: Sequence[Mapping[str, Sequence[int]]], after: int) -> tuple[str, list[int]] | None:
    """Return the newest copy after a step of which every part is somewhere, and for each part the first rank whose host
    has it. held: the inventory of each rank's host, empty for all but one rank of a host."""
    best: tuple[int, str, list[int]] | None = None
    for name in {name for each in held for name in each}:
        match = _COPY.fullmatch(name)
        step = step_of(match[1]) if match else None
        if match is None or step is None or step <= after or (best and step <= best[0]):
            continue
        holders = [
            next((rank for rank, each in enumerate(held) if part in each.get(name, ())), -1)
            for part in range(int(match[2]))
        ]
        if -1 not in holders:
            best = step, name, holders
    return best and best[1:]


def newest_step(root: Location, mesh: Mesh) -> int:
    """Return the step of the newest checkpoint under `root`; -1 if there is none. Collective."""
    found: int = found_by_first(
        lambda: max((step_of(path.name) or 0 for path in published(root)), default=-1), mesh, CheckpointError
    )
    return found


def promote(home: Path, root: Path, mesh: Mesh, *, is_first_here: bool, alive: Callable[[], None] = unheard) -> str:
    """Publish the newest complete copy under `root`, if it is newer than every checkpoint there. Collective. Return a
    description of what was done, or an empty text.

    is_first_here: whether this is the first rank of its host. A damaged copy is deleted, and changes nothing.
    """
    held = gathered(inventory(home) if is_first_here else {}, mesh)
    found = newest_complete(held, newest_step(root, mesh))
    if found is None:
        return ""
    name, holders = found
    final = root / name.partition("-of-")[0]
    partial = root / f".{final.name}.partial"

    def begin() -> None:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)

    def copy() -> None:
        for part, holder in enumerate(holders):
            if holder == mesh.rank:
                _copy_part(home / name, partial, part)
                alive()

    found_by_first(begin, mesh, CheckpointError)
    problem = problem_of_any(copy, mesh, alive)
    if problem:
        shutil.rmtree(home / name, ignore_errors=True)
        found_by_first(lambda: shutil.rmtree(partial, ignore_errors=True), mesh, CheckpointError)
        return f"copy {name} was not used: {problem}"
    found_by_first(lambda: _publish(partial, final, len(holders)), mesh, CheckpointError)
    return f"published {final.name} from copies on {counted(len({*holders}), 'host')}"


def _copy_part(source: Path, target: Path, part: int) -> None:
    """Copy a part, and compare its bytes with their hash."""
    path = source / f"part-{part:05d}.json"
    described = read_json(path)
    file = f"pieces-{part:05d}.safetensors"
    if file_sha256(source / file) != described["sha256"]:
        raise CheckpointError(f"{source / file} does not have its sha256: damaged")
    for each in (source / file, path):
        with open_regular(each) as opened:
            write_blocks(target / each.name, _blocks(opened, each.stat().st_size))


def _publish(partial: Path, final: Path, parts: int) -> None:
    files = [read_json(partial / f"part-{part:05d}.json") for part in range(parts)]
    about = files[0]["about"]
    for part in range(parts):
        (partial / f"part-{part:05d}.json").unlink()
    publish(partial, final, about, files)
