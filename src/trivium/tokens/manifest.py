"""The manifest of a token directory: its contents, how they were made, and the sha256 of every file."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium.errors import DataError
from trivium.provenance import file_sha256, read_described, unheard
from trivium.tokens.shards import Index, TokenShard
from trivium.untrusted import read_json

FORMAT = "trivium-tokens-1"
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
SPLITS = ("train", "validation")
_BLOCK_TOKENS = 1 << 22


def read_tokens_manifest(directory: Path) -> dict[str, Any]:
    """Read the manifest of a token directory. Raises DataError if there is none or it is invalid."""
    missing = (
        f"{directory} holds no tokens ({MANIFEST} is missing); run `trivium tokenize`, or `trivium data adopt` "
        "where pairs of .bin and .idx are there already"
    )
    return read_described(directory / MANIFEST, FORMAT, missing=missing, remedy="run `trivium tokenize` again")


def open_shards(
    directory: Path, split: str, opened: Callable[[Path], TokenShard] = TokenShard.open
) -> dict[str, TokenShard]:
    """Open the shards of a split by source with `opened`. Raises DataError if one differs from the manifest."""
    shards: dict[str, TokenShard] = {}
    for source, entry in read_tokens_manifest(directory)["sources"].items():
        if split not in entry:
            continue
        shard = opened(directory / entry[split]["prefix"])
        if "first" in entry[split]:  # a part of an adopted pair
            shard = shard.part(entry[split]["first"], entry[split]["documents"])
        found, listed = (len(shard), len(shard.tokens)), (entry[split]["documents"], entry[split]["tokens"])
        if found != listed:
            raise DataError(
                f"{shard.prefix}.idx has {found[0]} documents and {found[1]} tokens, {MANIFEST} lists {listed[0]} "
                f"and {listed[1]}; run `trivium tokenize` again"
            )
        weighted, said = None if shard.weights is None else shard.weights.dtype.name, entry[split].get("weights")
        if weighted != said:
            raise DataError(
                f"{shard.prefix}.weights holds {weighted or 'nothing'}, and {MANIFEST} lists {said or 'no weights'}; "
                "restore it, or make these tokens again"
            )
        shards[source] = shard
    return shards


def blend_of(manifest: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return weight and number of training documents by source, which no file hash covers."""
    return {
        source: {"weight": entry["weight"], "documents": entry.get("train", {}).get("documents", 0)}
        for source, entry in manifest["sources"].items()
    }


def never_read(manifest: Mapping[str, Any], sequence: int) -> dict[str, int]:
    """Return for each source the training tokens that no sample reads: all if its weight is 0, else the incomplete end.

    A source shorter than one sample repeats within it, so it loses none.
    """
    found = {}
    for source, entry in manifest["sources"].items():
        if n := int(entry.get("train", {}).get("tokens", 0)):
            end = (n - 1) % sequence if n > sequence else 0
            found[source] = end if entry["weight"] else n
    return found


def token_counts(directory: Path, split: str) -> NDArray[np.int64]:
    """Count the occurrences of each id in a split over all sources [vocabulary]."""
    vocabulary = int(read_tokens_manifest(directory)["vocabulary"])
    total = np.zeros(vocabulary, dtype=np.int64)
    for shard in open_shards(directory, split).values():
        for first in range(0, len(shard.tokens), _BLOCK_TOKENS):
            counts = np.bincount(shard.tokens[first : first + _BLOCK_TOKENS], minlength=vocabulary)
            if len(counts) > vocabulary:
                raise DataError(
                    f"{shard.prefix}.bin holds id {len(counts) - 1}, but the vocabulary has {vocabulary}; "
                    "tokenize again"
                )
            total += counts
    return total


def verify_tokens(directory: Path, names: Iterable[str] | None = None, alive: Callable[[], None] = unheard) -> None:
    """Compare files (None: all) with their sha256 in the manifest and check the indices. Raises DataError.

    alive: called after every block.
    """
    files = read_tokens_manifest(directory)["files"]
    for name in files if names is None else names:
        path, sha256 = directory / name, files[name]
        try:
            if not path.is_file():
                raise DataError(f"{path} is missing, but {MANIFEST} lists it; run `trivium tokenize` again")
            found = file_sha256(path, alive)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}; fix the disk or the permissions") from None
        if found != sha256:
            raise DataError(
                f"{path} is damaged or was replaced: its sha256 is {found[:12]}…, and {MANIFEST} lists {sha256[:12]}…; "
                f"restore it, or run `trivium tokenize` again"
            )
        if path.suffix == ".idx":
            Index.read(path).check()


def tokens_of_training(run: Path) -> Path | None:
    """Return the token folder of a run's training, or None if it is unknown."""
    try:
        return Path(read_json(run / "training" / "run.json")["tokens"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
