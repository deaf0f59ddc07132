"""Reads a table of published runs: any CSV with the columns of `COLUMNS`.

Writes rows that can be priced, each with its machine and software, and what is wrong with the others.
"""

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from trivium.config import Config, build, shipped
from trivium.cost.case import ATTENTION, LAYER, NONE, Case
from trivium.cost.hardware import Machine, machine_named
from trivium.cost.stack import Stack, stack_named
from trivium.errors import DataError, nearest
from trivium.plan.layers.form import LayerForm
from trivium.plan.layers.layer import Layer, embedding_of, head_of
from trivium.untrusted import open_regular

COUNTS = ("L", "h", "a", "kv", "ffn", "s", "V", "tp", "pp", "v", "dp", "cp", "mbs", "gbs")  # each is at least 1
DEGREES = ("tp", "pp", "dp", "cp")  # their product is the number of ranks
DEVICES = "n_gpus"  # a column that may be missing or empty; where it is not, it must be that product
FLAGS = ("gated", "sp", "dp_overlap", "tie_balance")
TEXTS = ("src", "cluster", "gpu", "fw")
RECOMPUTE = {"none": NONE, "selective": ATTENTION, "full": LAYER, "op_selective": LAYER}
ATTENTIONS = {"flash": 0, "unfused": 1}
GRADIENT_BYTES = {"fp16": 2, "bf16": 4}  # size of an element that is summed over micro-batches and ranks
CHOICES: Mapping[str, Mapping[str, int]] = {
    "recompute": RECOMPUTE,
    "attn": ATTENTIONS,
    "dtype": GRADIENT_BYTES,
    "zero": {"0": 0, "1": 1, "2": 2, "3": 3},
}
COLUMNS = (*COUNTS, *FLAGS, *TEXTS, *CHOICES, "iter_s", "mem_gb", "quality", "note")
GIB = 2**30


class StackRule(Config):
    """A row's stack if every condition holds; None: any."""

    stack: str
    src: tuple[str, ...] | None = None
    fw: tuple[str, ...] | None = None
    note_has: str | None = None
    note_before: str | None = None  # the note starts with MM-DD

    def holds(self, row: Mapping[str, str]) -> bool:
        """Return whether the rule applies to a row with these texts."""
        note = row["note"]
        return (
            (self.src is None or row["src"] in self.src)
            and (self.fw is None or row["fw"] in self.fw)
            and (self.note_has is None or self.note_has in note)
            and (self.note_before is None or note[: len(self.note_before)] < self.note_before)
        )


class Reading(Config):
    """published_rows.yaml."""

    machines: dict[str, str]
    stacks: tuple[StackRule, ...]
    never_fitted: dict[str, str]


class Row(NamedTuple):
    """One measured run. numbers: by column. memory_bytes: of the fullest rank, where it is given."""

    line: int
    src: str
    machine: str
    stack: Stack
    numbers: dict[str, float]
    seconds: float
    memory_bytes: float | None
    fitted: bool  # may take part in a fit

    @property
    def workload(self) -> tuple[float | str, ...]:
        """Equal for rows that differ only in how the work is laid out."""
        names = ("L", "h", "a", "kv", "ffn", "s", "V", "gbs")
        return (self.src, self.machine, self.ranks, *(self.numbers[name] for name in names))

    @property
    def ranks(self) -> float:
        return math.prod(self.numbers[name] for name in DEGREES)


@dataclass(frozen=True)
class Table:
    """The rows that can be priced, and for each other what is wrong: line, column, value, reason."""

    rows: tuple[Row, ...]
    problems: tuple[str, ...]


class Batch(NamedTuple):
    """Rows with one machine and one stack, as arrays. where: their places among all rows."""

    where: np.ndarray
    case: Case
    machine: Machine
    stack: Stack


def read_rows(path: Path) -> Table:
    """A CSV of published runs. Raises DataError when the file or a column is missing."""
    try:
        with open_regular(path) as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise DataError(f"{path}: there is no column {missing[0]}; it needs {', '.join(COLUMNS)}")
            lines = [(reader.line_num, texts) for texts in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as a CSV file: {error}") from None
    rows, problems = [], []
    for line, texts in lines:
        try:
            rows.append(_row(line, texts))
        except DataError as error:
            problems.append(str(error))
    return Table(tuple(rows), tuple(problems))


def batches(rows: Sequence[Row]) -> list[Batch]:
    """The rows in groups that are priced together."""
    groups: dict[tuple[str, str, bool], list[int]] = {}
    for place, row in enumerate(rows):
        groups.setdefault((row.machine, row.stack.name, row.stack.overlaps_data), []).append(place)
    return [
        Batch(
            np.array(places),
            case_of_rows([rows[p] for p in places]),
            machine_named(rows[places[0]].machine),
            rows[places[0]].stack,
        )
        for places in groups.values()
    ]


def case_of_rows(rows: Sequence[Row]) -> Case:
    """The rows as arrays. Their sources had learned positions, tied tables and dropout where attention is unfused."""

    def column(name: str) -> np.ndarray:
        return np.array([row.numbers[name] for row in rows], dtype=float)

    micro_batches = np.maximum(1.0, np.ceil(column("gbs") / (column("dp") * column("mbs"))))
    return Case(
        **_parts({name: column(name) for name in rows[0].numbers}),
        layers=column("L"),
        hidden=column("h"),
        sequence=column("s"),
        vocabulary=column("V"),
        tied=1 - column("gated"),
        tensor=column("tp"),
        pipeline=column("pp"),
        chunks=column("v"),
        data=column("dp"),
        context=column("cp"),
        micro=column("mbs"),
        micro_batches=micro_batches,
        recompute=column("recompute"),
        recompute_every=1.0,
        sequence_parallel=column("sp"),
        zero=column("zero"),
        scores_kept=column("attn"),
        weight_bytes=2.0,
        gradient_bytes=column("dtype"),
        reduction_bytes=column("dtype"),
        ends_lighter=column("tie_balance"),
        ring=0.0,
    )


def _parts(columns: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The layers and ends of the rows, where each row is of one of two families."""
    gated, found = columns["gated"], []
    sizes: dict[str, Any] = {
        "hidden": columns["h"],
        "heads": columns["a"],
        "kv_heads": columns["kv"],
        "head_width": columns["h"] / columns["a"],
        "ffn": columns["ffn"],
        "sequence": columns["s"],
        "dropout": columns["attn"],
    }
    vocabulary: Any = columns["V"]
    plain: dict[str, Any] = {}
    with_gate: dict[str, Any] = {"feed_forward": "gated", "norm": "rms_norm", "positions": "rotary", "bias": "none"}
    for chosen, share in ((plain, 1 - gated), (with_gate, gated)):
        form = LayerForm.model_construct(**chosen, **sizes)
        head = head_of(form, vocabulary, tied=not chosen)
        found.append((Layer.of(form), embedding_of(form, vocabulary), head, share))
    return {
        "different_layers": tuple((layer, share) for layer, _, _, share in found),
        "embeddings": tuple((embedding, share) for _, embedding, _, share in found),
        "heads": tuple((head, share) for _, _, head, share in found),
    }


@lru_cache(maxsize=1)
def reading() -> Reading:
    """published_rows.yaml."""
    text = shipped("planner/published_rows.yaml").read_text(encoding="utf-8")
    return build(Reading, yaml.safe_load(text))


def _row(line: int, texts: Mapping[str, str]) -> Row:
    if None in texts.values() or None in texts:
        raise DataError(f"line {line}: it has another number of columns than the header; write one value for each")
    numbers = {name: _number(line, name, texts[name], at_least=1, whole=True) for name in COUNTS}
    _check_devices(line, texts.get(DEVICES, ""), math.prod(numbers[name] for name in DEGREES))
    numbers |= {name: _number(line, name, texts[name], at_least=0, whole=True) for name in FLAGS}
    numbers |= {name: float(_chosen(line, name, texts[name], known)) for name, known in CHOICES.items()}
    if texts["fw"] == "fsdp":
        numbers["dtype"] = 2.0  # it sums gradients in the width of its weights
    stack = _first(line, "fw", texts["fw"], (r.stack for r in reading().stacks if r.holds(texts)))
    known = reading().machines
    cluster = next((texts[name] for name in ("cluster", "gpu") if texts[name] in known), None)
    if cluster is None:
        raise _problem(line, "cluster", texts["cluster"], nearest(texts["cluster"], known))
    memory = texts["mem_gb"].strip()
    overlaps = {"overlaps_data": bool(numbers["dp_overlap"])}
    return Row(
        line=line,
        src=texts["src"],
        machine=known[cluster],
        stack=stack_named(stack).model_copy(update=overlaps),
        numbers=numbers,
        seconds=_number(line, "iter_s", texts["iter_s"], at_least=1e-6),
        memory_bytes=_number(line, "mem_gb", memory, at_least=1e-6) * GIB if memory else None,
        fitted=texts["src"] not in reading().never_fitted and texts["quality"].strip() != "C",
    )


def _check_devices(line: int, text: str, ranks: float) -> None:
    """DataError where a row says how many devices it ran on and its degrees say otherwise."""
    if text.strip() and _number(line, DEVICES, text, at_least=1, whole=True) != ranks:
        raise _problem(line, DEVICES, text, f"{' x '.join(DEGREES)} is {ranks:,.0f}; correct the one that is wrong")


def _number(line: int, column: str, text: str, *, at_least: float, whole: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        raise _problem(line, column, text, "it must be a number") from None
    if not math.isfinite(value) or value < at_least or (whole and value != int(value)):
        raise _problem(line, column, text, f"it must be {'a whole number, ' if whole else ''}at least {at_least:g}")
    return value


def _chosen(line: int, column: str, text: str, known: Mapping[str, int]) -> int:
    if text not in known:
        raise _problem(line, column, text, nearest(text, known))
    return known[text]


def _first(line: int, column: str, text: str, found: Iterable[str]) -> str:
    name = next(iter(found), None)
    if name is None:
        frameworks = {fw for rule in reading().stacks for fw in rule.fw or ()}
        raise _problem(line, column, text, nearest(text, frameworks))
    return name


def _problem(line: int, column: str, text: str, reason: str) -> DataError:
    return DataError(f"line {line}, column {column}: '{text}'; {reason}")


Predictor = Callable[[Batch], np.ndarray]


def over_batches(rows: Sequence[Row], of: Predictor) -> np.ndarray:
    """A figure for every row, in their order, computed batch by batch."""
    found = np.full(len(rows), np.nan)
    for batch in batches(rows):
        found[batch.where] = of(batch)
    return found
