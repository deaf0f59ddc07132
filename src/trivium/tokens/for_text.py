"""Prepare tokenizer descriptions for encoding text: without randomness, and so that no text becomes a special token.

Two properties of a `tokenizer.json` are wrong for text. Training settings (BPE dropout, Unigram sampling) give
different ids each time. And if a special token is also a piece of the model, a text with the same letters becomes
that token, even if the library is set to treat special tokens as text: a Unigram model matches `</s>` because it is
a piece with score 0. SentencePiece itself never matches control pieces in text.
"""

import json
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from trivium.tokens.bulk import pair_of

_RANDOM = ("dropout", "alpha", "nbest_size")  # settings of a model that randomise encoding
# Prevents a Unigram model from matching the letters of a byte piece such as "<0x0A>", which would be decoded as a
# line feed: the first letter is split off. The model needs these pieces by name for characters that it lacks.
_SPLIT_BYTE_PIECES = {
    "type": "Split",
    "pattern": {"Regex": "<(?=0x[0-9A-Fa-f]{2}>)"},
    "behavior": "Isolated",
    "invert": False,
}
Merge = str | Sequence[str]
Tree = dict[str, Any]


def without_randomness(description: str) -> str:
    """Return the description with all random settings disabled, or unchanged if there are none."""
    tree = json.loads(description)
    found = [name for name in _RANDOM if tree["model"].get(name) is not None]
    if not found:
        return description
    return _written(tree | {"model": tree["model"] | dict.fromkeys(found)})


def for_text(description: str, marks: Iterable[str]) -> str:
    """Return a description that encodes text, or the same one if nothing has to change.

    Ids stay the same. Special tokens that are pieces of the model get a name that no text can contain.
    marks: tokens that begin and end documents; they are special even if the file does not say so. An undeclared one
    of a single character stays an ordinary piece, because texts could not be encoded without it.
    """
    description = without_randomness(description)
    tree = json.loads(description)
    added: list[Tree] = tree.get("added_tokens") or []
    marks = {mark for mark in marks if len(mark) > 1 or any(one["content"] == mark for one in added)}
    hidden = _matchable(tree["model"], marks | {one["content"] for one in added if one["special"]})
    undeclared = [one for one in added if one["content"] in marks and not one["special"]]
    bytes_match = isinstance(tree["model"]["vocab"], list) and bool(tree["model"].get("byte_fallback"))
    if not hidden and not undeclared and not bytes_match:
        return description
    if bytes_match:
        steps = [tree["pre_tokenizer"]] if tree.get("pre_tokenizer") else []
        tree["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [*steps, _SPLIT_BYTE_PIECES]}
    # The names are random, so that nobody can write a text that contains one. No id depends on them.
    names = {token: secrets.token_hex(16) for token in sorted(hidden)}
    tree["model"] = _renamed(tree["model"], names)
    tree["added_tokens"] = [
        one
        | {"content": names.get(one["content"], one["content"])}
        | {"special": one["special"] or one["content"] in marks}
        for one in added
    ]
    return _written(tree)


def unknown_of(model: Mapping[str, Any]) -> str | None:
    """Return the piece for text that no other piece spells, or None if the model has none."""
    vocab, number = model.get("vocab"), model.get("unk_id")
    if isinstance(vocab, list):
        return None if number is None else str(vocab[number][0])
    return model.get("unk_token")


def _matchable(model: Mapping[str, Any], special: Collection[str]) -> set[str]:
    """Return the special tokens that the model itself would match in a text."""
    vocab = model["vocab"]
    if isinstance(vocab, list):  # a Unigram model matches every piece
        unknown = unknown_of(model)
        special = {*special, *([unknown] if unknown is not None and len(unknown) > 1 else [])}
        return special & {piece for piece, _ in vocab}
    pieces = {token for token in special if token in vocab}
    if "merges" not in model or model.get("ignore_merges"):  # such models look up full words
        return pieces
    return {one for one in pieces if len(one) == 1} | (pieces & {_product(m, model) for m in model["merges"]})


def _renamed(model: Mapping[str, Any], names: Mapping[str, str]) -> Tree:
    vocab = model["vocab"]
    if isinstance(vocab, list):
        return {**model, "vocab": [[names.get(piece, piece), score] for piece, score in vocab]}
    renamed: Tree = {**model, "vocab": {names.get(piece, piece): number for piece, number in vocab.items()}}
    if model.get("unk_token") in names:
        renamed["unk_token"] = names[model["unk_token"]]
    if "merges" in model:
        renamed["merges"] = [
            merge for merge in model["merges"] if not names.keys() & {*pair_of(merge), _product(merge, model)}
        ]
    return renamed


def _product(merge: Merge, model: Mapping[str, Any]) -> str:
    first, second = pair_of(merge)
    return first + second.removeprefix(model.get("continuing_subword_prefix") or "")


def _written(tree: Mapping[str, Any]) -> str:
    return json.dumps(tree, ensure_ascii=False)
