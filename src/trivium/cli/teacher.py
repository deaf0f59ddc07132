"""The teacher of `trivium tune --teacher`: it reads the tokens of the training, and its likeliest tokens are kept."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trivium.cli.ending import ended_by_signals
from trivium.cli.model_argument import asked_model
from trivium.cli.price import machine_of
from trivium.cli.run_config import RunConfig
from trivium.cli.show import say
from trivium.cli.stage import Result, Run, Stage
from trivium.config import Tree
from trivium.cost.estimate import forward_pass
from trivium.errors import ConfigError, DataError
from trivium.objectives.distillation.objective import Distillation
from trivium.objectives.preferences.losses import Preference
from trivium.plan.plan import Plan
from trivium.progress import Progress
from trivium.tokens.manifest import SPLITS, read_tokens_manifest
from trivium.tokens.tokenizer import Tokenizer, load_tokenizer
from trivium.units import counted, format_seconds

if TYPE_CHECKING:
    from trivium.checkpoint.load import Checkpoint


class Teacher(NamedTuple):
    """A model that a student learns from. name: as the user gave it."""

    name: Path
    checkpoint: "Checkpoint"

    @property
    def settings(self) -> Tree:
        """The settings of a training that learns from it."""
        sha256 = self.checkpoint.manifest["sha256"]
        return {"training": {"objective": {"settings": {"teacher": sha256}}}}


@contextmanager
def teacher_named(name: Path | None, student: Path, tokenizer: Tokenizer) -> Iterator[Teacher | None]:
    """Yield the teacher that a user named, or None. tokenizer: of the student. Raises DataError for a teacher whose
    token ids mean other texts than the student's."""
    if name is None:
        yield None
        return
    from trivium.checkpoint.load import Checkpoint
    from trivium.interchange.target import opened

    with opened(asked_model(name)) as target:
        theirs = load_tokenizer(target.tokenizer)
        if theirs.identity != tokenizer.identity:
            raise DataError(
                f"--teacher {name} has the tokenizer {theirs.identity[:12]}… ({theirs.vocabulary:,} tokens), and "
                f"{student} has {tokenizer.identity[:12]}… ({tokenizer.vocabulary:,} tokens): their ids mean other "
                f"texts; give a teacher with the same tokenizer.json"
            )
        yield Teacher(name, Checkpoint.open(target.newest))


def taught(stage: Stage, teacher: Teacher | None) -> Stage:
    """Return the stage of a training that begins with its teacher."""

    def work(run: Run, out: Path, progress: Progress) -> Result:
        if teacher is not None:
            ask_teacher(teacher, run)
        return stage.work(run, out, progress)

    return replace(stage, work=work)


def plan_for(teacher: Teacher, plan: Plan) -> Plan:
    """Return the plan under which a teacher reads. plan: of the student. Raises ConfigError where it cannot."""
    from trivium.training.teacher import plan_of_teacher

    try:
        return plan_of_teacher(plan, teacher.checkpoint.plan.model)
    except ConfigError as error:
        raise ConfigError(f"--teacher {teacher.name} cannot read in the layout of the student: {error}") from None


def first_pass_lines(config: RunConfig, packed: Mapping[str, Any], teacher: Teacher | None) -> list[str]:
    """Return what a teacher or the reference of preferences reads before the training, with the seconds on the planned
    machine. packed: of the tokens' manifest."""
    objective, plan, splits = config.training.objective.made(), config.plan, [*SPLITS]
    if teacher is not None:
        name, splits, plan = f"the teacher, {teacher.name},", splits[:1], plan_for(teacher, plan)
    elif isinstance(objective, Preference) and objective.reference:
        name = "the model, as the reference,"
    else:
        return []
    sequences = sum(packed[split]["bins"] for split in splits)
    seconds = sequences / plan.batch.sequences * forward_pass(plan, machine_of(config.machine))
    what = f"{name} reads {counted(sequences, 'sequence')} once"
    return [f"before the training, {what}: about {format_seconds(seconds)} by this estimate"]


def ask_teacher(teacher: Teacher, run: Run) -> None:
    """Store the teacher's likeliest tokens beside those of a run, in the layout of the run, unless they are there."""
    from trivium.comms.launch import run_ranks
    from trivium.training.beside import beside_of

    tokens, objective = run.folder("tokens"), run.config.training.objective.made()
    if not isinstance(objective, Distillation):
        raise ConfigError(
            f"training.objective.method is {run.config.training.objective.method}, which has no teacher; leave out "
            f"--teacher, or set it to distill"
        )
    beside = beside_of(tokens, objective, objective.teacher)
    assert beside is not None, "distillation has a teacher"
    with suppress(DataError):  # of other tokens or settings, or damaged
        if beside.exists and beside.check() == objective.teacher:
            return
    for line in first_pass_lines(run.config, read_tokens_manifest(tokens)["packed"], teacher):
        say(f"  {line}")
    run_ranks(partial(_write, run, teacher), run.config.plan.layout.world_size)


def _write(run: Run, teacher: Teacher, place: Any) -> None:
    """Be one of the ranks of the teacher."""
    from trivium.comms.launch import connected
    from trivium.comms.mesh import Mesh
    from trivium.training.teacher import write_teacher

    ended_by_signals()
    plan, objective = run.config.plan, run.config.training.objective.made()
    assert isinstance(objective, Distillation), "a teacher was asked"
    with connected(place):
        mesh = Mesh.connect(plan.layout, place.rank, place.world_size, place.device, ends=plan.ends)
        write_teacher(run.folder("tokens"), teacher.checkpoint, plan, mesh, objective)
