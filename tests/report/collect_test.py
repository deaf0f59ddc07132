import json
import shutil
import tracemalloc
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import trivium.report.collect as module
from report.fake_run import METRICS, stations, write_run
from trivium.errors import DataError
from trivium.provenance import write_json
from trivium.report import curves
from trivium.report.cards import cards
from trivium.report.collect import STAGES, collect, results
from trivium.report.curves import MAX_CURVE_POINTS, Curve, Steps
from trivium.report.sections import sections

KEYS = {
    "funnel", "planted", "honest", "training", "resume_proof", "evaluation", "bias", "samples", "provenance",
    "seconds", "plan", "memory", "missing", "corpus", "answers", "extraction", "tasks", "incontext", "bias_series",
    "outdated", "older",
}  # fmt: skip


def test_finished_run_has_every_key(tmp_path):
    report = collect(write_run(tmp_path))
    assert set(report) == KEYS
    assert report["missing"] == []
    assert report["planted"]["leaks"] == {"planted": 20, "caught": 20}
    assert report["honest"]["lost"] == 9
    assert {"validation_loss", "unigram_entropy", "layout"} <= report["training"].keys()
    assert {"max_loss_difference", "tolerance", "layouts"} <= report["resume_proof"].keys()
    assert report["seconds"] == {"harvest": 3.5, "train": 120.0}
    assert report["memory"] == report["training"]["memory"]
    assert report["provenance"]["training"]["key"] == "k"


def test_report_json_has_exactly_the_documented_keys(tmp_path):
    """The page also shows the plan and the memory, which are in plan/plan.json and under `training`."""
    promised = {
        *("funnel", "planted", "honest", "training", "resume_proof", "evaluation", "bias", "samples"),
        *("provenance", "seconds", "corpus", "extraction", "answers", "tasks", "incontext", "bias_series", "outdated"),
        "older",
    }
    assert set(results(collect(write_run(tmp_path)))) == promised
    empty = results(collect(tmp_path / "training"))
    assert set(empty) == promised and all(value is None for value in empty.values())


def test_curves_are_split_by_kind(tmp_path):
    curves = collect(write_run(tmp_path))["training"]["curves"]
    assert [s["loss"] for s in curves["steps"]] == [6.5, 5.9, 5.2]
    assert [v["validation_loss"] for v in curves["validation"]] == [5.8]


def test_empty_run_is_all_missing(tmp_path):
    report = collect(tmp_path)
    assert set(report["missing"]) == KEYS - {"missing", "outdated", "older"}
    assert all(report[key] is None for key in report["missing"])


@pytest.mark.parametrize("name", [n for n in stations() if n != "training/timeline.json"])
def test_missing_stage_is_null_and_named(tmp_path, name):
    report = collect(write_run(tmp_path, **{name: None}))
    assert report["missing"] and all(report[key] is None for key in report["missing"])


@pytest.mark.parametrize("name", stations())
@pytest.mark.parametrize("damage", ["{", '"text"', "[1]", "\x00", '{"lines": 3}'])
def test_damaged_file_is_named_with_remedy_or_valid(tmp_path, name, damage):
    """The last two are valid wherever any mapping is, because stages may add fields."""
    run = write_run(tmp_path, **{name: damage})
    try:
        collect(run)
    except DataError as error:
        text = str(error)
        assert name.split("/")[-1] in text and "damaged" in text and "again" in text and "\n" not in text
        assert ("--redo --out" in text) is (dict(STAGES).get(name.split("/")[0], "train") != "train")
    else:
        assert damage == '{"lines": 3}'


def test_binary_file_is_damaged(tmp_path):
    run = write_run(tmp_path)
    (run / "curated" / "funnel.json").write_bytes(b"\xff\xfe\x00[")
    with pytest.raises(DataError, match=r"funnel.json is damaged.*`trivium corpus curate --redo --out "):
        collect(run)


def test_field_of_wrong_type_is_named(tmp_path):
    wrong = [{"step": "read", "documents": "many", "bytes": 1}]
    with pytest.raises(DataError, match=r"0\.documents.*'many'"):
        collect(write_run(tmp_path, **{"curated/funnel.json": wrong}))


@pytest.mark.parametrize("score", [{"accuracy": 1.5}, {"accuracy": 0.5, "n": -1}])
def test_impossible_score_is_damaged(tmp_path, score):
    results = {"tasks": {"last_word": {"0": score}}}
    with pytest.raises(DataError, match=r"evaluation/results\.json is damaged \(tasks\.last_word\.0\."):
        collect(write_run(tmp_path, **{"evaluation/results.json": results}))


def test_incomplete_last_metric_is_ignored(tmp_path):
    whole = "".join(json.dumps(m) + "\n" for m in METRICS)
    cut = collect(write_run(tmp_path / "a", **{"training/metrics.jsonl": whole + '{"step": 4, "lo'}))
    assert len(cut["training"]["curves"]["steps"]) == 3
    with pytest.raises(DataError, match="line 1"):
        collect(write_run(tmp_path / "b", **{"training/metrics.jsonl": '{"st\n' + whole}))


@pytest.mark.parametrize("name", ["step", "tokens", "loss", "lr", "validation_loss", "sequences", "seconds"])
def test_metric_of_wrong_type_is_damaged(tmp_path, name):
    lines = "".join(json.dumps(m) + "\n" for m in (*METRICS, METRICS[-1] | {name: ["x"]}))
    with pytest.raises(DataError, match=rf"metrics\.jsonl is damaged \(\d+\.{name}: "):
        collect(write_run(tmp_path, **{"training/metrics.jsonl": lines}))


def test_non_finite_figures_become_null(tmp_path):
    proof = '{"max_loss_difference": Infinity, "tolerance": 1e999, "losses": []}'
    report = collect(write_run(tmp_path, **{"resume/proof.json": proof}))
    assert report["resume_proof"]["max_loss_difference"] is None
    assert report["resume_proof"]["tolerance"] is None
    json.dumps(report, allow_nan=False)


def test_long_curves_are_thinned_and_keep_last_point(tmp_path):
    lines = "".join(json.dumps({"step": n, "loss": 1.0}) + "\n" for n in range(3 * MAX_CURVE_POINTS))
    steps = collect(write_run(tmp_path, **{"training/metrics.jsonl": lines}))["training"]["curves"]["steps"]
    assert len(steps) <= MAX_CURVE_POINTS + 1
    assert steps[-1]["step"] == 3 * MAX_CURVE_POINTS - 1


@pytest.mark.parametrize("most", [2, 5, 8])
@pytest.mark.parametrize("length", [0, 1, 5, 8, 9, 16, 17, 100, 1023])
def test_curve_keeps_even_points_and_short_ones_fully(monkeypatch, most, length):
    monkeypatch.setattr(curves, "MAX_CURVE_POINTS", most)
    curve = Curve()
    for n in range(length):
        curve.add({"step": n})
    steps = [point["step"] for point in curve.points()]
    if length <= most:
        assert steps == list(range(length))
        return
    assert most / 2 <= len(steps) <= most + 1
    assert steps[0] == 0 and steps[-1] == length - 1
    *spaces, last = np.diff(steps)
    assert len(set(spaces)) <= 1 and last <= max(spaces, default=length)


def test_thinned_curve_keeps_spikes_and_means(tmp_path, monkeypatch):
    monkeypatch.setattr(curves, "MAX_CURVE_POINTS", 8)
    losses = [5.0] * 1024
    losses[777], losses[500] = 99.0, 1.0
    lines = "".join(json.dumps(METRICS[0] | {"step": n, "loss": loss}) + "\n" for n, loss in enumerate(losses))
    *thinned, last = collect(write_run(tmp_path, **{"training/metrics.jsonl": lines}))["training"]["curves"]["steps"]
    assert last["step"] == 1023 and last["loss_mean"] == thinned[-1]["loss_mean"]
    assert max(p["loss_greatest"] for p in thinned) == 99.0 and min(p["loss_least"] for p in thinned) == 1.0
    assert np.mean([p["loss_mean"] for p in thinned]) == pytest.approx(np.mean(losses))


def test_metrics_without_check_are_summarised_as_those_with(tmp_path, monkeypatch):
    """Complete records of steps skip the schema, which takes most of the time; NaN and null do not."""
    steps = [METRICS[0] | {"step": n, "loss": 6 - n / 10, "sequences": 8, "joules": 2.0} for n in range(1, 6)]
    lines = "".join(json.dumps(step) + "\n" for step in steps) + '{"step": 6, "loss": NaN, "seconds": null}\n'
    run = write_run(tmp_path, **{"training/metrics.jsonl": lines})
    fast = collect(run)["training"]
    monkeypatch.setattr(Steps, "add_plain", lambda self, metrics: False)
    slow = collect(run)["training"]
    for point in slow["curves"]["steps"]:
        assert point.pop("validation_loss") is None
    assert fast == slow and fast["step_seconds"] == 1.0 and fast["step_joules"] == 10.0


@pytest.mark.parametrize("length", [1, 7, 64, 65, 200])
def test_metrics_added_together_are_summarised_as_one_by_one(tmp_path, monkeypatch, length):
    """Blocks with other records than plain steps are halved until those are alone; thinned curves are the same."""
    monkeypatch.setattr(curves, "MAX_CURVE_POINTS", 8)
    rng = np.random.default_rng(length)
    lines = [METRICS[0] | {"step": n, "loss": float(loss), "sequences": 8} for n, loss in enumerate(rng.random(length))]
    for n in rng.integers(0, length, length // 20):
        lines[n] = {"step": int(n), "tokens": None, "loss": None, "validation_loss": 3.0}
    run = write_run(tmp_path, **{"training/metrics.jsonl": "".join(json.dumps(line) + "\n" for line in lines)})
    together = collect(run)["training"]
    monkeypatch.setattr(Steps, "add_plain", lambda self, metrics: False)
    alone = collect(run)["training"]
    for point, other in zip(together["curves"]["steps"], alone["curves"]["steps"], strict=True):
        assert point == pytest.approx({name: other[name] for name in point})
    del together["curves"]["steps"], alone["curves"]["steps"]
    assert together.pop("step_seconds") == pytest.approx(alone.pop("step_seconds"))
    assert together == alone


def test_memory_does_not_grow_with_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(curves, "MAX_CURVE_POINTS", 8)
    # the replaced reader allocates memory for the largest allowed file
    monkeypatch.setattr(module, "read_bytes", Path.read_bytes)
    monkeypatch.setattr(module, "read_values", partial(module.read_values, block_bytes=1 << 14))
    peaks = []
    for steps in (1000, 4000):
        lines = "".join(json.dumps(METRICS[0] | {"step": n}) + "\n" for n in range(steps))
        events = json.dumps({"event": "saved", "step": 1}) + "\n"
        files = {"training/metrics.jsonl": lines, "training/events.jsonl": events * steps}
        run = write_run(tmp_path / str(steps), **files)
        collect(run)  # fill caches, such as schemas
        tracemalloc.start()
        collect(run)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0], peaks


def test_samples_may_be_a_list(tmp_path):
    bare = [{"prompt": "a", "continuation": "b"}]
    assert collect(write_run(tmp_path, **{"generate/samples.json": bare}))["samples"] == bare


def test_missing_directory_is_rejected(tmp_path):
    with pytest.raises(DataError, match="nowhere is not a run directory"):
        collect(tmp_path / "nowhere")


BEGUN = {"plan": {"layout": {"tensor": 2, "pipeline": 1, "data": 1}, "schedule": "1f1b"}, "training": {"steps": 9}}


@pytest.mark.parametrize("summary", [None, {"validation_loss": 6.9, "unigram_entropy": 6.4, "steps": 1}])
def test_unfinished_training_is_summarised(tmp_path, summary):
    """The summary is missing, or is that of a shorter training that is continued."""
    training = collect(write_run(tmp_path, **{"training/summary.json": summary, "training/run.json": BEGUN}))[
        "training"
    ]
    assert (training["finished"], training["steps"], training["steps_planned"]) == (False, 3, 9)
    assert (training["validation_loss"], training["tokens"]) == (5.8, 3072)
    assert training["layout"]["tensor"] == 2 and training["schedule"] == "1f1b"
    assert [s["loss"] for s in training["curves"]["steps"]] == [6.5, 5.9, 5.2]


def test_training_without_steps_has_not_begun(tmp_path):
    found = write_run(
        tmp_path, **{"training/summary.json": None, "training/run.json": BEGUN, "training/metrics.jsonl": None}
    )
    assert collect(found)["training"] is None


def test_interruptions_are_listed_despite_incomplete_lines(tmp_path):
    events = [
        {"event": "saved", "step": 1},
        {"event": "rank failed", "step": 2, "cause": "rank 1 in step 3 was killed\nby SIGKILL"},
        {"event": "rank killed", "step": 2, "host": "b", "cause": "rank 1 of 2 on b: killed by SIGKILL"},
        {"event": "resumed", "step": 1, "layout": {"tensor": 1, "pipeline": 2, "data": 1, "context": 2}},
        {"event": "spike", "step": 3, "cause": "loss is not finite", "policy": "skip"},
        {"event": "preempted", "step": 3},
    ]
    lines = [json.dumps(e) for e in events]
    lines.insert(2, '{"event": "rank fa')
    report = collect(write_run(tmp_path, **{"training/events.jsonl": "\n".join(lines) + "\n"}))
    assert [(i["step"], i["what"]) for i in report["training"]["interruptions"]] == [
        (2, "failed: rank 1 in step 3 was killed by SIGKILL"),
        (2, "failed: rank 1 of 2 on b: killed by SIGKILL"),
        (1, "resumed from the checkpoint, tensor 1 x pipeline 2 x data 1 x context 2"),
        (3, "spike: loss is not finite; policy skip"),
        (3, "preempted; saved"),
    ]


STAMPS = {
    "harvest": {},
    "curated": {"harvest": "k-harvest", "corpus": "of the user"},
    "tokens": {"curated": "k-curated"},
    "training": {"tokens": "k-tokens"},
    "evaluation": {"harvest": "k-harvest", "tokens": "k-tokens", "training": "k-training"},
    "bias": {"tokens": "k-tokens", "training": "k-training"},
}


def stamped(tmp_path, **changed):
    """Create a run whose stages have stamps. changed: {stage: its key now, or None for no stamp}."""
    keys = {name: f"k-{name}" for name in STAMPS} | changed
    stamps = {
        f"{name}/provenance.json": {"key": keys[name], "inputs": inputs} if keys[name] else None
        for name, inputs in STAMPS.items()
    }
    run = write_run(tmp_path, **stamps)
    for name in STAMPS:
        (run / name).mkdir(exist_ok=True)
    return run


def test_results_of_changed_inputs_are_outdated(tmp_path):
    assert collect(stamped(tmp_path / "a"))["outdated"] == {}
    assert results(collect(tmp_path / "a"))["outdated"] is None
    trained_again = {"evaluation": "training", "bias": "training"}
    assert collect(stamped(tmp_path / "b", training="new"))["outdated"] == trained_again
    # An unfinished training has no stamp.
    assert collect(stamped(tmp_path / "c", training=None))["outdated"] == trained_again
    # Results of outdated inputs are outdated too.
    curated_again = {"tokens": "curated", "training": "tokens", "evaluation": "tokens", "bias": "tokens"}
    assert collect(stamped(tmp_path / "d", curated="new"))["outdated"] == curated_again


def test_deleted_input_is_not_reported_as_outdated(tmp_path):
    run = stamped(tmp_path, harvest=None)
    (run / "harvest").rmdir()
    assert collect(run)["outdated"] == {}


def asked_at(run, step, **more):
    """Create a run with tasks, study and bias of `step`, and a newest checkpoint of step 20."""
    model = {"step": step, "tokens": 1024 * step, "parameters": 466_000, **more}
    files = stations()
    study = files["incontext/results.json"]
    last = study["models"][-1]
    series = files["bias_series.json"]
    moment = series["checkpoints"][-1] | model
    write_run(
        run,
        **{
            "tasks/results.json": files["tasks/results.json"] | {"model": model},
            "bias/results.json": files["bias/results.json"] | {"model": model},
            "evaluation/results.json": files["evaluation/results.json"] | {"model": model},
            "incontext/results.json": study | {"models": [*study["models"], last | {"model": model}]},
            "bias_series.json": series | {"checkpoints": [*series["checkpoints"], moment]},
        },
    )
    for there in ("step-00000020", "step-00000004", ".step-00000030.partial"):
        (run / "training" / "checkpoints" / there).mkdir(parents=True)
        (run / "training" / "checkpoints" / there / "manifest.json").write_text(json.dumps({"sha256": there}))
    return run


def test_results_of_older_checkpoint_name_both_steps(tmp_path):
    of_a_model = {"tasks", "incontext", "bias", "bias_series", "evaluation"}
    trained_on = collect(asked_at(tmp_path / "a", 10))
    assert trained_on["older"] == dict.fromkeys(of_a_model, {"step": 10, "newest": 20})
    assert results(trained_on)["older"] == trained_on["older"]
    current = collect(asked_at(tmp_path / "b", 20, sha256="step-00000020"))
    assert current["older"] == {} and results(current)["older"] is None
    assert collect(asked_at(tmp_path / "c", 20))["older"] == {}  # as written by older versions
    # A study of several models is of the newest checkpoint if that is among them.
    study = json.loads((tmp_path / "b" / "incontext" / "results.json").read_text())
    foreign = study["models"][-1] | {"model": {"step": 0, "tokens": 0, "sha256": "foreign"}}
    for run, step in (("a", 10), ("b", None)):
        place = tmp_path / run / "incontext" / "results.json"
        study = json.loads(place.read_text())
        place.write_text(json.dumps(study | {"models": [*study["models"], foreign]}))
        assert collect(tmp_path / run)["older"].get("incontext", {}).get("step") == step
    # Trained again for as many steps.
    another = collect(asked_at(tmp_path / "d", 20, sha256="other"))["older"]
    assert another == dict.fromkeys(of_a_model, {"step": 20, "newest": 20})
    shutil.rmtree(tmp_path / "a" / "training" / "checkpoints")
    assert collect(tmp_path / "a")["older"] == {}


@pytest.mark.parametrize(("method", "of_pairs"), [("dpo", True), ("next_token", False), (None, False)])
def test_a_loss_of_preference_pairs_is_not_called_nats_per_token(tmp_path, method, of_pairs):
    more = {"objective": {"method": method, "settings": {}}} if method else {}
    begun = {**BEGUN, "training": {**BEGUN["training"], **more}}
    report = collect(write_run(tmp_path, **{"training/run.json": begun}))
    assert report["training"]["of_pairs"] is of_pairs
    notes = [card.note for card in cards(report)]
    assert any("perplexity" in note for note in notes) is not of_pairs
    assert any("preference pairs" in note for note in notes) is of_pairs


def test_loads_of_experts_are_a_picture_a_card_and_a_section_of_models_that_have_some(tmp_path):
    folder = tmp_path / "training"
    folder.mkdir()
    write_json(folder / "run.json", {"plan": {"model": {}}, "training": {"steps": 9}})
    lines = [
        {"step": n, "tokens": 10 * n, "loss": 2.0, "lr": 1e-3, "sequences": 1, "seconds": 0.5}
        | {"experts": {"1": {"largest": 1 + 1 / n, "entropy": 0.9, "shares": [0.7, 0.3], "dropped": n}}}
        for n in (1, 2, 4)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = collect(tmp_path)
    assert [point["layers"]["1"]["largest"] for point in report["training"]["loads"]] == [2.0, 1.5, 1.25]
    assert "experts" not in report["training"]["curves"]["steps"][0]  # 256 numbers a layer
    assert {card.label: card.value for card in cards({**report, "machine": None})}["Busiest expert"] == "1.25"
    section = {s.name: s for s in sections(report)}["experts"]
    assert section.tables[0].rows == [("1", "1.25", "0.900", "4")]
    assert list(section.figures[0].figure.data[0].z[0]) == [2.0, 1.5, 1.25]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line | {"experts": None}) + "\n" for line in lines))
    dense = collect(tmp_path)
    assert "experts" not in {s.name for s in sections(dense)} and dense["training"]["loads"] == []
    assert "Busiest expert" not in {card.label for card in cards({**dense, "machine": None})}
