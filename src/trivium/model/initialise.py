"""Initial values keyed by parameter name: the same unsplit tensor whatever the layout."""

import math

import torch

from trivium.plan.adapters import base_name
from trivium.plan.layers.part import Parameter
from trivium.plan.model_shape import ModelShape
from trivium.plan.parameters import Box, parameters
from trivium.seeds import seed_for


def initial_values(parameter: Parameter, model: ModelShape, seed: int, box: Box) -> torch.Tensor:
    """The region `box` of a parameter's first values, fp32.

    normal(0, model.std); matrices that write to the residual stream are divided by sqrt(2 layers). The A of adapters is
    uniform in ±1 / sqrt(inputs), and the magnitudes of DoRA are norms of rows.
    """
    match parameter.initial:
        case "ones":
            return torch.ones(box.shape)
        case "zeros":
            return torch.zeros(box.shape)
        case "row_norms":
            base = next(row for row in parameters(model) if row.name == base_name(parameter.name))
            rows = Box((*box.start, 0), (*box.shape, base.shape[-1]))
            return row_norms(initial_values(base, model, seed, rows))
        case "uniform":
            generator = torch.Generator().manual_seed(seed_for(seed, "initial", parameter.name))
            drawn = torch.rand(parameter.shape, generator=generator) * 2 - 1
            return _cut(drawn * (1 / math.sqrt(parameter.shape[-1])), box)
        case "normal" | "residual":
            deviation = model.std
            if parameter.initial == "residual":
                deviation /= math.sqrt(2 * model.layers)
            return _normal(parameter, seed, box) * deviation


def _normal(parameter: Parameter, seed: int, box: Box) -> torch.Tensor:
    """Draw standard normal numbers for a region of a parameter. Each expert has a seed of its own, so that a rank draws
    those of its own experts alone."""
    if not parameter.by_expert:
        generator = torch.Generator().manual_seed(seed_for(seed, "initial", parameter.name))
        return _cut(torch.randn(parameter.shape, generator=generator), box)
    own, within = range(box.start[0], box.start[0] + box.shape[0]), Box(box.start[1:], box.shape[1:])
    seeds = (seed_for(seed, "initial", parameter.name, expert) for expert in own)
    drawn = (torch.randn(parameter.shape[1:], generator=torch.Generator().manual_seed(n)) for n in seeds)
    return torch.stack([_cut(each, within) for each in drawn])


def row_norms(weight: torch.Tensor) -> torch.Tensor:
    """Return the norm of each row of a weight [..., outputs, inputs], in fp32 or wider."""
    return weight.to(torch.promote_types(weight.dtype, torch.float32)).square().sum(-1).sqrt()


def _cut(whole: torch.Tensor, box: Box) -> torch.Tensor:
    return whole[tuple(slice(a, a + n) for a, n in zip(box.start, box.shape, strict=True))]
