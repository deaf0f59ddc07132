"""`trivium report`: everything a run found out, in one page that works offline."""

import re
import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any

from trivium.cli.corpus_tools import keep_statistics
from trivium.cli.options import DEFAULT_OUT, Out, SameAsOut, directory_of, refuse_model_folder
from trivium.cli.run_config import HERE
from trivium.cli.settings import App
from trivium.cli.show import say
from trivium.cli.workspace import Workspace, read_result
from trivium.config import build
from trivium.cost.hardware import machine_named, machine_problem
from trivium.errors import ConfigError, DataError
from trivium.plan.plan import Plan
from trivium.report.verdicts import CPU

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

    refuse_model_folder(at.root)
    if not at.config.is_file():
        raise DataError(f"{at.root} is not a run directory (config.json is missing); run `trivium demo` first")
    began = time.monotonic()
    keep_statistics(at)
    found = collect(at.root)
    found["machine"] = _machine_of(found["training"], str(read_result(at.config).get("machine", HERE)))
    page, data = write_report(at.root, found)
    at.record_seconds("report", time.monotonic() - began)
    say(f"  {page} and {data.name}")
    return closing_lines(found, next_command(found, at.root, program=_program()))


def _machine_of(training: Mapping[str, Any] | None, name: str) -> dict[str, Any] | None:
    """Return device, their number, peak and price of the machine that trained; None if they are not known.

    name: the machine of the config.
    """
    from trivium.cli.price import machine_of

    if training is None or training["plan"] is None:
        return None
    try:
        plan = build(Plan, training["plan"])
        machine = machine_of(name)
        if training["device"] not in (None, CPU) and machine.generation == "cpu":
            machine = machine_named(_name_of_gpu(training["device"]))
    except ConfigError:  # a plan of another version, or a machine that is not described
        return None
    ranks, shared = plan.layout.world_size, machine.sharing == "shared"
    return {
        "device": machine.device,
        "devices": machine.devices if shared else ranks,
        "peak_flops_per_second": machine.peak_flops_per_second(plan.precision.weights, ranks),
        "price_per_hour": machine.price_per_hour,
        "assumed": shared,
    }


def _name_of_gpu(device: str) -> str:
    """Return the machine to look up for a name that torch gives a GPU, such as NVIDIA A100-SXM4-80GB."""
    words = re.split(r"[\s-]+", device)
    if {"PCIe", "PCIE", "NVL"}.intersection(words):  # slower than the ones that are described
        return device
    model = next((word for word in words if re.fullmatch(r"[A-Z]+\d+", word)), device)
    memory = next((word.removesuffix("GB") for word in words if re.fullmatch(r"\d+GB", word)), "")
    return next((name for name in (model, f"{model}-{memory}") if not machine_problem(name)), model)


def _program() -> str:
    """Return how the user calls trivium: by its path if the shell would not find the name."""
    called = sys.argv[0]
    return "trivium" if shutil.which("trivium") or not called.endswith("/trivium") else called
