"""Verifies the token shards before training: each is hashed once, and again only if it changed since."""

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trivium.checkpoint.agree import problem_of_any, sums
from trivium.comms.mesh import Mesh
from trivium.errors import ConfigError, DataError
from trivium.objectives.config import NEXT_TOKEN_METHOD, ObjectiveConfig
from trivium.objectives.preferences.losses import PREFERENCES
from trivium.plan.model_shape import ModelShape
from trivium.provenance import fingerprint, write_json
from trivium.tokens.manifest import read_tokens_manifest, verify_tokens
from trivium.tokens.shards import SUFFIXES
from trivium.training.metrics import warn
from trivium.untrusted import read_json

VERIFIED = "tokens-verified.json"  # in the directory of the run: the state of the shards when they were verified
# Size, nanoseconds of the last changes of content and of the entry, and the expected sha256.
State = list[Any]


def verify_together(tokens: Path, out: Path, mesh: Mesh, alive: Callable[[], None]) -> None:
    """Compare the shards in `tokens` with their sha256 and check their indices; every rank calls this.

    Ranks that see the same files share the reading; hosts with separate copies each read theirs. A shard that has not
    changed since a run in `out` verified it is not read again: terabytes take an hour. alive: a heartbeat. Raises
    DataError on every rank, with the name of a damaged shard and, if there are several copies, of its host.
    """
    now, inodes = dict[str, State](), list[int]()

    def look() -> None:
        now.update(_states(tokens))
        inodes.extend((tokens / name).stat().st_ino for name in now)

    if problem := problem_of_any(look, mesh):
        raise DataError(problem)
    copies = _copies([now, inodes], mesh)
    first = copies[mesh.rank]
    sharers = [rank for rank, copy in enumerate(copies) if copy == first]
    verified = out / (VERIFIED if first == 0 else f"tokens-verified-of-rank-{first}.json")
    known = _known(verified)
    share = list(now)[sharers.index(mesh.rank) :: len(sharers)]

    def verify() -> None:
        try:
            verify_tokens(tokens, [name for name in share if now[name] != known.get(name)], alive)
        except DataError as error:
            raise DataError(f"on {socket.gethostname()}: {error}" if any(copies) else str(error)) from None

    if problem := problem_of_any(verify, mesh, alive):
        raise DataError(problem)
    if mesh.rank == first and now != known:
        try:
            write_json(verified, now)
        except OSError as error:
            warn(f"{error}; the next start reads all token shards again")


def _copies(files: Any, mesh: Mesh) -> list[int]:
    """Return for each rank the lowest rank that sees the same files, by their inodes, sizes and times."""
    numbers = [0.0] * (2 * mesh.layout.world_size)
    digest = divmod(int(fingerprint(files), 16), 1 << 32)
    numbers[2 * mesh.rank : 2 * mesh.rank + 2] = [float(n) for n in digest]  # exact in fp64
    every = sums(numbers, mesh)
    digests = list(zip(every[::2], every[1::2], strict=True))
    return [digests.index(each) for each in digests]


def refuse_other_ids(manifest: Mapping[str, Any], model: ModelShape, tokens: Path) -> None:
    """Raise DataError if the model has no embedding for some token id, and ConfigError if it expects another
    end-of-text id, or windows other than the bins of packed documents. manifest: of the directory `tokens`."""
    vocabulary, end = int(manifest["vocabulary"]), int(manifest["end_of_text"])
    if vocabulary > model.vocabulary:
        raise DataError(
            f"{tokens} has token ids up to {vocabulary - 1}, but plan.model.vocabulary is {model.vocabulary}; "
            f"set it to {vocabulary}"
        )
    if packed := manifest.get("packed"):
        wanted = {"documents": "apart", "sequence": packed["sequence"]}
        wrong = {name: value for name, value in wanted.items() if getattr(model, name) != value}
        if wrong:
            raise ConfigError(
                f"{tokens} has documents packed into bins, and plan.model."
                + ", plan.model.".join(f"{name} is {getattr(model, name)}" for name in wrong)
                + "; give "
                + " ".join(f"--set plan.model.{name}={value}" for name, value in wrong.items())
            )
    elif model.documents == "apart" and end != model.end_of_text:
        raise ConfigError(
            f"plan.model.end_of_text is {model.end_of_text}, but documents in {tokens} end with {end}, so "
            f"plan.model.documents (apart) would separate none; set plan.model.end_of_text to {end}"
        )


def refuse_other_objective(manifest: Mapping[str, Any], objective: ObjectiveConfig, tokens: Path) -> None:
    """Raise DataError if the tokens are preference pairs and the objective is not of pairs, or the other way round:
    the weights of their targets have other meanings. manifest: of the directory `tokens`."""
    has_pairs = "pairs" in manifest.get("packed", {}).get("train", {})
    if has_pairs == objective.made().of_pairs:
        return
    has, takes = ("preference pairs", "text") if has_pairs else ("no preference pairs", "pairs")
    methods = ", ".join(PREFERENCES)
    remedy = f"set it to one of {methods}" if has_pairs else f"set it to {NEXT_TOKEN_METHOD}, or make tokens of pairs"
    raise DataError(f"{tokens} has {has}, and training.objective.method {objective.method} takes {takes}; {remedy}")


def _states(tokens: Path) -> dict[str, State]:
    """Return the state of each shard's files, large ones first, so that the ranks' shares are balanced."""
    files: Mapping[str, str] = read_tokens_manifest(tokens)["files"]
    states: dict[str, State] = {}
    for suffix in sorted(SUFFIXES):
        for name in sorted(name for name in files if Path(name).suffix == suffix):
            try:
                stat = (tokens / name).stat()
            except OSError as error:
                raise DataError(
                    f"{tokens / name} cannot be read: {error.strerror}; restore it, or tokenize again"
                ) from None
            states[name] = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, files[name]]
    return states


def _known(path: Path) -> Mapping[str, State]:
    try:
        known = read_json(path)
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
