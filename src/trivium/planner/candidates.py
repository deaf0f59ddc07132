"""Every legal plan of a space."""

import itertools
from collections.abc import Iterator

from trivium.plan.batch import Batch
from trivium.plan.layout import Layout
from trivium.plan.model_shape import ModelShape
from trivium.plan.plan import Plan
from trivium.plan.precision import Precision
from trivium.plan.recompute import Recompute
from trivium.plan.schedule import ScheduleName
from trivium.planner.config import SearchSpace


def candidates(
    model: ModelShape,
    batch: Batch,
    *,
    ranks: int,
    space: SearchSpace,
    precision: Precision,
    tensor_limit: int,
) -> Iterator[Plan]:
    """Legal plans on exactly `ranks` ranks, with tensor groups of at most `tensor_limit` ranks (one node)."""
    for layout in layouts(model, ranks=ranks, space=space, tensor_limit=tensor_limit):
        choices = itertools.product(
            space.micro,
            space.recompute,
            space.zero if layout.data > 1 else space.zero[:1],
            space.sequence_parallel if layout.tensor > 1 else (False,),
        )
        for micro, mode, zero, sequence_parallel in choices:
            if batch.sequences % (micro * layout.data):
                continue
            plan = Plan(
                model=model,
                layout=layout,
                batch=batch.model_copy(update={"micro": micro}),
                schedule="interleaved" if layout.chunks > 1 else _plain(space),
                precision=precision,
                recompute=Recompute(mode=mode),
                zero=zero,
                sequence_parallel=sequence_parallel,
            )
            if not plan.check(ranks):
                yield plan


def layouts(model: ModelShape, *, ranks: int, space: SearchSpace, tensor_limit: int) -> Iterator[Layout]:
    """Degrees whose product is `ranks`, that divide the model, with every number of chunks asked for."""
    for tensor in divisors(ranks):
        if tensor > tensor_limit or model.heads % tensor:
            continue
        for pipeline in divisors(ranks // tensor):
            interleaving = space.chunks if pipeline > 1 and "interleaved" in space.schedules else ()
            for chunks in (*((1,) if _plain_asked(space) else ()), *interleaving):
                if pipeline * chunks <= model.layers:
                    data = ranks // tensor // pipeline
                    yield Layout(tensor=tensor, pipeline=pipeline, data=data, chunks=chunks)


def divisors(number: int) -> list[int]:
    """Ascending."""
    return [n for n in range(1, number + 1) if number % n == 0]


def _plain_asked(space: SearchSpace) -> bool:
    return any(name != "interleaved" for name in space.schedules)


def _plain(space: SearchSpace) -> ScheduleName:
    return next(name for name in space.schedules if name != "interleaved")
