"""The generated layouts of the sweep: every split into degrees with every schedule, and every three choices together.

A new choice is one line in CHOICES, and a new axis needs no line: both are combined with all others automatically.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from math import gcd, prod
from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from trivium.certify.reduce import MIN_EPSILON_AFTER, MIN_SEQUENCE, epsilon_of
from trivium.config import Tree, merge
from trivium.plan.layers.form import LayerForm
from trivium.plan.layout import AXES
from trivium.plan.plan import Plan
from trivium.seeds import generator_for

HEAD_WIDTH = 4  # default
ROTARY: Tree = {"norm": "rms_norm", "feed_forward": "gated", "positions": "rotary", "bias": "none"}
OFFSET: Tree = {"norm": "rms_norm_offset", "feed_forward": "gated_gelu"}
AFTER: Tree = {"norm_position": "after", "norm_epsilon": MIN_EPSILON_AFTER}
# RoPE scaling that changes both pairs of columns partly, with sequences longer than the original positions.
_IN_PART: Tree = {"factor": 4.0, "original": 8, "slow": 0.25, "fast": 2.0}
LATENT: Tree = {"kv_rank": 5, "plain_columns": 3, "rotated_columns": 4, "value_columns": 5, "norm_epsilon": 0.1}
DEEPSEEK: Tree = {**ROTARY, "attention": "latent", "rope_pairs": "neighbours"}
LLAMA3, YARN = ({"kind": kind, **_IN_PART} for kind in ("llama3", "yarn"))
EXPERT_DEGREES = (1, 2, 4)
# Routers of Mixtral, DeepSeek-V3, Qwen2-MoE and others; losses are large, so that they change gradients.
EXPERTS: tuple[Tree, ...] = (
    {"count": 4, "chosen": 2, "balance_loss": 0.3, "router_z_loss": 0.1},
    {
        "count": 8,
        "chosen": 3,
        "scores": "sigmoid",
        "scale": 2.5,
        "groups": 4,
        "chosen_groups": 2,
        "group_score": "two_largest",
        "shared": 24,
        "balance_loss": 0.2,
        "balance_scope": "sequence",
        "bias_rate": 0.05,
    },
    {
        "count": 12,
        "chosen": 2,
        "normalized": False,
        "shared": 24,
        "shared_gate": True,
        "balance_loss": 0.3,
        "balance_convention": "transformers",
    },
    {"count": 4, "chosen": 1, "bias_rate": 0.1, "balance_loss": 0.3, "balance_scope": "global_batch"},
)
# The first layer has a different adapter from the others, which have none on the down projections.
ADAPTERS: tuple[Tree, ...] = (
    {"match": "layers.0.*", "settings": {"r": 3, "alpha": 2.0, "rslora": True}},
    {"match": "*.attention.*", "settings": {"r": 2, "alpha": 5.0, "dropout": 0.2}},
    {"match": "*.mlp.*up", "settings": {"r": 2, "alpha": 5.0}},
)
# Experts have both. The noise is large, so that it changes what is computed.
OTHER_ADAPTERS: tuple[Tree, ...] = (
    {"match": "layers.0.*", "kind": "dora", "settings": {"r": 2, "alpha": 5.0}},
    {"match": "*.mlp.*up", "kind": "dora", "settings": {"r": 3, "alpha": 2.0}},
    {"match": "*.mlp.*", "kind": "lora_ggpo", "settings": {"r": 2, "alpha": 5.0, "sigma": 0.3, "beta": 1.0}},
)


def _every(field: str) -> tuple[Tree, ...]:
    """Return one choice for each value of a setting of layers."""
    return tuple({"model": {field: name}} for name in get_args(LayerForm.model_fields[field].annotation))


# Choices besides degrees and schedule. Combinations that `Plan.check` rejects are skipped.
CHOICES: Mapping[str, tuple[Tree, ...]] = {
    "zero": ({"zero": 0}, {"zero": 1}, {"zero": 2}, {"zero": 3}),
    "sequence": (
        {"sequence_parallel": False},
        {"sequence_parallel": True},
        {"sequence_parallel": True, "overlap_tensor": True},
    ),
    "recompute": (
        {"recompute": {"mode": "none"}},
        {"recompute": {"mode": "attention"}},
        {"recompute": {"mode": "attention", "every": 2}},
        {"recompute": {"mode": "layer"}},
        {"recompute": {"mode": "layer", "every": 2}},
        {"recompute": {"activation_function": True}},
    ),
    "parts": (
        {"model": {}},
        {"model": {"norm_epsilon": 0.1}, "queries": 2},
        {"model": ROTARY},
        {"model": {**ROTARY, "norm_epsilon": 0.1, "rope_base": 7.0}, "queries": 2},
        {"model": {**ROTARY, "bias": "qkv"}, "queries": 2},
        {"model": {**ROTARY, "qk_norm": "each_head", "norm_epsilon": 0.1}, "queries": 2},
        {"model": {**ROTARY, "bias": "qkv", "qk_norm": "each_head"}},
        {"model": {**ROTARY, "qk_norm": "all_heads", **AFTER}, "queries": 2},
        {"model": {**ROTARY, "qk_norm": "all_heads", "bias": "qkv", "norm_epsilon": 0.1}},
        {"model": {**ROTARY, "rope_scaling": LLAMA3, **AFTER}},
        {"model": {**ROTARY, "rope_scaling": YARN}, "queries": 2},
        {"model": {"norm": "rms_norm", "positions": "rotary", "rope_columns": 2}, "queries": 2},
        {"model": {**DEEPSEEK, "latent": LATENT}},
        {"model": {**DEEPSEEK, "latent": {**LATENT, "query_rank": 6}, "rope_scaling": {**YARN, "mscale_all_dim": 0.7}}},
        {"model": {**ROTARY, "rope_pairs": "neighbours", "norm_epsilon": 0.1}, "queries": 2},
        {"model": {**ROTARY, **OFFSET}, "queries": 2},
        {"model": {**ROTARY, **OFFSET, "qk_norm": "each_head", "norm_epsilon": 0.1}},
        {"model": {**ROTARY, **OFFSET, "qk_norm": "all_heads", "norm_epsilon": 0.1}, "queries": 2},
        *({"model": {**ROTARY, "feed_forward": "experts", "experts": experts}} for experts in EXPERTS),
        {
            "model": {**ROTARY, "feed_forward": "experts", "experts": EXPERTS[1], "first": [{"feed_forward": "gated"}]},
            "queries": 2,
        },
    ),
    "activation": _every("activation"),
    "wiring": tuple(merge(c, {"model": epsilon_of(c["model"])}) for c in _every("wiring")),
    "head width": ({}, {"model": {"head_width": HEAD_WIDTH + 2}}),
    "head": ({"model": {"head": "tied"}}, {"model": {"head": "untied"}}),
    "vocabulary": (
        {"model": {"vocabulary": 37, "vocabulary_multiple": 1}},
        {"model": {"vocabulary": 24, "vocabulary_multiple": 3}},
        {"model": {"vocabulary": 5, "vocabulary_multiple": 4}},
    ),
    "dropout": ({}, {"model": {"dropout": 0.2}}),
    "split": ({"split": "balanced"}, {"split": "uneven"}, {"split": "with an empty stage"}),
    "documents": ({}, {"model": {"documents": "apart", "end_of_text": 3}}),
    "window": (
        {},
        {"model": {"window": 3}},
        {"model": {"window": 4, "first": [{"window": None}]}},
        {"model": {"window": 5, "pattern": [{}, {"window": None}]}},
    ),
    "attention": ({"context_attention": "ring"}, {"context_attention": "ulysses"}),
    "batch": ({"ramp": False}, {"ramp": True}),
    "rows": ({}, {"row_chunks": 2}, {"row_chunks": 5}),
    "order": (
        {},
        {"layout": {"order": ("tensor", "context", "data", "pipeline")}},
        {"layout": {"order": ("context", "pipeline", "tensor", "data")}},
    ),
    "shards": ({}, {"layout": {"shards": 2}}),
    # In a model with experts: the largest divisor of this degree that its experts and replicas allow.
    "expert": tuple({"expert": degree} for degree in EXPERT_DEGREES),
    "z-loss": ({}, {"model": {"z_loss": 0.05}}),
    # Settings of Gemma and Granite. Caps are so low that they change what small models compute.
    "scores": (
        {},
        {"model": {"score_scale": 0.3}},
        {"model": {"score_cap": 0.5}},
        {"model": {"score_scale": 0.7, "score_cap": 0.5}},
    ),
    "scales": ({}, {"model": {"embedding_scale": 3.0}}, {"model": {"embedding_scale": 3.0, "residual_scale": 0.3}}),
    "logits": ({}, {"model": {"logits_scale": 0.25}}, {"model": {"logits_cap": 0.5}}),
    "offload": (
        {},
        {"offload": {"optimizer": 0.5}},
        {"offload": {"activations": 0.5}},
        {"offload": {"optimizer": 1.0, "activations": 1.0}},
    ),
    # Four of six choices have no adapters, because these freeze every other parameter.
    "adapters": (*4 * ({},), *({"model": {"adapters": each}} for each in (ADAPTERS, OTHER_ADAPTERS))),
}
NOT_OF_THE_PLAN = ("queries", "split", "ramp", "expert")  # read by `plan_of`
CANDIDATES_PER_BASE = 24  # drawn for each base; the one with the most new combinations is kept
DRAWS_PER_BASE = 2
FEATURES_TOGETHER = 3
MAX_DISTINCT_DEGREE = 3  # larger degrees count as this one

Features = frozenset[str]


class Base(NamedTuple):
    """The degrees by axis, and the schedule."""

    degrees: Mapping[str, int]
    schedule: str
    chunks: int

    @property
    def ranks(self) -> int:
        return prod(self.degrees.values())

    @property
    def features(self) -> Features:
        """The features that all plans with these degrees and this schedule have."""
        kinds = {f"{axis} {min(n, MAX_DISTINCT_DEGREE)}" for axis, n in self.degrees.items()}
        return frozenset(kinds | {f"{self.schedule} {self.chunks}"})


class Together:
    """The sets of three features that at least one plan has. They are stored as a cube of booleans, because a plan has
    thousands of such sets and there are thousands of candidates."""

    def __init__(self, features: Iterable[str]) -> None:
        self.number = {feature: n for n, feature in enumerate(sorted(features))}
        self.had = np.zeros((len(self.number),) * FEATURES_TOGETHER, dtype=bool)

    def new(self, features: Features) -> int:
        """Return how many sets of three of these features no plan has yet."""
        had = self.had[self._places(features)]
        return len(had) - int(had.sum())

    def add(self, features: Features) -> None:
        """Record the features of a plan."""
        self.had[self._places(features)] = True

    def _places(self, features: Features) -> tuple[NDArray[np.int64], ...]:
        numbers = np.array(sorted(self.number[feature] for feature in features))
        return tuple(numbers[column] for column in _threes(len(numbers)))


class Drawn(NamedTuple):
    """A legal plan and its features."""

    features: Features
    plan: Plan


def generated_plans(max_ranks: int) -> list[Plan]:
    """Return legal plans of at most `max_ranks` ranks, the same at every call.

    Each base is drawn again in every round, and kept if it brings three features together that no plan before did.
    """
    every = list(bases(max_ranks))
    together = Together({f for base in every for f in base.features} | {f for key in CHOICES for f in _named(key)})
    found: dict[Plan, None] = {}  # in order
    for round_number, base in itertools.product(range(DRAWS_PER_BASE), every):
        best = max(_draw(base, round_number), key=lambda drawn: together.new(drawn.features), default=None)
        if best is not None and together.new(best.features) and best.plan not in found:
            together.add(best.features)
            found[best.plan] = None
    return list(found)


@cache
def _threes(count: int) -> tuple[NDArray[np.int64], ...]:
    """Return every set of three out of `count` numbers in ascending order, by column."""
    return tuple(np.array(list(itertools.combinations(range(count), FEATURES_TOGETHER))).T)


@cache
def _named(key: str) -> tuple[str, ...]:
    """Return the features of the choices of a key."""
    return tuple(f"{key} {number}" for number in range(len(CHOICES[key])))


def bases(max_ranks: int) -> Iterator[Base]:
    """Yield every product of degrees with every schedule that it can have."""
    for numbers in itertools.product(range(1, max_ranks + 1), repeat=len(AXES)):
        degrees: dict[str, int] = dict(zip(AXES, numbers, strict=True))
        if prod(numbers) > max_ranks:
            continue
        yield Base(degrees, "1f1b", 1)
        if degrees["pipeline"] > 1:
            yield from (Base(degrees, name, 1) for name in ("gpipe", "1f1b-split", "zb-h1"))
            yield from (Base(degrees, name, 2) for name in ("interleaved", "zb-v", "zb-turns"))
        if degrees["pipeline"] == 2:
            yield Base(degrees, "interleaved", 3)


def _draw(base: Base, round_number: int) -> Iterator[Drawn]:
    """Yield legal plans of a base with random choices, seeded by the base's name."""
    name = [f"{k}={v}" for k, v in base.degrees.items()]
    generator = generator_for(0, "certify", "layouts", round_number, base.schedule, base.chunks, *name)
    for _ in range(CANDIDATES_PER_BASE):
        picked = {k: int(generator.integers(len(v))) for k, v in CHOICES.items()}
        tree: Tree = {}
        for key, number in picked.items():
            tree = merge(tree, CHOICES[key][number])
        plan = plan_of(base, tree)
        if not plan.check():
            picked["expert"] = EXPERT_DEGREES.index(plan.layout.expert)
            yield Drawn(base.features | {_named(key)[number] for key, number in picked.items()}, plan)


def plan_of(base: Base, tree: Tree) -> Plan:
    """Return the plan of a small model that the degrees divide."""
    queries, split, ramp = tree.get("queries", 1), tree["split"], tree["ramp"]
    split_heads = prod(base.degrees.get(axis, 1) for axis in ("tensor", "context"))
    groups = split_heads if split_heads > 1 else 3
    counts = _layers(base.degrees["pipeline"] * base.chunks, split)
    model = {
        "layers": sum(counts),
        "heads": groups * queries,
        "kv_heads": groups if queries > 1 else None,
        "hidden": groups * queries * HEAD_WIDTH,
        "ffn": 7 * base.degrees["tensor"],
        "sequence": 2 * split_heads * -(-MIN_SEQUENCE // (2 * split_heads)) + (split_heads == 1),
    }
    plan = Plan.model_validate(
        {
            **{k: v for k, v in tree.items() if k not in NOT_OF_THE_PLAN},
            "model": {**model, **tree["model"]},
            "batch": _batch(base, ramp=ramp),
            "layout": {**base.degrees, "chunks": base.chunks, **tree.get("layout", {})},
            "partition": {"layers": None if split == "balanced" else counts},
            "schedule": base.schedule,
        }
    )
    if not plan.model.expert_counts:
        return plan
    expert = gcd(tree.get("expert", 1), plan.layout.replicas, plan.layout.sharers, *plan.model.expert_counts)
    return plan.model_copy(update={"layout": plan.layout.model_copy(update={"expert": expert})})


def _layers(stages: int, split: str) -> tuple[int, ...]:
    """Return the layers of each stage. If balanced, the plan decides where the odd layer goes."""
    counts = [1] * stages
    counts[stages // 2] += 1
    if split == "with an empty stage" and stages > 1:
        counts[-1] += 1
        counts[1 if stages > 2 else 0] = 0
    elif split == "uneven":
        counts[-1] += 1
    return tuple(counts)


def _batch(base: Base, *, ramp: bool) -> Tree:
    """Return a batch with enough micro-batches for a steady phase, if that is cheap."""
    pipeline, data = base.degrees["pipeline"], base.degrees["data"]
    micro = 2 if base.ranks <= 4 else 1
    unit = micro * data * (pipeline if base.schedule == "interleaved" else 1)
    if not ramp:
        waves = -(-(pipeline + 1) * micro * data // unit)
        return {"micro": micro, "sequences": max(2, waves) * unit}
    return {"micro": micro, "sequences": 3 * unit, "ramp": {"start": unit, "increment": unit, "samples": 3 * unit}}
