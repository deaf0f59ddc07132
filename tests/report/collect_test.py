import json

import pytest

from report.fake_run import METRICS, stations, write_run
from trivium.errors import DataError
from trivium.report.collect import MOST_POINTS, collect, results

KEYS = {
    "funnel", "planted", "honest", "training", "resume_proof", "evaluation", "bias", "samples", "provenance",
    "seconds", "plan", "memory", "missing", "corpus", "extraction", "tasks", "incontext", "bias_series",
}  # fmt: skip


def test_a_finished_run_has_every_key_and_misses_nothing(tmp_path):
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


def test_report_json_has_exactly_the_promised_keys(tmp_path):
    """The page shows the plan and the memory besides; they are in plan/plan.json and under `training`."""
    promised = {
        *("funnel", "planted", "honest", "training", "resume_proof", "evaluation", "bias", "samples"),
        *("provenance", "seconds", "corpus", "extraction", "tasks", "incontext", "bias_series"),
    }
    assert set(results(collect(write_run(tmp_path)))) == promised
    empty = results(collect(tmp_path / "training"))
    assert set(empty) == promised and all(value is None for value in empty.values())


def test_curves_are_the_metrics_split_by_kind(tmp_path):
    curves = collect(write_run(tmp_path))["training"]["curves"]
    assert [s["loss"] for s in curves["steps"]] == [6.5, 5.9, 5.2]
    assert [v["validation_loss"] for v in curves["validation"]] == [5.8]


def test_an_empty_run_is_all_missing_and_no_exception(tmp_path):
    report = collect(tmp_path)
    assert set(report["missing"]) == KEYS - {"missing"}
    assert all(report[key] is None for key in report["missing"])


@pytest.mark.parametrize("name", [n for n in stations() if n != "training/timeline.json"])
def test_each_missing_station_gives_null_and_is_named(tmp_path, name):
    report = collect(write_run(tmp_path, **{name: None}))
    assert report["missing"] and all(report[key] is None for key in report["missing"])


@pytest.mark.parametrize("name", stations())
@pytest.mark.parametrize("damage", ["{", '"text"', "[1]", "\x00", '{"lines": 3}'])
def test_a_damaged_file_is_named_with_a_remedy_or_is_legal(tmp_path, name, damage):
    """The last two are legal where any mapping is: what a station adds is its own business."""
    run = write_run(tmp_path, **{name: damage})
    try:
        collect(run)
    except DataError as error:
        text = str(error)
        assert name.split("/")[-1] in text and "damaged" in text and "again" in text and "\n" not in text
    else:
        assert damage == '{"lines": 3}'


def test_bytes_that_are_not_text_are_damage(tmp_path):
    run = write_run(tmp_path)
    (run / "curated" / "funnel.json").write_bytes(b"\xff\xfe\x00[")
    with pytest.raises(DataError, match=r"funnel.json is damaged.*trivium corpus curate"):
        collect(run)


def test_a_field_of_the_wrong_kind_is_named(tmp_path):
    wrong = [{"step": "read", "documents": "many", "bytes": 1}]
    with pytest.raises(DataError, match=r"0\.documents.*'many'"):
        collect(write_run(tmp_path, **{"curated/funnel.json": wrong}))


def test_a_last_metric_cut_short_by_a_kill_is_left_out_and_one_in_the_middle_is_damage(tmp_path):
    whole = "".join(json.dumps(m) + "\n" for m in METRICS)
    cut = collect(write_run(tmp_path / "a", **{"training/metrics.jsonl": whole + '{"step": 4, "lo'}))
    assert len(cut["training"]["curves"]["steps"]) == 3
    with pytest.raises(DataError, match="line 1"):
        collect(write_run(tmp_path / "b", **{"training/metrics.jsonl": '{"st\n' + whole}))


def test_figures_that_are_not_finite_become_null_so_that_the_report_is_json(tmp_path):
    proof = '{"max_loss_difference": Infinity, "tolerance": 1e999, "losses": []}'
    report = collect(write_run(tmp_path, **{"resume/proof.json": proof}))
    assert report["resume_proof"]["max_loss_difference"] is None
    assert report["resume_proof"]["tolerance"] is None
    json.dumps(report, allow_nan=False)


def test_long_curves_are_thinned_and_keep_their_last_point(tmp_path):
    lines = "".join(json.dumps({"step": n, "loss": 1.0}) + "\n" for n in range(3 * MOST_POINTS))
    steps = collect(write_run(tmp_path, **{"training/metrics.jsonl": lines}))["training"]["curves"]["steps"]
    assert len(steps) <= MOST_POINTS + 1
    assert steps[-1]["step"] == 3 * MOST_POINTS - 1


def test_samples_may_be_a_bare_list(tmp_path):
    bare = [{"prompt": "a", "continuation": "b"}]
    assert collect(write_run(tmp_path, **{"generate/samples.json": bare}))["samples"] == bare


def test_a_directory_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(DataError, match="nowhere is not a run directory"):
        collect(tmp_path / "nowhere")
