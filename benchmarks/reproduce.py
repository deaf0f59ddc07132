"""The paper's figures (arXiv 2201.11990) beside those that follow from our plan, schedule, cost model and blend.

    make reproduce [JSON=FILE]
    python benchmarks/reproduce.py [--json FILE]

Prints the figures and writes them into docs/reproduction.md. Losses and accuracies need the trained model:
`trivium evaluate` shows the published ones next to a model's.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from trivium.cli.show import say, table
from trivium.config import build, read_preset
from trivium.corpus.config import CurateConfig
from trivium.cost.activations import input_bytes
from trivium.cost.case import case_of
from trivium.cost.compute import hardware_flops
from trivium.cost.hardware import machine_named
from trivium.cost.memory import memory_of_rank
from trivium.cost.rank_parameters import elements_of_rank
from trivium.cost.stages import layers_by_stage
from trivium.cost.timeline import simulate, unit_seconds
from trivium.plan.batch import Batch
from trivium.plan.layout import Coordinate
from trivium.plan.parameters import count
from trivium.plan.plan import Plan
from trivium.plan.schedule import make_schedule
from trivium.planner.campaign import campaign
from trivium.planner.published import Published, full_batch, mt_nlg_plan, published_runs
from trivium.provenance import write_json
from trivium.tokens.recipe import contents_after, load_recipe

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reproduction.md"
BEGIN, END = "<!-- reproduce: begin -->\n", "<!-- reproduce: end -->"
FORMAT = "trivium-reproduction-1"
# counted: follows from definitions; predicted: by the cost model; setting: a default of curation
KINDS = ("counted", "predicted", "setting")
PRESET = "mt-nlg-530b"
SHOW = f"trivium plan show --preset {PRESET}"
ESTIMATE = f"trivium plan show --preset {PRESET} --tokens 270B"
MEMORY_LAWS = "pytest tests/cost/memory_test.py"
TRAINED_TOKENS = 270 * 10**9
BLEND = "trivium corpus show --blend mt-nlg"
DEFAULTS = "trivium config show curate"


@dataclass(frozen=True)
class Figure:
    """One figure of the paper and ours.

    paper: as printed there, in `unit`; a lower bound if `over`. ours: in the same unit. command: shows ours.
    note: assumptions, or why ours differs.
    """

    section: str
    what: str
    paper: str
    ours: float
    unit: str = ""
    command: str = ""
    kind: str = "counted"
    over: bool = False
    note: str = ""

    @property
    def decimals(self) -> int:
        """The number of decimals that the paper prints."""
        return len(self.paper.partition(".")[2])

    @property
    def deviation(self) -> float:
        """Relative difference from the paper's figure."""
        return self.ours / float(self.paper) - 1

    @property
    def agrees(self) -> bool:
        """Whether ours rounds to the printed figure, or lies beyond the printed bound."""
        if self.over:
            return self.ours > float(self.paper)
        return bool(abs(self.ours - float(self.paper)) <= 0.5 * 10**-self.decimals)

    @property
    def verdict(self) -> str:
        """ "=" if both agree, otherwise the relative difference."""
        return "=" if self.agrees else f"{self.deviation:+.1%}"

    @property
    def printed(self) -> tuple[str, str]:
        """Both figures with their unit. Ours has one more decimal, unless both are whole numbers."""
        decimals = self.decimals if self.ours == int(self.ours) and not self.decimals else self.decimals + 1
        unit = f" {self.unit}" if self.unit else ""
        whole, point, fraction = self.paper.partition(".")
        paper = f"{'over ' if self.over else ''}{int(whole):,}{point}{fraction}{unit}"
        return paper, f"{self.ours:,.{decimals}f}{unit}"

    def tree(self) -> dict[str, Any]:
        return {**vars(self), "agrees": self.agrees, "deviation": self.deviation}


def every_figure() -> list[Figure]:
    """Return the figures that can be computed without the trained model, in the paper's order."""
    parts = (_size, _memory, _pipeline, _throughput, _blend, _rules, _recipe)
    return [figure for part in parts for figure in part()]


def _size() -> list[Figure]:
    plan, selene = mt_nlg_plan(), machine_named("selene")
    layout, peak = plan.layout, selene.peak.bf16 * selene.devices / 1e18
    return [
        Figure("2", "parameters, billions", "530", count(plan.model) / 1e9, command=SHOW),
        Figure("2", "GPUs of one replica: tensor x pipeline", "280", layout.tensor * layout.pipeline, command=SHOW),
        Figure("2", "layers of a pipeline stage", "3", max(map(len, layers_by_stage(plan))), command=SHOW),
        Figure("2", "peak of the cluster, 16 bits", "1.4", peak, "EFLOP/s", SHOW),
    ]


def _memory() -> list[Figure]:
    """With Adam in mixed precision, nothing sharded, and only the activations between layers kept."""
    plan = mt_nlg_plan().model_copy(update={"zero": 0})
    states = [
        memory_of_rank(plan, Coordinate(pipeline, 0, 0), counting="paper").state
        for pipeline in range(plan.layout.pipeline)
    ]
    of_one = states[1] / elements_of_rank(plan, 1).held  # the second rank holds layers only
    whole = plan.layout.tensor * sum(states)
    micro_batch = plan.model.layers * float(input_bytes(case_of(plan)))
    batch = plan.batch.sequences // plan.batch.micro * micro_batch
    ours = "a rank of ours holds 18: its gradients are fp32 only"
    return [
        Figure("2", "state of a parameter", "20", of_one, "bytes", MEMORY_LAWS, note=ours),
        Figure("2", "state of the model", "10", whole / 1e12, "TB", MEMORY_LAWS, over=True),
        Figure("2", "activations kept between layers, batch of 1,920", "16.9", batch / 1e12, "TB", MEMORY_LAWS),
        Figure("2", "the same of one of 1,920 micro-batches", "8.8", micro_batch / 1e9, "GB", MEMORY_LAWS),
    ]


def _pipeline() -> list[Figure]:
    """Busy time over total time of the 1F1B table, with backwards that take twice a forward, for 35 stages: the paper
    does not say how many stages its figures have."""
    stages = mt_nlg_plan().layout.pipeline
    return [
        Figure(
            "2",
            f"efficiency of a pipeline, {many} x as many micro-batches as stages",
            printed,
            100 * efficiency(stages, many * stages),
            "%",
            "trivium plan show --set plan.layout.pipeline=… --set plan.batch.sequences=…",
            note=f"{stages} stages",
        )
        for many, printed in ((4, "81"), (8, "90"))
    ]


def efficiency(stages: int, micro_batches: int) -> float:
    """Return busy time over total time of the 1F1B table with free transfers: m / (m + p - 1)."""
    table = make_schedule("1f1b", pipeline=stages, micro_batches=micro_batches)
    return 1 / (1 + simulate(table, unit_seconds).bubble_fraction)


def _throughput() -> list[Figure]:
    runs = zip(published_runs(), ("126", "121", "113"), strict=True)
    return [*(figure for run, teraflops in runs for figure in _run(run, teraflops)), _device_hours()]


def _run(run: Published, teraflops: str) -> tuple[Figure, Figure]:
    ranks = run.plan.layout.world_size
    nodes = ranks // machine_named(run.machine).devices_per_node
    work = hardware_flops(run.plan).total / run.seconds / ranks / 1e12
    with_theirs = f"software: {run.stack}"
    counted = "our FLOPs, recomputed ones included, over the paper's seconds"
    show = SHOW if nodes == 280 else f"{SHOW} --set plan.layout.data={nodes // 35} --set plan.batch.ramp=null"
    step, gpu = f"a step on {nodes} nodes", f"work of a GPU on {nodes} nodes"
    return (
        Figure("2.4", step, str(run.seconds), run.predicted_seconds, "s", show, "predicted", note=with_theirs),
        Figure("2.4", gpu, teraflops, work, "TFLOP/s", show, note=counted),
    )


def _device_hours() -> Figure:
    """GPU-hours of the whole training with its batch ramp, with the paper's software."""
    run, plan = published_runs()[0], build(Plan, read_preset(PRESET)["plan"])
    assert full_batch(plan) == run.plan, f"preset {PRESET} is not the plan of {run.source}"

    def seconds(sequences: int) -> float:
        batch = Batch(sequences=sequences, micro=plan.batch.micro)
        return run._replace(plan=plan.model_copy(update={"batch": batch})).predicted_seconds

    hours = campaign(plan, TRAINED_TOKENS, seconds, plan.layout.world_size).device_hours
    note = "from DeepSpeed's post of December 2021"
    what = "GPU-hours for 270 billion tokens, millions"
    return Figure("2.4", what, "3", hours / 1e6, "", ESTIMATE, "predicted", over=True, note=note)


def _blend() -> list[Figure]:
    """Table 2: the tokens of the sources, and how often each is read in 270 billion tokens."""
    plan, recipe = build(Plan, read_preset(PRESET)["plan"]), load_recipe("mt-nlg")
    tokens = sum(row.tokens for row in recipe.sources.values())
    read = contents_after(int(recipe.tokens_trained), recipe, sequence=plan.model.sequence)
    return [
        Figure("3.1", "sources", "15", len(recipe.sources), command=BLEND),
        Figure("3.1", "tokens of all sources, billions", "339", tokens / 1e9, command=BLEND),
        *(
            Figure("3.1", f"epochs of {source}", str(row.epochs), read[source].epochs, command=BLEND)
            for source, row in recipe.sources.items()
            if row.epochs is not None
        ),
    ]


def _rules() -> list[Figure]:
    """Section 3.1: the thresholds of curation, and our defaults."""
    curate = CurateConfig()
    rows = [
        ("least length of a document", "512", "characters", "quality.characters"),
        ("words of the classifier's n-grams", "2", "", "classifier.ngram"),
        ("Pareto exponent of the sampling by score", "3", "", "classifier.alpha"),
        ("Jaccard similarity of near duplicates", "0.8", "", "dedup.threshold"),
        ("MinHash bands", "20", "", "dedup.bands"),
        ("MinHash rows of a band", "13", "", "dedup.rows"),
        ("words of an n-gram of a task", "13", "", "decontamination.ngram"),
        ("cut on each side of it", "200", "characters", "decontamination.margin"),
        ("shortest piece that stays", "200", "characters", "decontamination.piece"),
        ("most pieces of a document", "10", "", "decontamination.pieces"),
    ]
    return [
        Figure("3.1", what, paper, attrgetter(field)(curate), unit, DEFAULTS, "setting")
        for what, paper, unit, field in rows
    ]


def _recipe() -> list[Figure]:
    """Section 3.2: what follows from the preset's plan."""
    tree = read_preset(PRESET)
    plan = build(Plan, tree["plan"])
    full, steps = plan.batch.segments[-1], tree["training"]["steps"]
    ramp, tokens = plan.tokens(full.first_sample), plan.tokens(plan.batch.at(steps).first_sample)
    deviation, rule = "standard deviation of the first weights, thousandths", "sqrt(1 / (3 hidden))"
    return [
        Figure("3.2", deviation, "4.0", 1e3 * plan.model.std, command=SHOW, note=rule),
        Figure("3.2", "tokens while the batch grows, billions", "12", ramp / 1e9, command=SHOW),
        Figure("3.2", "sequences of a full batch", "1920", full.sequences, command=SHOW),
        Figure("3.2", "tokens trained on, billions", "270", tokens / 1e9, command=SHOW),
    ]


def summary(figures: Sequence[Figure]) -> str:
    """Count the figures that agree, by kind, and give the largest deviation of the predicted seconds."""
    counts = []
    for kind in KINDS:
        of_kind = [f for f in figures if f.kind == kind]
        counts.append(f"{sum(f.agrees for f in of_kind)} of {len(of_kind)} {kind}")
    seconds = [abs(f.deviation) for f in figures if f.kind == "predicted" and f.unit == "s"]
    return f"equal as printed: {', '.join(counts)}; seconds predicted within {max(seconds, default=0.0):.1%}"


def markdown(figures: Sequence[Figure]) -> str:
    """Return for each section the commands, the equal figures with the paper's values, and a table of the others."""
    parts = [f"{summary(figures).capitalize()}."]
    for section, group in groupby(figures, key=attrgetter("section")):
        every = list(group)
        equal = [f"{f.what} = {f.printed[0]}" for f in every if f.agrees]
        others = [f for f in every if not f.agrees]
        commands = dict.fromkeys(f"`{f.command}`" for f in every)
        lines = [f"### Section {section}", "", f"Shown by {', '.join(commands)}. Equal: {'; '.join(equal)}."]
        if others:
            lines += ["", "| what | paper | ours | | note |", "|---|---:|---:|---|---|"]
        lines += [f"| {' | '.join((f.what, *f.printed, f.verdict, f.note))} |" for f in others]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE", help="default: docs/reproduction.md")
    given = parser.parse_args()
    figures = every_figure()
    rows = [(f.section, f.what, *f.printed, f.verdict) for f in figures]
    for line in table(rows, header=("section", "what", "paper", "ours", ""), indent=0):
        say(line)
    say(summary(figures))
    if given.json is not None:
        write_json(given.json, {"format": FORMAT, "figures": [f.tree() for f in figures]})
    before, _, rest = given.page.read_text("utf-8").partition(BEGIN)
    given.page.write_text(before + BEGIN + markdown(figures) + END + rest.partition(END)[2], "utf-8")


if __name__ == "__main__":
    main()
