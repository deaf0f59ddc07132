"""What a plan assumes of the load of its expert ranks, and what an uneven load would need, as text."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from trivium.cost.memory import worst_rank
from trivium.plan.layers.mlp_experts import MlpExperts
from trivium.plan.model_shape import ModelShape
from trivium.plan.plan import Plan
from trivium.units import counted, format_bytes


def expert_lines(plan: Plan, memory_limit: float) -> list[str]:
    """Return a line for each kind of layer with experts, and one for the most uneven load that its tokens may have."""
    ranks, parts = plan.layout.expert, Counter[MlpExperts]()
    for layer, number in plan.model.counted_layers:
        if isinstance(layer.mlp, MlpExperts):
            parts[layer.mlp] += number
    if not parts:
        return []
    found = [
        f"{each.experts.count} in each of {counted(number, 'layer')}; a token visits {each.experts.chosen} of them"
        + (f", and an expert rank has {each.experts.count // ranks}" if ranks > 1 else "")
        for each, number in parts.items()
    ]
    if ranks > 1:
        several = sorted({each.experts.imbalance for each in parts})
        most = max(float(each.largest_load(ranks)) for each in parts)
        held = worst_rank(with_imbalance(plan, most))[1].total
        found += [
            f"the busiest expert rank is taken to have {' or '.join(f'{n:g}' for n in several)} times the mean load "
            f"(plan.model.experts.imbalance); it may have up to {most:g} times, and hold {format_bytes(held)}"
            + (", which does not fit" if held > memory_limit else "")
        ]
    return [f"{'' if number else 'experts':14}{text}" for number, text in enumerate(found)]


def with_imbalance(plan: Plan, imbalance: float) -> Plan:
    """Return the plan with another load of the busiest expert rank, as a multiple of the mean, in all layers."""

    def changed(settings: Mapping[str, Any]) -> dict[str, Any]:
        experts = settings.get("experts")
        return {"experts": experts.model_copy(update={"imbalance": imbalance})} if experts is not None else {}

    model = plan.model
    runs = {
        name: tuple(run.model_copy(update=changed(run.settings)) for run in getattr(model, name))
        for name in ("first", "pattern")
    }
    other: ModelShape = model.model_copy(update={**changed(vars(model)), **runs})
    return plan.model_copy(update={"model": other})
