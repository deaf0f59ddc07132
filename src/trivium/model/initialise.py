"""Initial values keyed by parameter name: the same unsplit tensor whatever the layout."""

import math

import torch

from trivium.plan.layers.part import Parameter
from trivium.plan.model_shape import ModelShape
from trivium.plan.parameters import Box
from trivium.seeds import seed_for


def initial_values(parameter: Parameter, model: ModelShape, seed: int, box: Box) -> torch.Tensor:
    """The region `box` of a parameter's first values, fp32.

    normal(0, model.std); matrices that write to the residual stream are divided by sqrt(2 layers).
    """
    match parameter.initial:
        case "ones":
            return torch.ones(box.shape)
        case "zeros":
            return torch.zeros(box.shape)
        case "normal" | "residual":
            generator = torch.Generator().manual_seed(seed_for(seed, "initial", parameter.name))
            deviation = model.std
            if parameter.initial == "residual":
                deviation /= math.sqrt(2 * model.layers)
            whole = torch.randn(parameter.shape, generator=generator) * deviation
            return whole[tuple(slice(a, a + n) for a, n in zip(box.start, box.shape, strict=True))]
