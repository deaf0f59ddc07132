import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from planner.published_tables import B200, FSDP, MEGATRON, ZERO3, changed, written
from trivium.cost.constants import prior_constants, priors, shipped_constants
from trivium.cost.step_time import step
from trivium.errors import DataError
from trivium.planner.backtest import backtest, errors_of, predicted_seconds, regret, workloads
from trivium.planner.fit import fit
from trivium.planner.published_rows import Row, batches, over_batches, read_rows


@pytest.fixture
def app(monkeypatch):
    """The command line of benchmarks/backtest.py."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    script = typer.Typer()
    script.command()(import_module("backtest").backtest)
    return script


def test_statistics_are_those_of_a_hand_computed_table():
    """Errors +10, -20, 0, +2 and +4 percent."""
    found = errors_of([110, 80, 100, 102, 104], [100, 100, 100, 100, 100])
    assert found.n == 5
    assert found.bias == pytest.approx((10 - 20 + 0 + 2 + 4) / 5)
    assert found.mape == pytest.approx((10 + 20 + 0 + 2 + 4) / 5)
    assert found.median == pytest.approx(4)
    assert found.p95 == pytest.approx(10 + 0.8 * 10)  # of 0, 2, 4, 10, 20, at 95 % of the way along
    assert found.max == pytest.approx(20)


def test_a_backtest_is_the_step_time_of_each_row(tmp_path):
    found = backtest(read_rows(written(tmp_path, FSDP, MEGATRON, B200)))
    for row, seconds in zip(found.rows, found.seconds, strict=True):
        (batch,) = batches([row])
        alone = step(batch.case, batch.machine, batch.stack, shipped_constants()).parts.seconds
        assert seconds == pytest.approx(float(np.asarray(alone)[0]))
    assert found.errors()["memory"].n == 1 and "memory" not in found.errors("mpt_h100")
    assert found.sources == ("mpt_h100", "sc21_t1", "simumax_b200")


def test_regret_is_the_time_lost_by_the_planners_choice(tmp_path):
    rows = read_rows(
        written(tmp_path, *(changed(MEGATRON, mbs=m, iter_s=s) for m, s in ((1, 10), (2, 8), (4, 9))))
    ).rows
    (group,) = workloads(rows, 3)
    assert regret(group, np.array([5.0, 6.0, 7.0])) == pytest.approx(10 / 8 - 1)
    assert regret(group, np.array([7.0, 5.0, 6.0])) == 0
    assert workloads(rows, 4) == []


def synthetic(tmp_path, size: int = 24) -> tuple[Row, ...]:
    """Runs of many layouts."""
    draw = np.random.default_rng(1)
    rows = [
        changed(
            MEGATRON,
            tp=draw.choice([1, 2, 4, 8]),
            pp=draw.choice([1, 2, 4]),
            dp=draw.choice([2, 8]),
            mbs=draw.choice([1, 2, 4]),
            h=draw.choice([2048, 4096, 8192]),
            gbs=512,
        )
        for _ in range(size)
    ]
    return read_rows(written(tmp_path, *rows)).rows


def measured_with(rows, constants, noise=0.0) -> list[Row]:
    seconds = over_batches(rows, lambda batch: predicted_seconds(batch, constants))
    return [row._replace(seconds=s * (1 + noise)) for row, s in zip(rows, seconds, strict=True)]


def test_runs_that_the_priors_explain_leave_the_priors_where_they_are(tmp_path):
    found = fit(measured_with(synthetic(tmp_path), prior_constants()))
    assert max(map(abs, found.moved.values())) < 1e-3


def test_runs_of_a_slower_device_are_explained_though_one_was_held_up(tmp_path):
    slower = prior_constants().with_values({"gemm_ampere": 0.75, "memory": 0.7})
    rows = measured_with(synthetic(tmp_path), slower)
    learned = fit([rows[0]._replace(seconds=2 * rows[0].seconds), *rows[1:]]).constants
    predicted = over_batches(rows, lambda batch: predicted_seconds(batch, learned))
    assert predicted == pytest.approx([row.seconds for row in rows], rel=0.02)


def test_rows_that_are_not_to_be_fitted_change_nothing(tmp_path):
    rows = measured_with(synthetic(tmp_path, 8), prior_constants())
    target = rows[0]._replace(seconds=9 * rows[0].seconds, fitted=False)
    assert fit([*rows, target]).constants == fit(rows).constants
    assert fit([target]).constants == prior_constants() and fit([target]).rows == 0


def test_constants_of_which_no_row_says_anything_stay_at_their_priors(tmp_path):
    found = fit(measured_with(synthetic(tmp_path, 8), prior_constants(), noise=0.1))
    assert "flash_hopper" not in found.moved and "deepspeed_tensor" not in found.moved
    assert replace(found.constants, **{n: getattr(prior_constants(), n) for n in found.moved}) == prior_constants()


def test_a_constant_that_is_held_keeps_its_value_and_the_others_are_learned(tmp_path):
    rows = measured_with(synthetic(tmp_path, 8), prior_constants(), noise=0.1)
    found = fit(rows, held={"fabric": 0.5})
    assert found.constants.fabric == 0.5
    assert "fabric" not in found.moved and "gemm_ampere" in found.moved


def test_many_vectors_of_constants_are_priced_at_once_as_one_by_one(tmp_path):
    """One of each kind of stack; a fit prices a column of values for each constant."""
    deepspeed, torchtitan, core = (changed(FSDP, fw=fw) for fw in ("meg-ds", "fsdp2", "mcore"))
    rows = read_rows(written(tmp_path, MEGATRON, FSDP, B200, *ZERO3, deepspeed, torchtitan, core)).rows
    draw = np.random.default_rng(5)
    values = {name: draw.uniform(p.low, p.high, 4) for name, p in priors().items()}
    for batch in batches(rows):
        many, *alone = (
            step(batch.case, batch.machine, batch.stack, prior_constants().with_values(v)).parts.seconds
            for v in (
                {name: column[:, np.newaxis] for name, column in values.items()},
                *({name: float(column[i]) for name, column in values.items()} for i in range(4)),
            )
        )
        assert many == pytest.approx(np.array(alone), rel=1e-12), batch.stack.name


def test_zero_3_of_2021_is_predicted_though_no_constant_was_learned_from_it(tmp_path):
    """Without its copies of every part, the prediction was a quarter to two thirds of the measured time."""
    rows = read_rows(written(tmp_path, *ZERO3)).rows
    assert not any(row.fitted for row in rows)
    found = backtest(read_rows(written(tmp_path, *ZERO3))).errors()["seconds"]
    assert found.mape < 15 and found.max < 25


def test_backtest_prints_and_writes_its_statistics_and_counts_what_it_skipped(app, tmp_path):
    table = written(tmp_path, MEGATRON, FSDP, changed(MEGATRON, tp="x"), B200)
    out = tmp_path / "out.json"
    result = CliRunner().invoke(app, [str(table), "--json", str(out)])
    assert result.exit_code == 0, result.output
    assert "line 4, column tp: 'x'" in result.output and "1 row skipped" in result.output
    tree = json.loads(out.read_text())
    assert set(tree["by_src"]) == {"sc21_t1", "mpt_h100", "simumax_b200"}
    assert set(tree["overall"]["seconds"]) == {"n", "bias", "mape", "median", "p95", "max"}
    assert tree["overall"]["seconds"]["n"] == 3 and tree["overall"]["memory"]["n"] == 1
    assert [row["line"] for row in tree["rows"]] == [2, 3, 5] and len(tree["skipped"]) == 1


def test_backtest_prints_json_alone_for_a_program_to_read(app, tmp_path):
    table = written(tmp_path, MEGATRON, changed(MEGATRON, tp="x"))
    result = CliRunner().invoke(app, [str(table), "--json", "-"])
    assert json.loads(result.stdout)["overall"]["n"] == 1
    assert "1 row skipped" in result.stderr


def test_a_table_without_a_row_that_can_be_graded_is_refused(app, tmp_path):
    table = written(tmp_path, changed(MEGATRON, tp="x"))
    result = CliRunner().invoke(app, [str(table)])
    assert isinstance(result.exception, DataError) and "none of its rows" in str(result.exception)


def test_backtest_learns_from_the_other_table_alone(app, tmp_path):
    rows = [changed(MEGATRON, mbs=m, iter_s=s) for m, s in ((1, 20), (2, 19), (4, 18.5), (8, 18))]
    slow, graded = written(tmp_path, *rows, name="slow.csv"), written(tmp_path, MEGATRON)
    out = [tmp_path / "shipped.json", tmp_path / "learned.json"]
    for path, extra in zip(out, ([], ["--fit", str(slow)]), strict=True):
        result = CliRunner().invoke(app, [str(graded), "--json", str(path), *extra])
        assert result.exit_code == 0, result.output
    shipped, learned = (json.loads(path.read_text())["rows"][0]["predicted_seconds"] for path in out)
    assert learned > 1.05 * shipped


def test_a_row_of_sizes_that_no_arithmetic_holds_is_skipped_and_the_others_are_graded(tmp_path):
    found = backtest(read_rows(written(tmp_path, MEGATRON, changed(MEGATRON, L="1e308"))))
    assert len(found.rows) == 1 and found.errors()["seconds"].n == 1
    (problem,) = found.problems
    assert problem.startswith("line 3: no finite time")
    json.loads(json.dumps(found.tree(), allow_nan=False))


def test_a_table_that_begins_with_a_mark_of_its_encoding_is_read(tmp_path):
    path = written(tmp_path, MEGATRON)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(read_rows(path).rows) == 1


def test_a_table_without_anything_to_learn_from_is_refused(app, tmp_path):
    graded, empty = written(tmp_path, MEGATRON), tmp_path / "empty.csv"
    empty.write_text(graded.read_text(encoding="utf-8").splitlines()[0] + "\n", encoding="utf-8")
    ended = CliRunner().invoke(app, [str(graded), "--fit", str(empty)])
    assert isinstance(ended.exception, DataError) and "learned from" in str(ended.exception)


def test_what_a_stack_sums_before_it_is_scattered_is_scattered_once(tmp_path):
    """Llama 3's runs, at ZeRO stage 2: not after every micro-batch, as in our engine."""
    row = changed(MEGATRON, src="llama3", fw="meta", zero=2, dp=64, gbs=2048, dp_overlap=1)
    (read,) = read_rows(written(tmp_path, row)).rows
    assert not read.stack.reduces_often
    (batch,) = batches([read])
    often = batch._replace(stack=batch.stack.model_copy(update={"reduces_often": True}))
    assert predicted_seconds(often, None) > 1.05 * predicted_seconds(batch, None)
