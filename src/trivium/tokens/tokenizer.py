"""Byte-level BPE tokenizers: any text becomes ids and is restored unchanged.

Training and `encode_batch` use one thread per core inside the tokenizers library. `encode` uses none, so that
several ranks on one machine can encode without oversubscribing it. `encode_arrays` is for full corpora.
"""

import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain, takewhile
from operator import itemgetter
from pathlib import Path

import numpy as np
import tokenizers
from numpy.typing import NDArray

from trivium.config import as_value, written
from trivium.errors import ConfigError, DataError, nearest
from trivium.hub import hub_folder, is_hub_name
from trivium.provenance import fingerprint, write_json
from trivium.tokens.bounded import SIMPLER, problem_of, slow_text
from trivium.tokens.bulk import BulkEncoder, equal_encoding
from trivium.tokens.by_name import NAMES, description_of
from trivium.tokens.for_text import for_text, unknown_of, without_randomness
from trivium.tokens.marks import CONFIG, END_OF_TEXT, GENERATION, MAP, Beside, Marks, beside
from trivium.untrusted import read_bytes

FILE = "tokenizer.json"
BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_CALLED_END = ("eos", "/s", "end", "eot", "sep")
_MAX_LISTED_TOKENS = 8  # special tokens in an error message
_WRITTEN = "{0} a{0} {0}\n{0}"  # a special token in typical positions of a text
# Letters to encode before a continuation; the first one that does not merge with it is used.
_NEUTRAL = ("x", "z", "e", "0", ".", "\n", "中", "\x01")
# Limits of tokenizers trained here. The trainer takes time quadratic in the length of a word, so longer words are
# cut. Longer tokens would only stand for runs of one letter, or for repeated texts.
_MAX_TOKEN_BYTES, _MAX_WORD_CHARACTERS = 128, 1024
# Unicode's White_Space, which separates words in the library. Python's \s also matches U+001C to U+001F.
_BLANKS = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_LONG_RUN = re.compile(
    rf"(?<![^{_BLANKS}])[^{_BLANKS}]{{{_MAX_WORD_CHARACTERS + 1},}}+"
    rf"|(?<![{_BLANKS}])[{_BLANKS}]{{{_MAX_WORD_CHARACTERS + 1},}}+"
)


class Tokenizer:
    """Converts text to ids and back.

    Encoding is deterministic and never produces special tokens from text: BPE dropout, sampling, truncation and
    padding are disabled. Equal `sha256` and equal `marks` imply equal ids for every text.
    """

    def __init__(
        self,
        description: str,
        marks: Marks = Marks(),
        library: tokenizers.Tokenizer | None = None,
        other_ends: Iterable[int] = (),
    ) -> None:
        """description: JSON of the Hugging Face tokenizers library. library: the parsed description, if available.
        other_ends: ids at which a generated text ends besides the end of documents."""
        self.description, self.marks, self._other_ends = description, marks, frozenset(other_ends)
        # used for decoding and token names
        self._library = library or _read(description)

    @cached_property
    def _for_text(self) -> str:
        """The description used for encoding, with which no text can contain the end of a document."""
        return for_text(self.description, [mark for mark in (self.marks.end, self.marks.begin) if mark])

    @cached_property
    def _encoder(self) -> tokenizers.Tokenizer:
        return self._library if self._for_text == self.description else _read(self._for_text)

    @cached_property
    def vocabulary(self) -> int:
        """The largest id plus one: the number of ids that a model needs."""
        return 1 + max(self.words.values(), default=-1)

    @cached_property
    def bulk(self) -> BulkEncoder | None:
        """A faster encoder, or None if identical ids are not certain. The check takes a second or two."""
        return equal_encoding(self._for_text)

    @cached_property
    def end_of_text(self) -> int:
        """The id of the token that closes every document."""
        return self._id_of(self.marks.end)

    @cached_property
    def ends(self) -> frozenset[int]:
        """The ids at which a generated text ends: the end of documents, and others of an imported model."""
        return self._other_ends | {self.end_of_text}

    @cached_property
    def before_text(self) -> int:
        """The id that precedes a text without context: the beginning token, or the end-of-text token."""
        return self.end_of_text if self.marks.begin is None else self._id_of(self.marks.begin)

    @cached_property
    def opening(self) -> list[int]:
        """The ids that precede every text by the tokenizer's convention."""
        if self.marks.opens is not None:
            return [self.before_text] if self.marks.opens else []
        encoded = self._with_special_tokens
        added = zip(encoded.ids, encoded.special_tokens_mask, strict=True)
        return [token for token, _ in takewhile(itemgetter(1), added)]

    @cached_property
    def _with_special_tokens(self) -> tokenizers.Encoding:
        """A short text with everything that the description's post-processor adds."""
        encodings = (self._library.encode(text) for text in chain(("a",), self.words))
        # The text must have a token of its own, to show whether special tokens precede or follow it.
        return next((e for e in encodings if not all(e.special_tokens_mask)), self._library.encode(""))

    @property
    def for_others(self) -> str:
        """The description for other programs, which gives the ids used here without further rules.

        The post-processor adds the opening before a text and nothing after it, and nothing is random.
        """
        description = without_randomness(self.description)
        encoded = self._with_special_tokens
        added = [n for n, special in zip(encoded.ids, encoded.special_tokens_mask, strict=True) if special]
        if added == self.opening == encoded.ids[: len(added)]:
            return description
        library = tokenizers.Tokenizer.from_str(description)
        begin = [library.id_to_token(number) for number in self.opening]
        library.post_processor = tokenizers.processors.TemplateProcessing(
            single=[*begin, "$A"],
            pair=[*begin, "$A", *begin, "$B"],
            special_tokens=list(zip(begin, self.opening, strict=True)),
        )
        return str(library.to_str())

    def without_opening(self) -> "Tokenizer":
        """Return the same tokenizer for documents without an opening."""
        bare = self.with_marks(Marks(self.marks.end))
        return self.with_marks(Marks(self.marks.end, opens=False)) if bare.opening else bare

    def with_marks(self, marks: Marks) -> "Tokenizer":
        return Tokenizer(self.description, marks, self._library, self._other_ends)

    def with_ends(self, ids: Iterable[int]) -> "Tokenizer":
        """Return the same tokenizer for a model whose texts may end at further ids."""
        return Tokenizer(self.description, self.marks, self._library, ids)

    @cached_property
    def is_concatenative(self) -> bool:
        """Whether decoding ids equals concatenating their decoded parts. Other decoders strip a first space."""
        decoder = json.loads(self.description).get("decoder") or {}
        return decoder.get("type") == "ByteLevel"

    @cached_property
    def byte_tokens(self) -> frozenset[int]:
        """Ids of byte tokens that are decoded together. One that forms no character invalidates the full run."""
        if '"ByteFallback"' not in json.dumps(json.loads(self.description).get("decoder")):
            return frozenset()
        return frozenset(id for token, id in self.words.items() if BYTE.fullmatch(token))

    @property
    def unknown(self) -> str:
        """The token for unknown text, or the end-of-text token if every text has ids."""
        return unknown_of(json.loads(self.description)["model"]) or self.marks.end

    @cached_property
    def sha256(self) -> str:
        """The hash of the description, which is also the hash of its file."""
        return hashlib.sha256(self.description.encode()).hexdigest()

    @cached_property
    def identity(self) -> str:
        """A key that is equal if documents are encoded equally."""
        return self.sha256 if self.marks == Marks() else fingerprint([self.sha256, *self.marks])

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens; starts no threads."""
        with _named_panics():
            return list(self._encoder.encode(_checked(text), add_special_tokens=False).ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, equal to those of `encode`, using all cores.

        Raises DataError if `texts` is a single string, whose letters would otherwise be encoded separately.
        """
        if isinstance(texts, str):
            raise DataError(f"{texts[:40]!r} is one text, and a list of texts is asked for; give [text]")
        checked = [_checked(t) for t in texts]
        with _named_panics():
            return [e.ids for e in self._encoder.encode_batch_fast(checked, add_special_tokens=False)]

    def encode_prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of texts to be continued: those of `encode_batch` after the opening."""
        return [self.opening + ids for ids in self.encode_batch(texts)]

    def encode_continuations(self, pairs: Sequence[tuple[list[int], str, list[int]]]) -> list[list[int] | None]:
        """Return the ids of continuations of other ids. pairs: (ids before, text, ids of both encoded as one text).

        Some tokenizers put a space before every text. Such a text is encoded after a letter, whose ids are removed.
        The result is None for a text that no ids spell at that place, as with a tokenizer of full words.
        """
        wanted = [self.decode(whole) for *_, whole in pairs]
        found: list[list[int] | None] = [None] * len(pairs)
        for letter in ("", *_NEUTRAL):
            left = [n for n, ids in enumerate(found) if ids is None]
            if not left:
                break
            cut = self.encode(letter)
            for n, ids in zip(left, self.encode_batch([letter + pairs[n][1] for n in left]), strict=True):
                rest = ids[len(cut) :]
                if rest and ids[: len(cut)] == cut and self.decode([*pairs[n][0], *rest]) == wanted[n]:
                    found[n] = rest
        return found

    def prompt_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of `encode_prompts`, at least one per text, because generation needs a first token."""
        return [ids or [self.before_text] for ids in self.encode_prompts(texts)]

    def encode_arrays(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """Return the ids of each text, equal to those of `encode`, on this thread and without holding the GIL."""
        if self.bulk is None:
            return [np.array(ids, np.uint32) for ids in self.encode_batch(texts)]
        found = zip(texts, self.bulk.encode(texts), strict=True)
        return [np.array(self.encode(text), np.uint32) if ids is None else ids for text, ids in found]

    def encode_marked(self, texts: Sequence[str]) -> list[tokenizers.Encoding]:
        """Encode texts in which special tokens are written out, as chat templates do, using all cores.

        This is the only function that makes special tokens from text. Nothing is added to a text. The offsets of a
        token include its spaces.
        """
        checked = [_checked(text) for text in texts]
        with _named_panics():
            return list(self._marking.encode_batch(checked, add_special_tokens=False))

    @cached_property
    def _marking(self) -> tokenizers.Tokenizer:
        tree = json.loads(without_randomness(self.description))
        library = _read(json.dumps(tree | {"post_processor": None}))  # the post-processor would trim the offsets
        library.encode_special_tokens = False
        library.add_special_tokens([tokenizers.AddedToken(mark, normalized=False) for mark in self.guarded])
        return library

    @cached_property
    def guarded(self) -> list[str]:
        """The tokens that no text may become: the special ones, and those that begin and end documents."""
        marks = [mark for mark in (self.marks.end, self.marks.begin) if mark and len(mark) > 1]
        return list(dict.fromkeys([*self.special, *marks]))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; bytes that do not form a character become U+FFFD."""
        return str(self._library.decode([int(i) for i in ids], skip_special_tokens=False))

    def decode_text(self, ids: Sequence[int]) -> str:
        """Return the text of ids without special tokens, as transformers do with `skip_special_tokens`."""
        return self.decode([number for number in ids if number not in self._special_ids])

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        tokens = {*self.special, self.marks.end, self.marks.begin, self.unknown}
        return frozenset(number for token, number in self.words.items() if token in tokens)

    def decode_after(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """Return the text that `ids` add to the text of `before`."""
        if self.is_concatenative or not before:
            return self.decode(ids)
        return self.decode([*before, *ids])[len(self.decode(before)) :]

    @cached_property
    def words(self) -> Mapping[str, int]:
        """{token: id}, in the library's spelling."""
        return dict(self._library.get_vocab())

    @property
    def special(self) -> list[str]:
        """The special tokens of the description; those whose name suggests an end come first."""
        added = json.loads(self.description).get("added_tokens") or []
        found = [one["content"] for one in added if one["special"]]
        return sorted(found, key=lambda token: not any(name in token.lower() for name in _CALLED_END))

    def _id_of(self, token: str) -> int:
        found: int | None = self._library.token_to_id(token)
        if found is None:
            raise DataError(f"this tokenizer has no token {token}, which must stand at the end of every document")
        return found

    def save(self, path: Path) -> list[Path]:
        """Write the description, and special tokens other than the default ones. Return the written paths."""
        path.write_text(self.description, encoding="utf-8", newline="")
        if self.marks == Marks():
            return [path]
        write_json(path.with_name(CONFIG), self.marks.as_config)
        return [path, path.with_name(CONFIG)]


def train_tokenizer(texts: Iterable[str], vocabulary: int, end: str = END_OF_TEXT) -> Tokenizer:
    """Train a byte-level BPE with at most `vocabulary` ids and `end` to close documents. It is deterministic."""
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[end],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=_MAX_TOKEN_BYTES,
        show_progress=False,
    )
    library.train_from_iterator((part for text in texts for part in _short_words(_checked(text))), trainer)
    return Tokenizer(library.to_str(), Marks(end))


def _short_words(text: str) -> Iterator[str]:
    """Yield the text, cut inside every run of more than _MAX_WORD_CHARACTERS blanks or other characters."""
    begin = 0
    for run in _LONG_RUN.finditer(text):
        for at in range(run.start() + _MAX_WORD_CHARACTERS, run.end(), _MAX_WORD_CHARACTERS):
            yield text[begin:at]
            begin = at
    yield text[begin:]


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load a `tokenizer.json` with the special tokens of the first file next to it that names some, or `<|endoftext|>`.

    Raises DataError if it is damaged, lacks the tokens that begin or end its documents, or names several ends.
    """
    path = Path(path)
    found = _opened(path)
    said = beside(path, found.words)
    ends = next(iter(said.ends.values()), (END_OF_TEXT,))
    marks = Marks(ends[0], said.begin, said.opens)
    missing = [token for token in (*ends, said.begin) if token is not None and token not in found.words]
    if missing or len(ends) > 1:
        problem = f"has no token {missing[0]}" if missing else f"may end with any of {', '.join(ends)}"
        raise DataError(
            f"{path} {problem}, with which its documents end or begin; name one that it has as eos_token or bos_token "
            f"in {path.with_name(CONFIG)}"
        )
    return found.with_marks(marks)


def given_tokenizer(place: str, end: str | None = None) -> Tokenizer:
    """Load the tokenizer that `tokens.tokenizer` names, for writing documents.

    place: one of by_name.NAMES, hf:ORG/NAME, a `tokenizer.json`, or a folder that has one. end: `tokens.end_of_text`;
    None uses the token on which all files next to it agree, or `<|endoftext|>`. Raises ConfigError if the end of
    documents is uncertain or a text can contain it.
    """
    if place in NAMES:
        found, path, said = Tokenizer(description_of(place)), Path(place), Beside({}, None, None)
    else:
        path = tokenizer_file(place)
        if not path.is_file():
            raise DataError(
                f"tokens.tokenizer: {path} does not exist; give a tokenizer.json of Hugging Face tokenizers, a folder "
                f"that holds one, hf:ORG/NAME, or a name: {nearest(path.name, NAMES)}"
            )
        found = _opened(path, "tokens.tokenizer: ")
        said = beside(path, found.words)
    marks = Marks(_one_end(found, said, end, path), said.begin, said.opens)
    if said.begin is not None and said.begin not in found.words:
        raise DataError(f"{path} has no token {said.begin}, which {CONFIG} beside it names as bos_token; fix that")
    tokenizer = found.with_marks(marks)
    if tokenizer.end_of_text in tokenizer.encode(_WRITTEN.format(marks.end)):
        raise ConfigError(
            f"tokens.end_of_text is {marks.end!r}, an ordinary piece of {path}: a text that contains it would end "
            f"there; {_choose(found.special)}"
        )
    return tokenizer if tokenizer.opening else tokenizer.without_opening()


def _one_end(found: Tokenizer, said: Beside, end: str | None, path: Path) -> str:
    """Return the token that closes every document. Raises ConfigError if it is uncertain or does not exist."""
    named = {token for tokens in said.ends.values() for token in tokens}
    if end is None and len(named) > 1:
        raise ConfigError(
            f"tokens.end_of_text is {written(end)}, and the files beside {path} name several ({said.found}), but one "
            f"token closes every document; {_choose(sorted(named & found.words.keys()))}"
        )
    chosen = end or next(iter(named), END_OF_TEXT)
    if chosen not in found.words:
        raise ConfigError(
            f"tokens.end_of_text is {written(end)}, but {path} has no token {chosen}, which must close every document "
            f"({said.found or f'{CONFIG}, {MAP} and {GENERATION} beside it name none'}); "
            f"{_choose(found.special)}"
        )
    return chosen


def _choose(tokens: Sequence[str]) -> str:
    """Return the remedy if the end of documents must be named: the candidates, and the option to type."""
    if not tokens:
        return "it has no special tokens: add one to its added_tokens"
    more = f", … ({len(tokens)} in all)" if len(tokens) > _MAX_LISTED_TOKENS else ""
    example = shlex.quote(f"tokens.end_of_text={as_value(tokens[0])}")
    return f"name one of {', '.join(tokens[:_MAX_LISTED_TOKENS])}{more} with --set, as --set {example}"


def _read(description: str) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer.from_str(description)
    library.encode_special_tokens = True  # special tokens in a text are encoded as text
    library.no_truncation()
    library.no_padding()
    return library


def _opened(path: Path, field: str = "") -> Tokenizer:
    """Load a file of the tokenizers library, with default marks. field: config field for the error.

    Raises DataError if it is not a tokenizer, and ConfigError if it may take unbounded time or multiply a text.
    """
    try:
        description = read_bytes(path).decode("utf-8")
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); run `trivium tokenize`") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text: it was damaged; run `trivium tokenize` again") from None
    try:
        library, tree = _read(description), json.loads(description)
        problem = problem_of(tree)
        if not problem:
            library.encode("a")  # some damage appears only when a text is encoded
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises bare Exception for most damage, and its panics are not even one
        raise DataError(f"{path} is not a tokenizer ({error}); run `trivium tokenize` again") from None
    if problem := problem or slow_text(library, tree):
        raise ConfigError(f"{field}{path}: {problem}")
    return Tokenizer(description, library=library)


@contextmanager
def _named_panics() -> Iterator[None]:
    """Convert a panic of the library, which is a BaseException, into DataError."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise DataError(f"the tokenizer cannot encode a text ({error}); {SIMPLER}") from None


def tokenizer_file(place: str) -> Path:
    """Return the file of a tokenizer that is no name: the place itself, or the file in a folder or in a repository."""
    path = Path(place)
    if is_hub_name(place):
        instead = f"give a local {FILE} or its folder: --set tokens.tokenizer=PATH"
        path = hub_folder(place, (FILE, CONFIG, MAP, GENERATION), required=FILE, instead=instead)
    return path / FILE if path.is_dir() else path


def is_tokenizer_name(place: str) -> bool:
    """Return whether `tokens.tokenizer` is a name, and no path."""
    return place in NAMES or is_hub_name(place)


def _checked(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"a text contains a lone surrogate ({text[error.start]!a} at position {error.start}), "
            "which UTF-8 cannot encode; give full characters"
        ) from None
    return text
