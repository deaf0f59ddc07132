"""A training resumes only from a checkpoint of the same work."""

import json
import re
from copy import deepcopy
from pathlib import Path

import pytest

from plans import small
from trivium.certify.layouts import ROTARY
from trivium.config import to_tree
from trivium.errors import CheckpointError
from trivium.plan.optimizer import Group
from trivium.training.config import TrainingConfig
from trivium.training.record import refuse_other_recipe, refuse_other_weights, refuse_other_work

NOW = {"seed": 1, "plan": to_tree(small()), "data": {"tokenizer_sha256": "a", "files": {"x.bin": "b"}}}
MUON = to_tree(Group(match="*.weight", rule="muon"))


def test_other_blend_of_the_same_tokens_is_other_work() -> None:
    now, other = deepcopy(NOW), deepcopy(NOW)
    now["data"]["blend"] = {"web": {"weight": 0.7, "documents": 9}}
    other["data"]["blend"] = {"web": {"weight": 0.5, "documents": 9}}
    refuse_other_work(Path("step"), now, deepcopy(now))
    with pytest.raises(CheckpointError, match=r"data.blend.web.weight: 0.7 -> 0.5\n"):
        refuse_other_work(Path("step"), now, other)


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("seed", 2, "seed: 1 -> 2"),
        ("plan.model.layers", 5, "plan.model.layers: 4 -> 5"),
        ("plan.batch.sequences", 32, "plan.batch.sequences: 16 -> 32"),
        ("plan.precision.communication", "bf16", "plan.precision.communication: null -> bf16"),
        ("plan.messages.gradients", "int8", "plan.messages.gradients: exact -> int8"),
        ("plan.optimizer.groups", [MUON], f"plan.optimizer.groups: [] -> {json.dumps([MUON])}"),
        ("data.tokenizer_sha256", "c", "data.tokenizer_sha256: a -> c"),
        ("data.files", {"x.bin": "c"}, "data.files.x.bin: b -> c"),
        ("plan.batch.micro", 4, ""),
        ("plan.layout.data", 2, ""),
        ("plan.schedule", "gpipe", ""),
        ("plan.zero", 3, ""),
    ],
)
def test_work_differs_by_what_is_computed_and_not_by_how_it_is_divided(path: str, value: object, told: str) -> None:
    now = deepcopy(NOW)
    *sections, field = path.split(".")
    node = now
    for section in sections:
        node = node[section]
    node[field] = value
    if not told:
        refuse_other_work(Path("step"), NOW, now)
        return
    with pytest.raises(CheckpointError, match=re.escape(f"\n  {told}\n")):
        refuse_other_work(Path("step"), NOW, now)


@pytest.mark.parametrize(
    ("family", "field", "value", "told"),
    [
        ("llama", "sequence", 16, ""),
        ("gpt", "sequence", 16, "plan.model.sequence: 8 -> 16"),
        ("gpt", "dropout", 0.5, ""),
        ("gpt", "ffn", 96, ""),  # what it is where nothing is said
        ("gpt", "ffn", 48, "plan.model.ffn: 96 -> 48"),
        ("gpt", "head", "untied", "plan.model.head: tied -> untied"),
    ],
)
def test_weights_are_of_another_model_if_their_shapes_or_meaning_differ(
    family: str, field: str, value: object, told: str
) -> None:
    there, here = (
        {"plan": to_tree(small(model={**{"gpt": {}, "llama": ROTARY}[family], "hidden": 24, **more})), "data": {}}
        for more in ({}, {field: value})
    )
    if not told:
        refuse_other_weights(Path("step"), there, here)
        return
    with pytest.raises(CheckpointError, match=re.escape(f"\n  {told}\n")):
        refuse_other_weights(Path("step"), there, here)


COSINE, TO_A_TOKEN = TrainingConfig(steps=4), TrainingConfig(steps=4, decay_tokens=9999)


@pytest.mark.parametrize(
    ("before", "change", "told"),
    [
        (COSINE, {"lr": 0.01}, "training.lr: 0.003 -> 0.01"),
        (COSINE, {"weight_decay": 0.0}, "training.weight_decay: 0.1 -> 0.0"),
        (COSINE, {"start_from": "step"}, "training.start_from: null -> step"),
        (COSINE, {"steps": 8}, "training.steps: 4 -> 8"),
        (TO_A_TOKEN, {"steps": 8}, ""),
        (COSINE.model_copy(update={"decay": "constant"}), {"steps": 8}, ""),
        (COSINE, {"checkpoint_every": 3, "keep_last": 9, "restarts": 0, "spikes": {"policy": "skip"}}, ""),
    ],
)
def test_recipe_differs_by_what_is_computed_and_not_by_how_it_is_observed(
    before: TrainingConfig, change: dict[str, object], told: str
) -> None:
    about, now = {"training": to_tree(before)}, TrainingConfig.model_validate(to_tree(before) | change)
    if not told:
        refuse_other_recipe(Path("step"), about, now)
        return
    with pytest.raises(CheckpointError, match=rf"\n  {re.escape(told)}\n.* with training.start_from=step and"):
        refuse_other_recipe(Path("step"), about, now)


def test_checkpoint_without_a_recipe_resumes_under_any() -> None:
    refuse_other_recipe(Path("step"), {}, TO_A_TOKEN)
