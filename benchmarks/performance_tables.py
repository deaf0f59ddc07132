"""Write the tables of docs/performance.md from the newest reports of each processor and each accelerator.

python benchmarks/performance_tables.py [--reports benchmarks/reports] [--write]
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpu_page import CAVEATS, percent, ratio_without_replay, share_of_data_sheet
from marks import write_between_marks
from pieces import processor_slug
from step_page import OURS

HERE = Path(__file__).resolve().parent
BEGIN, END = "<!-- performance: begin -->", "<!-- performance: end -->"
GPU_BEGIN, GPU_END = "<!-- gpu: begin -->", "<!-- gpu: end -->"
SIZES = ("hidden 256", "hidden 512")
STEP_AIM = 1.0  # of the fastest peer's speed
# AMD processors with AVX-512, on which MKL runs its slow kernels unless told otherwise (docs/decisions/0011). Reports
# of them whose peers had the slow ones show no ratios in fp32.
SLOW_MKL = ("AMD EPYC, family 25 model 17", "AMD EPYC, family 26 model 2")
WITHOUT_BF16 = ("AMD EPYC, family 25 model 1", "AMD EPYC, family 23 model 1")

Record = Mapping[str, Any]


class Figure(NamedTuple):
    """One ratio of a report: its row of the overview, and what was aimed at."""

    name: str
    ratio: float
    aim: float


def main(arguments: list[str]) -> int:
    """Print the tables, or write them between their marks; exit code 1 when there is no report or no mark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reports", type=Path, default=HERE / "reports")
    parser.add_argument("--root", type=Path, default=HERE.parent, help="where docs/ is")
    parser.add_argument("--write", action="store_true", help="into docs/performance.md")
    asked = parser.parse_args(arguments)
    steps, engines = (_newest_of_each(asked.reports, name) for name in ("step", "engine"))
    accelerators = _newest_of_each(asked.reports, "gpu", lambda record: record["device"])
    if not steps and not engines:
        print(f"no step-DATE.json or engine-DATE.json in {asked.reports}", file=sys.stderr)
        return 1
    page = asked.root / "docs" / "performance.md"
    tables = {BEGIN: (overview(steps, engines), END), GPU_BEGIN: (gpu_tables(accelerators.values()), GPU_END)}
    for begins, (lines, ends) in tables.items():
        if not asked.write:
            print("\n".join(lines))
        elif lines and not write_between_marks(page, lines, begins, ends):
            print(f"{page}: the marks {begins} and {ends} are missing", file=sys.stderr)
            return 1
    return 0


def overview(steps: Mapping[str, Record], engines: Mapping[str, Record]) -> list[str]:
    """Return the table of rows that have an aim and were measured on at least three processors, or on all if there are
    fewer. A processor's ratio is the lowest over the sizes; a row has the lowest and the highest of all processors, in
    italics below the aim."""
    figures = {p: [*_step_figures(steps.get(p)), *_engine_figures(engines.get(p))] for p in {**engines, **steps}}
    measured = Counter(name for every in figures.values() for name in {f.name for f in every})
    fewest = min(3, len(figures))
    aims = {f.name: f.aim for every in figures.values() for f in every if measured[f.name] >= fewest}
    memory = [share for p in figures for share in _memory_shares(steps.get(p))]
    return [
        "| row | aim | lowest | highest | processors |",
        "|---|---:|---:|---:|---:|",
        *(_row(name, aim, [_lowest(name, figures[p]) for p in figures]) for name, aim in aims.items()),
        _memory_row(memory) if memory else "",
    ]


def _row(name: str, aim: float, lowest: Sequence[Figure | None]) -> str:
    found = [figure for figure in lowest if figure is not None]
    least, most = (_ratio(of(found, key=lambda f: f.ratio)) for of in (min, max))
    return f"| {name} | {aim:.2f} | {least} | {most} | {len(found)} |"


def _memory_row(shares: Sequence[float]) -> str:
    least, most = (_told(f"{share:.2f}", reached=share <= 1) for share in (min(shares), max(shares)))
    return f"| memory of a step, of the leanest peer's, at most | 1.00 | {least} | {most} | {len(shares)} |"


def gpu_tables(records: Iterable[Record]) -> list[str]:
    """Return the tables of each GPU: steps as fractions of its ceiling and relative to peers, text generation, and the
    planner's errors. Values short of the target are italic."""
    return [line for record in records for line in ("", *_gpu_table(record))][1:]


def _gpu_table(record: Record) -> list[str]:
    parts, aims = record["parts"], record["targets"]
    lines = [
        f"| {record['device']}, bf16, torch {record['torch']}, {record['date'][:10]} | of the data sheet | "
        "fastest peer | of the product's ceiling | aim | fastest peer's seconds over Trivium's | without replay "
        "| aim |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, part in parts.items():
        if not part.get("ratio"):
            continue
        best, aim = part["sides"][part["best"]], aims.get(name.removeprefix("training "))
        peer = part["sides"][part["fastest_peer"]]
        ours, theirs = (percent(share_of_data_sheet(record["device"], s["flops_per_second"])) for s in (best, peer))
        reached = best["share_of_ceiling"]  # None in a report without ceilings
        share = _told(percent(reached), reached=reached is None or not aim or reached >= aim)
        ratio = _told(f"{part['ratio']:.2f}", reached=part["ratio"] >= aims["ratio"])
        plain = ratio_without_replay(part)
        lines.append(
            f"| {name} ({part['best']}) | {ours} | {theirs} | {share} | {f'{aim:.0%}' if aim else ''} "
            f"| {ratio} ({part['fastest_peer']}) | {'' if plain is None else f'{plain:.2f}'} | {aims['ratio']} |"
        )
    for name, part in parts.items():
        told = {side: s["tokens_per_second"] for side, s in part.get("texts", {}).items() if "tokens_per_second" in s}
        if "trivium" in told and len(told) > 1:
            peer = next(side for side in told if side != "trivium")
            lines.append(f"| {name} | | | | | {told['trivium'] / told[peer]:.2f} ({peer}) | | |")
    planner = parts.get("planner", {})
    if rows := [row for name, row in planner.get("rows", {}).items() if name != planner["calibrated_on"]]:
        seconds, peak = (max(abs(row[f"{what}_error"]) for row in rows) for what in ("seconds", "bytes"))
        lines.append(
            f"| planner: largest error of seconds, of peak memory, {len(rows)} plans after one calibration step | | | "
            f"{_told(f'{seconds:.1%}', reached=seconds <= aims['seconds'])}, "
            f"{_told(f'{peak:.1%}', reached=peak <= aims['memory'])} | {aims['seconds']:.0%}, {aims['memory']:.0%} "
            "| | | |"
        )
    return [*lines, "", *(f"- {caveat}" for caveat in CAVEATS)]


def _told(figure: str, *, reached: bool) -> str:
    return figure if reached else f"*{figure}*"


def _kept(record: Record) -> Record:
    """Return the record without rows whose peers ran as no user would run them: in fp32 by MKL's slow kernels, or in
    bf16 on a processor without instructions for it."""
    processor = record["machine"]["processor"]
    unfair = [processor in SLOW_MKL and not record.get("fast_mkl"), processor in WITHOUT_BF16]  # in fp32, in bf16
    return {**record, "rows": [r for r in record["rows"] if "comparisons" not in r or not unfair["bf16" in r["name"]]]}


def _step_figures(record: Record | None) -> Iterator[Figure]:
    for row in _contests(record):
        ratios = [c["ratio"] for c in row["comparisons"] if c["status"] == "measured"]
        if ratios and _size(row) in SIZES:
            yield Figure(f"{_without_size(row)}: fastest peer", min(ratios), STEP_AIM)


def _engine_figures(record: Record | None) -> Iterator[Figure]:
    for row in _contests(record):
        for c in row["comparisons"]:
            if c["status"] == "measured" and c["target"] is not None and _size(row) in SIZES:
                layout = f"{_without_size(row)} {_variant(c)}".strip()
                yield Figure(f"{layout}: {c['peer']}", c["ratio"], c["target"])


def _lowest(name: str, figures: Sequence[Figure]) -> Figure | None:
    """Return the lowest ratio of the row on a processor, or None where none was measured."""
    return min((f for f in figures if f.name == name), key=lambda f: f.ratio, default=None)


def _ratio(figure: Figure) -> str:
    """Return the ratio, in italics below the aim."""
    told = _digits(figure.ratio, figure.aim)
    return told if figure.ratio >= figure.aim else f"*{told}*"


def _digits(ratio: float, aim: float | None) -> str:
    """Return a ratio with two decimals, or three where two would hide that it is below its aim."""
    hidden = aim is not None and ratio < aim <= round(ratio, 2)
    return f"{ratio:.{3 if hidden else 2}f}"


def _memory_shares(record: Record | None) -> list[float]:
    """Return the largest share over all rows of the leanest peer's memory, if there are rows."""
    shares = []
    for row in _contests(record):
        peers = [row["memory"][c["peer"]] for c in row["comparisons"] if c["status"] == "measured"]
        if peers:
            leanest = min(p["above_imports"] for p in peers)
            shares.append(row["memory"][OURS]["above_imports"] / leanest)
    return [max(shares)] if shares else []


def _contests(record: Record | None) -> list[Mapping[str, Any]]:
    return [] if record is None else [r for r in _kept(record)["rows"] if "comparisons" in r]


def _size(row: Mapping[str, Any]) -> str:
    found = re.search(r"hidden \d+|tiny", row["name"])
    return found[0] if found else ""


def _without_size(row: Mapping[str, Any]) -> str:
    """Return the row's name without its size and without what both sides repeat."""
    name = re.sub(r"\s*(hidden \d+|tiny)", "", row["name"])
    return re.sub(r".*\(external\) ", "", name)


def _variant(comparison: Mapping[str, Any]) -> str:
    """Return the variant of Trivium, where a row has several."""
    return comparison["trivium"].removeprefix("trivium").strip()


def _of_processor(record: Record) -> str:
    return processor_slug(record["machine"]["processor"])


def _newest_of_each(folder: Path, name: str, of: Callable[[Record], str] = _of_processor) -> dict[str, Record]:
    """Return the newest report of each processor, or of each key that `of` returns."""
    found: dict[str, Record] = {}
    for path in sorted(folder.glob(f"{name}-[0-9]*.json")):
        record = json.loads(path.read_text())
        found[of(record)] = record
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
