"""The page of a suite: curves of all sizes side by side, in one file that needs no network."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from trivium.report.figures import DASHES, GREY, look, plain_label, sized
from trivium.report.page import render_with_figures
from trivium.report.parts import Drawn, Section, Table
from trivium.units import counted, format_count, listed, shots_text

Tree = Mapping[str, Any]
Value = Callable[[Tree], float | None]
TOKENS = {"title": "tokens seen", "type": "log"}
SHARE = {"tickformat": ".0%", "rangemode": "tozero"}


def render(suite: Tree, command: str) -> str:
    """Render the page. command: the one that made the suite."""
    return render_with_figures(
        "suite.html",
        package="trivium.suite",
        title=f"{suite['family'].capitalize()}: {', '.join(s['size'] for s in suite['sizes'])}",
        order=order_line(suite),
        sizes=sizes_table(suite),
        sections=sections(suite),
        command=command,
    )


def order_line(suite: Tree) -> str:
    """Say whether all sizes were trained on the same batches, as far as they were logged."""
    compared, differ = suite["order"]["compared"], suite["order"]["differ"]
    if not compared:
        return "No step has been done by two sizes yet, so that their batches could not be compared."
    if differ:
        return (
            f"The batches differ in {len(differ):,} of {counted(compared, 'step')} (steps {listed(differ)}): a size "
            "skipped samples, or was trained with other settings. Its curves are not those of the same data."
        )
    return (
        f"Every size was trained on the same batches in the same order: their hashes agree in all {compared:,} steps."
    )


def sizes_table(suite: Tree) -> Table:
    """List the sizes with their parameters, settings and last losses."""
    rows = []
    for size in suite["sizes"]:
        tokens = size["curve"][-1]["tokens"] if size["curve"] else 0
        rows.append(
            (
                size["size"],
                f"{size['parameters']:,}",
                f"{size['layers']} / {size['hidden']} / {size['heads']}",
                f"{size['lr']:.3g}",
                format_count(tokens),
                _loss(size["curve"]),
                _loss(size["validation"]),
                f"{len(size['probes'])} of {len(suite['checkpoints'])}",
            )
        )
    headings = ("size", "parameters", "layers / hidden / heads", "learning rate", "tokens")
    return Table((*headings, "loss", "held-out loss", "checkpoints examined"), rows)


def _loss(points: Sequence[Tree]) -> str:
    return f"{points[-1]['loss']:.3f}" if points else "–"


def sections(suite: Tree) -> list[Section]:
    """Return the sections that have results."""
    made = (loss(suite), tasks(suite), in_context(suite), memorised(suite), bias(suite))
    return [section for section in made if section.figures]


def loss(suite: Tree) -> Section:
    """Draw the loss of all sizes on one axis, on training batches and on held-out text."""
    figures = []
    for key, caption in (("curve", "Loss on the training batches"), ("validation", "Loss on held-out text")):
        figure = go.Figure()
        for number, size in enumerate(suite["sizes"]):
            points = [p for p in size[key] if p["tokens"]]
            line = {"color": look(number)[0], "width": 1.5}
            _add(figure, size["size"], [(p["tokens"], p["loss"]) for p in points], line=line)
        figures += _drawn(caption, figure, "nats per token")
    shows = "Loss of each size against the tokens that it has seen."
    return Section("loss", "Loss", shows, figures=figures)


def tasks(suite: Tree) -> Section:
    """Draw the accuracy on each task by checkpoint; a dash for each number of shots."""
    names = dict.fromkeys(task for probe in _probes(suite) for task in probe["tasks"])
    figures = []
    for task in names:
        every = [probe["tasks"][task] for probe in _probes(suite) if task in probe["tasks"]]
        shots = list(dict.fromkeys(shot for by_shots in every for shot in by_shots))
        values = {shots_text(shot): _of("tasks", task, shot, "accuracy") for shot in shots}
        figure = _by_checkpoint(suite, values)
        chance = next(iter(every[0].values()))["chance"]
        figure.add_hline(y=chance, line={"color": GREY, "dash": "dot"}, annotation_text="chance")
        figures += _drawn(task, figure, {"title": "accuracy", **SHARE})
    shows = "Accuracy at every checkpoint. Differences between neighbouring checkpoints are mostly noise."
    return Section("tasks", "Tasks", shows, figures=figures)


def in_context(suite: Tree) -> Section:
    """Draw what the context is worth, and the accuracy by number of shots in the study."""
    gain = _by_checkpoint(suite, {"": _of("context", "gain")})
    figures = _drawn("Loss early in a held-out window minus loss late in it", gain, "nats per token")
    studies = [probe["incontext"] for probe in _probes(suite) if probe.get("incontext")]
    shots = dict.fromkeys(shot for study in studies for shot in study["shots"])
    values = {shots_text(shot): _of("incontext", "shots", shot, "accuracy") for shot in shots}
    if studies:
        figure = _by_checkpoint(suite, values)
        figures += _drawn(f"{studies[0]['task']} by number of shots", figure, {"title": "accuracy", **SHARE})
    shows = "A model that learns from its context predicts the end of a window better than its beginning."
    return Section("in-context", "In-context learning", shows, figures=figures)


def memorised(suite: Tree) -> Section:
    """Draw the share of sequences continued exactly, and their loss, by whether they were trained on."""
    groups = {"trained on": "seen", "not yet": "unseen", "held out": "heldout"}
    exact = {name: _of("memorisation", key, "accuracy") for name, key in groups.items()}
    nats = {name: _of("memorisation", key, "nats_per_token") for name, key in groups.items()}
    shares = _by_checkpoint(suite, exact)
    figures = _drawn("Sequences continued exactly", shares, {"title": "share", **SHARE})
    figures += _drawn("Loss of the continuations", _by_checkpoint(suite, nats), "nats per token")
    k = next((probe["memorisation"]["k"] for probe in _probes(suite)), 0)
    shows = (
        f"Each sequence is prompted with its first {k} tokens; it counts if greedy decoding returns the next {k} "
        "exactly. Sequences that come later in the order, and held-out ones, show what is continued without having "
        "been seen."
    )
    return Section("memorisation", "Memorisation", shows, figures=figures)


def bias(suite: Tree) -> Section:
    """Draw the effects of each bias measure by checkpoint."""
    effects = [effect for probe in _probes(suite) for effect in probe["bias"]]
    figures = []
    for measure in dict.fromkeys(effect["measure"] for effect in effects):
        of = dict.fromkeys(effect["of"] for effect in effects if effect["measure"] == measure)
        unit = next(effect["unit"] for effect in effects if effect["measure"] == measure)
        figure = _by_checkpoint(suite, {name: _effect(measure, name) for name in of})
        figures += _drawn(measure, figure, unit)
    shows = "Effects as `trivium bias` reports them; 0 is no difference between the groups."
    return Section("bias", "Bias", shows, figures=figures)


def _effect(measure: str, of: str) -> Value:
    def value(probe: Tree) -> float | None:
        found = (e for e in probe["bias"] if (e["measure"], e["of"]) == (measure, of))
        return next((effect["estimate"] for effect in found), None)

    return value


def _of(*path: str) -> Value:
    """Return the function that looks a value up in a probe, which may lack it."""

    def value(probe: Tree) -> float | None:
        node: Any = probe
        for key in path:
            node = node.get(key) if isinstance(node, Mapping) else None
        return None if node is None else float(node)

    return value


def _probes(suite: Tree) -> Iterable[Tree]:
    return (probe for size in suite["sizes"] for probe in size["probes"])


def _by_checkpoint(suite: Tree, values: Mapping[str, Value]) -> go.Figure:
    """Draw values against tokens: a colour for each size, a dash for each value. Checkpoints before the first token
    have no place on the logarithmic axis."""
    figure = go.Figure()
    for number, size in enumerate(suite["sizes"]):
        for turn, (name, value) in enumerate(values.items()):
            points = [(p["tokens"], found) for p in size["probes"] if p["tokens"] and (found := value(p)) is not None]
            line = {"color": look(number)[0], "dash": DASHES[turn % len(DASHES)], "width": 1.5}
            _add(figure, f"{size['size']}, {name}" if name else size["size"], points, line=line)
    return figure


def _add(figure: go.Figure, name: str, points: Sequence[tuple[int, float]], line: Mapping[str, Any]) -> None:
    if points:
        x, y = zip(*points, strict=True)
        figure.add_scatter(name=plain_label(name), x=x, y=y, mode="lines", line=dict(line))


def _drawn(caption: str, figure: go.Figure, y: Any) -> list[Drawn]:
    """Return the figure with its caption, or nothing if it has no curve."""
    return [Drawn(caption, sized(figure, 420, TOKENS, y))] if figure.data else []
