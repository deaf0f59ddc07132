"""The page of a suite: one curve for each size, whatever has been measured so far."""

import json
import re
from pathlib import Path

from trivium.config import build
from trivium.plan.plan import Plan
from trivium.provenance import write_json
from trivium.suite.curves import Member, collect, probe_file
from trivium.suite.page import render
from trivium.training.config import TrainingConfig

GROUP = {"n": 4, "accuracy": 0.25, "interval": [0.0, 0.5], "nats_per_token": 2.0}
ANSWERS = {
    "tasks": {"<b>task": {"0": {"accuracy": 0.5, "chance": 0.25}, "1": {"accuracy": 0.6, "chance": 0.25}}},
    "context": {"early": 3.0, "late": 2.0, "gain": 1.0},
    "incontext": None,
    "bias": [{"measure": "association", "of": "neutral", "estimate": 0.1, "unit": "nats"}],
    "memorisation": {"k": 32, "seen": GROUP, "unseen": None, "heldout": GROUP, "recited": [1]},
}


def member(root: Path, size: str, steps: int, batch: str = "same") -> Member:
    """Write the files that a run of `steps` steps leaves."""
    run = root / size
    (run / "training").mkdir(parents=True)
    lines = [
        {"step": n, "tokens": 8 * n, "loss": 5 - n, "lr": 1.0, "batch_hash": f"{batch} {n}"}
        for n in range(1, steps + 1)
    ]
    lines.append({"step": steps, "tokens": 8 * steps, "validation_loss": 4.5})
    (run / "training/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "probes").mkdir()
    for n in range(steps + 1):
        write_json(probe_file(run, n), {"key": "k", "step": n, "tokens": 8 * n, **ANSWERS})
    return Member(size, run, Plan.from_preset(f"pythia-{size}"), build(TrainingConfig, {"steps": 2}))


def page_of(*members: Member) -> tuple[dict, str]:
    found = collect("pythia", members, [0, 1, 2])
    return found, render(found, "trivium suite pythia")


def test_every_size_has_a_curve_in_every_figure_and_labels_are_text(tmp_path: Path) -> None:
    found, page = page_of(member(tmp_path, "14m", 2), member(tmp_path, "31m", 2))
    figures = re.findall(r'<script type="application/json" id="([^"]+)">(.*?)</script>', page)
    names = {name: [trace["name"] for trace in json.loads(text)["data"]] for name, text in figures}
    assert names.pop("memorisation-1") == ["14m, trained on", "14m, held out", "31m, trained on", "31m, held out"]
    assert {name.rpartition("-")[0] for name in names} == {"loss", "tasks", "in-context", "memorisation", "bias"}
    assert all(any(size in trace for trace in traces) for traces in names.values() for size in ("14m", "31m"))
    assert "<b>task" not in page and "14,067,712" in page and "30,494,720" in page
    assert "their hashes agree in all 2 steps" in page
    assert "key" not in found["sizes"][0]["probes"][0]


def test_other_batches_and_unfinished_sizes_are_said(tmp_path: Path) -> None:
    first = member(tmp_path, "14m", 2)
    _, page = page_of(first, member(tmp_path, "31m", 1, batch="other"))
    assert "The batches differ in 1 of 1 step (steps 1)" in page and "2 of 3" in page
    unfinished = member(tmp_path / "new", "70m", 0)
    _, page = page_of(first, unfinished)
    assert "No step has been done by two sizes yet" in page
