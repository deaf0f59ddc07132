"""Training reads the token shards that were written: each is hashed once, and again when it was touched since."""

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trivium.checkpoint.agree import problem_of_any, sums
from trivium.comms.mesh import Mesh
from trivium.errors import ConfigError, DataError
from trivium.plan.model_shape import ModelShape
from trivium.provenance import fingerprint, write_json
from trivium.tokens.manifest import read_tokens_manifest, verify_tokens
from trivium.tokens.shards import SUFFIXES
from trivium.training.metrics import warn
from trivium.untrusted import read_json

VERIFIED = "tokens-verified.json"  # in the folder of the run: the shards as they were when they were found right
# Size, nanoseconds of the last changes of content and of the entry, and the sha256 it should have.
State = list[Any]


def verify_together(tokens: Path, out: Path, mesh: Mesh, alive: Callable[[], None]) -> None:
    """Compare the shards in `tokens` with their sha256 and check their indices; every rank calls this.

    Ranks that see the same files share the reading. Hosts that have a copy each read their own copy whole, so every
    byte that any host will train on is read once. A shard that is as it was when a run in `out` last found it right is
    not read again: terabytes take an hour. alive: called now and then. Raises DataError on every rank, with the name of
    a damaged shard and, where there are several copies, of its host.
    """
    now, copies = _states_on_all(tokens, mesh)
    first = copies[mesh.rank]
    sharers = [rank for rank, copy in enumerate(copies) if copy == first]
    noted = out / (VERIFIED if first == 0 else f"tokens-verified-of-rank-{first}.json")
    known = _known(noted)
    share = list(now)[sharers.index(mesh.rank) :: len(sharers)]
    mine = [name for name in share if now[name] != known.get(name)]
    host = f"on {socket.gethostname()}: " if any(copies) else ""

    def verify() -> None:
        try:
            verify_tokens(tokens, mine, alive)
        except DataError as error:
            raise DataError(f"{host}{error}") from None

    if problem := problem_of_any(verify, mesh, alive):
        raise DataError(problem)
    if mesh.rank == first and now != known:
        try:
            write_json(noted, now)
        except OSError as error:
            warn(f"{error}; the next start reads all token shards again")


def _states_on_all(tokens: Path, mesh: Mesh) -> tuple[dict[str, State], list[int]]:
    """What the shards are like here; and for every rank the lowest rank that sees the very same files.

    Files are taken for the same where inode, size and times are: those of a copy differ.
    """
    now, inodes = dict[str, State](), list[int]()

    def look() -> None:
        now.update(_states(tokens))
        inodes.extend((tokens / name).stat().st_ino for name in now)

    if problem := problem_of_any(look, mesh):
        raise DataError(problem)
    digest = int(fingerprint([now, inodes]), 16)
    numbers = [0.0] * (2 * mesh.layout.world_size)
    numbers[2 * mesh.rank : 2 * mesh.rank + 2] = [float(n) for n in divmod(digest, 1 << 32)]  # exact in fp64
    every = sums(numbers, mesh)
    digests = list(zip(every[::2], every[1::2], strict=True))
    return now, [digests.index(each) for each in digests]


def refuse_other_ids(manifest: Mapping[str, Any], model: ModelShape, tokens: Path) -> None:
    """DataError when the model has no row for some token id, ConfigError when it looks for documents' ends in vain.

    manifest: of the token directory `tokens`.
    """
    vocabulary, end = int(manifest["vocabulary"]), int(manifest["end_of_text"])
    if vocabulary > model.vocabulary:
        raise DataError(
            f"{tokens} has token ids up to {vocabulary - 1}, but plan.model.vocabulary is {model.vocabulary}; "
            f"set it to {vocabulary}"
        )
    if model.documents == "apart" and end != model.end_of_text:
        raise ConfigError(
            f"plan.model.end_of_text is {model.end_of_text}, but documents in {tokens} end with {end}, so "
            f"plan.model.documents (apart) would separate none; set plan.model.end_of_text to {end}"
        )


def _states(tokens: Path) -> dict[str, State]:
    """What each shard's files are like now; large ones first, so that the ranks' shares are alike."""
    files: Mapping[str, str] = read_tokens_manifest(tokens)["files"]
    shards = sorted((suffix, name) for name in files if (suffix := Path(name).suffix) in SUFFIXES)
    return {name: _state(tokens / name, files[name]) for _, name in shards}


def _state(path: Path, sha256: str) -> State:
    try:
        found = path.stat()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; restore it, or tokenize again") from None
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, sha256]


def _known(path: Path) -> Mapping[str, State]:
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
