"""The loads of experts: what the page shows of a model that has some."""

from collections.abc import Sequence
from typing import Any

from trivium.report import figures
from trivium.report.parts import Card, Drawn, Section, Table
from trivium.units import counted

Tree = dict[str, Any]


def load_card(loads: Sequence[Tree]) -> Card:
    """Return the card of the busiest expert in the last step. loads: records of steps, as `collect` gives them."""
    layer, load = max(loads[-1]["layers"].items(), key=lambda item: item[1]["largest"] or 0.0)
    note = f"of the mean load, in layer {layer} after step {loads[-1]['step']}"
    return Card("Busiest expert", _times(load["largest"]), note)


def experts_section(report: Tree) -> Section:
    """Return the section about the loads of experts over the training."""
    loads = report["training"]["loads"]
    last = loads[-1]
    drops = any(load["dropped"] is not None for load in last["layers"].values())
    rows = [
        (
            layer,
            _times(load["largest"]),
            "unknown" if load["entropy"] is None else f"{load['entropy']:.3f}",
            *((f"{load['dropped'] or 0:,}",) if drops else ()),
        )
        for layer, load in last["layers"].items()
    ]
    return Section(
        "experts",
        "Experts",
        gist=f"loads of {counted(len(rows), 'layer')}",
        shows="How many tokens visit the busiest expert of each layer, divided by the mean of its experts, over the "
        "training.",
        reading="1 is an even load. A step waits for the rank with the busiest experts, and experts that hardly any "
        "token visits do not learn. The entropy of the loads is divided by that of an even load.",
        limits="Loads are those of whole batches: those of a micro-batch or of a rank vary more.",
        figures=[Drawn("Load of the busiest expert of each layer", figures.loads(loads), "picture")],
        tables=[Table(("layer", "busiest / mean", "entropy / even", *(("dropped choices",) if drops else ())), rows)],
    )


def _times(ratio: float | None) -> str:
    return "unknown" if ratio is None else f"{ratio:.2f}"
