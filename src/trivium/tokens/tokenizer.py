"""A byte-level BPE: any text becomes ids and comes back unchanged.

Training and `encode_batch` use one thread per core inside the tokenizers library; `encode` uses none, so that
several ranks on one machine can encode without multiplying threads. `encode_arrays` is for whole corpora.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tiktoken
import tokenizers
from numpy.typing import NDArray

from trivium.errors import DataError
from trivium.tokens.bulk import equal_encoding

END_OF_TEXT = "<|endoftext|>"
FILE = "tokenizer.json"
CONFIG = "tokenizer_config.json"


class Marks(NamedTuple):
    """The tokens that end and begin a document. opens: whether the beginning stands before every prompt; None: where
    the description's own last step puts it."""

    end: str = END_OF_TEXT
    begin: str | None = None
    opens: bool | None = None


class Tokenizer:
    """Text to ids and back; equal `sha256` means equal ids for every text."""

    def __init__(self, description: str, marks: Marks = Marks()) -> None:
        """`description`: the JSON text of the Hugging Face tokenizers library."""
        self.description, self.marks = description, marks
        self._library = tokenizers.Tokenizer.from_str(description)
        # "<|endoftext|>" written in a document is text: only the corpus writer may end a document.
        self._library.encode_special_tokens = True
        self._library.no_truncation()
        self._library.no_padding()

    @cached_property
    def vocabulary(self) -> int:
        """The largest id and one: number of ids a model needs."""
        return 1 + max(self.words().values(), default=-1)

    @cached_property
    def bulk(self) -> tiktoken.Encoding | None:
        """The same tokenizer in tiktoken, where identical ids are certain; checking takes a second or two."""
        return equal_encoding(self.description)

    @cached_property
    def end_of_text(self) -> int:
        """The id that closes every document."""
        return self._id_of(self.marks.end)

    @cached_property
    def before_text(self) -> int:
        """The id that stands before a text of which nothing is given: the beginning, or the end of another."""
        return self.end_of_text if self.marks.begin is None else self._id_of(self.marks.begin)

    @cached_property
    def is_concatenative(self) -> bool:
        """Whether the text of ids is that of their parts in turn; others take a space from the beginning."""
        decoder = json.loads(self.description).get("decoder") or {}
        return decoder.get("type") == "ByteLevel"

    @cached_property
    def sha256(self) -> str:
        """Hash of the description, which is also the file's content."""
        return hashlib.sha256(self.description.encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Ids of one text, without an end mark; starts no threads."""
        return list(self._library.encode(_checked(text), add_special_tokens=False).ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text; equal to `encode` of each, on all cores."""
        checked = [_checked(t) for t in texts]
        return [e.ids for e in self._library.encode_batch_fast(checked, add_special_tokens=False)]

    def encode_prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of texts to be continued: as `encode_batch`, with the beginning before them where that is the custom."""
        if self.marks.opens is not None:
            opening = [self.before_text] if self.marks.opens else []
            return [opening + ids for ids in self.encode_batch(texts)]
        return [e.ids for e in self._library.encode_batch_fast([_checked(t) for t in texts])]

    def prompt_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The same, of one id at least: there must be something to go on from."""
        return [ids or [self.before_text] for ids in self.encode_prompts(texts)]

    def encode_arrays(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """Ids of each text; equal to `encode` of each, on this thread, which lets other threads run meanwhile."""
        encoding = self.bulk
        if encoding is None:
            return [np.array(ids, np.uint32) for ids in self.encode_batch(texts)]
        return [self._in_bulk(encoding, text) for text in texts]

    def _in_bulk(self, encoding: tiktoken.Encoding, text: str) -> NDArray[np.uint32]:
        try:
            return encoding.encode_to_numpy(text, disallowed_special=())
        except (ValueError, UnicodeError):  # too long a run of blanks for its stack, or half a character
            return np.array(self.encode(text), np.uint32)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; bytes that do not form a character become U+FFFD."""
        return str(self._library.decode([int(i) for i in ids], skip_special_tokens=False))

    def decode_after(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """The text that ids add to that of the ids before them."""
        if self.is_concatenative or not before:
            return self.decode(ids)
        return self.decode([*before, *ids])[len(self.decode(before)) :]

    def words(self) -> dict[str, int]:
        """Every token, in the library's spelling, and its id."""
        return dict(self._library.get_vocab())

    def _id_of(self, token: str) -> int:
        found: int | None = self._library.token_to_id(token)
        if found is None:
            raise DataError(
                f"this tokenizer has no token {token}, which must stand at the end of every document"
            )
        return found

    def save(self, path: Path) -> None:
        """Write the description; `load_tokenizer` reads it."""
        path.write_text(self.description, encoding="utf-8", newline="")


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Learn a byte-level BPE of at most `vocabulary` ids; the same texts in the same order give the same one."""
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    library.train_from_iterator(map(_checked, texts), trainer)
    return Tokenizer(library.to_str())


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer in a `tokenizer.json`; DataError when it is missing, damaged, or not one of ours."""
    tokenizer = Tokenizer(_description(path))
    if END_OF_TEXT not in tokenizer.words():
        raise DataError(f"{path} has no token {END_OF_TEXT}, which must close every document; tokenize again")
    return tokenizer


def tokenizer_of_model(path: Path) -> Tokenizer:
    """The tokenizer of a model that may come from elsewhere, at a `tokenizer.json`: what ends and begins its documents
    is said by `tokenizer_config.json` beside it; without that file it must be one of ours. DataError where it does
    not name its end, or a token that there is not."""
    beside = path.with_name(CONFIG)
    if not beside.is_file():
        return load_tokenizer(path)
    try:
        tree = json.loads(beside.read_text(encoding="utf-8"))
        end, begin = (_token_in(tree, name) for name in ("eos_token", "bos_token"))
        opens = tree.get("add_bos_token") if begin is not None else None
    except (OSError, ValueError, AttributeError, TypeError, KeyError) as error:
        raise DataError(
            f"{beside} cannot be read as a tokenizer's config ({error!r}); download it again"
        ) from None
    tokenizer = Tokenizer(_description(path), Marks(end or END_OF_TEXT, begin, opens))
    missing = [t for t in (tokenizer.marks.end, begin) if t is not None and t not in tokenizer.words()]
    if missing:
        raise DataError(
            f"{path} has no token {missing[0]}, with which its documents end or begin; name one that it has as "
            f"eos_token or bos_token in {beside}"
        )
    return tokenizer


def _token_in(tree: Mapping[str, Any], name: str) -> str | None:
    """A token in a config: its text, or an object that holds it."""
    found = tree.get(name)
    return str(found["content"]) if isinstance(found, Mapping) else None if found is None else str(found)


def _description(path: Path) -> str:
    """The content of a file that the library can read."""
    try:
        description = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); run `trivium tokenize`") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text: it was damaged; run `trivium tokenize` again") from None
    try:
        tokenizers.Tokenizer.from_str(description)
    except Exception as error:  # the library raises bare Exception for every kind of damage
        raise DataError(f"{path} is not a tokenizer ({error}); run `trivium tokenize` again") from None
    return description


def given_tokenizer(place: str) -> Tokenizer:
    """The tokenizer in this file, or in the `tokenizer.json` of this folder; DataError when there is none."""
    path = tokenizer_file(place)
    if not path.is_file():
        raise DataError(
            f"tokens.tokenizer: {path} does not exist; give a tokenizer.json of Hugging Face tokenizers, or a "
            "folder that holds one"
        )
    return load_tokenizer(path)


def tokenizer_file(place: str) -> Path:
    """The file that `tokens.tokenizer` names."""
    path = Path(place)
    return path / FILE if path.is_dir() else path


def _checked(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"a text holds half a character (surrogate {text[error.start]!a} at position {error.start}), "
            "which no encoding can write; curate the corpus again"
        ) from None
    return text
