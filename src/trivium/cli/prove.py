"""`trivium prove`: a rank is killed, the run resumes in another layout, and the losses are compared."""

from pathlib import Path
from typing import Any

from trivium.cli.options import DEFAULT_OUT, Out, Preset, Reads, Redo, Sets, given_for, open_run
from trivium.cli.settings import App, shows
from trivium.cli.show import layout_text
from trivium.cli.stage import TRAINS, Result, Run, Stage, State, perform
from trivium.cli.train import fastest_for, job_for, lasting
from trivium.config import Tree, differences, first_lines, merge
from trivium.errors import ConfigError
from trivium.plan.plan import Plan
from trivium.progress import Progress
from trivium.provenance import read_stamp

app = App()

_CHOSEN = ("checkpoint_every", "keep_every", "restarts", "validate_every", "evaluation")
CHOSEN = {f"training.{n}": "it is chosen so that a rank dies between two checkpoints; leave it out" for n in _CHOSEN}


@app.command()
@shows("seed", "plan", "training")
def prove(out: Out = DEFAULT_OUT, preset: Preset = None, sets: Sets = None, redo: Redo = False) -> None:
    """Train again, kill a rank half-way, resume in another layout; the losses must be those of `train`."""
    Reads("prove", PROVE.sections, CHOSEN).check(sets)
    perform(PROVE, open_run(out, given_for(out, preset, sets)), redo=redo)


def check(run: Run, state: State) -> None:
    """Refuse another training than the one whose losses it would be compared with, and one that cannot be resumed under
    another layout, while an earlier proof is still there."""
    folder = run.folder("training")
    trained = (read_stamp(folder) or {}).get("config", {})
    found = differences(_whole(trained), _whole(PROVE.config(run))) if trained else []
    if found:
        raise ConfigError(
            f"`trivium prove` does the training in {folder} again, and this would be another one (recorded -> "
            f"requested):\n{first_lines(found)}\nleave these settings out, or train with them first"
        )
    from trivium.training.prove import starting_checkpoint

    _other(run)
    starting_checkpoint(folder, run.config.training.steps)


def _other(run: Run) -> Plan:
    """The plan under which the killed run resumes: the one that the training moved to, if it did."""
    from trivium.training.prove import another_layout

    plan = run.config.plan
    faster = fastest_for(run.config).plan if run.config.training.fastest_after else plan
    return another_layout(plan) if faster.layout == plan.layout else faster


def _whole(config: Tree) -> Tree:
    """All that losses depend on, and how many there are."""
    recipe = lasting({"config": config, "inputs": {"tokens": ""}})
    return merge(recipe, {"training": {"steps": config["training"]["steps"]}})


def _prove(run: Run, out: Path, progress: Progress) -> Result:
    from trivium.training.prove import prove_resume

    found: dict[str, Any] = prove_resume(
        job_for(run, out), reference=run.folder("training"), other=_other(run), progress=progress, lease=run.lease
    )
    return found


def _lines(result: Result) -> list[str]:
    killed = result["killed"]
    first, second = result["layouts"]
    return [
        f"  rank {killed['rank']} was killed with {killed['signal']} at step {killed['step']}; "
        f"resumed from step {result['resumed_from']}",
        f"  {layout_text(first)}  ->  {layout_text(second)}",
        f"  largest difference of {result['steps_compared']} losses: {result['max_loss_difference']:.2e} "
        f"(tolerance {result['tolerance']:.0e}: {result['why']})",
    ]


PROVE = Stage(
    name="prove",
    verb="prove",
    folder="resume",
    sections=TRAINS,
    reads=("tokens", "training"),
    work=_prove,
    summary=_lines,
    writes="afresh",
    check=check,
)
