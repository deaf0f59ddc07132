"""Count the coefficients of cost/saved_bytes.yaml: `python -m trivium.certify.saved_polynomials [--write]`.

Which products of sizes may occur is written in the table; how often each does is found here, from what our own
blocks keep. Random plans give more equations than there are products, and all must hold exactly.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml

from trivium.certify.counted_memory import counted
from trivium.config import shipped
from trivium.cost.case import case_of
from trivium.cost.saved_bytes import Kind, Part, Term, polynomials, product, sizes
from trivium.errors import DataError
from trivium.plan.plan import Plan
from trivium.seeds import generator_for
from trivium.units import plain

PLANS = 100
HEADING = (
    "# Elements that autograd keeps of one micro-batch on one rank: counted by certify/saved_polynomials.py\n"
)
NORMS: tuple[dict[str, str], ...] = (  # of llama
    {},
    {"qk_norm": "each_head"},
    {"norm_position": "after"},
    {"qk_norm": "all_heads"},
    {"qk_norm": "all_heads", "norm_position": "after"},
)
EMBEDDING, MIDDLE, HEAD = 0, 1, 2  # stages of a plan of `plans`

# What is counted at once: a stage, the recompute mode of its layer, and the parts that it holds.
GROUPS: tuple[tuple[int, str, tuple[Part, ...]], ...] = (
    (EMBEDDING, "none", ("embedding",)),
    (HEAD, "none", ("head", "logits")),
    (MIDDLE, "layer", ("layer input",)),
    (MIDDLE, "attention", ("layer without core",)),
    (MIDDLE, "none", ("layer without core", "core")),
)
# The kinds of elements that a dtype stands for, by the dtype of the weights.
KINDS: dict[str, dict[torch.dtype, tuple[Kind, ...]]] = {
    "bf16": {torch.bfloat16: ("weights",), torch.float32: ("wide", "fp32")},
    "fp64": {torch.float64: ("weights", "wide"), torch.float32: ("fp32",)},
}
ALWAYS: dict[torch.dtype, tuple[Kind, ...]] = {torch.int64: ("index",), torch.bool: ("flag",)}


class Unknown(NamedTuple):
    """A coefficient that is looked for."""

    part: Part
    term: Term


Table = dict[Unknown, int]


def count_coefficients(every: Sequence[Plan]) -> Table:
    """Every coefficient of the table. Raises DataError where the products cannot tell what was counted."""
    found: Table = {}
    for stage, mode, parts in GROUPS:
        unknown = [Unknown(part, term) for part in parts for term in polynomials()[part]]
        rows, counts = zip(*_equations(every, stage, mode, unknown), strict=True)
        found |= dict(zip(unknown, _solved(np.array(rows), np.array(counts), parts), strict=True))
    return found


def plans(number: int = PLANS) -> list[Plan]:
    """Random legal plans of three stages: the embedding, one layer, the head. The same at every call."""
    generator = generator_for(0, "certify", "saved polynomials")
    found: list[Plan] = []
    while len(found) < number:
        plan = _random_plan(generator, "fp64" if len(found) % 2 else "bf16", again=len(found) % 4 > 1)
        if not plan.check():
            found.append(plan)
    return found


def _equations(
    every: Sequence[Plan], stage: int, mode: str, unknown: Sequence[Unknown]
) -> Iterator[tuple[list[float], int]]:
    """Of each plan and dtype: how large each product is, and how many elements were counted."""
    for original in every:
        plan = original.model_copy(update={"recompute": original.recompute.model_copy(update={"mode": mode})})
        kept, values = counted(plan, stage, "with memory").elements, sizes(case_of(plan))
        kinds_of = {**KINDS[plan.precision.weights], **ALWAYS}
        for dtype, kinds in kinds_of.items():
            row = [float(product(u.term, values)) if u.term.kind in kinds else 0.0 for u in unknown]
            yield row, kept.pop(dtype, 0)
        if kept:
            raise DataError(
                f"stage {stage} keeps {dict(kept)}, of a kind that the table has no word for: {plan}"
            )


def _solved(rows: np.ndarray, counts: np.ndarray, parts: tuple[Part, ...]) -> list[int]:
    scale = np.abs(rows).max(0)
    if (scale == 0).any() or np.linalg.matrix_rank(rows / scale) < rows.shape[1]:
        raise DataError(
            f"{rows.shape[0]} equations do not tell the {rows.shape[1]} products of {parts} apart; count more plans"
        )
    solution = np.rint(np.linalg.lstsq(rows / scale, counts, rcond=None)[0] / scale).astype(int)
    wrong = np.flatnonzero(rows @ solution != counts)
    if len(wrong):
        raise DataError(
            f"{parts}: {len(wrong)} of {len(counts)} counts are no sum of the table's products (first: counted "
            f"{counts[wrong[0]]}, nearest {rows[wrong[0]] @ solution}); add the product that is missing"
        )
    return [int(n) for n in solution]


def _random_plan(generator: np.random.Generator, weights: str, *, again: bool) -> Plan:
    def one_of(*choices: Any) -> Any:
        return choices[int(generator.integers(len(choices)))]

    tensor, context, queries = one_of(1, 2, 3), one_of(1, 2, 3), one_of(1, 1, 2, 3)
    groups = tensor * one_of(1, 2, context)
    apart, family = one_of(True, False), one_of("gpt", "llama", "llama")
    width, bias, norms = one_of(None, 8), one_of(True, False), one_of(*NORMS)
    return Plan.model_validate({
        "model": {
            "family": family,
            "layers": 1,
            "hidden": groups * queries * one_of(4, 6, 10),
            "heads": groups * queries,
            "kv_heads": groups if queries > 1 else None,
            "head_width": width,
            "qkv_bias": bias and family == "llama",
            **(norms if family == "llama" else {}),
            "ffn": tensor * int(generator.integers(5, 60)),
            "vocabulary": int(generator.integers(5, 90)),
            "vocabulary_multiple": one_of(1, 3, 4),
            # What a layer keeps does not depend on its window, so no product has one.
            "window": one_of(None, 1, 3, 7),
            "sequence": 2 * tensor * context * int(generator.integers(1, 6)),
            "head": one_of("tied", "untied"),
            "documents": "apart" if apart else "joined",
            "end_of_text": 3 if apart else 0,
            "dropout": one_of(0.0, 0.1),
        },
        "layout": {"tensor": tensor, "context": context, "pipeline": 3},
        "batch": {"sequences": 12, "micro": one_of(1, 2, 3)},
        "partition": {"layers": (0, 1, 0)},
        "schedule": one_of("1f1b", "zb-h1"),
        "recompute": {"activation_function": again},
        "precision": {"weights": weights},
        "sequence_parallel": one_of(True, False),
        "context_attention": one_of("ring", "ulysses"),
    })  # fmt: skip


def as_yaml(table: Table) -> str:
    """The table as it is stored: by part and kind, each product with its coefficient; zeros are left out."""
    tree: dict[str, dict[str, dict[str, int]]] = {}
    for unknown, coefficient in table.items():
        if coefficient:
            term = unknown.term
            text = "*".join(term.factors) + (f"/{term.over}" if term.over else "")
            tree.setdefault(unknown.part, {}).setdefault(term.kind, {})[text] = coefficient
    return HEADING + yaml.safe_dump(tree, sort_keys=False, width=100)


def main(arguments: Sequence[str]) -> int:
    """Count; say whether the table is right, or write it."""
    path = shipped("cost/saved_bytes.yaml")
    text = as_yaml(count_coefficients(plans()))
    if "--write" in arguments:
        path.write_text(text, encoding="utf-8")
    same = path.read_text(encoding="utf-8") == text
    print(plain(f"{path}: {'as counted' if same else 'not as counted; write it anew with --write'}"))
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
