"""`trivium plan probe`: measure this machine, or learn from a finished run, so that plans can be priced."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trivium.cli.machine import cores, memory_bytes
from trivium.cli.options import refuse_no_place_for
from trivium.cli.paths import local_path
from trivium.cli.plan_estimate import with_batch
from trivium.cli.price import MachineOption, machine_of
from trivium.cli.run_config import Given, resolve
from trivium.cli.show import progress_of, say, table
from trivium.cli.workspace import Workspace
from trivium.cost.estimate import estimate
from trivium.cost.hardware import believed
from trivium.errors import ConfigError, DataError
from trivium.planner.stack_file import LearnedStack, learn, write_stack
from trivium.provenance import write_json
from trivium.training.metrics import METRICS, read
from trivium.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from trivium.planner.probed import Probed

RANKS = 8  # between which collectives are measured, unless --ranks says otherwise
KINDS = ("product", "attention", "step", "exchange")


def probe_machine(
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", metavar="N", help=f"Measure collectives between 2, 4, … N ranks; default: {RANKS}."),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run",
            parser=local_path,
            metavar="DIR",
            help="Measure nothing, but learn from this finished run how much longer steps take than predicted; "
            "`plan show --stack` reads it.",
        ),
    ] = None,
    machine: MachineOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            parser=local_path,
            metavar="FILE",
            help="The machine file to write; default: machine.yaml. With --run, the stack file; default: "
            "DIR/stack.yaml.",
        ),
    ] = None,
    raw: Annotated[
        Path | None,
        typer.Option("--json", parser=local_path, metavar="FILE", help="Write the measurements themselves too."),
    ] = None,
) -> None:
    """Measure products, memory, attention, optimizer, small models and collectives, in under a minute.

    With --run: compare the steps of a finished run with their predictions on its machine, or on --machine.
    """
    if run is not None:
        for option, value in (("--ranks", ranks), ("--json", raw)):
            if value is not None:
                raise ConfigError(f"{option} {value}: with --run {run} nothing is measured; leave one of the two out")
        _calibrate(run, machine, out)
    elif machine is not None:
        raise ConfigError(f"--machine {machine}: this machine is measured; leave it out, or name a finished --run")
    else:
        _probe(RANKS if ranks is None else ranks, out or Path("machine.yaml"), raw)


def _probe(ranks: int, out: Path, raw: Path | None) -> None:
    if out.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--out {out}: a machine file is YAML and known by its name; end it in .yaml")
    refuse_no_place_for("--out", out)
    refuse_no_place_for("--json", raw)
    from trivium.planner.probed import probed, write_machine
    from trivium.probe.probe import Devices, accelerators, probe

    processors = Devices("CPU core", cores(), memory_bytes() // cores(), is_cpu=True)
    with progress_of("probe") as progress:
        measured = probe(ranks, accelerators() or processors, progress=progress)
    if raw is not None:
        write_json(raw, measured.tree())
    found = probed(measured, out.stem)
    write_machine(out, found.machine)
    for line in probe_lines(found):
        say(line)
    say(f"written to {out}; use it with `trivium plan show --machine {shlex.quote(str(out))}`")


def probe_lines(found: "Probed") -> list[str]:
    """Return lines with the measurements, and how well the cost model reproduces them."""
    m = found.machine
    link = m.node_link
    rows = [
        ("fastest product", f"{m.peak.fp32 / 1e9:,.0f} GFLOP/s in fp32, {m.peak.bf16 / 1e9:,.0f} in bf16"),
        ("memory", f"{format_bytes(m.memory_bandwidth)}/s, {format_bytes(m.memory_bytes)} per device"),
        (
            "collectives",
            f"start {format_seconds(link.start_seconds)}, hop {format_seconds(link.latency_seconds)}, "
            f"{format_bytes(link.effective_bandwidth)}/s",
        ),
        *((name, f"{value:.3g}") for name, value in m.constants.items()),
        *(
            (f"{kind}s are off by", f"{found.error_of(kind):.1%}, median")
            for kind in KINDS
            if any(c.what.startswith(kind) for c in found.compared)
        ),
    ]
    return [f"{m.devices} x {m.device}", *table(rows), *_doubts(m.constants)]


def _doubts(constants: Mapping[str, float]) -> list[str]:
    """Constants that would have gone beyond what is believed of any machine."""
    limits = {name: believed(name) for name in constants}
    edge = [n for n, value in constants.items() if value and not _well_inside(value, *limits[n])]
    if not edge:
        return []
    return [f"doubtful: {', '.join(edge)} at the edge of what is believed; was the machine busy? Then probe again"]


def _well_inside(value: float, low: float, high: float) -> bool:
    return 1.01 * low < value < 0.99 * high


def _calibrate(run: Path, machine: str | None, out: Path | None) -> None:
    found = learned_from(run, machine)
    path = out or run / "stack.yaml"
    write_stack(path, found)
    say(
        f"measured over predicted: {found.factor:.3f}, the median of {found.steps} steps (quartiles {found.low:.3f} to "
        f"{found.high:.3f}, spread {found.spread:.1%}) on {found.machine}"
    )
    say(f"written to {path}; use it with `trivium plan show --stack {shlex.quote(str(path))}`")


def learned_from(run: Path, machine: str | None = None) -> LearnedStack:
    """The factor of a run directory. Raises DataError when it is not one, or has too few steps."""
    from trivium.training.record import read_record

    at = Workspace(run)
    if not at.config.is_file():
        raise DataError(f"{run} is not a run directory: {at.config} is missing; give the --out of `trivium train`")
    priced = machine_of(machine or resolve(Given(str(at.config))).machine)
    plan = read_record(at.folder("training")).plan  # not the config's, which is of the last verb
    return learn(
        read(at.folder("training") / METRICS),
        lambda sequences: estimate(with_batch(plan, sequences), priced).seconds,
        machine=priced.name,
        run=str(run),
    )
