"""`trivium doctor`: can this machine run the demo, and what to fix if not."""

import time

from trivium.cli.machine import Check, gather, judge
from trivium.cli.options import DEFAULT_OUT, Out
from trivium.cli.settings import App
from trivium.cli.show import say
from trivium.cli.workspace import Workspace
from trivium.errors import MachineError
from trivium.provenance import STAMP, describe, write_json

app = App()


@app.command()
def doctor(out: Out = DEFAULT_OUT) -> None:
    """Check Python, torch, cores, memory, disk, ports; nothing is written."""
    _say_and_raise(list(judge(gather(out))))


def examine(at: Workspace) -> None:
    """The demo's first stage: look, keep what was found, and stop when the machine cannot do it."""
    began = time.monotonic()
    checks = list(judge(gather(at.root)))
    if not any(check.name in ("disk", "output") and check.verdict == "FAIL" for check in checks):
        folder = at.folder("doctor")
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "doctor.json", {"checks": [check._asdict() for check in checks]})
        write_json(folder / STAMP, describe(verb="doctor", config={}, inputs={}))
    _say_and_raise(checks)
    at.record_seconds("doctor", time.monotonic() - began)


def _say_and_raise(checks: list[Check]) -> None:
    for check in checks:
        say(f"  {check.verdict:4}  {check.name:9} {check.found}{f': {check.remedy}' if check.remedy else ''}")
    failed = [check for check in checks if check.verdict == "FAIL"]
    if failed:
        raise MachineError("\n".join(f"{check.name}: {check.found}; {check.remedy}" for check in failed))
