"""`trivium chaos`: kill, corrupt and starve a small training; nothing may be lost."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from trivium.cli.show import progress_of, say
from trivium.errors import ConfigError, DataError
from trivium.provenance import code_commit, write_json

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def chaos(
    kills: Annotated[int, typer.Option("--kills", metavar="N", min=0, help="Kill at random instants.")] = 0,
    layouts: Annotated[
        int, typer.Option("--layouts", metavar="N", min=1, help="So many layouts in turn.")
    ] = 4,
    corrupt: Annotated[int, typer.Option("--corrupt", metavar="N", min=0, help="Damage checkpoints.")] = 0,
    resume: Annotated[
        int, typer.Option("--resume", metavar="N", min=0, help="Compare resumed runs bitwise.")
    ] = 0,
    diskfull: Annotated[int, typer.Option("--diskfull", metavar="N", min=0, help="Fill the disk.")] = 0,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of every random choice.")] = 11,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the counts as JSON.")
    ] = None,
) -> None:
    """Do harm to a small training, and count what was lost. Exit code 1 when anything was."""
    asked = {"kills": kills, "corrupt": corrupt, "resume": resume, "diskfull": diskfull}
    if not any(asked.values()):
        raise ConfigError(f"nothing to do ({asked}); give --kills N, --corrupt N, --resume N or --diskfull N")
    if json is not None and not json.parent.is_dir():
        raise DataError(f"--json {json}: the folder {json.parent} does not exist; create it first")
    harms = {n: _one(n, _work(n, number, layouts), seed) for n, number in asked.items() if number}
    found: dict[str, Any] = {"commit": code_commit(), "seed": seed, "harms": harms}
    for harm in harms.values():
        found |= {k: v for k, v in harm.items() if type(v) is int}  # the counts, at hand
    found["passed"] = all(harm["passed"] for harm in harms.values())
    if json is not None:
        write_json(json, found)
    if not found["passed"]:
        raise typer.Exit(1)


def _work(name: str, number: int, layouts: int) -> Callable[..., dict[str, Any]]:
    """The harm called `name`, to be done so often."""
    import torch

    torch.set_num_threads(1)  # the trainings are forked from here
    if name == "kills":
        from trivium.chaos.kills import kill_often

        return lambda folder, **rest: kill_often(folder, kills=number, layouts=layouts, **rest)
    if name == "corrupt":
        from trivium.chaos.corrupt import corrupt_often

        return lambda folder, **rest: corrupt_often(folder, corruptions=number, **rest)
    if name == "resume":
        from trivium.chaos.resume import resume_often

        return lambda folder, **rest: resume_often(folder, resumes=number, **rest)
    from trivium.chaos.disk_full import fill_often

    return lambda folder, **rest: fill_often(folder, fillings=number, **rest)


def _one(name: str, work: Callable[..., dict[str, Any]], seed: int) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="trivium-chaos-") as folder,
        progress_of(f"chaos {name}") as progress,
    ):
        found = work(Path(folder), seed=seed, progress=progress)
    counts = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in found.items() if isinstance(v, int))
    say(f"{name}: {counts}; {found['seconds']:.0f} s")
    for line in found["losses"][:20]:
        say(f"  LOST {line}")
    return found
