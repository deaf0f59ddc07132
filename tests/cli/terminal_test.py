"""Nothing that a name or a document holds reaches a terminal, a log or a page as a command."""

import io

import pytest

from trivium.cli.main import _print_error
from trivium.cli.show import PlainProgress, _bar, say, say_aside, table, tell
from trivium.errors import TriviumError
from trivium.report.embed import environment_of_pages
from trivium.training.metrics import warn
from trivium.units import one_line, plain, shown

# Clear the screen, set the title, write to the clipboard, the 8-bit CSI, move back, reverse the text, isolate it.
COMMANDS = "\x1b[2J\x1b]0;x\x07\x1b]52;c;eA==\x07\x9b1A\r\b\u202ex\u2066y\u200f"
OBEYED = set("\x1b\x07\x9b\r\b\u202e\u2066\u200f")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    "speak", [say, tell, say_aside, warn, lambda text: _print_error(TriviumError(text), debug=False)]
)
def test_no_way_of_telling_sends_a_terminal_a_command(capsys, speak):
    speak(f"a{COMMANDS}b")
    told = "".join(capsys.readouterr())
    assert not OBEYED & set(told) and r"\u001b[2J" in told and r"\u202ex" in told


def test_progress_tells_names_as_text():
    out = io.StringIO()
    PlainProgress("train", out, last=-1e9)(1, 2, f"{COMMANDS}\nerror: x")
    assert not OBEYED & set(out.getvalue()) and out.getvalue().count("\n") == 1
    out = Terminal()
    with _bar("train", out) as progress:
        progress(1, 1, "[red]a[/red] [link=x]")
    assert "[red]a[/red]" in out.getvalue()


def test_a_cell_of_a_table_stays_on_its_line():
    (row,) = table([(f"a{COMMANDS}\nerror: b", 1)])
    assert not (OBEYED | {"\n"}) & set(row)


def test_names_are_cut_and_kept_on_one_line():
    assert shown("a\nb" + "x" * 500) == "a\\nb" + "x" * 117 + "… (503 characters)"
    assert one_line("a\tb\nc\x1b") == "a\tb\\nc\\u001b" and plain("é 文 \t\n") == "é 文 \t\n"


def test_a_page_holds_names_as_text():
    page = environment_of_pages().from_string("{{ name }}|{{ 3 }}|{{ none }}").render(name=f"<b>{COMMANDS}", none=None)
    assert not OBEYED & set(page) and page.startswith(r"&lt;b&gt;\u001b[2J") and page.endswith("|3|None")
