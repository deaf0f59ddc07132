"""Measure how far the planner's seconds are from published runs whose rows its constants were not learned from.

    python benchmarks/planner_accuracy.py FILE.csv [--splits 10] [--write] [--ship]

For each publication, learns the constants from all other publications and predicts the rows of this one: these
errors are the planner's accuracy. For each term that was added after residuals had been seen, does the same without
the term. --splits N adds N seeded splits into random halves, each way; both halves hold rows of every source, so their
errors are smaller. --write keeps all tables in benchmarks/reports and the first in docs/planner.md. --ship learns from
every row that may be fitted and writes cost/constants.yaml.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml
from marks import write_between_marks

from trivium.cost.constants import Constants, prior_constants, priors
from trivium.planner.backtest import Errors, errors_of, predicted_memory, predicted_seconds, regret, workloads
from trivium.planner.fit import fit
from trivium.planner.published_rows import Row, over_batches, read_rows

REPORTS = Path(__file__).parent / "reports"
ROOT = Path(__file__).parent.parent
CONSTANTS = ROOT / "src/trivium/cost/constants.yaml"
DOCS = ROOT / "docs/planner.md"
BEGIN, END = "<!-- accuracy: begin -->", "<!-- accuracy: end -->"
MEGATRON = ("sc21_t1", "sc21_t2", "korth_t5")
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "Megatron on A100": MEGATRON,
    "all A100 3D": (*MEGATRON, "bloom", "vtrain_multi"),
    "BLOOM": ("bloom",),
    "vTrain, many nodes": ("vtrain_multi",),
    "FSDP": ("mpt_a100-80", "mpt_a100-40", "mpt_h100"),
    "B200": ("simumax_b200",),
}
# What one publication measured, with one cluster and one system, is left out as a whole.
PUBLICATIONS: Mapping[str, tuple[str, ...]] = {
    "SC'21": ("sc21_t1", "sc21_t2", "sc21_t2_zero3"),
    "Korthikanti et al.": ("korth_t5",),
    "MT-NLG": ("mtnlg",),
    "BLOOM": ("bloom",),
    "vTrain": ("vtrain_multi", "vtrain_single"),
    "llm-foundry": ("mpt_a100-80", "mpt_a100-40", "mpt_h100"),
    "SimuMax": ("simumax_b200",),
    "torchtitan": ("torchtitan",),
    "Megatron Core": ("mcore_h100",),
    "Llama 3": ("llama3",),
}
FSDP = ("mpt_h100", "mpt_a100-80", "mpt_a100-40")


class Term(NamedTuple):
    """A term that was added after residuals had been seen: the rows it was added for, and what removes it.

    held: constants with the values that switch it off. flags: of stacks.
    """

    name: str
    sources: tuple[str, ...]
    held: Mapping[str, float] = {}
    flags: Mapping[str, object] = {}


NO_DEEPSPEED = {"deepspeed_tensor": 1.0, "deepspeed_gradient_bytes": 0.0, "deepspeed_step_seconds": 0.0}
NO_MECHANISM = {"attention": None, "reduces_by_chunk": False, "overlaps_tensor_forward": False}
NEVER_SLOWER = 1e3  # as a share of the plain fp32 peak: above the peak of tensor cores
TERMS = (
    Term("DeepSpeed's three terms", ("mtnlg", "bloom"), held=NO_DEEPSPEED),
    Term("Megatron's dated flags", ("vtrain_multi",), flags={"overlaps_tensor": False, "fused_accumulation": False}),
    Term("Megatron Core's three mechanisms", ("mcore_h100",), flags=NO_MECHANISM),
    Term("gathers by parameter of ZeRO-3 in 2021", ("sc21_t2_zero3",), flags={"gathers_by_parameter": False}),
    Term("early stop of recomputing", FSDP, flags={"stops_early": False}),
    Term("slower products of eager stacks", (*FSDP, "torchtitan"), held={"eager_products": 1.0}),
    Term("ramp of fused attention", (*FSDP, "simumax_b200", "torchtitan"), held={"flash_ramp": 0.0}),
    Term("misaligned products", ("bloom",), held={"misaligned": NEVER_SLOWER}),
    Term("remote memory", ("bloom",), flags={"remote_memory": False}),
)
TARGET = "mtnlg"  # predicted with what each half taught; never fitted
ENOUGH = 6  # layouts of a workload whose ranking is graded
DIGITS = 4  # of a shipped constant


class Held(NamedTuple):
    """Errors on held-out rows over all halves: means, and the worst half's MAPE and maximum."""

    n: float
    bias: float
    mape: float
    median: float
    p95: float
    max: float
    worst_mape: float
    worst_max: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--splits", type=int, default=0)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--ship", action="store_true")
    asked = parser.parse_args()
    rows = read_rows(asked.file).rows
    used = [row for row in rows if row.fitted]
    learned = fit(used)
    if asked.ship:
        ship(learned.constants)
    others = {name: [row for row in used if row.src not in src] for name, src in PUBLICATIONS.items()}
    from_others = {name: fit(rows_of_others).constants for name, rows_of_others in others.items()}
    found = {
        "left_out": left_out(rows, from_others),
        "terms": terms(rows, others, from_others),
        "fitted": learned.rows,
        "splits": asked.splits,
        "held_out": held_out(rows, used, asked.splits) if asked.splits else {},
        "shipped": {name: errors(chosen(rows, src), learned.constants) for name, src in FAMILIES.items()},
        "priors": {name: errors(chosen(rows, src), prior_constants()) for name, src in FAMILIES.items()},
        "ranking": ranking(used),
        "memory": memory(chosen(rows, FAMILIES["B200"])),
    }
    text = markdown(found, learned.constants)
    print(text)
    if asked.write:
        REPORTS.mkdir(exist_ok=True)
        (REPORTS / "planner_accuracy.md").write_text(text, encoding="utf-8")
        (REPORTS / "planner_accuracy.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        if not write_between_marks(DOCS, page_lines(found), BEGIN, END):
            sys.exit(f"{DOCS}: the marks {BEGIN} and {END} are missing")


def chosen(rows: Sequence[Row], sources: Sequence[str]) -> list[Row]:
    return [row for row in rows if row.src in sources]


def predicted(rows: Sequence[Row], constants: Constants) -> np.ndarray:
    return over_batches(rows, lambda batch: predicted_seconds(batch, constants))


def errors(rows: Sequence[Row], constants: Constants) -> dict[str, float]:
    return errors_of(predicted(rows, constants), [row.seconds for row in rows])._asdict()


def left_out(rows: Sequence[Row], from_others: Mapping[str, Constants]) -> list[dict[str, float | str]]:
    """Return the errors of each source, with constants learned from all other publications."""
    found: list[dict[str, float | str]] = []
    for publication, sources in PUBLICATIONS.items():
        for src in sources:
            if of := chosen(rows, [src]):
                fitted = sum(row.fitted for row in of)
                graded = errors(of, from_others[publication])
                found.append({"publication": publication, "src": src, "fitted": fitted, **graded})
    return found


def terms(
    rows: Sequence[Row], others: Mapping[str, Sequence[Row]], from_others: Mapping[str, Constants]
) -> list[dict[str, float | str]]:
    """Return each term's error with and without it, of the rows it was added for, with constants learned from all
    other publications."""
    found: list[dict[str, float | str]] = []
    for term in TERMS:
        for publication, sources in PUBLICATIONS.items():
            graded = [src for src in term.sources if src in sources]
            if not graded:
                continue
            bare = fit(without(term, others[publication]), term.held).constants
            for src in graded:
                of = chosen(rows, [src])
                kept = errors(of, from_others[publication])["mape"]
                removed = errors(without(term, of), bare)["mape"]
                found.append({"term": term.name, "src": src, "with": kept, "without": removed})
    return found


def without(term: Term, rows: Sequence[Row]) -> list[Row]:
    """Return the rows with stacks that lack what the term prices."""
    return [row._replace(stack=row.stack.model_copy(update=dict(term.flags))) for row in rows]


def halves(rows: Sequence[Row], splits: int) -> Iterator[tuple[list[Row], list[Row]]]:
    """Each split both ways: rows to learn from, rows to grade."""
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(len(rows))
        even, odd = ([rows[i] for i in order[start::2]] for start in (0, 1))
        yield even, odd
        yield odd, even


def held_out(rows: Sequence[Row], used: Sequence[Row], splits: int) -> dict[str, dict[str, float]]:
    found: dict[str, list[Errors]] = {name: [] for name in (*FAMILIES, "MT-NLG")}
    for train, test in halves(used, splits):
        constants = fit(train).constants
        graded = {name: chosen(test, sources) for name, sources in FAMILIES.items()}
        graded["MT-NLG"] = chosen(rows, (TARGET,))
        for name, of in graded.items():
            if of:
                found[name].append(Errors(**errors(of, constants)))
    return {name: _over(of)._asdict() for name, of in found.items()}


def _over(of: Sequence[Errors]) -> Held:
    mean = [float(np.mean(values)) for values in zip(*of, strict=True)]
    return Held(*mean, max(e.mape for e in of), max(e.max for e in of))


def ranking(rows: Sequence[Row]) -> list[dict[str, float | str]]:
    """The choice in each group of layouts, with constants learned from all rows but the group's."""
    found = []
    for group in workloads(rows, ENOUGH):
        inside = {row.line for row in group}
        constants = fit([row for row in rows if row.line not in inside]).constants
        one = group[0]
        found.append(
            {
                "src": one.src,
                "layouts": len(group),
                "ranks": one.ranks,
                "layers": one.numbers["L"],
                "hidden": one.numbers["h"],
                "regret_percent": 100 * regret(group, predicted(group, constants)),
                "worst_percent": 100 * (max(r.seconds for r in group) / min(r.seconds for r in group) - 1),
            }
        )
    return found


def memory(rows: Sequence[Row]) -> dict[str, float]:
    return errors_of(over_batches(rows, predicted_memory), [row.memory_bytes or np.nan for row in rows])._asdict()


def ship(constants: Constants) -> None:
    """Write the fitted values beside the priors."""
    head = [line for line in CONSTANTS.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    tree = {}
    for name, prior in priors().items():
        value = float(f"{getattr(constants, name):.{DIGITS}g}")
        tree[name] = {**prior.model_dump(exclude_defaults=True), "value": value}
    body = yaml.safe_dump(tree, sort_keys=False, width=110)
    CONSTANTS.write_text("\n".join([*head, body]), encoding="utf-8")


def left_out_lines(found: Sequence[Mapping[str, float | str]]) -> list[str]:
    """Return the table of whole publications left out. Sources without fitted rows are never learned from."""
    lines = [
        "Each publication predicted with constants that were learned from all others, in percent of the measured "
        "seconds:",
        "",
        "| publication | rows | n | fitted for others | bias | mean | median | 95th percentile | largest |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for e in found:
        learned = "yes" if e["fitted"] else "never"
        lines.append(
            f"| {e['publication']} | {e['src']} | {e['n']} | {learned} | {e['bias']:+.1f} | {e['mape']:.1f} | "
            f"{e['median']:.1f} | {e['p95']:.1f} | {e['max']:.1f} |"
        )
    return lines


def terms_lines(found: Sequence[Mapping[str, float | str]]) -> list[str]:
    """Return the table of terms, with and without."""
    return [
        "Terms that were added after residuals had been seen: the mean error of the left-out rows with the term, and "
        "learned and predicted without it:",
        "",
        "| term | rows | with | without |",
        "| --- | --- | --- | --- |",
        *(f"| {t['term']} | {t['src']} | {t['with']:.1f} | {t['without']:.1f} |" for t in found),
    ]


def halves_lines(found: Mapping[str, object]) -> list[str]:
    """Return the table of random halves, beside the errors of constants learned from all rows and of the priors."""
    held, shipped, prior, splits = (found[name] for name in ("held_out", "shipped", "priors", "splits"))
    lines = [
        f"Random halves ({splits} seeded splits, each way), constants learned from all {found['fitted']} rows that may "
        "be fitted, and priors alone. Both halves hold every source, so this is an easier test:",
        "",
        "| rows | graded | bias | mean (worst half) | median | 95th percentile | largest (worst half) | learned from "
        "all: mean | priors: mean |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, h in held.items():
        end = " | ".join(f"{t[name]['mape']:.2f}" if name in t else "" for t in (shipped, prior))
        lines.append(
            f"| {name} | {h['n']:.1f} | {h['bias']:+.2f} | {h['mape']:.2f} ({h['worst_mape']:.2f}) | {h['median']:.2f} "
            f"| {h['p95']:.1f} | {h['max']:.1f} ({h['worst_max']:.1f}) | {end} |"
        )
    return lines


def ranking_lines(found: Sequence[Mapping[str, float | str]]) -> list[str]:
    """Return the table of choices among layouts."""
    lines = [
        "The planner's choice in each group of at least six runs that differ only in layout, with constants learned "
        "without the group:",
        "",
        "| workload | layouts | its choice over the best measured | worst layout |",
        "| --- | --- | --- | --- |",
    ]
    for g in found:
        shape = f"{g['src']}: {g['layers']:.0f} layers of {g['hidden']:,.0f}, {g['ranks']:.0f} ranks"
        lines.append(f"| {shape} | {g['layouts']} | +{g['regret_percent']:.1f} % | +{g['worst_percent']:.0f} % |")
    return lines


def page_lines(found: Mapping[str, object]) -> list[str]:
    """Return the table of docs/planner.md, and the sentence about memory under it."""
    m = found["memory"]
    memory = f"Memory on B200, {m['n']} rows, nothing fitted: mean error {m['mape']:.2f} %, largest {m['max']:.2f} %."
    return [*left_out_lines(found["left_out"]), "", memory]


def markdown(found: Mapping[str, object], constants: Constants) -> str:
    """Return the report: all tables, and what each constant was learned to be."""
    halves = [*halves_lines(found), ""] if found["held_out"] else []
    lines = [*page_lines(found), "", *terms_lines(found["terms"]), "", *halves, *ranking_lines(found["ranking"]), ""]
    lines += ["| constant | prior | learned |", "| --- | --- | --- |"]
    for name, p in priors().items():
        lines.append(f"| {name} | {p.prior:.4g} ± {p.spread:.2g} | {getattr(constants, name):.4g} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
