"""Candidate plans as arrays: one column for each field that a search varies, one row per plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium.cost.case import MODES, Case, case_from, message_ratios
from trivium.plan.messages import EXACT, Messages
from trivium.plan.model_shape import ModelShape
from trivium.plan.offload import NO_OFFLOAD, Offload
from trivium.plan.optimizer import ALL_BY_ADAMW, Optimizer
from trivium.plan.plan import Plan, problems_of_any_layout, recording_problems, ring_problems
from trivium.plan.precision import Precision
from trivium.plan.schedule import SCHEDULE_NAMES, SPLIT_SCHEDULES

Column = NDArray[np.int64]
Mask = Any  # NDArray[np.bool_], one entry per row: NumPy leaves the type of a comparison open

MODE_NAMES = tuple(MODES)
SPLIT = [number for number, name in enumerate(SCHEDULE_NAMES) if name in SPLIT_SCHEDULES]
ALL = slice(None)


@dataclass(frozen=True)
class Subject:
    """The fields that a search does not vary. sequences: batch size. recorded: use CUDA graphs where a plan allows
    them."""

    model: ModelShape
    sequences: int
    precision: Precision
    compiled: bool = False
    recorded: bool = False
    optimizer: Optimizer = ALL_BY_ADAMW
    messages: Messages = EXACT
    offload: Offload = NO_OFFLOAD

    @classmethod
    def of(cls, plan: Plan) -> "Subject":
        """Return the subject of a search for a better plan than this one."""
        same = plan.precision, plan.compiled, plan.cuda_graphs, plan.optimizer, plan.messages
        return cls(plan.model, plan.batch.sequences, *same)

    def problems(self) -> list[str]:
        """Return the reasons why no plan of the subject is legal."""
        few = f"a step of {self.sequences} sequences trains on nothing; give 1 or more"
        rest = self.model, self.precision, self.optimizer, self.messages
        return [*([few] if self.sequences < 1 else []), *problems_of_any_layout(*rest, compiled=self.compiled)]

    @property
    def has_equal_layers(self) -> bool:
        """Whether the mean layer of the model, with its optimizer state, is every layer. Otherwise the costs of many
        plans at once are approximate."""
        return len(self.model.counted_layers) == 1 and not self.optimizer.groups and not self.model.adapters

    @property
    def rings(self) -> bool:
        """Whether activations may go round a ring of tensor ranks that divide the positions."""
        return not ring_problems(self.precision, self.messages)

    def records(self, zero: Column | int) -> Column:
        """Return 1 for each ZeRO stage whose plans use CUDA graphs, else 0."""
        problems = (recording_problems(self.model, self.precision, n, self.offload, recorded=True) for n in range(4))
        found: Column = np.array([int(self.recorded and not each) for each in problems])[zero]
        return found


@dataclass(frozen=True, eq=False)
class Grid:
    """Rows of choices. Columns have the names of a plan's fields, or of the fields of cost.case.Case.

    sequences: batch size. schedule: an index into SCHEDULE_NAMES. recompute: a number of cost.case.MODES.
    """

    columns: Mapping[str, Column]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def take(self, which: Mask | Column) -> "Grid":
        """Return the rows of a mask or of indices."""
        return Grid({name: column[which] for name, column in self.columns.items()})

    def cross(self, **choices: Sequence[int] | Column) -> "Grid":
        """Return every row combined with every entry of the new columns; the columns of one call vary together."""
        many = len(next(iter(choices.values())))
        old = {name: np.repeat(column, many) for name, column in self.columns.items()}
        return Grid({**old, **{name: np.tile(np.asarray(v, np.int64), len(self)) for name, v in choices.items()}})

    def joined(self, other: "Grid") -> "Grid":
        """Return the rows of both grids."""
        return Grid({name: np.concatenate([self[name], other[name]]) for name in self.columns})


@dataclass(frozen=True, eq=False)
class Candidates:
    """Plans of one subject as rows."""

    subject: Subject
    grid: Grid

    def __len__(self) -> int:
        return len(self.grid)

    @cached_property
    def case(self) -> Case:
        """The inputs of the cost model."""
        return case_of_grid(self.subject, self.grid)

    def take(self, which: Mask | Column) -> "Candidates":
        """Return the rows of a mask or of indices."""
        return Candidates(self.subject, self.grid.take(which))

    def changed(self, rows: Column | slice = ALL, **values: int | Column) -> "Candidates":
        """Return all rows, with other values in some rows."""
        columns = dict(self.grid.columns)
        for name, value in values.items():
            columns[name] = columns[name].copy()
            columns[name][rows] = value
        return Candidates(self.subject, Grid(columns))

    def plan_at(self, row: int) -> Plan:
        """Return a row as a plan."""
        at = {name: int(column[row]) for name, column in self.grid.columns.items()}
        return Plan.model_validate(
            {
                "model": self.subject.model,
                "layout": {
                    **{name: at[name] for name in ("tensor", "pipeline", "data", "context", "expert", "chunks")},
                    "shards": at["shards"] or None,
                },
                "batch": {"sequences": at["sequences"], "micro": at["micro"]},
                "schedule": SCHEDULE_NAMES[at["schedule"]],
                "precision": self.subject.precision,
                "optimizer": self.subject.optimizer,
                "messages": self.subject.messages,
                "offload": self.subject.offload,
                "compiled": self.subject.compiled,
                "cuda_graphs": bool(self.subject.records(at["zero"])),
                "recompute": {
                    "mode": MODE_NAMES[at["recompute"]],
                    "every": at["recompute_every"],
                    "activation_function": bool(at["function_again"]),
                },
                "zero": at["zero"],
                "sequence_parallel": bool(at["sequence_parallel"]),
                "overlap_tensor": bool(at["overlap_tensor"]),
            }
        )

    def row_of(self, plan: Plan) -> int | None:
        """Return the row of a plan; None if the plan is not among the rows."""
        same = [self.grid[name] == value for name, value in columns_of(plan).items()]
        found = np.flatnonzero(np.logical_and.reduce(same))
        # A row lacks some fields of a plan: its partition, its given rows and its context attention.
        return int(found[0]) if len(found) and self.plan_at(int(found[0])) == plan else None


def columns_of(plan: Plan) -> dict[str, int]:
    """Return a plan's choices as the values of a row."""
    return {
        **{name: plan.layout.degree(name) for name in ("tensor", "pipeline", "data", "context")},
        "sequences": plan.batch.sequences,
        "micro": plan.batch.micro,
        "schedule": SCHEDULE_NAMES.index(plan.schedule) if plan.schedule in SCHEDULE_NAMES else -1,
        "chunks": plan.layout.chunks,
        "recompute": MODES[plan.recompute.mode],
        "recompute_every": plan.recompute.every,
        "function_again": int(plan.recompute.activation_function),
        "sequence_parallel": int(plan.sequence_parallel),
        "overlap_tensor": int(plan.overlap_tensor),
        "zero": plan.zero,
        "shards": plan.layout.shards or 0,
        "expert": plan.layout.expert,
    }


def case_of_grid(subject: Subject, grid: Grid) -> Case:
    """Return the case of the plan of each row, as arrays."""
    same = (
        "tensor",
        "pipeline",
        "chunks",
        "data",
        "context",
        "expert",
        "micro",
        "recompute",
        "recompute_every",
        "function_again",
        "sequence_parallel",
        "zero",
        "shards",
    )
    columns: dict[str, Any] = {name: grid[name] for name in same}
    folded = grid["schedule"] == SCHEDULE_NAMES.index("zb-v")
    return case_from(
        subject.model,
        subject.precision,
        subject.optimizer,
        **message_ratios(subject.messages, subject.precision),
        **columns,
        micro_batches=micro_batches_of(grid),
        in_ring=grid["overlap_tensor"] * (grid["tensor"] > 1),
        puts_off=np.isin(grid["schedule"], SPLIT).astype(np.int64),
        ends_together=((grid["pipeline"] == 1) | folded).astype(np.int64),
        compiled=int(subject.compiled),
        recorded=subject.records(grid["zero"]),
        state_away=subject.offload.optimizer,
        activations_away=subject.offload.activations,
    )


def micro_batches_of(grid: Grid) -> Column:
    """Return the micro-batches of one replica per step."""
    return grid["sequences"] // (grid["micro"] * grid["data"])
