"""Numbers that a model computed for every token of a token folder, stored beside the shards.

`NAME.json` describes them: {format, of (the sha256 of the weights that computed them), settings, tokens (a hash of the
list of the shards), arrays (dtype and shape per token), files (sha256)}. `PREFIX.NAME-ARRAY` has one array for the
tokens of a shard, in the order of its `.bin`. The numbers of a token are about it as the target.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trivium.errors import CheckpointError, DataError
from trivium.provenance import file_sha256, fingerprint, read_described, write_json
from trivium.tokens.manifest import SPLITS, open_shards, read_tokens_manifest
from trivium.tokens.samples import TokenDataset
from trivium.tokens.shards import TokenShard

FORMAT = "trivium-beside-1"
Arrays = dict[str, NDArray[Any]]  # by name, each [tokens, …]


class Kind(NamedTuple):
    """Dtype and shape per token of an array."""

    dtype: str
    shape: tuple[int, ...] = ()


class Beside(NamedTuple):
    """A set of arrays called `name` in the token folder `folder`, which weights of hash `of` computed; None: of any.
    splits: that have them."""

    folder: Path
    name: str
    of: str | None
    kinds: Mapping[str, Kind]
    settings: Mapping[str, Any]
    splits: tuple[str, ...] = SPLITS

    @property
    def exists(self) -> bool:
        """Whether the description, which is written last, is there."""
        return self._about.is_file()

    @property
    def _about(self) -> Path:
        return self.folder / f"{self.name}.json"

    @property
    def _remedy(self) -> str:
        return f"delete {self._about} to have it computed again"

    def create(self) -> None:
        """Create files of zeros for all shards; `filled` writes them and `finish` describes them."""
        self._about.unlink(missing_ok=True)
        for _, _, shard, files in self._shards():
            for name, path in files.items():
                with open(path, "wb") as file:
                    file.truncate(self._bytes(name, len(shard.tokens)))

    def filled(self, split: str, source: str) -> Arrays:
        """Return the arrays of a shard, mapped for writing."""
        _, _, shard, files = next(s for s in self._shards() if s[:2] == (split, source))
        return {name: self._mapped(path, name, len(shard.tokens), "r+") for name, path in files.items()}

    def finish(self) -> None:
        """Describe the files, after all have been written."""
        files = {path.name: file_sha256(path) for *_, files in self._shards() for path in files.values()}
        write_json(self._about, {**self._identity(), "of": self.of, "files": files})

    def refuse_other_weights(self, found: str) -> None:
        """Raise CheckpointError if other weights, of hash `found`, computed the arrays."""
        if self.of is not None and found != self.of:
            raise CheckpointError(
                f"{self._about} was computed by the weights {found[:12]}…, and the {self.name} of this training is "
                f"{self.of[:12]}…; start from the checkpoint that it is of, or {self._remedy}"
            )

    def check(self) -> str:
        """Return the hash of the weights that computed the arrays. Raises DataError if these are about other tokens,
        have other settings, or were damaged."""
        remedy = self._remedy
        about = read_described(self._about, FORMAT, missing=f"{self._about} is missing", remedy=remedy)
        for key, value in self._identity().items():
            if about.get(key) != value:
                raise DataError(f"{self._about}: {key} is {about.get(key)}, and must be {value} here; {remedy}")
        for *_, files in self._shards():
            for path in files.values():
                if not path.is_file() or about["files"].get(path.name) != file_sha256(path):
                    raise DataError(f"{path} is missing or was damaged since it was written; {remedy}")
        return str(about.get("of"))

    def of_dataset(self, data: TokenDataset) -> TokenDataset:
        """Return samples with the arrays beside their tokens, if their split has them."""
        return data.with_beside(self.arrays(data.split)) if data.split in self.splits else data

    def arrays(self, split: str) -> dict[str, Arrays]:
        """Return the arrays of each source of a split, mapped."""
        return {
            source: {name: self._mapped(path, name, len(shard.tokens), "r") for name, path in files.items()}
            for here, source, shard, files in self._shards()
            if here == split
        }

    def _identity(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "settings": dict(self.settings),
            "tokens": fingerprint(read_tokens_manifest(self.folder)["files"]),
            "arrays": {name: [kind.dtype, list(kind.shape)] for name, kind in self.kinds.items()},
        }

    def _shards(self) -> Iterator[tuple[str, str, TokenShard, dict[str, Path]]]:
        """Yield split, source, shard, and the file of each array."""
        for split in self.splits:
            for source, shard in open_shards(self.folder, split, TokenShard.mapped).items():
                names = {name: self.folder / f"{shard.prefix.name}.{self.name}-{name}" for name in self.kinds}
                yield split, source, shard, names

    def _bytes(self, name: str, tokens: int) -> int:
        kind = self.kinds[name]
        return tokens * int(np.prod(kind.shape, dtype=np.int64)) * np.dtype(kind.dtype).itemsize

    def _mapped(self, path: Path, name: str, tokens: int, mode: Any) -> NDArray[Any]:
        kind = self.kinds[name]
        if not path.is_file() or path.stat().st_size != self._bytes(name, tokens):
            raise DataError(f"{path} must have {self._bytes(name, tokens)} bytes; delete {self._about}, and it is made")
        shape = (tokens, *kind.shape)
        return np.memmap(path, kind.dtype, mode, shape=shape) if tokens else np.empty(shape, kind.dtype)
