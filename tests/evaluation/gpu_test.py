"""The scorer gives the same answers and texts on a GPU as on the CPU."""

import pytest
import torch

from evaluation.models import FAMILIES, TEXTS, TOKENIZER, plan_of
from trivium.evaluation.answer import NativeScorer
from trivium.evaluation.requests import Request, Sampling
from trivium.model.whole import WholeModel

pytestmark = pytest.mark.gpu


def scorer_on(device: torch.device, family: str) -> NativeScorer:
    """Return a scorer with the same random weights on any device."""
    model = WholeModel(plan_of(family).model, precision="fp32", device=device)
    generator = torch.Generator().manual_seed(3)
    for name, row in model.stage.table.items():
        model.load(name, torch.randn(row.shape, generator=generator) * 0.3)
    return NativeScorer(model, TOKENIZER)


@pytest.mark.parametrize("family", FAMILIES)
def test_gpu_answers_and_texts_equal_those_of_the_cpu(family: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    ours, theirs = (scorer_on(torch.device(kind), family) for kind in ("cuda", "cpu"))
    asked = [Request(t[:50], a) for t in TEXTS[:6] for a in (" yes", " no", " module value")]
    for found, expected in zip(ours.loglikelihood(asked), theirs.loglikelihood(asked), strict=True):
        assert found.loglikelihood == pytest.approx(expected.loglikelihood, abs=1e-3)
        assert found.greedy == expected.greedy
    settings = Sampling(max_tokens=8, temperature=0)
    prompts = [t[:30] for t in TEXTS[:4]]
    assert ours.generate(prompts, settings=settings) == theirs.generate(prompts, settings=settings)
