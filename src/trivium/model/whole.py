"""The whole model on one rank: logits for any token ids."""

from collections.abc import Sequence

import torch

from trivium.model.inputs import Inputs
from trivium.model.stage import Stage, build_stages
from trivium.parallel.mesh import Mesh
from trivium.plan.batch import Batch
from trivium.plan.layout import Layout
from trivium.plan.model_shape import ModelShape
from trivium.plan.plan import Plan
from trivium.plan.precision import Dtype, Precision


class WholeModel:
    """Legend: S positions, B sequences, V vocabulary."""

    def __init__(self, model: ModelShape, *, precision: Dtype, device: torch.device) -> None:
        plan = Plan(
            model=model,
            layout=Layout(),
            batch=Batch(sequences=1),
            precision=Precision(weights=precision),
            zero=0,
        )
        self.model, self.device = model, device
        self.stage: Stage = build_stages(plan, Mesh.single(device), seed=None)[0]
        self.stage.eval()

    def load(self, name: str, values: torch.Tensor) -> None:
        """Set a parameter by its name in the parameter table; padding stays zero."""
        target = self.stage.get_parameter(name)
        with torch.no_grad():
            target[tuple(slice(0, n) for n in values.shape)] = values.to(target.device, target.dtype)

    @torch.no_grad()
    def logits(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        """Logits [B, S, V] of rows of token ids; shorter rows are padded on the right, which causal attention
        never sees."""
        width = max(len(row) for row in rows)
        padded = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=self.device)
        return self.stage(None, Inputs(tokens=padded.T.contiguous())).transpose(0, 1)
