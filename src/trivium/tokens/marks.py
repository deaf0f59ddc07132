"""The special tokens that begin and end documents, read from the files next to a `tokenizer.json`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trivium.errors import DataError
from trivium.untrusted import read_json

END_OF_TEXT = "<|endoftext|>"  # end token of tokenizers that are trained here, and the default if no file names another
CONFIG, MAP, GENERATION = "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"
OWN_KEYS = {"eos_token", "bos_token", "add_bos_token"}  # all keys of a config that `as_config` wrote
Tree = Mapping[str, Any]


class Marks(NamedTuple):
    """The tokens that begin and end documents.

    opens: whether the beginning token precedes every text; None if the description's post-processor decides.
    """

    end: str = END_OF_TEXT
    begin: str | None = None
    opens: bool | None = None

    @property
    def as_config(self) -> dict[str, Any]:
        """The content of `tokenizer_config.json`."""
        named = {"bos_token": self.begin, "add_bos_token": self.opens}
        return {"eos_token": self.end} | {key: value for key, value in named.items() if value is not None}


class Beside(NamedTuple):
    """The special tokens that the files name.

    ends: {file: end tokens}, in the order of precedence, omitting files that name none.
    """

    ends: Mapping[str, tuple[str, ...]]
    begin: str | None
    opens: bool | None

    @property
    def found(self) -> str:
        """Describe for an error which file names which end tokens."""
        return "; ".join(f"{name}: {', '.join(tokens)}" for name, tokens in self.ends.items())


def beside(path: Path, words: Mapping[str, int]) -> Beside:
    """Read the files next to a `tokenizer.json`. words: its {token: id}. Raises DataError if one is unreadable."""
    trees = {name: tree_of(path.with_name(name)) for name in (CONFIG, MAP, GENERATION)}
    ids = trees[GENERATION].get("eos_token_id")
    every = ids_of(ids)
    if not all(type(one) is int for one in every):
        raise _unreadable(path.with_name(GENERATION), f"eos_token_id: {ids}")
    named = {name: token_of(trees[name], "eos_token", path.with_name(name)) for name in (CONFIG, MAP)}
    ends: dict[str, tuple[str, ...]] = {name: (token,) for name, token in named.items() if token is not None}
    begins = [token_of(trees[name], "bos_token", path.with_name(name)) for name in (CONFIG, MAP)]
    begin = next((token for token in begins if token is not None), None)
    # Since version 5, transformers ignore this key in a config of their own and use the post-processor.
    opens = trees[CONFIG].get("add_bos_token") if trees[CONFIG].keys() <= OWN_KEYS else None
    if every:
        tokens = {number: token for token, number in words.items()}
        ends[GENERATION] = tuple(tokens.get(one, f"id {one}") for one in every)
    return Beside(ends, begin, None if opens and begin is None else opens)


def ids_of(mark: Any) -> list[Any]:
    """Return the ids of one special token as a list, the main one first; chat models have several end-of-text ids."""
    return mark if isinstance(mark, list) else [] if mark is None else [mark]


def tree_of(path: Path) -> Tree:
    """Return the content of a tokenizer's config, empty if there is no file. Raises DataError if it is unreadable."""
    if not path.is_file():
        return {}
    try:
        tree = read_json(path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, repr(error)) from None
    if not isinstance(tree, Mapping):
        raise _unreadable(path, f"a {type(tree).__name__}")
    return tree


def token_of(tree: Tree, name: str, path: Path) -> str | None:
    """Return a special token of a tokenizer's config, or None. Raises DataError if it is no text."""
    found = tree.get(name)
    token = found.get("content") if isinstance(found, Mapping) else found
    if found is not None and not isinstance(token, str):
        raise _unreadable(path, f"{name}: {found}")
    return token


def _unreadable(path: Path, found: str) -> DataError:
    return DataError(f"{path} cannot be read as a tokenizer's config ({found}); download it again")
