"""The same laws on an accelerator, where there is one."""

import pytest
import torch

from plans import small
from trivium.certify.certificate import certificate, examine
from trivium.certify.reference import compute_reference, random_rows
from trivium.parallel.mesh import Mesh
from trivium.parallel.zero import AdamRule
from trivium.plan.plan import Plan
from trivium.training.trainer import Samples, Trainer

pytestmark = pytest.mark.gpu

LLAMA = {"family": "llama", "kv_heads": 2, "hidden": 32, "head": "untied"}
PLANS = [small(), small(model=LLAMA), small(recompute={"mode": "layer"}), small(zero=3, schedule="zb-h1")]


@pytest.fixture
def device() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    return torch.device("cuda", 0)


@pytest.mark.parametrize("plan", PLANS)
def test_one_accelerator_computes_what_the_plain_model_computes_on_the_processor(
    plan: Plan, device: torch.device
) -> None:
    findings = examine(plan, Mesh.single(device), compute_reference(plan))
    assert certificate(plan, findings.deviations).passed


@pytest.mark.parametrize("weights", ["bf16", "fp16"])
def test_half_precision_follows_fp32_on_the_accelerator(weights: str, device: torch.device) -> None:
    losses = []
    for precision in (weights, "fp32"):
        plan = small(precision={"weights": precision})
        trainer = Trainer(plan, Mesh.single(device), seed=1, rule=AdamRule())
        samples = Samples(0, plan.batch.sequences, random_rows(plan))
        losses.append([trainer.train_step(s, samples, 1e-3).loss for s in range(3)])
    assert losses[0] == pytest.approx(losses[1], rel=3e-2)
