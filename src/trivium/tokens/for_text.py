"""Tokenizer descriptions for encoding text: nothing is random, and no text can spell a special token.

Two things in a `tokenizer.json` are wrong for text. Settings of training (BPE dropout, sampling of a Unigram model)
give other ids each time. And where a special token is also a piece of the model, a text with its letters becomes that
token, even if the library is told to treat special tokens as text: a Unigram model matches `</s>` because it is a piece
with score 0. SentencePiece itself never matches control pieces in text.
"""

import json
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from trivium.tokens.bulk import pair_of

_RANDOM = ("dropout", "alpha", "nbest_size")  # settings of a model that make encoding random
# Keeps a Unigram model from matching the letters of a byte's piece, as "<0x0A>", which is decoded as a line's end: its
# first letter is a piece of text by itself. The model needs these pieces under their names for characters it lacks.
_APART = {
    "type": "Split",
    "pattern": {"Regex": "<(?=0x[0-9A-Fa-f]{2}>)"},
    "behavior": "Isolated",
    "invert": False,
}
Merge = str | Sequence[str]
Tree = dict[str, Any]


def without_randomness(description: str) -> str:
    """The description with all random settings of training off; the same text if there are none."""
    tree = json.loads(description)
    found = [name for name in _RANDOM if tree["model"].get(name) is not None]
    if not found:
        return description
    return _written(tree | {"model": tree["model"] | dict.fromkeys(found)})


def for_text(description: str, marks: Iterable[str]) -> str:
    """The description that encodes text; the same text if nothing has to change.

    Ids stay the same: special tokens that are pieces of the model keep their id under a name that no text can contain.
    marks: the tokens that end and begin documents, which are special whatever the file says of them. A mark of one
    character that the file does not declare stays an ordinary piece: without it, texts could not be spelled.
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
        tree["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [*steps, _APART]}
    # Random names, so that nobody can write a text that contains one; no id depends on them.
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
    """The piece that stands for text that no other piece spells; None if the model has none."""
    vocab, number = model.get("vocab"), model.get("unk_id")
    if isinstance(vocab, list):
        return None if number is None else str(vocab[number][0])
    return model.get("unk_token")


def _matchable(model: Mapping[str, Any], special: Collection[str]) -> set[str]:
    """The special tokens that the model itself would find in a text."""
    vocab = model["vocab"]
    if isinstance(vocab, list):  # Unigram, which matches every piece
        unknown = unknown_of(model)
        special = {*special, *([unknown] if unknown is not None and len(unknown) > 1 else [])}
        return special & {piece for piece, _ in vocab}
    pieces = {token for token in special if token in vocab}
    if "merges" not in model or model.get("ignore_merges"):  # words are looked up whole
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
