"""The teacher of distillation: its likeliest tokens for each target, stored beside the tokens of training."""

from pathlib import Path

import numpy as np

from trivium.checkpoint.agree import found_by_first
from trivium.checkpoint.load import Checkpoint
from trivium.comms.mesh import Mesh
from trivium.errors import ConfigError, DataError
from trivium.model.layers.head import TOP_IDS, TOP_LOGS
from trivium.objectives.distillation.objective import Distillation
from trivium.parallel.sharding.zero import AdamRule
from trivium.parallel.tensor.divergence import Top
from trivium.plan.model_shape import ModelShape
from trivium.plan.optimizer import Group, Optimizer
from trivium.plan.parameters import parameters
from trivium.plan.plan import Plan
from trivium.tokens.beside import Beside
from trivium.tokens.manifest import read_tokens_manifest
from trivium.tokens.samples import TokenDataset
from trivium.tokens.split import TRAIN
from trivium.training.batches import TEACHER_IDS, TEACHER_LOGS
from trivium.training.beside import TEACHER, beside_of, write_beside
from trivium.training.state import begin_with, read_together
from trivium.training.trainer import Samples, Trainer
from trivium.training.verified_tokens import refuse_other_ids


def found_teacher(beside: Beside, mesh: Mesh) -> Beside:
    """Return the description of the numbers that are there, with the hash of their teacher; every rank calls this.

    Raises DataError if there are none, or if they are damaged or have other settings, and CheckpointError if they are
    of another teacher than `beside.of`.
    """
    if not found_by_first(lambda: beside.exists, mesh, DataError):
        raise DataError(
            f"{beside.folder} has no {TEACHER}.json: no teacher has read these tokens; let one do that with "
            f"`trivium tune … --teacher TEACHER`, or set training.objective.method=next_token"
        )
    found: str = found_by_first(beside.check, mesh, DataError)
    beside.refuse_other_weights(found)
    return beside._replace(of=found)


def plan_of_teacher(plan: Plan, model: ModelShape) -> Plan:
    """Return the plan under which a teacher reads: the layout and the batch of the student, and the teacher's model.

    Nearly all of its parameters are frozen, because the optimizer of one that is only read would be the largest part of
    its memory. Raises ConfigError if the model cannot be divided over the layout, or cannot have the student's tokens.
    """
    if model.vocabulary > plan.model.vocabulary:
        raise ConfigError(
            f"the teacher has {model.vocabulary:,} rows for tokens, and the student {plan.model.vocabulary:,}, which "
            f"cannot learn the others; give a teacher with as few"
        )
    if model.positions == "learned" and model.sequence != plan.model.sequence:
        raise ConfigError(
            f"the teacher has learned positions for {model.sequence:,} tokens, and the sequences of this training have "
            f"{plan.model.sequence:,}; set plan.model.sequence={model.sequence}"
        )
    reads = {name: getattr(plan.model, name) for name in ("sequence", "documents", "end_of_text")}
    model = model.model_copy(update={**reads, "dropout": 0.0})
    smallest = min((row for row in parameters(model) if row.trainable), key=lambda row: row.elements).name
    frozen = Optimizer(groups=(Group(match=smallest), Group(trainable=False)))
    plan = plan.model_copy(update={"model": model, "optimizer": frozen})
    return plan.checked(plan.layout.world_size)


def write_teacher(tokens: Path, checkpoint: Checkpoint, plan: Plan, mesh: Mesh, objective: Distillation) -> Beside:
    """Let a teacher read the training tokens in the directory `tokens`, and store its likeliest tokens beside them.

    plan: of the student, whose layout and batch the teacher is run with. checkpoint: of the teacher, which must have
    the student's tokenizer. Every rank calls this.
    """
    plan = plan_of_teacher(plan, checkpoint.plan.model)
    refuse_other_ids(read_tokens_manifest(tokens), plan.model, tokens)
    trainer = Trainer(plan, mesh, seed=0, rule=AdamRule(), initial=False)
    read_together(begin_with, trainer, checkpoint)
    beside = beside_of(tokens, objective, str(checkpoint.manifest["sha256"]))
    assert beside is not None, "distillation has a teacher"
    data = TokenDataset.open(tokens, TRAIN, sequence=plan.model.sequence, seed=0)
    top = Top(objective.top, objective.temperature)

    def computed(samples: Samples) -> dict[str, np.ndarray]:
        found = trainer.likeliest(samples, top)
        return {TEACHER_IDS: found[TOP_IDS], TEACHER_LOGS: found[TOP_LOGS]}

    write_beside(beside, trainer, [data], computed)
    return beside
