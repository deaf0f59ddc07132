"""Predict strong and weak scaling of a plan by more replicas.

    python benchmarks/scaling.py --preset mt-nlg-530b --machine selene [--largest N] [--html FILE] [--json FILE]

Prints the curves next to a simulation of T3 (collectives triggered tile by tile). All figures are predictions.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from plotly.subplots import make_subplots

from trivium.cli.options import DEFAULT_PRESET, Sets
from trivium.cli.paths import local_path
from trivium.cli.plan_search import MAX_COUNT
from trivium.cli.price import MachineOption, machine_of
from trivium.cli.run_config import Given, resolve
from trivium.cli.show import say_found, table
from trivium.errors import ConfigError, DataError
from trivium.planner.scale import DEFAULT_MAX_DEVICES, T3_PUBLISHED, Point, Scaling, geomean_speed_up, scaling
from trivium.units import format_bytes, format_count, format_seconds

PresetOption = Annotated[str, typer.Option("--preset", metavar="NAME", help="A shipped preset or a YAML/JSON file.")]
TITLES = {
    "strong": "strong scaling, predicted: the same batch on more devices",
    "weak": "weak scaling, predicted: as many sequences for each replica as now",
}
HEADER = ("devices", "data", "sequences", "step", "tokens/s", "utilisation", "efficiency", "with T3", "")
COLOURS = {"strong": "#0072B2", "weak": "#E69F00"}


def scale(
    preset: PresetOption = DEFAULT_PRESET,
    machine: MachineOption = None,
    sets: Sets = None,
    largest: Annotated[
        int, typer.Option("--largest", metavar="N", max=MAX_COUNT, help="Devices at the end of the curves.")
    ] = DEFAULT_MAX_DEVICES,
    html: Annotated[
        Path | None, typer.Option("--html", parser=local_path, metavar="FILE", help="Write a page with the curves.")
    ] = None,
    json: Annotated[
        Path | None,
        typer.Option(
            "--json", parser=local_path, metavar="FILE", help="Write the figures as data; -: to standard output."
        ),
    ] = None,
) -> None:
    """Predict strong and weak scaling by more replicas; beside it, simulated, collectives triggered tile by tile."""
    config = resolve(Given(preset, (*(sets or ()), *([f"machine={machine}"] if machine else [])))).checked()
    found = scaling(config.plan, machine_of(config.machine), largest=largest, share=config.search.memory_fraction)
    if html is not None:
        write_curves(html, f"{preset} on {found.machine.name}, predicted", found.tree()["curves"])
    say_found(scaling_lines(found, preset), found.tree(), json, html)


def scaling_lines(found: Scaling, name: str) -> list[str]:
    """The curves and the sublayers as text."""
    told = [f"{name} on {found.machine.name}: predictions of the cost model, not measurements"]
    for kind, points in found.curves.items():
        rows = [_row(p) for p in points]
        told += ["", TITLES[kind], *table(rows, header=HEADER)]
    if any(p.beyond for points in found.curves.values() for p in points):
        told.append(
            f"* beyond the {found.machine.devices:,} devices of {found.machine.name}: more nodes of the same kind"
        )
    return [*told, "", *_t3_lines(found), *_ring_lines(found)]


def _row(p: Point) -> tuple[str, ...]:
    marks = ("*" if p.beyond else "") + ("" if p.price.fits else " does not fit")
    return (
        f"{p.devices:,}",
        str(p.data),
        f"{p.sequences:,}",
        format_seconds(p.price.seconds),
        format_count(round(p.price.tokens_per_second)),
        f"{p.price.utilisation:.1%}",
        f"{p.efficiency:.1%}",
        "" if p.triggered_seconds is None else format_seconds(p.triggered_seconds),
        marks,
    )


def _t3_lines(found: Scaling) -> list[str]:
    if not found.sublayers:
        return ["simulated T3: plan.layout.tensor is 1, so no product waits for a collective"]
    rows = [
        (
            s.name,
            format_seconds(s.seconds),
            format_seconds(s.triggered_seconds),
            f"{s.speed_up:.1%}",
            "" if s.contended_speed_up is None else f"{s.contended_speed_up:.1%}",
            format_bytes(round(s.moved_bytes)),
            f"{s.less_moved:.1%}",
        )
        for s in found.sublayers
    ]
    header = ("sublayer with its collectives", "kernels", "triggered", "ideal overlap", "contended", "moved", "less")
    published = T3_PUBLISHED
    return [
        "simulated T3: tensor collectives triggered tile by tile, sums made in memory; no such hardware exists",
        *table(rows, header=header),
        "ideal overlap: product and messages do not slow each other; contended: they share the memory, event by event",
        f"geometric mean {geomean_speed_up(found.sublayers):.1%} faster; T3's authors simulate "
        f"{published['speed_up_geomean']:.0%} ({published['speed_up_most']:.0%} at most) and "
        f"{published['less_data_moved']:.0%} less data moved on their communication-heavy sublayers, with contention",
    ]


def _ring_lines(found: Scaling) -> list[str]:
    if not found.in_ring:
        return []
    rows = [(p.name, *map(format_seconds, p[1:])) for p in found.in_ring]
    header = ("product with its messages", "one after another", "in a ring, ideal", "contended")
    return [
        "",
        "plan.overlap_tensor, predicted: one piece is multiplied while another travels",
        *table(rows, header=header),
    ]


def write_curves(path: Path, title: str, curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write the page. curves: {kind: points}, with devices, tokens_per_second, utilisation and efficiency."""
    figure = make_subplots(rows=1, cols=2, subplot_titles=("tokens per second", "utilisation (model FLOP/s over peak)"))
    for kind, points in curves.items():
        devices = [p["devices"] for p in points]
        texts = [f"data {p['data']}, {p['seconds']:.1f} s, efficiency {p['efficiency']:.1%}" for p in points]
        for column, field in ((1, "tokens_per_second"), (2, "utilisation")):
            figure.add_scatter(
                x=devices,
                y=[p[field] for p in points],
                name=f"{kind}, predicted",
                legendgroup=kind,
                showlegend=column == 1,
                mode="lines+markers",
                line={"color": COLOURS.get(kind)},
                text=texts,
                row=1,
                col=column,
            )
    figure.update_xaxes(type="log", title="devices")
    figure.update_yaxes(type="log", row=1, col=1)
    figure.update_yaxes(rangemode="tozero", tickformat=".0%", row=1, col=2)
    figure.update_layout(title=title, height=560)
    path.write_text(figure.to_html(full_html=True, include_plotlyjs=True), encoding="utf-8")


def main() -> None:
    """Run the script; an error that a user can fix is one line and an exit code."""
    try:
        typer.run(scale)
    except (ConfigError, DataError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
