"""The parameters of a model by the rules of the papers: names, shapes, initial distributions, and weight decay.

The rules are in `oracle`, a second account of what `plan/layers/` and `model/initialise.py` say, which reads neither:
every matrix and table is drawn from normal(0, std), with std = sqrt(1 / (3 hidden)) unless it is given (MT-NLG, section
3.2). The matrices that write to the residual stream are divided by sqrt(2 layers) (GPT-2, section 2.3; Megatron-LM).
The A of an adapter is drawn uniformly. Norms begin with 1 and biases with 0. Neither has weight decay.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch

from trivium.certify.oracle.terms import Rule, Tensor
from trivium.plan.layers.part import Parameter
from trivium.seeds import seed_for

# Standard errors that a sample's mean or deviation may be off: beyond six, one in 500 million is.
MAX_STANDARD_ERRORS = 6.0
# Draws that follow one another in a stream, and how finely they are compared. Two streams have three such draws in
# common by chance once in 10^13 pairs.
RUN_DRAWS, GRID_STEP = 3, 1e-5


def drawn(rule: Rule, name: str, seed: int) -> Tensor:
    """The initial values of a parameter in fp32, from the stream that has its name, or that of an expert its number,
    too."""
    if rule.deviation == 0:
        return torch.full(rule.shape, rule.mean)
    if rule.by_expert:
        streams = [torch.Generator().manual_seed(seed_for(seed, "initial", name, n)) for n in range(rule.shape[0])]
        return torch.stack([torch.randn(rule.shape[1:], generator=g) for g in streams]) * rule.deviation
    generator = torch.Generator().manual_seed(seed_for(seed, "initial", name))
    if rule.uniform:
        return (torch.rand(rule.shape, generator=generator) * 2 - 1) * (math.sqrt(3) * rule.deviation)
    return torch.randn(rule.shape, generator=generator) * rule.deviation


def table_problems(rules: Mapping[str, Rule], table: Mapping[str, Parameter]) -> dict[str, str]:
    """Return by name how the engine's table of parameters differs from the rules."""
    found = {name: "missing in the engine's table" for name in rules if name not in table}
    found |= {name: "in the engine's table alone" for name in table if name not in rules}
    for name, rule in rules.items():
        row = table.get(name)
        if row is not None and row.shape != rule.shape:
            found[name] = f"shape {list(row.shape)} instead of {list(rule.shape)}"
        elif row is not None and row.decay != rule.decays:
            found[name] = f"weight decay {row.decay} instead of {rule.decays}"
    return found


def departures(rules: Mapping[str, Rule], values: Mapping[str, Tensor]) -> dict[str, float]:
    """Return for each parameter how far its initial values are from their distribution, relative to the standard
    deviation; 0 if chance explains it. The parameters of one rule in all layers are also tested together, under the
    first one's name, because a few values show little."""
    kinds: dict[str, list[str]] = {}
    for name in rules:
        kinds.setdefault(_without_number(name), []).append(name)
    found = {name: _departure(rules[name], values[name].flatten()) for name in rules}
    for names in kinds.values():
        together = torch.cat([values[name].flatten() for name in names])
        found[names[0]] = max(found[names[0]], _departure(rules[names[0]], together))
    return found


def repetitions(rules: Mapping[str, Rule], values: Mapping[str, Tensor]) -> dict[str, float]:
    """Return for each parameter the share of its draws that occur again in it or in another one, in the same order."""
    names = [name for name, rule in rules.items() if rule.deviation > 0 and values[name].numel() >= RUN_DRAWS]
    runs = [_runs(values[name].flatten() / rules[name].deviation) for name in names]
    _, number, counts = np.unique(torch.cat(runs).numpy(), axis=0, return_inverse=True, return_counts=True)
    ends = np.cumsum([len(each) for each in runs])
    repeated = np.split((counts > 1)[number.flatten()], ends[:-1])
    return {name: float(share.mean()) for name, share in zip(names, repeated, strict=True)}


def _departure(rule: Rule, x: Tensor) -> float:
    if rule.norms_rows:
        return 0.0  # no distribution: it follows from another parameter
    if rule.deviation == 0:
        return float((x - rule.mean).abs().max())
    x, n = (x.double() - rule.mean) / rule.deviation, len(x)
    mean, square = float(x.mean()), float(x.square().mean())
    # Wilson and Hilferty (1931): the cube root of chi-squared / n is close to normal(1 - 2 / 9n, 2 / 9n).
    errors = (square ** (1 / 3) - 1 + 2 / (9 * n)) / math.sqrt(2 / (9 * n))
    off_mean = abs(mean) if abs(mean) * math.sqrt(n) > MAX_STANDARD_ERRORS else 0.0
    off_deviation = abs(math.sqrt(square) - 1) if abs(errors) > MAX_STANDARD_ERRORS else 0.0
    return max(off_mean, off_deviation)


def _runs(draws: Tensor) -> Tensor:
    """[draws - RUN_DRAWS + 1, RUN_DRAWS]: each draw with those after it, on the grid."""
    return (draws.double() / GRID_STEP).round().long().unfold(0, RUN_DRAWS, 1)


def _without_number(name: str) -> str:
    return ".".join("N" if part.isdigit() else part for part in name.split("."))
