"""One process computes what a plain, independently written transformer computes."""

import math

import pytest
import torch
import torch.nn.functional as F

from plans import small
from trivium.certify.layouts import ROTARY
from trivium.certify.reference import random_rows
from trivium.comms.mesh import Mesh
from trivium.parallel.sharding.zero import AdamRule
from trivium.plan.model_shape import ModelShape
from trivium.plan.parameters import parameters
from trivium.training.trainer import Samples, Trainer

Weights = dict[str, torch.Tensor]


def plain_gpt(w: Weights, m: ModelShape, tokens: torch.Tensor) -> torch.Tensor:
    """[B, S] -> logits [B, S, V]; attention with an explicit mask and softmax."""
    B, S = tokens.shape
    x = w["embedding.tokens.weight"][tokens] + w["embedding.positions.weight"][:S]
    future = torch.ones(S, S).triu(1).bool()
    for n in range(m.layers):
        p = f"layers.{n}."
        h = F.layer_norm(x, (m.hidden,), w[p + "attention.norm.weight"], w[p + "attention.norm.bias"])
        qkv = (h @ w[p + "attention.qkv.weight"].T + w[p + "attention.qkv.bias"]).view(B, S, m.heads, 3, -1)
        q, k, v = (qkv[..., i, :].transpose(1, 2) for i in range(3))
        scores = (q @ k.transpose(-1, -2) / math.sqrt(m.head_columns)).masked_fill(future, float("-inf"))
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, S, m.hidden)
        x = x + y @ w[p + "attention.out.weight"].T + w[p + "attention.out.bias"]
        h = F.layer_norm(x, (m.hidden,), w[p + "mlp.norm.weight"], w[p + "mlp.norm.bias"])
        h = F.gelu(h @ w[p + "mlp.up.weight"].T + w[p + "mlp.up.bias"], approximate="tanh")
        x = x + h @ w[p + "mlp.down.weight"].T + w[p + "mlp.down.bias"]
    x = F.layer_norm(x, (m.hidden,), w["head.norm.weight"], w["head.norm.bias"])
    return x @ w["embedding.tokens.weight"].T


def plain_llama(w: Weights, m: ModelShape, tokens: torch.Tensor) -> torch.Tensor:
    """[B, S] -> logits [B, S, V]; rotary positions as complex numbers, key-value heads repeated."""
    B, S = tokens.shape

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + m.norm_epsilon) * w[name]

    def rotate(x: torch.Tensor) -> torch.Tensor:  # B N S D
        half = m.head_columns // 2
        turn = torch.outer(torch.arange(S).double(), m.rope_base ** (-torch.arange(half).double() / half))
        z = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(turn), turn)
        return torch.cat([z.real, z.imag], -1)

    x = w["embedding.tokens.weight"][tokens]
    future = torch.ones(S, S).triu(1).bool()
    each = m.heads // m.kv
    for n in range(m.layers):
        p = f"layers.{n}."
        h = norm(x, p + "attention.norm.weight") if m.norm_position == "before" else x
        qkv = h @ w[p + "attention.qkv.weight"].T
        groups = (qkv + w.get(p + "attention.qkv.bias", 0)).view(B, S, m.kv, each + 2, -1)
        q, k = groups[..., :each, :].flatten(2, 3), groups[..., each, :]
        if m.qk_norm == "all_heads":
            q, k = (
                norm(x.flatten(2), f"{p}attention.{n}_norm.weight").view(x.shape) for x, n in ((q, "query"), (k, "key"))
            )
        elif m.qk_norm == "each_head":
            q, k = norm(q, p + "attention.query_norm.weight"), norm(k, p + "attention.key_norm.weight")
        q, k = rotate(q.transpose(1, 2)), rotate(k.transpose(1, 2)).repeat_interleave(each, 1)
        v = groups[..., each + 1, :].transpose(1, 2).repeat_interleave(each, 1)
        scores = (q @ k.transpose(-1, -2) / math.sqrt(m.head_columns)).masked_fill(future, float("-inf"))
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, S, -1) @ w[p + "attention.out.weight"].T
        x = x + (norm(y, p + "attention.norm.weight") if m.norm_position == "after" else y)
        h = norm(x, p + "mlp.norm.weight") if m.norm_position == "before" else x
        gate, up = (h @ w[p + "mlp.up.weight"][i].T for i in range(2))
        y = (F.silu(gate) * up) @ w[p + "mlp.down.weight"].T
        x = x + (norm(y, p + "mlp.norm.weight") if m.norm_position == "after" else y)
    return norm(x, "head.norm.weight") @ w["head.weight"].T


LLAMA = {**ROTARY, "hidden": 32, "heads": 4, "kv_heads": 2, "head": "untied"}
CASES = [
    (plain_gpt, {"hidden": 24, "heads": 4}),
    (plain_llama, LLAMA),
    (plain_llama, {**LLAMA, "bias": "qkv"}),
    (plain_llama, {**LLAMA, "qk_norm": "each_head", "head_width": 6}),
    (plain_llama, {**LLAMA, "qk_norm": "all_heads", "norm_position": "after"}),
]


@pytest.mark.parametrize(("plain", "model"), CASES)
def test_one_process_trains_like_a_plain_transformer_under_torch_adamw(plain, model: dict[str, object]) -> None:
    plan = small(model=model, precision={"weights": "fp64"})
    rule = AdamRule()
    trainer = Trainer(plan, Mesh.single(), seed=5, rule=rule)
    weights = {s.row.name: s.parameter.detach().clone() for b in trainer.buckets for s in b.slots}
    weights = {k: v[: _rows(plan.model, k)].requires_grad_() for k, v in weights.items()}
    decay = {p.name: p.decay for p in parameters(plan.model)}
    groups = [
        {"params": [w for n, w in weights.items() if decay[n] is d], "weight_decay": rule.weight_decay * d}
        for d in (True, False)
    ]
    adam = torch.optim.AdamW(groups, lr=1e-2, betas=(rule.beta1, rule.beta2), eps=rule.epsilon)
    read = random_rows(plan, 5)
    for step in range(3):
        tokens, targets = (torch.from_numpy(x.copy()) for x in read(16 * step, 16)[:2])
        loss = F.cross_entropy(plain(weights, plan.model, tokens).flatten(0, 1), targets.flatten())
        adam.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(list(weights.values()), rule.clip)
        adam.step()
        result = trainer.train_step(step, Samples(16 * step, 16, read), 1e-2)
        assert result.loss == pytest.approx(loss.item(), rel=1e-12)
        assert result.gradient_norm == pytest.approx(norm.item(), rel=1e-12)
    for bucket in trainer.buckets:
        for slot in bucket.slots:
            ours = slot.parameter.detach()[: _rows(plan.model, slot.row.name)]
            torch.testing.assert_close(ours, weights[slot.row.name].detach(), rtol=0, atol=1e-8)


def _rows(model: ModelShape, name: str) -> int | None:
    return model.vocabulary if name in ("embedding.tokens.weight", "head.weight") else None


def test_initial_values_do_not_depend_on_the_layout_or_the_stage() -> None:
    plan = small()
    a = Trainer(plan, Mesh.single(), seed=1, rule=AdamRule())
    b = Trainer(
        plan.model_copy(update={"partition": type(plan.partition)(layers=(4,))}), Mesh.single(), seed=1, rule=AdamRule()
    )
    for x, y in zip(a.buckets, b.buckets):
        assert torch.equal(x.weights, y.weights)
    stage = a.stages[0]
    first, second = (stage.get_parameter(f"layers.{n}.mlp.up.weight") for n in (0, 1))
    assert not torch.equal(first, second)
    std = stage.get_parameter("layers.0.mlp.up.weight").std().item()
    assert std == pytest.approx(plan.model.std, rel=0.1)
    residual = stage.get_parameter("layers.0.mlp.down.weight").std().item()
    assert residual == pytest.approx(plan.model.std / math.sqrt(2 * plan.model.layers), rel=0.1)
