"""`trivium plan probe`: measure this machine, so that plans can be priced on it."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trivium.cli.local_path import local_path
from trivium.cli.machine import cores, memory_bytes
from trivium.cli.options import refuse_no_place_for
from trivium.cli.show import progress_of, say, table
from trivium.cost.hardware import believed
from trivium.errors import ConfigError
from trivium.provenance import write_json
from trivium.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from trivium.planner.probed import Probed

DEFAULT_RANKS = 8
KINDS = ("product", "attention", "step", "exchange")


def probe_machine(
    ranks: Annotated[
        int, typer.Option("--ranks", metavar="N", help="Measure collectives between 2, 4, … N ranks.")
    ] = DEFAULT_RANKS,
    out: Annotated[
        Path, typer.Option("--out", parser=local_path, metavar="FILE", help="The machine file to write.")
    ] = Path("machine.yaml"),
    raw: Annotated[
        Path | None,
        typer.Option("--json", parser=local_path, metavar="FILE", help="Write the measurements themselves too."),
    ] = None,
) -> None:
    """Measure products, memory, attention, optimizer, small models and collectives, in under a minute."""
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
    for line in lines(found):
        say(line)
    say(f"written to {out}; use it with `trivium plan estimate --machine {shlex.quote(str(out))}`")


def lines(found: "Probed") -> list[str]:
    """What was found, and how well the cost model repeats it."""
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
