"""Bytes predicted from a plan equal the bytes the runtime counts, per axis and collective."""

from typing import Any

import pytest
import torch

from plans import EXPERTS, brief, small
from ranks import on_ranks
from trivium.certify.certificate import RULE
from trivium.certify.layouts import DEEPSEEK, LATENT, ROTARY
from trivium.certify.reference import random_rows
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.cost.traffic import step_traffic
from trivium.plan import buckets
from trivium.plan.float8 import is_of_linear
from trivium.plan.parameters import parameters
from trivium.plan.plan import Plan
from trivium.training.trainer import Samples, Trainer

QWEN3 = {**ROTARY, "kv_heads": 2, "head_width": 8, "qk_norm": "each_head", "bias": "qkv"}
OLMO2 = {**ROTARY, "kv_heads": 2, "head_width": 8, "qk_norm": "all_heads", "norm_position": "after"}
LITE = {**DEEPSEEK, "latent": LATENT}
DEEPSEEK_V2 = {**DEEPSEEK, "latent": {**LATENT, "query_rank": 6}}
ADAPTED_LATENT = {**DEEPSEEK_V2, "adapters": [{"match": "*.*_down"}, {"kind": "dora", "match": "layers.1.*"}]}
DORA = {**ROTARY, "adapters": [{"kind": "dora", "settings": {"r": 3}}]}
GGPO = {**ROTARY, "adapters": [{"kind": "lora_ggpo", "match": "layers.[12].*"}, {"match": "*.mlp.*"}]}
ADAPTED = {**ROTARY, "adapters": [{"match": "*.[mo]*[pt]", "settings": {"r": 3}}, {"match": "layers.1.*"}]}

WHOLE_UNITS = {**ROTARY, "hidden": 128, "kv_heads": 2}  # each message is a multiple of 128 numbers
ROUTED = {"count": 4, "chosen": 2, "columns": 8, "balance_loss": 0.01, "bias_rate": 0.01, "router_z_loss": 0.01}
IN_ALL = {**ROUTED, "balance_scope": "global_batch"}
POOLED = {**ROUTED, "balance_convention": "transformers", "balance_scope": "sequence"}
ROUTERS, EXPERTS_IN_ALL, EXPERTS_POOLED = (
    {**ROTARY, "kv_heads": 2, "feed_forward": "experts", "experts": each} for each in (ROUTED, IN_ALL, POOLED)
)
KINDS = [{"match": "layers.[01].*", "kind": "dora"}, {"match": "layers.2.*", "kind": "lora_ggpo"}, {"match": "*"}]
ADAPTED_EXPERTS = {**EXPERTS_IN_ALL, "adapters": KINDS}


def frozen(*patterns: str) -> dict[str, Any]:
    """Return the optimizer of a plan that trains no parameter with such a name."""
    return {"groups": [{"match": pattern, "trainable": False} for pattern in patterns]}


PLANS = {
    2: [
        small(tensor=2),
        small(tensor=2, sequence_parallel=True, recompute={"mode": "layer"}),
        small(tensor=2, recompute={"mode": "layer", "every": 2}, model={"dropout": 0.1}),
        small(tensor=2, recompute={"mode": "attention"}, precision={"weights": "bf16"}),
        small(pipeline=2, chunks=2),
        small(pipeline=2, model={"head": "untied"}),
        small(pipeline=2, chunks=2, schedule="zb-turns", model={"z_loss": 1e-4}, batch={"sequences": 10}),
        small(data=2, zero=0),
        small(data=2, zero=2),
        small(context=2, model={"documents": "apart", "kv_heads": 2}, recompute={"mode": "attention"}),
        small(context=2, context_attention="ulysses", precision={"weights": "bf16"}),
        small(context=2, precision={"weights": "bf16"}),
        small(data=2, zero=3, schedule="zb-h1"),
        small(tensor=2, model=QWEN3),
        small(tensor=2, model=ADAPTED, recompute={"mode": "layer"}),
        small(tensor=2, model=ADAPTED, sequence_parallel=True, recompute={"mode": "layer", "every": 2}),
        small(tensor=2, model=DORA, sequence_parallel=True, precision={"weights": "bf16"}, recompute={"mode": "layer"}),
        small(tensor=2, model=GGPO, precision={"weights": "bf16"}),
        small(data=2, zero=2, model=GGPO, precision={"weights": "bf16"}),
        small(data=2, zero=3, model=GGPO),
        small(tensor=2, model=ADAPTED_EXPERTS, sequence_parallel=True, recompute={"mode": "layer"}),
        small(tensor=2, model=OLMO2, precision={"weights": "bf16"}, recompute={"mode": "layer"}),
        small(tensor=2, model=OLMO2, sequence_parallel=True, recompute={"mode": "attention"}),
        small(tensor=2, model=QWEN3, sequence_parallel=True),
        small(context=2, model=QWEN3),
        small(context=2, model=QWEN3, context_attention="ulysses"),
        small(tensor=2, model=LITE),
        small(tensor=2, model=LITE, recompute={"mode": "layer"}, sequence_parallel=True),
        small(tensor=2, model=DEEPSEEK_V2, sequence_parallel=True, recompute={"mode": "attention"}),
        small(tensor=2, model=ADAPTED_LATENT, sequence_parallel=True),
        small(tensor=2, model=ADAPTED_LATENT, recompute={"mode": "layer"}),
        small(context=2, model=LITE, recompute={"mode": "attention"}, precision={"weights": "bf16"}),
        small(context=2, model=DEEPSEEK_V2, context_attention="ulysses", recompute={"mode": "attention"}),
        small(data=2, zero=1, precision={"weights": "bf16", "communication": "bf16"}),
        small(tensor=2, messages={"tensor": "fp8"}, model=WHOLE_UNITS),
        small(tensor=2, messages={"tensor": "bf16"}, model=WHOLE_UNITS, sequence_parallel=True, row_chunks=2),
        small(tensor=2, messages={"tensor": "fp8"}, model=WHOLE_UNITS, sequence_parallel=True),
        small(data=2, zero=0, messages={"gradients": "taco"}),
        small(data=2, zero=2, messages={"gradients": "fp8", "weights": "int8"}, precision={"weights": "bf16"}),
        small(data=2, zero=3, messages={"weights": "fp8"}, precision={"weights": "bf16"}),
        *(
            small(tensor=2, sequence_parallel=True, optimizer=frozen(*names), **more)
            for names, more in (
                (("layers.0.*", "layers.2.mlp.*"), {}),
                (("layers.*.weight",), {"recompute": {"mode": "layer", "every": 2}, "model": OLMO2}),
                (("embedding.tokens.weight",), {}),
                (("embedding.tokens.weight",), {"schedule": "1f1b-split", "model": {"head": "untied"}}),
                (("head.weight", "layers.1.*"), {"model": {"head": "untied"}}),
                (("layers.*.mlp.*.b", "*.attention.*.a"), {"model": ADAPTED}),
            )
        ),
        small(data=2, zero=3, optimizer=frozen("embedding.*", "layers.0.*", "layers.1.mlp.up.*")),
        small(data=2, zero=2, optimizer=frozen("layers.0.*", "layers.1.mlp.up.*")),
        small(tensor=2, model=ROUTERS, precision={"weights": "bf16"}),
        small(tensor=2, model={**EXPERTS_IN_ALL, "qk_norm": "all_heads"}, sequence_parallel=True),
        small(pipeline=2, model=EXPERTS_POOLED),
        small(context=2, model=EXPERTS_POOLED, recompute={"mode": "layer"}),
        small(context=2, model=EXPERTS_IN_ALL, precision={"weights": "bf16"}),
        small(context=2, model=EXPERTS_IN_ALL, context_attention="ulysses"),
        small(data=2, zero=3, model=EXPERTS_IN_ALL, precision={"weights": "bf16"}),
        small(data=2, zero=3, model={**EXPERTS_IN_ALL, "head": "untied"}),
        small(data=2, model=EXPERTS_IN_ALL, batch={"sequences": 4}),
        small(pipeline=2, chunks=2, schedule="zb-turns", model=EXPERTS_POOLED, batch={"sequences": 10}),
    ],
    4: [
        small(tensor=2, pipeline=2, sequence_parallel=True),
        small(tensor=2, data=2, model={**ROTARY, "kv_heads": 2, "hidden": 32}),
        small(pipeline=4, precision={"weights": "fp64"}),
        small(pipeline=4, schedule="1f1b-split"),
        small(data=2, pipeline=2, zero=2, schedule="zb-h1"),
        small(context=2, tensor=2, sequence_parallel=True, recompute={"mode": "layer"}),
        small(context=2, data=2, zero=3, context_attention="ulysses", recompute={"mode": "attention"}),
        small(data=2, tensor=2, zero=3, sequence_parallel=True),
        small(data=2, pipeline=2, chunks=2, zero=3, schedule="zb-v"),
        small(data=2, pipeline=2, zero=3, model={"head": "untied"}),
        small(data=2, pipeline=2, chunks=2, zero=2, schedule="zb-turns", batch={"sequences": 12}),
        small(data=2, pipeline=2, chunks=2, zero=3, schedule="zb-turns", batch={"sequences": 12}),
        small(data=2, pipeline=2, chunks=2, zero=3, schedule="zb-turns", model={"head": "untied"}),
        small(tensor=2, pipeline=2, chunks=2, sequence_parallel=True, schedule="zb-turns"),
        small(pipeline=4, chunks=2, schedule="zb-turns", model={"layers": 8}, batch={"sequences": 12}),
        small(pipeline=4, chunks=2, schedule="zb-turns", model={"layers": 8}, batch={"sequences": 4}),
        small(data=2, pipeline=2, chunks=2, zero=3, schedule="zb-turns", batch={"sequences": 4}),
        small(data=4, zero=1, shards=2, precision={"weights": "bf16", "communication": "bf16"}),
        small(data=4, zero=2, shards=2, precision={"weights": "bf16", "communication": "bf16"}),
        small(data=4, zero=1, shards=2, messages={"gradients": "int8"}),
        small(data=2, context=2, zero=3, shards=2),
        small(data=2, pipeline=2, chunks=2, zero=3, schedule="zb-v", model=EXPERTS_POOLED),
    ],
    8: [small(tensor=2, pipeline=2, data=2, chunks=2, sequence_parallel=True, model={"z_loss": 1e-4})],
}
WITH_EXPERTS = {
    2: [
        small(data=2, expert=2, model=EXPERTS, zero=0),
        small(data=2, expert=2, model=EXPERTS, precision={"weights": "bf16"}, recompute={"mode": "layer"}),
        small(context=2, expert=2, model=EXPERTS, zero=3, recompute={"mode": "layer", "every": 2}),
        small(data=2, model=EXPERTS, zero=2),
        small(data=2, expert=2, zero=2, model=EXPERTS_IN_ALL),
    ],
    4: [
        small(tensor=2, data=2, expert=2, model=EXPERTS, sequence_parallel=True, recompute={"mode": "layer"}),
        small(pipeline=2, data=2, expert=2, model=EXPERTS, zero=2, schedule="zb-h1", precision={"weights": "bf16"}),
        small(data=2, context=2, expert=4, model=EXPERTS, zero=1),
        small(data=4, expert=2, model=EXPERTS, zero=3),
        small(tensor=2, data=2, expert=2, model=ADAPTED_EXPERTS, zero=3),
        small(data=4, expert=2, model=EXPERTS, zero=1, shards=2),
        small(data=4, expert=2, model={**ROUTERS, "wiring": "sandwich"}, zero=3, recompute={"mode": "layer"}),
    ],
}


def float8(recipe: str, weights: str = "bf16", **more: Any) -> dict[str, Any]:
    return {"weights": weights, "float8": {"recipe": recipe, "keep": ["first"], "block": 4, **more}}


WITH_FLOAT8 = [
    small(tensor=2, precision=float8("tensor"), recompute={"mode": "layer"}),
    small(tensor=2, sequence_parallel=True, precision=float8("row", "fp32")),
    small(context=2, precision=float8("tensor", weight_gradients=False), model={"kv_heads": 2}),
    small(context=2, precision=float8("row")),
    small(tensor=2, model=ADAPTED, precision=float8("tensor")),
    small(tensor=2, model=LITE, sequence_parallel=True, precision=float8("row")),
    small(tensor=2, precision=float8("block", weight_gradients=False)),
    small(data=2, zero=3, precision=float8("tensor", gathered=True)),
    small(data=2, zero=3, precision=float8("tensor", gathered=True), model=EXPERTS, expert=2),
    small(data=2, zero=1, precision=float8("tensor", gathered=True)),
    small(tensor=2, precision=float8("row"), row_chunks=2, recompute={"mode": "layer"}),
    small(tensor=2, model=EXPERTS, precision=float8("row"), sequence_parallel=True, recompute={"mode": "layer"}),
]


def count(place: Place, plans: list[Plan]) -> None:
    for plan in plans:
        mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends)
        trainer = Trainer(plan, mesh, seed=3, rule=RULE)
        trainer.train_step(0, Samples(0, plan.batch.sequences, random_rows(plan, 3)), 1e-3)
        found = step_traffic(plan, mesh.at)
        assert ("holders" in found) == (mesh.holders.size > 1), f"copies of {plan.layout}"
        for axis, predicted in found.items():
            counted = {k: v for k, v in getattr(mesh, axis).traffic.items() if v}
            if axis == "expert":  # what a rank sends back depends on its tokens, but not what all of the group send
                every: list[Any] = [None] * mesh.expert.size
                torch.distributed.all_gather_object(every, counted, group=mesh.expert.handle)
                counted = {k: sum(each[k] for each in every) / mesh.expert.size for k in counted}
            assert counted == dict(predicted), f"{axis} of {mesh.at} in {plan.layout}: {counted} != {predicted}"
        mesh.disconnect()


@pytest.mark.parametrize("ranks", [n if n < 4 else pytest.param(n, marks=pytest.mark.broad) for n in sorted(PLANS)])
def test_predicted_traffic_equals_counted_traffic(ranks: int) -> None:
    usual = small().batch.sequences  # where a plan has them, four micro-batches do
    plans = [*PLANS[ranks], *WITH_EXPERTS.get(ranks, [])]
    on_ranks(ranks, count, [brief(p) if p.batch.sequences == usual else p for p in plans])


@pytest.mark.broad
def test_predicted_traffic_of_8_bit_products_equals_counted_traffic() -> None:
    on_ranks(2, count, [brief(p) for p in WITH_FLOAT8])


def test_gathering_8_bits_halves_the_bytes_of_bf16() -> None:
    narrow, wide = (
        step_traffic(plan, plan.layout.coordinate(0))["replicas"]["all_gather"]
        for plan in (small(data=2, zero=3, precision=float8("tensor", gathered=g)) for g in (True, False))
    )
    scaled = sum(p.elements for p in parameters(small().model) if is_of_linear(p) and p.owner != 0)
    times = 2 * small(data=2).batch.micro_batches(small(data=2).layout)
    assert abs(wide - narrow - times * scaled // 2) <= 0.01 * wide


def begun_early(place: Place, plans: list[Plan]) -> None:
    for plan in plans:
        mesh = Mesh.connect(plan.layout, place.rank, place.world_size)
        trainer = Trainer(plan, mesh, seed=3, rule=RULE)
        trainer.accumulate(0, Samples(0, plan.batch.sequences, random_rows(plan, 3)))
        within, whole = (mesh.holders.traffic["all_reduce"], step_traffic(plan, mesh.at)["holders"]["all_reduce"])
        assert whole / 2 < within < whole, f"{within} of {whole} in the backward of {plan.zero}"
        trainer.optimizer.step(1e-3, losses={"loss": torch.zeros((), dtype=torch.float64)})
        assert mesh.holders.traffic["all_reduce"] == whole


def test_copies_are_summed_beside_the_backward_bucket_by_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "BUCKET_ELEMENTS", 2000)
    plans = [
        small(data=4, zero=zero, shards=2, model={"head": "untied"}, schedule=schedule)
        for zero, schedule in ((1, "1f1b"), (2, "1f1b-split"), (3, "1f1b"))
    ]
    on_ranks(4, begun_early, plans)


def test_one_process_talks_to_nobody() -> None:
    plan = small()
    assert all(not c for c in step_traffic(plan, plan.layout.coordinate(0)).values())
