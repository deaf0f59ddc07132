"""The line that says how far a training is."""

import io
from pathlib import Path

import pytest

from trivium.cli import live
from trivium.cli.live import loss_note, note_of, peak_here
from trivium.cli.metrics import _print
from trivium.cli.run_config import Given, resolve
from trivium.cli.show import progress_of
from trivium.planner.this_host import Host
from trivium.training.record import Record, write_record

CONFIG = resolve(Given("demo", ("plan.batch.ramp=null",)))
PLAN = CONFIG.plan


def steps(first: int, last: int, **more: float) -> list[dict[str, float]]:
    each = PLAN.tokens(PLAN.batch.sequences)
    return [
        {"step": n, "tokens": n * each, "loss": 4.0, "tokens_per_second": each / 2, **more}
        for n in range(first, last + 1)
    ]


def test_note_has_step_loss_speed_share_of_peak_and_remaining_time():
    note = note_of(PLAN, 100, 1e15)
    assert note([]) == "step 0 of 100"
    told = note(steps(81, 90, model_flops_per_second=4e14))
    assert told == "step 90 of 100, loss 4.000, 20 s left, 2.05K tokens/s, 40 % of peak"
    assert note(steps(91, 100, model_flops_per_second=4e14)).endswith("done, 2.05K tokens/s, 40 % of peak")
    assert "peak" not in note_of(PLAN, 100, None)(steps(1, 3)), "the peak is not known"


def test_remaining_time_counts_the_tokens_of_a_growing_batch():
    ramp = resolve(Given("demo")).plan
    assert ramp.batch.ramp is not None
    last = ramp.batch.at(99)
    tokens = ramp.tokens(last.first_sample + last.sequences)
    newest = [{"step": 1, "tokens": 0, "loss": 1.0, "tokens_per_second": tokens / 30}]
    assert note_of(ramp, 100, None)(newest).startswith("step 1 of 100, loss 1.000, 30 s left")


def test_one_slow_step_does_not_change_the_speed():
    slow = [steps(1, 1)[0] | {"tokens_per_second": 1.0}]
    assert note_of(PLAN, 100, None)(slow + steps(2, 5)) == note_of(PLAN, 100, None)(steps(1, 5))


@pytest.mark.parametrize(
    ("machine", "accelerators", "peak"),
    [
        ("here", (), None),
        ("dgx-h100", (), None),
        ("dgx-h100", (("NVIDIA H100", 80 << 30),) * 8, 67e12 * 8),
        ("measured.yaml", (), 5e11 * 8),
    ],
)
def test_peak_is_that_of_the_machine_that_computes(monkeypatch, tmp_path, machine, accelerators, peak):
    monkeypatch.chdir(tmp_path)
    peaks = "peak: {fp64: 1e+11, fp32: 5e+11, bf16: 5e+11, fp16: 5e+11}"
    Path("measured.yaml").write_text(f"base: this-machine\nname: measured\ndevices_per_node: 8\n{peaks}\n")
    monkeypatch.setattr(live, "host_found", lambda: Host(2, 8 << 30, accelerators))
    assert peak_here(resolve(Given("demo", (f"machine={machine}",)))) == peak


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_terminal_of_80_columns_shows_the_note_to_its_end(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    note = note_of(PLAN, 14_300, 1e15)(steps(1401, 1430, model_flops_per_second=4e14))
    out = Terminal()
    with progress_of("train", out, long_notes=True) as progress:
        progress(1, 1, note)
        drawn = out.getvalue()
    assert note in drawn and "\n" not in drawn


def test_followed_run_has_one_line_on_a_terminal_and_its_last_step_at_the_end(tmp_path, monkeypatch, capsys):
    (tmp_path / "training").mkdir()
    write_record(Record(tmp_path / "training", tmp_path, PLAN, CONFIG.training, 1, ()))
    shown = []
    monkeypatch.setattr("trivium.cli.metrics.progress_of", lambda *_, **__: _Kept(shown))
    _print(iter([steps(1, 2), steps(3, 3), steps(4, 5)]), 1, tmp_path)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["step", "2", "5"]
    assert [note.split(",")[0] for note in shown] == ["step 3 of 600", "step 5 of 600"]


class _Kept:
    """A progress that keeps its notes."""

    def __init__(self, notes: list[str]) -> None:
        self.notes = notes

    def __enter__(self):
        return lambda done, total, note: self.notes.append(note)

    def __exit__(self, *_: object) -> None:
        pass


def test_log_has_the_loss_alone():
    assert loss_note([]) == "" and loss_note(steps(1, 2)) == "loss 4.000"
