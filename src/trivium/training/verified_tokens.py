"""Training reads the token shards that were written: each is hashed once, and again when it was touched since."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from trivium.checkpoint.agree import problem_of_any
from trivium.errors import ConfigError, DataError
from trivium.parallel.mesh import Mesh
from trivium.plan.model_shape import ModelShape
from trivium.provenance import write_json
from trivium.tokens.manifest import read_tokens_manifest, verify_tokens
from trivium.training.metrics import warn
from trivium.untrusted import read_json

VERIFIED = (
    "tokens-verified.json"  # in the folder of the run: the shards as they were when they were found right
)
# Size, nanoseconds of the last changes of content and of the entry, and the sha256 it should have.
State = list[Any]


def verify_together(tokens: Path, out: Path, mesh: Mesh, alive: Callable[[], None]) -> None:
    """Compare the shards in `tokens` with their sha256 and check their indices, the ranks sharing the work; every rank
    calls this.

    A shard that is as it was when a run in `out` last found it right is not read again: terabytes take an hour.
    alive: called now and then. Raises DataError, which names a damaged shard, on every rank.
    """
    now, known = _states(tokens), _known(out / VERIFIED)
    mine = [name for name in list(now)[mesh.rank :: mesh.layout.world_size] if now[name] != known.get(name)]
    problem = problem_of_any(partial(verify_tokens, tokens, mine, alive), mesh, alive)
    if problem:
        raise DataError(problem)
    if mesh.rank == 0 and now != known:
        try:
            write_json(out / VERIFIED, now)
        except OSError as error:
            warn(f"{error}; the next start reads all token shards again")


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
    shards = sorted((suffix, name) for name in files if (suffix := Path(name).suffix) in (".bin", ".idx"))
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
