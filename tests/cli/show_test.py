"""Laws of the terminal: a log stays short, tables stay aligned."""

import io
import json

from trivium.cli.show import PLAIN_SECONDS, PlainProgress, layout_text, progress_of, say, table


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_at_most_one_line_every_few_seconds():
    out = io.StringIO()
    progress = PlainProgress("train", out)
    for done in range(1000):
        progress(done, 1000, "loss 3.2")
    assert out.getvalue() == ""
    progress.last -= PLAIN_SECONDS
    progress(500, 1000, "loss 3.2")
    progress(501, 1000, "loss 3.2")
    assert out.getvalue() == "  train 50%  loss 3.2\n"


def test_json_is_said_as_the_same_json(capsys):
    value = {"text": "".join(map(chr, range(0x100)))}
    say(json.dumps(value, ensure_ascii=False))
    assert json.loads(capsys.readouterr().out) == value


def test_a_total_that_is_unknown_or_zero_shows_no_share():
    out = io.StringIO()
    for total in (None, 0):
        progress = PlainProgress("harvest", out, last=-1e9)
        progress(3, total, "a.py")
    assert out.getvalue() == "  harvest  a.py\n" * 2


def test_a_terminal_gets_a_bar_and_no_thread_is_left():
    import threading

    before = threading.active_count()
    out = Terminal()
    with progress_of("train", out) as progress:
        progress(1, 2, "half")
        progress(2, 2, "whole")
        assert threading.active_count() == before
    assert "train" in out.getvalue()


def test_elsewhere_there_is_no_bar():
    out = io.StringIO()
    with progress_of("train", out) as progress:
        progress(2, 2, "whole")
    assert out.getvalue() == ""


def test_columns_are_aligned_numbers_to_the_right():
    lines = table([("a", 1, "x"), ("bcd", 1000, "y")], header=("name", "n", "why"))
    assert lines == ["  name      n  why", "  a         1  x", "  bcd   1,000  y"]
    assert table([]) == []


def test_a_layout_is_told_in_the_words_of_the_glossary():
    layout = {"tensor": 2, "pipeline": 2, "data": 2, "chunks": 2}
    assert layout_text(layout) == "tensor 2 x pipeline 2 (2 chunks) x data 2 = 8 ranks"
    assert layout_text({"tensor": 1, "pipeline": 1, "data": 1}) == "tensor 1 x pipeline 1 x data 1 = 1 rank"
    apart = {"tensor": 1, "pipeline": 1, "data": 2, "context": 4}
    assert layout_text(apart) == "tensor 1 x pipeline 1 x data 2 x context 4 = 8 ranks"
    assert layout_text({"data": 4, "expert": 2}) == "data 4 (expert 2) = 4 ranks"
