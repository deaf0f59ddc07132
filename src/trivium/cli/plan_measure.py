"""`trivium plan probe`: measure this machine, so that plans can be priced on it."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trivium.cli.machine import cores, memory_bytes
from trivium.cli.options import refuse_no_place_for
from trivium.cli.paths import local_path
from trivium.cli.plan_estimate import MachineOption, with_batch
from trivium.cli.price import machine_of
from trivium.cli.run_config import Given, resolve
from trivium.cli.show import STANDARD_OUTPUT, progress_of, say, say_aside, say_found, table
from trivium.cli.workspace import Workspace
from trivium.cost.estimate import estimate
from trivium.cost.hardware import believed
from trivium.errors import ConfigError, DataError
from trivium.planner.backtest import Backtest, Errors
from trivium.planner.backtest import backtest as backtested
from trivium.planner.published_rows import read_rows
from trivium.planner.stack_file import LearnedStack, learn, write_stack
from trivium.provenance import write_json
from trivium.training.metrics import METRICS, read
from trivium.units import counted, format_bytes, format_seconds

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
    for line in probe_lines(found):
        say(line)
    say(f"written to {out}; use it with `trivium plan estimate --machine {shlex.quote(str(out))}`")


def probe_lines(found: "Probed") -> list[str]:
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


COLUMNS = ("rows", "bias", "mape", "median", "p95", "max")


def backtest(
    file: Annotated[Path, typer.Argument(parser=local_path, metavar="FILE.csv", help="A table of published runs.")],
    fit_on: Annotated[
        Path | None,
        typer.Option(
            "--fit", parser=local_path, metavar="OTHER.csv", help="Learn the constants from this table alone."
        ),
    ] = None,
    json: Annotated[
        Path | None,
        typer.Option(
            "--json", parser=local_path, metavar="OUT", help="Write rows and statistics; -: to standard output."
        ),
    ] = None,
) -> None:
    """Predict every run of a table, and say how far the predictions are from its measurements, in percent."""
    table, constants, aside = read_rows(file), None, json == STANDARD_OUTPUT
    if fit_on is not None:
        from trivium.planner.fit import fit  # scipy, which other verbs of plan never need

        learned_from = read_rows(fit_on)
        _say_skipped(fit_on, learned_from.problems, aside=aside)
        learned = fit(learned_from.rows)
        constants = learned.constants
        if not learned.rows:
            raise DataError(f"{fit_on}: none of its rows can be learned from; leave --fit out, or name another table")
        if not aside:
            say(f"constants learned from {learned.rows} of {len(learned_from.rows)} rows of {fit_on}")
    found = backtested(table, constants)
    _say_skipped(file, found.problems, aside=aside)
    if not found.rows:
        raise DataError(f"{file}: none of its rows can be graded; it needs at least one run")
    say_found(backtest_lines(found), found.tree(), json)


def backtest_lines(found: Backtest) -> list[str]:
    """A table of errors, of each source and of all."""
    head = f"{'':24}{'seconds, percent':>44}"
    rows = [head, f"{'source':24}" + "".join(f"{name:>8}" for name in COLUMNS)]
    for name, errors in [*((src, found.errors(src)) for src in found.sources), ("all", found.errors())]:
        rows.append(f"{name:24}{_figures(errors['seconds'])}{_memory(errors)}")
    return rows


def _figures(errors: Errors) -> str:
    return f"{errors.n:8,}" + "".join(f"{value:8.2f}" for value in errors[1:])


def _memory(errors: Mapping[str, Errors]) -> str:
    if "memory" not in errors:
        return ""
    held = errors["memory"]
    return f"   memory of {held.n}: mape {held.mape:.2f}, max {held.max:.2f}"


def _say_skipped(path: Path, problems: tuple[str, ...], *, aside: bool) -> None:
    """aside: to standard error, where a program reads what is printed."""
    told = say_aside if aside else say
    for problem in problems:
        told(f"{path}: {problem}")
    if problems:
        told(f"{path}: {counted(len(problems), 'row')} skipped; the others are graded")


def calibrate(
    run: Annotated[
        Path, typer.Option("--run", parser=local_path, metavar="DIR", help="The directory of a finished run.")
    ],
    machine: MachineOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", parser=local_path, metavar="FILE", help="The stack file; default: DIR/stack.yaml."),
    ] = None,
) -> None:
    """Learn how much longer steps take than predicted, from a run's metrics; `plan estimate --stack` reads it."""
    found = learned_from(run, machine)
    path = out or run / "stack.yaml"
    write_stack(path, found)
    say(
        f"measured over predicted: {found.factor:.3f}, the median of {found.steps} steps (quartiles {found.low:.3f} to "
        f"{found.high:.3f}, spread {found.spread:.1%}) on {found.machine}"
    )
    say(f"written to {path}; use it with `trivium plan estimate --stack {shlex.quote(str(path))}`")


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
