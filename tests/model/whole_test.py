"""The whole model, to be asked."""

import pytest
import torch
import torch.nn.functional as F

from plans import small
from trivium.certify.layouts import ROTARY
from trivium.model.whole import WholeModel


def test_an_answer_never_waits_for_a_plan_of_cudnns(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN would make a plan for every number of keys."""
    allowed: list[bool] = []
    right = F.scaled_dot_product_attention

    def attention(*given: torch.Tensor, **how: object) -> torch.Tensor:
        allowed.append(torch.backends.cuda.cudnn_sdp_enabled())
        return right(*given, **how)

    monkeypatch.setattr(F, "scaled_dot_product_attention", attention)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    model = WholeModel(small(model={**ROTARY, "hidden": 32, "head": "untied"}).model, precision="fp32")
    model.hidden(torch.zeros((5, 2), dtype=torch.int64))
    assert allowed and not any(allowed) and torch.backends.cuda.cudnn_sdp_enabled() == before
