import numpy as np
import pytest

from planner.published_tables import B200, FSDP, MEGATRON, changed, written
from trivium.cost.case import LAYER
from trivium.cost.hardware import machine_named
from trivium.cost.stack import stack_named
from trivium.errors import DataError
from trivium.planner.published_rows import batches, case_of_rows, over_batches, read_rows, reading


def test_a_row_becomes_a_case_with_its_machine_and_software(tmp_path):
    (row,) = read_rows(written(tmp_path, MEGATRON)).rows
    case = case_of_rows([row])
    assert (row.machine, row.stack.name, row.seconds, row.fitted) == ("selene", "megatron-2021", 14.4535, True)
    assert case.micro_batches.tolist() == [1536 / 32 / 4] and case.recompute.tolist() == [LAYER]
    assert (case.tensor * case.pipeline * case.data).tolist() == [512]
    assert case.scores_kept.tolist() == [1]


def test_memory_is_given_in_gib(tmp_path):
    (row,) = read_rows(written(tmp_path, B200)).rows
    assert row.memory_bytes == pytest.approx(28.29 * 2**30)


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("h", "8k", "column h: '8k'; it must be a number"),
        ("tp", "0", "column tp: '0'; it must be a whole number, at least 1"),
        ("mbs", "1.5", "column mbs: '1.5'; it must be a whole number, at least 1"),
        ("iter_s", "-1", "column iter_s: '-1'"),
        ("iter_s", "nan", "column iter_s: 'nan'"),
        ("recompute", "ful", "column recompute: 'ful'; did you mean 'full'"),
        ("attn", "flesh", "did you mean 'flash'"),
        ("zero", "4", "column zero: '4'"),
        ("fw", "megatronn", "column fw: 'megatronn'; did you mean 'megatron'"),
        ("mem_gb", "much", "column mem_gb: 'much'"),
        ("n_gpus", "500", "column n_gpus: '500'; tp x pp x dp x cp is 512"),
        ("n_gpus", "many", "column n_gpus: 'many'; it must be a number"),
    ],
)
def test_a_malformed_row_is_told_by_line_column_and_value_and_the_others_are_read(tmp_path, column, value, told):
    bad = changed(MEGATRON, src="other", **{column: value})
    table = read_rows(written(tmp_path, MEGATRON, bad, FSDP))
    assert [row.line for row in table.rows] == [2, 4]
    (problem,) = table.problems
    assert problem.startswith("line 3, ") and told in problem


def test_a_row_need_not_say_on_how_many_devices_it_ran(tmp_path):
    assert read_rows(written(tmp_path, changed(MEGATRON, n_gpus=""))).problems == ()


def test_a_row_with_too_few_values_is_told(tmp_path):
    table = read_rows(written(tmp_path, MEGATRON, "sc21_t1,selene"))
    assert len(table.rows) == 1 and "line 3: it has another number of columns" in table.problems[0]


def test_an_unknown_cluster_is_priced_as_its_device_and_an_unknown_device_is_told(tmp_path):
    known = changed(MEGATRON, cluster="elsewhere")
    table = read_rows(written(tmp_path, known, changed(known, gpu="a100-81")))
    assert table.rows[0].machine == "dgx-a100-80"
    assert "column cluster: 'elsewhere'" in table.problems[0]


def test_a_missing_column_or_file_is_refused(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("src,h\na,1\n")
    with pytest.raises(DataError, match="there is no column L"):
        read_rows(path)
    with pytest.raises(DataError, match=r"none\.csv cannot be read"):
        read_rows(tmp_path / "none.csv")


def test_every_stack_and_machine_of_the_rules_exists():
    assert all(machine_named(name) for name in reading().machines.values())
    assert all(stack_named(rule.stack) for rule in reading().stacks)


def test_targets_and_guesses_are_read_but_never_fitted(tmp_path):
    rows = read_rows(
        written(tmp_path, changed(MEGATRON, src="mtnlg", fw="meg-ds"), changed(FSDP, quality="C"), FSDP)
    ).rows
    assert [row.fitted for row in rows] == [False, False, True]


def test_the_software_of_bloom_follows_the_date_in_its_notes(tmp_path):
    early, late = (changed(MEGATRON, src="bloom", fw="meg-ds", note=day) for day in ("02-23", "02-25 again"))
    names = [row.stack.name for row in read_rows(written(tmp_path, early, late)).rows]
    assert names == ["megatron-deepspeed-remote-memory", "megatron-deepspeed"]


def test_rows_of_one_machine_and_software_are_priced_together_and_come_back_in_order(tmp_path):
    rows = read_rows(written(tmp_path, MEGATRON, FSDP, changed(MEGATRON, mbs=2), changed(MEGATRON, dp_overlap=1))).rows
    assert sorted(len(batch.where) for batch in batches(rows)) == [1, 1, 2]
    assert np.array_equal(over_batches(rows, lambda b: b.case.micro), [4, 5, 2, 4])
