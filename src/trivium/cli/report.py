"""`trivium report`: everything a run found out, in one page that works offline."""

import shutil
import sys
import time

from trivium.cli.corpus_tools import keep_statistics
from trivium.cli.options import DEFAULT_OUT, Out, SameAsOut, directory_of
from trivium.cli.settings import App
from trivium.cli.show import say
from trivium.cli.workspace import Workspace
from trivium.errors import DataError

app = App()


@app.command()
def report(run: SameAsOut = None, out: Out = DEFAULT_OUT) -> None:
    """Write report.html and report.json from what the run directory holds."""
    for line in make_report(Workspace(directory_of(run, out))):
        say(line)


def make_report(at: Workspace) -> list[str]:
    """Write the page and its data; returns the lines that sum up the run."""
    from trivium.report.collect import collect
    from trivium.report.page import closing_lines, next_command, write_report

    if not at.config.is_file():
        raise DataError(f"{at.root} is not a run directory (config.json is missing); run `trivium demo` first")
    began = time.monotonic()
    keep_statistics(at)
    found = collect(at.root)
    write_report(at.root, found)
    at.record_seconds("report", time.monotonic() - began)
    found["seconds"] = at.seconds()
    page, data = write_report(at.root, found)  # once more: now with the report's own seconds
    say(f"  {page} and {data.name}")
    return closing_lines(found, next_command(found, at.root, program=_program()))


def _program() -> str:
    """How the user calls trivium: its path where the shell would not find it by name."""
    called = sys.argv[0]
    return "trivium" if shutil.which("trivium") or not called.endswith("/trivium") else called
