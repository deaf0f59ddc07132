"""A checkpoint answers: in this process, or over the ranks of a layout."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trivium.cli.ended import ended_by_signals
from trivium.errors import ConfigError
from trivium.plan.layout import Layout
from trivium.untrusted import read_json

Ask = Callable[[Any], dict[str, Any]]


def refuse_layout(checkpoint: Path, layout: Layout) -> None:
    """ConfigError, in the words of a training's, where the model does not fit ranks that have not been started yet."""
    from trivium.checkpoint.format import read_manifest
    from trivium.config import build
    from trivium.model.whole import answering_plan
    from trivium.plan.plan import Plan

    plan = build(Plan, read_manifest(checkpoint)["plan"])
    answering_plan(plan.model, layout, plan.precision.weights)


def answered(work: Ask, checkpoint: Path, tokenizer: Path, layout: Layout) -> dict[str, Any] | None:
    """What `work` finds with a scorer of this checkpoint, its ranks forked here or started by torchrun.

    Plain data; None on ranks of torchrun that have nothing to say. ConfigError where the model does not fit the layout.
    """
    from trivium.comms.launch import connected, run_ranks, torchrun_place
    from trivium.comms.mesh import Mesh
    from trivium.evaluation.answer import NativeScorer

    refuse_layout(checkpoint, layout)
    place = torchrun_place()
    if place is None and layout.world_size == 1:
        return work(NativeScorer.open(checkpoint, tokenizer))

    def on_rank(place: Any, out: Path) -> None:
        if not place.by_others:
            ended_by_signals()
        with connected(place):
            mesh = Mesh.connect(layout, place.rank, place.world_size, place.device)
            found = work(NativeScorer.open(checkpoint, tokenizer, mesh=mesh))
            if place.rank == 0:
                out.write_text(json.dumps(found), encoding="utf-8")  # in the order of one process

    with tempfile.TemporaryDirectory(prefix="trivium-answers-") as folder:
        out = Path(folder) / "found.json"
        if place is None:
            run_ranks(on_rank, layout.world_size, out)
        else:
            if place.world_size != layout.world_size:
                raise ConfigError(
                    f"torchrun started {place.world_size} ranks, and layout has {layout.world_size}; "
                    "set layout.tensor, layout.pipeline and layout.data so that their product is that"
                )
            on_rank(place, out)
        return read_json(out) if out.is_file() else None
