"""Small checkpoints with a tokenizer, for tests."""

from pathlib import Path

import torch

from evaluation.scorers import passages
from trivium.certify.certificate import RULE
from trivium.certify.layouts import ROTARY
from trivium.checkpoint.save import save
from trivium.comms.mesh import Mesh
from trivium.config import to_tree
from trivium.evaluation.answer import NativeScorer
from trivium.model.whole import WholeModel
from trivium.plan.plan import Plan
from trivium.tokens.tokenizer import train_tokenizer
from trivium.training.state import fragments
from trivium.training.trainer import Trainer

TEXTS = [p["text"] for p in passages(80)]
TOKENIZER = train_tokenizer([*TEXTS, "yes no ½ é 文字 \U0001f600"], 300)
YARN = {"kind": "yarn", "factor": 4.0, "original": 8, "slow": 0.25, "fast": 2.0}
FAMILIES = {
    "gpt": {},
    "llama": {**ROTARY, "head": "untied", "kv_heads": 2, "ffn": 40, "rope_scaling": YARN},
    "olmo2": {**ROTARY, "kv_heads": 2, "ffn": 40, "qk_norm": "all_heads", "norm_position": "after"},
    "mistral": {**ROTARY, "kv_heads": 2, "ffn": 40, "window": 7},
    "ministral": {
        **ROTARY,
        "kv_heads": 2,
        "ffn": 40,
        "window": 5,
        "first": [{"times": 1, "window": None}],
        "pattern": [{"times": 1}, {"window": None}],
    },
    "qwen3": {**ROTARY, "kv_heads": 2, "ffn": 40, "qk_norm": "each_head", "head_width": 6},
    "qwen3_moe": {
        **ROTARY,
        "kv_heads": 2,
        "ffn": 40,
        "qk_norm": "each_head",
        "feed_forward": "experts",
        "experts": {"count": 4, "chosen": 2, "columns": 24},
        "first": [{"times": 1, "feed_forward": "gated"}],
    },
}


def plan_of(family="gpt", sequence=48, **more):
    model = {"layers": 4, "hidden": 32, "heads": 4, "vocabulary": TOKENIZER.vocabulary, "sequence": sequence}
    model |= {"vocabulary_multiple": 2, "end_of_text": TOKENIZER.end_of_text, **FAMILIES[family]}
    return Plan(model=model | more.pop("model", {}), batch={"sequences": 4}, **more).checked()


def write_checkpoint(
    root: Path, plan: Plan, *, step: int = 4, scale: float = 0.3, data=None, updates: int | None = None
) -> Path:
    """Write a checkpoint of random weights that are large enough for distinct predictions, and its tokenizer.json,
    to `root`."""
    trainer = Trainer(plan, Mesh.single(), seed=7, rule=RULE)
    generator = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for bucket in trainer.buckets:
            bucket.weights.add_(torch.randn(bucket.weights.shape, generator=generator) * scale)
    TOKENIZER.save(root / "tokenizer.json")
    about = {"plan": to_tree(plan), "updates": updates or step, "tokens_seen": 1000 * step}
    about["data"] = data or {}
    return save(root / "checkpoints", step, fragments(trainer), Mesh.single(), about)


def scorer_of(plan: Plan, *, scale: float = 0.3) -> NativeScorer:
    """Return a scorer with random weights, without a checkpoint."""
    model = WholeModel(plan.model, precision="fp32", device=torch.device("cpu"))
    generator = torch.Generator().manual_seed(3)
    for name, row in model.stage.table.items():
        model.load(name, torch.randn(row.shape, generator=generator) * scale)
    return NativeScorer(model, TOKENIZER)
