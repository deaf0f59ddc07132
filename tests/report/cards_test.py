"""The cards show the figures of the run's files, and name what is unknown."""

import json
import math

import pytest

from report.fake_run import METRICS, stations, write_run
from trivium.report.cards import SPARKLINE_POINTS, cards
from trivium.report.collect import collect

MACHINE = {"device": "CPU core", "devices": 2, "peak_flops_per_second": 128e9, "price_per_hour": None, "assumed": True}
STEPS = [{**METRICS[0], "step": n, "tokens": 1000 * n, "loss": 6 - n / 1000, "sequences": 8, "seconds": 36.0,
          "tokens_per_second": 2e3 + n, "model_flops_per_second": 32e9} for n in range(1, 202)]  # fmt: skip


def shown(run, machine=MACHINE, **changed):
    files = {"training/metrics.jsonl": "".join(json.dumps(step) + "\n" for step in STEPS)} | changed
    return {card.label: card for card in cards(collect(write_run(run, **files)) | {"machine": machine})}


def test_cards_show_the_run(tmp_path):
    found = shown(tmp_path)
    assert {label: card.value for label, card in found.items()} == {
        "Validation loss": "5.100",
        "Tokens per second": "2.1K",
        "Share of peak": "25.0%",
        "Time": "2 h 0 min",
        "Cost, core-hours": "4.02",
        "Answers exactly right": "90.0%",
        "Best task": "31.0%",
    }
    assert found["Share of peak"].note == "32 GFLOP/s of an assumed 128 GFLOP/s, 2 CPU cores"
    assert found["Best task"].note == "last_word, 4 shots; token frequencies 26.0%"


@pytest.mark.parametrize(("loss", "perplexity"), [(8.0, "2,980"), (math.log(999.6), "1,000"), (2.0, "7.39")])
def test_large_figures_have_no_exponent(tmp_path, loss, perplexity):
    summary = stations()["training/summary.json"] | {"validation_loss": loss, "unigram_entropy": None}
    gpu = {"device": "H100", "devices": 8192, "peak_flops_per_second": 8e15, "price_per_hour": 2, "assumed": False}
    score = stations()["evaluation/results.json"]["tasks"]["last_word"]["0"] | {"unigram": None}
    evaluation = {"tasks": {"last_word": {"0": score}}}
    found = shown(tmp_path, gpu, **{"training/summary.json": summary, "evaluation/results.json": evaluation})
    assert found["Validation loss"].note == f"perplexity {perplexity}"
    assert found["Cost"].note == "16,500 GPU-hours at 2 each"
    assert found["Best task"].note == "last_word, 0 shots; chance 25.0%"


def test_price_is_per_device_and_hour(tmp_path):
    gpu = {"device": "H100", "devices": 8, "peak_flops_per_second": 8e15, "price_per_hour": 2.5, "assumed": False}
    summary = stations()["training/summary.json"] | {"device": "NVIDIA H100"}
    card = shown(tmp_path, gpu, **{"training/summary.json": summary})["Cost"]
    assert (card.value, card.note) == ("40.20", "16.1 GPU-hours at 2.5 each")


def test_unknown_figures_are_named(tmp_path):
    found = shown(tmp_path, None, **{"training/metrics.jsonl": None})
    assert [found[label].value for label in ("Tokens per second", "Share of peak", "Time", "Cost")] == ["–"] * 4
    assert cards(collect(tmp_path / "training")) == []


def test_task_without_significance_is_not_the_best(tmp_path):
    chance = {"accuracy": 0.27, "interval": [0.23, 0.31], "n": 500, "chance": 0.25, "unigram": 0.26}
    results = {"tasks": {"last_word": {"0": chance, "4": chance}}}
    missing = {"evaluation/results.json": results, "tasks/results.json": None}
    card = shown(tmp_path, **missing)["Best task"]
    assert (card.value, card.note) == ("–", "none of 2 scores is significantly above chance")


@pytest.mark.parametrize("steps", [0, 1, 2, SPARKLINE_POINTS, 10 * SPARKLINE_POINTS + 1])
def test_sparkline_falls_from_top_to_bottom(tmp_path, steps):
    lines = "".join(json.dumps(STEPS[0] | {"step": n, "loss": 9 - n / 1000}) + "\n" for n in range(steps))
    points = shown(tmp_path, **{"training/metrics.jsonl": lines})["Validation loss"].points
    assert len(points) <= SPARKLINE_POINTS
    if steps > 1:
        assert points[0] == (0, 0) and points[-1] == (1, 1) and points == sorted(points)
