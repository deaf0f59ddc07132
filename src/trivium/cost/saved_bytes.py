"""What autograd keeps for the backward, as polynomials whose coefficients were counted, not derived by hand.

The table is saved_bytes.yaml, written by trivium.certify.saved_polynomials from the saved tensors of our own blocks. Of
each part of a stage it says, by the kind of element, how often each product of sizes occurs for one micro-batch on
one rank. A name that is a choice ("llama", "ring") is 1 where the plan makes that choice, else 0.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

import numpy as np
import yaml

from trivium.config import shipped
from trivium.cost.case import Case, Number
from trivium.errors import ConfigError

Part = Literal["embedding", "head", "logits", "layer input", "layer without core", "core"]
Kind = Literal["weights", "wide", "index", "flag", "fp32"]
PARTS: tuple[Part, ...] = get_args(Part)


class Term(NamedTuple):
    """coefficient x product of the sizes named by `factors` / the size named by `over`, in elements of a kind."""

    kind: Kind
    coefficient: int
    factors: tuple[str, ...]
    over: str | None


def saved_bytes(part: Part, case: Case) -> Number:
    """Bytes that a part of a stage keeps of one micro-batch on one rank."""
    values, widths = sizes(case), element_bytes(case)
    total: Number = 0.0
    for term in polynomials()[part]:
        total = total + term.coefficient * product(term, values) * widths[term.kind]
    return total


def product(term: Term, values: Mapping[str, Number]) -> Number:
    """Of a term's sizes."""
    found: Number = 1.0
    for name in term.factors:
        found = found * values[name]
    return found if term.over is None else found / values[term.over]


def sizes(case: Case) -> dict[str, Number]:
    """What the factors of a term stand for, on one rank. queries, keys: columns of its heads, and of its key-value
    heads. along: the tensor ranks that share the positions between regions. rows: of the vocabulary."""
    heads, kv_heads = case.heads / case.tensor, case.kv_heads / case.tensor
    split = np.asarray(case.tensor) > 1
    gpt, here = np.asarray(case.gated) == 0, np.asarray(case.context) == 1
    ring = ~here & (np.asarray(case.ring) == 1)
    ulysses, apart = ~here & ~ring, np.asarray(case.apart) == 1
    # A rank with one head: what attention returns is, transposed, already what the next product reads.
    lone = heads == 1
    choices = {
        "gpt": gpt,
        "llama": ~gpt,
        "qk_norm": (np.asarray(case.qk_norm) == 1) | (np.asarray(case.over_heads) == 1),
        "each_head": np.asarray(case.qk_norm) == 1,
        "over_heads": np.asarray(case.over_heads) == 1,
        "dropout": np.asarray(case.dropout) == 1,
        "stored": np.asarray(case.function_again) == 0,
        "split": split,
        "ring": ring,
        "ulysses": ulysses,
        "attends_here": ~ulysses,
        "apart": apart,
        "joined": ~apart,
        "grouped": (heads > kv_heads) & (kv_heads > 1),
        "lone": lone,
        "wide_weights": np.asarray(case.weight_bytes) == np.asarray(case.master_bytes),
    }
    return {
        "positions": case.positions,
        "local_sequence": case.local_sequence,
        "hidden": case.hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "queries": case.queries / case.tensor,
        "keys": case.keys / case.tensor,
        "head_width": case.head_width,
        "ffn": case.ffn / case.tensor,
        "rows": case.vocabulary / case.tensor,
        "along": case.along,
        **{name: np.asarray(choice, float) for name, choice in choices.items()},
    }


def element_bytes(case: Case) -> dict[Kind, Number]:
    """Bytes of an element by kind. wide: at least fp32. index: a number of a token or a position. flag: a choice."""
    return {"weights": case.weight_bytes, "wide": case.master_bytes, "index": 8, "flag": 1, "fp32": 4}


@lru_cache(maxsize=1)
def polynomials() -> dict[Part, tuple[Term, ...]]:
    """The terms of every part."""
    path = shipped("cost/saved_bytes.yaml")
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(tree, dict) or set(tree) != set(PARTS):
        raise ConfigError(
            f"{path}: its parts are {sorted(map(str, tree))}, not {sorted(PARTS)}; write it anew with "
            f"`python -m trivium.certify.saved_polynomials --write`"
        )
    return {part: tuple(_terms(tree[part])) for part in PARTS}


def _terms(kinds: dict[Kind, dict[str, int]]) -> list[Term]:
    return [_term(kind, c, text) for kind, products in kinds.items() for text, c in products.items()]


def _term(kind: Kind, coefficient: int, text: str) -> Term:
    above, _, below = text.partition("/")
    return Term(kind, coefficient, tuple(above.split("*")), below or None)


def as_bytes(number: Number) -> int:
    """A single exact figure as a whole number."""
    value = float(number)
    assert value == math.floor(value), f"{value} bytes are no whole number: a split does not divide its size"
    return int(value)
