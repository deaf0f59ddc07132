"""Every layout computes what one process computes with the same micro-batches, in fp64, where operands are rounded to
8 bits; and the reference rounds from its own definition."""

from typing import Any

import pytest
import torch

from faults.mutant import plan
from trivium.certify.oracle.float8 import _FORMATS, nearest
from trivium.certify.reference import compute_reference, reference_key
from trivium.certify.sweep import certify
from trivium.certify.ways import FAR, LARGE, NARROW
from trivium.errors import ConfigError
from trivium.kernels.float8 import E4M3, E5M2, decode, encode
from trivium.plan.plan import Plan

EXPERTS = {
    "feed_forward": "experts",
    "norm": "rms_norm",
    "positions": "rotary",
    "bias": "none",
    "ffn": 8,
    "experts": {"count": 4, "chosen": 2, "shared": 8},
}
LATENT = {
    "attention": "latent",
    "positions": "rotary",
    "norm": "rms_norm",
    "bias": "none",
    "latent": {"kv_rank": 8, "query_rank": 8, "plain_columns": 4, "rotated_columns": 4, "value_columns": 4},
}
READING = {
    "adapters": [
        {"match": "*.down", "kind": "dora", "settings": {"r": 3, "alpha": 6.0}},
        {"match": "*.mlp.*", "kind": "lora_ggpo", "settings": {"r": 3, "sigma": 0.3}},
    ]
}
LORA = {"adapters": [{"kind": "lora", "settings": {"r": 3, "alpha": 6.0}}]}


def scaled(recipe: str, model: dict[str, Any] | None = None, expert: int = 1, **more: Any) -> Plan:
    """Return a small plan with 8-bit products in all layers; settings of these may be among the keywords."""
    names = ("gradients", "keep", "weight_gradients", "power_of_two", "margin", "gathered")
    float8 = {"recipe": recipe, "keep": [], "block": 4, **{name: more.pop(name) for name in names if name in more}}
    small = {"layers": 2, "vocabulary": 13, **(model or {})}
    batch = {"sequences": 4, "micro": 2, **more.pop("batch", {})}
    found = plan(precision={"float8": float8}, model=small, batch=batch, **more)
    layout = found.layout.model_copy(update={"expert": expert})
    return found.model_copy(update={"layout": layout}).checked()


def wrong(plans: list[Plan], way: Any = None) -> list[Any]:
    found = certify(plans, ways=(way,)) if way is not None else certify(plans)
    return [(c.plan["layout"], c.worst_parameter, c.worst, c.error) for c in found if not c.passed]


def test_layouts_agree_on_scales_of_tensors_and_of_earlier_steps() -> None:
    layouts = [
        scaled("tensor", tensor=2, sequence_parallel=True),
        scaled("tensor", data=2, zero=3, gathered=True),
        scaled("delayed", pipeline=2),
    ]
    assert wrong(layouts) == []


ONE = {"layers": 1}
BROAD = {
    "rows": scaled("row", ONE, tensor=2, sequence_parallel=True),
    "blocks": scaled("block", ONE, tensor=2, power_of_two=True),
    "context": scaled("tensor", ONE, context=2),
    "recomputed": scaled("delayed", ONE, recompute={"mode": "layer"}, margin=1),
    "experts": scaled("tensor", {**EXPERTS, **ONE}, expert=2, data=2, zero=3, gathered=True, batch={"micro": 1}),
    "base of adapters": scaled("tensor", {**LORA, **ONE}, tensor=2, sequence_parallel=True),
    "base of adapters that read it": scaled("tensor", {**EXPERTS, **READING, **ONE}, data=2, zero=3, gathered=True),
    "some layers": scaled("row", keep=["first", "layers.*.mlp.down"], weight_gradients=False, gradients="e4m3"),
}
SLOW = {
    "rows over context": scaled("row", context=2),
    "blocks over context": scaled("block", context=2, batch={"micro": 2}),
    "ulysses": scaled("tensor", context=2, context_attention="ulysses"),
    "zero 1": scaled("row", data=2, zero=1),
    "zero bubble": scaled("tensor", tensor=2, pipeline=2, sequence_parallel=True, schedule="zb-h1", batch={"micro": 1}),
    "experts over tensor ranks": scaled("tensor", EXPERTS, tensor=2, sequence_parallel=True),
    "expert ranks": scaled("delayed", EXPERTS, expert=2, data=2, batch={"micro": 1}),
    "rows of experts": scaled("row", EXPERTS, context=2),
    "latents": scaled("tensor", LATENT, tensor=2, sequence_parallel=True),
}


@pytest.mark.parametrize(
    "each",
    [
        *(pytest.param(found, marks=pytest.mark.broad, id=name) for name, found in BROAD.items()),
        *(pytest.param(found, marks=pytest.mark.slow, id=name) for name, found in SLOW.items()),
    ],
)
def test_layouts_agree_with_every_recipe_part_and_axis(each: Plan) -> None:
    assert wrong([each]) == []


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(NARROW, marks=pytest.mark.broad),
        *(pytest.param(way, marks=pytest.mark.slow) for way in (LARGE, FAR)),
    ],
    ids=lambda way: way.name,
)
def test_layouts_agree_on_every_code_path_of_the_engine(way: Any) -> None:
    assert wrong([scaled("delayed", ONE, tensor=2, sequence_parallel=True)], way) == []


@pytest.mark.slow
def test_compiled_products_are_the_same() -> None:
    assert wrong([scaled("tensor", {"layers": 1}, compiled=True), scaled("row", {"layers": 1}, compiled=True)]) == []


def test_reference_rounds_as_the_codec_although_it_is_written_anew() -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(5000, generator=generator, dtype=torch.float64)
    x = x * 2.0 ** torch.randint(-24, 10, (5000,), generator=generator)
    x = torch.cat([x, torch.tensor([0.0, 448.0, 449.0, 464.0, 1e30, 57344.0, 61440.0, 2.0**-10, 2.0**-17])])
    for name, of in (("e4m3", E4M3), ("e5m2", E5M2)):
        assert torch.equal(nearest(x, _FORMATS[name]), decode(encode(x, of), of, torch.float64))


def test_rounding_changes_the_loss_and_its_recipes_differ() -> None:
    plans = [scaled(recipe) for recipe in ("tensor", "row", "block")]
    exact = plans[0].model_copy(update={"precision": plans[0].precision.model_copy(update={"float8": None})})
    losses = [compute_reference(p).losses[1]["loss"] for p in (exact, *plans)]
    gaps = [abs(loss - losses[0]) / losses[0] for loss in losses[1:]]
    assert len(set(losses)) == 4 and min(gaps) > 1e-7 and max(gaps) < 2e-2
    assert len({reference_key(p) for p in (exact, *plans)}) == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"recipe": "tensor", "tensor": 2, "row_chunks": 2}, "set plan.row_chunks to 1"),
        ({"recipe": "block", "tensor": 2, "model": {"hidden": 12}}, "a block would lie on two ranks"),
        (
            {"recipe": "block", "context": 2, "batch": {"micro": 1}},
            r"set plan.precision.float8.weight_gradients to false",
        ),
        ({"recipe": "tensor", "keep": ["layers.0.nothing"]}, "matches no linear layer"),
        ({"recipe": "tensor", "keep": ["first", "last"]}, "keeps every linear layer of the 2 layers"),
        ({"recipe": "row", "gathered": True, "zero": 3}, "only with 'tensor'"),
        ({"recipe": "row", "model": EXPERTS, "context": 2, "data": 2, "expert": 2}, "divide in another way"),
    ],
)
def test_plans_whose_scales_would_depend_on_the_layout_are_refused_with_a_remedy(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        scaled(**settings)
