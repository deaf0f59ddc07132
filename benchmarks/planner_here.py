"""How well the planner knows this machine: step times of the demo's model under several layouts, predicted from a
machine file of `trivium plan probe`, and measured.

    python benchmarks/planner_here.py [--machine here.yaml] [--json OUT] [--rounds 4]

The probe never runs the demo's model. Layouts take turns: each round measures all of them once, so that a change of
the machine's speed meets all alike; a layout's time is the median over all its steps but the first of each round.
Without --machine each round begins with a probe, and a prediction is the mean of those by the rounds' probes: the speed
of a shared machine drifts by a fifth within minutes, and so meets both sides.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from scipy.stats import kendalltau

from trivium.cli.run_config import Given, resolve
from trivium.comms.launch import Place, connected, run_ranks
from trivium.comms.mesh import Mesh
from trivium.config import build, merge, to_tree
from trivium.cost.estimate import estimate
from trivium.cost.hardware import Machine, machine_from_file
from trivium.parallel.sharding.zero import AdamRule
from trivium.plan.plan import Plan
from trivium.seeds import generator_for
from trivium.tokens.rows import Rows
from trivium.training.trainer import Samples, Trainer

SEED, LR, STEPS, WARM_STEPS = 17, 1e-3, 6, 2
# tensor, pipeline, data, chunks: one to eight ranks
LAYOUTS = (
    (1, 1, 1, 1),
    (2, 1, 1, 1),
    (1, 2, 1, 1),
    (1, 1, 2, 1),
    (2, 2, 1, 2),
    (4, 1, 1, 1),
    (1, 4, 1, 1),
    (1, 1, 4, 1),
    (2, 1, 2, 1),
    (2, 2, 2, 2),
    (1, 1, 8, 1),
    (4, 2, 1, 1),
)


def demo_plan(tensor: int, pipeline: int, data: int, chunks: int) -> Plan:
    """The demo's model and full batch under another layout."""
    tree = to_tree(resolve(Given("demo")).plan)
    layout = {"tensor": tensor, "pipeline": pipeline, "data": data, "chunks": chunks}
    schedule = "interleaved" if chunks > 1 else "1f1b"
    return build(Plan, merge(tree, {"layout": layout, "schedule": schedule, "batch": {"ramp": None}})).checked()


def measured_steps(plan: Plan) -> list[float]:
    """Seconds of the steps of one turn, the first ones left out."""
    with tempfile.TemporaryDirectory(prefix="trivium-here-") as folder:
        out = Path(folder) / "seconds.json"
        run_ranks(_train, plan.layout.world_size, plan, str(out), timeout_seconds=120)
        return json.loads(out.read_text())


def _train(place: Place, plan: Plan, out: str) -> None:
    with connected(place):
        mesh = Mesh.connect(plan.layout, place.rank, place.world_size)
        trainer = Trainer(plan, mesh, seed=SEED, rule=AdamRule())
        rows = generator_for(SEED, "planner here").integers(
            0, plan.model.vocabulary, (plan.batch.sequences, plan.model.sequence + 1)
        )

        def read(first: int, count: int) -> Rows:
            return Rows.of_text(rows[first : first + count])

        seconds = []
        for step in range(STEPS):
            begin = time.perf_counter()
            trainer.train_step(step, Samples(0, plan.batch.sequences, read), LR)
            seconds.append(time.perf_counter() - begin)
        if place.rank == 0:
            Path(out).write_text(json.dumps(seconds[WARM_STEPS:]))


def probed() -> Machine:
    """What `trivium plan probe` writes now."""
    with tempfile.TemporaryDirectory(prefix="trivium-here-") as folder:
        out = Path(folder) / "here.yaml"
        command = [sys.executable, "-m", "trivium.cli.main", "plan", "probe", "--out", str(out)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=300)
        return machine_from_file(out)


def compare(given: Machine | None, rounds: int) -> dict[str, Any]:
    """Every layout's measured and predicted seconds, their error, and the agreement of the two orders."""
    plans = {name(layout): demo_plan(*layout) for layout in LAYOUTS}
    steps: dict[str, list[float]] = {each: [] for each in plans}
    machines = []
    for _ in range(rounds):
        machines.append(given or probed())
        for each, plan in plans.items():
            steps[each] += measured_steps(plan)
    rows = []
    for each, plan in plans.items():
        prices = [estimate(plan, machine) for machine in machines]
        seconds, predicted = median(steps[each]), mean(price.seconds for price in prices)
        rows.append(
            {
                "layout": each,
                "ranks": plan.layout.world_size,
                "measured": seconds,
                "quartiles": [float(q) for q in np.quantile(steps[each], (0.25, 0.75))],
                "predicted": predicted,
                "by_probe": [price.seconds for price in prices],
                "error": predicted / seconds - 1,
                "parts": dict(vars(prices[0].parts)),
            }
        )
    errors = [abs(row["error"]) for row in rows]
    order = kendalltau([row["measured"] for row in rows], [row["predicted"] for row in rows])
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "rows": rows,
        "largest_error": max(errors),
        "mean_error": sum(errors) / len(errors),
        "kendall_tau": float(order.statistic),
    }


def name(layout: tuple[int, int, int, int]) -> str:
    """tensor 2 x pipeline 2 (2 chunks)."""
    tensor, pipeline, data, chunks = layout
    held = f" ({chunks} chunks)" if chunks > 1 else ""
    return f"tensor {tensor} x pipeline {pipeline}{held} x data {data}"


def page(found: dict[str, Any]) -> str:
    """The comparison as Markdown."""
    lines = [
        "| layout | ranks | measured, ms | quartiles | predicted, ms | error |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in found["rows"]:
        low, high = row["quartiles"]
        lines.append(
            f"| {row['layout']} | {row['ranks']} | {row['measured'] * 1e3:.0f} | {low * 1e3:.0f} to "
            f"{high * 1e3:.0f} | {row['predicted'] * 1e3:.0f} | {row['error']:+.1%} |"
        )
    return "\n".join(
        [
            *lines,
            "",
            f"Largest error {found['largest_error']:.1%}, mean {found['mean_error']:.1%}; Kendall's tau "
            f"{found['kendall_tau']:.2f} over {len(found['rows'])} layouts.",
        ]
    )


def main() -> None:
    """Measure, predict, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", type=Path, help="a machine file of `trivium plan probe`")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    found = compare(machine_from_file(given.machine) if given.machine else None, given.rounds)
    print(page(found))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
