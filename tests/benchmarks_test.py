"""The engine benchmark runs, checks losses, and reports with the keys its readers rely on."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent


def benchmark(out: Path, rows: str) -> dict:
    command = [sys.executable, "benchmarks/engine.py", "--json", str(out), "--rows", rows, "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.read_text())


@pytest.mark.slow
def test_a_row_reports_medians_ratios_targets_and_equal_losses(tmp_path):
    record = benchmark(tmp_path / "out.json", "1f1b tiny")
    assert {"date", "command", "commit", "machine", "torch", "rows"} <= record.keys()
    (row,) = [row for row in record["rows"] if row["name"] == "1F1B tiny"]  # not the external peers' rows
    assert row["status"] == "measured" and not row["failed"]
    assert set(row["seconds"]) == {"trivium", "trivium 1f1b-split", "torch Schedule1F1B"}
    assert all(0 < s["min"] <= s["median"] and s["cpu"] > 0 for s in row["seconds"].values())
    pair, split = row["comparisons"]
    assert split["trivium"] == "trivium 1f1b-split" and split["status"] == "measured"
    seconds = row["seconds"]
    assert pair["ratio"] == pytest.approx(seconds["torch Schedule1F1B"]["median"] / seconds["trivium"]["median"])
    assert pair["loss_deviation"] <= row["loss_tolerance"]
    assert pair["target"] == 1.0 and pair["reached"] == (pair["ratio"] >= 1.0)


@pytest.fixture()
def scripts(monkeypatch):
    """The benchmarks' own modules can be imported."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def test_the_page_shows_failures_and_targets(scripts):
    from page import page

    row = {
        "name": "1F1B",
        "status": "measured",
        "ranks": 2,
        "says": "what is compared",
        "comparisons": [
            {
                "trivium": "trivium",
                "peer": "slow",
                "status": "measured",
                "ratio": 1.5,
                "ratio_of_minima": 1.4,
                "ratio_of_cpu": 1.3,
                "target": 1.25,
                "reached": True,
            },
            {"trivium": "trivium", "peer": "broken", "status": "failed", "reason": "it broke", "target": None},
        ],
    }
    record = {
        "date": "2026-01-01",
        "command": "python benchmarks/engine.py",
        "commit": "abc",
        "changed": False,
        "torch": "2.13",
        "python": "3.11",
        "machine": {"processor": "p", "cores": 2, "system": "s"},
        "rows": [row],
    }
    text = page(record)
    assert "| 1F1B | trivium | slow | 1.50 | 1.40 | 1.30 | 1.25 | yes |" in text
    assert "failed: it broke" in text


def test_the_pages_show_the_newest_report_of_each_processor(scripts, tmp_path):
    import performance_tables
    from pieces import report

    def row(ratio: float, size: str) -> dict[str, object]:
        said = {"peer": "DDP", "trivium": "trivium ZeRO-1", "status": "measured", "ratio": ratio}
        said |= {"target": 1.0, "reached": ratio >= 1}
        return {"name": f"replicas {size}", "comparisons": [said], "commit": "abc", "changed": False}

    xeon = "Intel(R) Xeon(R) Processor @ 2.50GHz, family 6 model 85"
    for date, processor, ratio in (
        ("2026-01-01", "AMD EPYC", 1.25),
        ("2026-01-02", "AMD EPYC", 1.5),
        ("2026-01-01", xeon, 0.75),
    ):
        record = {
            "date": date,
            "commit": "abc",
            "torch": "2.13",
            "machine": {"processor": processor, "cores": 2, "system": "s"},
            "rows": [row(ratio, "hidden 256"), row(2 * ratio, "hidden 512")][: 2 if "AMD" in processor else 1],
        }
        report("engine", record, str(tmp_path / "reports"), lambda record: "page")
    names = sorted(path.name for path in (tmp_path / "reports").glob("*.json"))
    assert names[0] == "engine-2026-01-01-amd-epyc.json" and names[1] == "engine-2026-01-01-intel-xeon-6-85.json"
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "performance.md"
    words = ["--reports", str(tmp_path / "reports"), "--root", str(tmp_path), "--write"]
    page.write_text("no marks")
    assert performance_tables.main(words) == 1
    page.write_text(f"before {performance_tables.BEGIN}old{performance_tables.END} after")
    assert performance_tables.main(words) == 0
    text = page.read_text()
    assert text.startswith("before ") and text.endswith(" after") and "old" not in text
    assert "1.25" not in text
    assert "| replicas ZeRO-1: DDP | 1.00 | *0.75* | 1.50 | 2 |" in text
    just_below = performance_tables.Figure("x", 0.998, 1.0)
    assert performance_tables._ratio(just_below) == "*0.998*"
    assert performance_tables._memory_row([0.94, 1.02]).endswith("| 1.00 | 0.94 | *1.02* | 2 |")
    assert performance_tables.main(["--reports", str(tmp_path)]) == 1


def test_the_table_has_the_newest_figures_of_each_accelerator(scripts, tmp_path):
    """Italic where they are short of an aim; what was not measured is left out."""
    import performance_tables

    def side(seconds: float, share: float) -> dict[str, object]:
        reached = {"share_of_ceiling": share, "flops_per_second": 494.5e12 / seconds}
        return {"status": "measured", "seconds": seconds, "beside": 1.0, **reached}

    def record(date: str, ratio: float) -> dict[str, object]:
        replayed = "trivium, compiled and replayed"
        sides = {replayed: side(1.0, 0.59), "trivium": side(1.25, 0.47), "theirs": side(ratio, 0.5)}
        stage = {"sides": sides, "best": replayed, "fastest_peer": "theirs", "ratio": ratio}
        texts = {"trivium": {"tokens_per_second": 300.0}, "transformers": {"tokens_per_second": 200.0}}
        rows = {
            name: {"seconds_error": seconds, "bytes_error": peak}
            for name, seconds, peak in (("a", 9.0, 9.0), ("b", -0.05, 0.01), ("c", 0.02, -0.03))
        }
        return {
            "date": date,
            "device": "NVIDIA H200",
            "torch": "2.11",
            "targets": {"stage": 0.6, "1.3B": 0.5, "ratio": 1.1, "seconds": 0.06, "memory": 0.02},
            "parts": {
                "stage": stage,
                "training 1.3B": {"status": "skipped", "reason": "no time"},
                "planner": {"rows": rows, "calibrated_on": "a"},
                "evaluation": {"texts": texts},
                "generation": {"texts": {"trivium": texts["trivium"], "transformers": {"status": "failed"}}},
            },
        }

    for date, ratio in (("2026-01-01", 1.5), ("2026-01-02", 1.05)):
        (tmp_path / f"gpu-{date}.json").write_text(json.dumps(record(date, ratio)))
    found = performance_tables._newest_of_each(tmp_path, "gpu", lambda record: record["device"])
    head, _, *lines = performance_tables.gpu_tables(found.values())
    caveats = [line for line in lines if line.startswith("- ")]
    assert any("no end-to-end" in line for line in caveats) and any("one micro-batch" in line for line in caveats)
    lines = lines[: lines.index("")]
    assert "NVIDIA H200, bf16, torch 2.11, 2026-01-02" in head
    assert lines == [
        "| stage (trivium, compiled and replayed) | 50.0% | 47.6% | *59.0%* | 60% | *1.05* (theirs) | 0.84 | 1.1 |",
        "| evaluation | | | | | 1.50 (transformers) | | |",
        "| planner: largest error of seconds, of peak memory, 2 plans after one calibration step | | | 5.0%, *3.0%* | "
        "6%, 2% | | | |",
    ]
    partial = record("2026-01-03", 1.05)
    partial["parts"]["stage"]["sides"] |= {"trivium, compiled and replayed": side(1.0, None)}
    for planner in ({"planner": {"status": "skipped", "reason": "no time"}}, {}):
        parts = {name: part for name, part in partial["parts"].items() if name != "planner"} | planner
        _, _, *lines = performance_tables.gpu_tables([partial | {"parts": parts}])
        assert lines[: lines.index("")] == [
            "| stage (trivium, compiled and replayed) | 50.0% | 47.6% |  | 60% | *1.05* (theirs) | 0.84 | 1.1 |",
            "| evaluation | | | | | 1.50 (transformers) | | |",
        ]


def test_without_replay_compares_sides_of_the_same_rounds_where_names_tell_them_apart(scripts):
    from gpu_page import ratio_without_replay

    def sides(**seconds: tuple[float, float]) -> dict[str, object]:
        return {n: {"status": "measured", "seconds": s, "beside": beside} for n, (s, beside) in seconds.items()}

    # In the second round, of the sides that there was no memory for in the first, the machine was half as fast.
    found = sides(**{"trivium, replayed": (1.0, 1.0), "trivium": (3.0, 2.0), "peer": (1.8, 1.0)})
    assert ratio_without_replay({"sides": found, "fastest_peer": "peer"}) == pytest.approx(1.8 / 1.5)
    found["trivium, replayed"] = {"status": "failed", "reason": "no capture"}
    assert ratio_without_replay({"sides": found, "fastest_peer": "peer"}) == pytest.approx(1.8 / 1.5)
    in_8_bit = sides(**{"trivium in bf16": (1.4, 1.4), "trivium, scales of tensors": (1.0, 1.4)})
    assert ratio_without_replay({"sides": in_8_bit, "fastest_peer": "trivium in bf16"}) is None


def test_the_accelerators_benchmark_says_what_it_needs(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    command = [sys.executable, "benchmarks/gpu.py", "--json", str(tmp_path / "out.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "finds no CUDA device" in done.stderr and "--cpu" in done.stderr


@pytest.mark.slow
def test_every_path_of_the_accelerators_benchmark_runs_with_tiny_shapes(tmp_path):
    out = tmp_path / "out.json"
    command = [sys.executable, "benchmarks/gpu.py", "--cpu", "--json", str(out), "--report", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    parts = json.loads(out.read_text())["parts"]
    assert {"ceilings", "stage", "planner", "evaluation", "generation"} < set(parts)
    sides = [side for part in parts.values() for kind in ("sides", "texts") for side in part.get(kind, {}).items()]
    assert sides and all(side["status"] == "measured" for name, side in sides if name.startswith("trivium"))


@pytest.mark.slow
def test_the_accelerators_benchmark_goes_on_with_a_file(tmp_path):
    out = tmp_path / "out.json"

    def run(*words):
        command = [sys.executable, "benchmarks/gpu.py", "--cpu", "--json", str(out), "--merge", *words]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)

    assert run("--only", "ceilings").returncode == 0
    record = json.loads(out.read_text())
    record["parts"] |= {"stage": {"status": "skipped", "reason": "3 s left, 90 s needed"}}
    out.write_text(json.dumps(record))
    assert run("--only", "ceilings,stage").returncode == 0
    merged = json.loads(out.read_text())["parts"]
    assert merged["ceilings"] == record["parts"]["ceilings"] and "sides" in merged["stage"]
    out.write_text(json.dumps(record | {"device": "another"}))
    done = run("--only", "stage")
    assert done.returncode != 0 and "'another'" in done.stderr
    assert json.loads(out.read_text())["device"] == "another"


def test_a_side_without_room_is_told_from_one_that_fails(scripts):
    from gpu_bench import _lacks_memory

    def within(cause):
        try:
            raise ValueError("compiling failed") from cause
        except ValueError as error:
            return error

    said = ("CUDA error: out of memory", "Triton Error [CUDA]: out of memory", "CUBLAS_STATUS_ALLOC_FAILED when …")
    for error in (torch.OutOfMemoryError(), *map(RuntimeError, said)):
        assert _lacks_memory(error) and _lacks_memory(within(within(error)))
    assert not _lacks_memory(within(RuntimeError("an illegal memory access was encountered")))


@pytest.mark.gpu
@pytest.mark.timeout(200)
def test_the_accelerators_benchmark_measures_there(tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    out = tmp_path / "out.json"
    command = [sys.executable, "benchmarks/gpu.py", "--only", "ceilings", "--json", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(out.read_text())["parts"]["ceilings"]["flops_per_second"] > 1e12


def test_what_a_step_pays_besides_its_arithmetic_is_measured(scripts):
    from overheads import TARGETS, overheads
    from setting import TINY

    found = overheads(TINY, rounds=2, tokens=20_000)
    assert found["status"] == "measured" and set(found["shares"]) == set(TARGETS)
    assert all(seconds > 0 for seconds in found["seconds"].values())


def test_the_stall_of_a_save_and_the_memory_of_a_read_are_measured(scripts, tmp_path):
    import checkpoint_save

    tiny = {"layers": 2, "hidden": 16, "heads": 2, "vocabulary": 64, "sequence": 8}
    checkpoint_save.main(["--json", str(tmp_path / "out.json")], tiny)
    found = json.loads((tmp_path / "out.json").read_text())
    assert set(found["stall_seconds"]) == {"waiting", "background", "background until durable"}
    assert found["reading"]["read_bytes"] == found["checkpoint_bytes"]


def test_the_docs_show_the_planners_accuracy_as_it_was_measured(scripts):
    """One file of figures, written by benchmarks/planner_accuracy.py --write."""
    from planner_accuracy import BEGIN, DOCS, END, REPORTS, page_lines, terms_lines

    found = json.loads((REPORTS / "planner_accuracy.json").read_text())
    shown = DOCS.read_text().partition(BEGIN)[2].partition(END)[0]
    assert shown.strip().splitlines() == page_lines(found)
    report = (REPORTS / "planner_accuracy.md").read_text().splitlines()
    assert report[: len(page_lines(found))] == page_lines(found)
    assert set(terms_lines(found["terms"])) <= set(report)


def test_a_term_is_taken_from_the_stack_of_each_row_and_nothing_else_changes(scripts, tmp_path):
    from planner_accuracy import Term, without

    from planner.published_tables import ZERO3, written
    from trivium.planner.published_rows import read_rows

    rows = read_rows(written(tmp_path, *ZERO3)).rows
    bare = without(Term("gathers", ("sc21_t2_zero3",), flags={"gathers_by_parameter": False}), rows)
    assert [row.stack.gathers_by_parameter for row in rows] == [True] * 3
    assert [row.stack.gathers_by_parameter for row in bare] == [False] * 3
    assert [row.seconds for row in bare] == [row.seconds for row in rows]


def test_every_term_names_constants_flags_and_sources_that_exist(scripts):
    from planner_accuracy import PUBLICATIONS, TERMS

    from trivium.cost.constants import priors
    from trivium.cost.stack import Stack

    known = {src for sources in PUBLICATIONS.values() for src in sources}
    for term in TERMS:
        assert set(term.sources) <= known and set(term.held) <= set(priors()), term.name
        assert set(term.flags) <= set(Stack.model_fields) and (term.held or term.flags), term.name
