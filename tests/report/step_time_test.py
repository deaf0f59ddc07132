import json

import pytest

from report.fake_run import METRICS, stations, write_run
from trivium.report.collect import collect
from trivium.report.sections import busiest, sections, step_time
from trivium.report.verdicts import verdicts
from trivium.report.words import median_figure

PHASES = {"stages": 0.15, "waiting": 0.02, "update": 0.02, "other": 0.01}
PARTS = {
    "compute": 0.09,
    "tensor_collectives": 0.01,
    "bubble": 0.03,
    "pipeline_transfers": 0.01,
    "data_collectives": 0.005,
    "optimizer": 0.015,
}


def run(tmp_path, *, phases=True, estimate=True):
    files = stations()
    if phases:
        short = PHASES | {"stages": 0.1, "waiting": 0.07}
        files["training/summary.json"]["phases"] = [
            {"rank": r, "coordinate": {}, "seconds": s} for r, s in enumerate((short, PHASES))
        ]
    if estimate:
        files["plan/plan.json"]["estimate"] = {"seconds": sum(PARTS.values()), "parts": PARTS}
    return collect(write_run(tmp_path, **files))


def test_every_part_has_one_row(tmp_path):
    (table,) = step_time(run(tmp_path))
    assert [row[3] for row in table.rows] == ["1.25", "1.50", "0.50", "1.00", "–"]
    assert table.rows[0][1:3] == ("160 ms", "200 ms")


def test_measured_parts_are_of_the_slowest_rank(tmp_path):
    assert busiest(run(tmp_path)["training"]["phases"]) == PHASES


def test_parts_sum_to_the_total(tmp_path):
    assert sum(PHASES.values()) == pytest.approx(METRICS[0]["seconds"])
    (table,) = step_time(run(tmp_path))
    assert len(table.rows) == 5


def test_run_without_trace_or_estimate_shows_the_rest(tmp_path):
    (table,) = step_time(run(tmp_path / "a", phases=False, estimate=False))
    assert table.rows == [("step of the full batch, median", "none", "200 ms", "–")]


def test_steps_before_the_last_resume_do_not_count(tmp_path):
    files = stations()
    steps = [{"step": n, "loss": 1.0, "sequences": 8, "seconds": 9.0 if n <= 4 else 0.5} for n in range(1, 7)]
    files["training/metrics.jsonl"] = "".join(json.dumps(step) + "\n" for step in steps)
    resumed = [{"event": "resumed", "step": step, "layout": {"data": 1}} for step in (2, 4)]
    files["training/events.jsonl"] = "".join(json.dumps(event) + "\n" for event in resumed)
    (table,) = step_time(collect(write_run(tmp_path, **files)))
    assert table.rows[0][2] == "500 ms"


def test_each_layout_of_a_training_is_compared_with_its_own_prediction(tmp_path):
    """The plan predicts the first layout, whose memory and phases were measured; the resume predicts the second."""
    first, second = {"tensor": 2, "pipeline": 2, "data": 2}, {"tensor": 1, "pipeline": 1, "data": 2}
    files = stations()
    steps = [{"step": n, "loss": 1.0, "sequences": 8, "seconds": 0.4 if n <= 4 else 0.1} for n in range(1, 9)]
    files["training/metrics.jsonl"] = "".join(json.dumps(step) + "\n" for step in steps)
    resumed = {"event": "resumed", "step": 4, "layout": second, "layout_before": first, "predicted_seconds": 0.05}
    files["training/events.jsonl"] = json.dumps(resumed) + "\n"
    files["training/run.json"] = {"plan": {"layout": first}, "training": {}}
    files["training/summary.json"] |= {"layout": second, "memory_layout": first, "steps": 8}
    files["training/summary.json"]["phases"] = [{"rank": 0, "coordinate": {}, "seconds": PHASES}]
    files["plan/plan.json"] |= {"plan": {"layout": first}, "estimate": {"seconds": 0.2, "parts": PARTS}}
    report = collect(write_run(tmp_path, **files))
    whole, parts = step_time(report)
    assert whole.rows == [
        ("tensor 2 x pipeline 2 x data 2", "200 ms", "400 ms", "2.00"),
        ("tensor 1 x pipeline 1 x data 2", "50 ms", "100 ms", "2.00"),
    ]
    assert parts.headings[0] == "part of a step, tensor 2 x pipeline 2 x data 2"
    told = [verdict.text for verdict in verdicts(report)]
    both = "tensor 2 x pipeline 2 x data 2, then (after step 4) tensor 1 x pipeline 1 x data 2"
    assert any(f"Trained on {both}, the model" in text for text in told)
    assert any("its one rank of tensor 2 x pipeline 2 x data 2" in text for text in told)


def test_only_steps_of_largest_batch_count():
    steps = [{"sequences": 32, "seconds": 1.0}, {"sequences": 64, "seconds": 3.0}, {"sequences": 64, "seconds": 5.0}]
    training = {"curves": {"steps": [{"step": n, **step} for n, step in enumerate(steps, start=1)]}, "resumed_from": 0}
    assert median_figure(training, "seconds") == 4.0
    assert median_figure(training | {"resumed_from": 3}, "seconds") is None


def test_tree_stays_plain_data(tmp_path):
    assert json.loads(json.dumps(run(tmp_path)["training"]["phases"]))[0]["rank"] == 0


@pytest.mark.parametrize(
    ("priced", "trained", "same"),
    [
        ({"layout": {"data": 2}}, {"layout": {"data": 2}}, True),
        ({"layout": {"data": 2}}, {"layout": {"data": 1}}, False),
        ({"layout": {"data": 2}}, {"layout": {"data": 2, "context": 1}, "compiled": False}, True),
    ],
    ids=["the same", "another", "of a version with more fields"],
)
def test_prediction_of_another_plan_is_not_compared(tmp_path, priced, trained, same):
    report = run(tmp_path)
    assert report["plan"]["spans"] and report["outdated"] == {}
    stamp = {"verb": "plan", "config": {"seed": 1, "plan": priced}, "key": "k", "inputs": {}}
    (tmp_path / "plan/provenance.json").write_text(json.dumps(stamp))
    (tmp_path / "training/run.json").write_text(json.dumps({"plan": trained, "training": {}}))
    report = collect(tmp_path)
    (table,) = step_time(report)
    assert all((row[1] == "none") == (not same) for row in table.rows[:4])
    by_name = {section.name: section for section in sections(report)}
    captions = [drawn.caption.split(":")[0].rpartition(" ")[2] for drawn in by_name["schedule"].figures]
    assert captions == [*["planned"] * same, "executed"]
    assert ("`trivium plan` does it again" in by_name["plan"].outdated) == (not same)
