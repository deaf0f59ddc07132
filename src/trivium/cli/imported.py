"""Weights of Hugging Face as a checkpoint: the preset beside it, and the run that begins with it."""

import shlex
from dataclasses import replace
from pathlib import Path

import yaml

from trivium.checkpoint.format import read_manifest, step_name
from trivium.cli.model_argument import PRESET, asked_model, sections_of
from trivium.cli.run_config import BASE, OF_ANY_MODEL, Given, resolve
from trivium.cli.stage import Run
from trivium.cli.workspace import Workspace
from trivium.config import Tree, merge, to_tree
from trivium.errors import ConfigError, DataError
from trivium.families.common.hf_config import describes_model, is_adapter_folder
from trivium.hub import PREFIX, is_hub_name, name_of
from trivium.provenance import write_json
from trivium.tokens.tokenizer import FILE

_HEAD = "# The model that was imported, its tokenizer and how it draws texts; paths are relative to this folder.\n"


def refuse_preset(root: Path) -> None:
    """ConfigError where a preset is there already."""
    if (root / PRESET).exists():
        raise ConfigError(f"{root / PRESET} exists already; choose another --to")


def write_preset(checkpoint: Path) -> list[str]:
    """Write the preset of an imported checkpoint beside it; returns what a user should know of it."""
    root = checkpoint.parent
    manifest = read_manifest(checkpoint)
    tree, told = sections_of(root, manifest["plan"]["model"])
    told += [
        f"{count} tensors of {prefix}* are left out: they are beside the model that config.json describes"
        for prefix, count in manifest["imported_from"].get("left_out", {}).items()
    ]
    told += [
        f"{name} {p} is not applied in training: plan.model.dropout ({manifest['plan']['model']['dropout']}) is the "
        f"only dropout of this engine"
        for name, p in manifest["imported_from"].get("dropouts_left_out", {}).items()
    ]
    if "tokens" in tree:
        tree = merge(tree, {"tokens": {"tokenizer": FILE}})
    whole: Tree = {"base": BASE, **merge(OF_ANY_MODEL, tree), "training": {"start_from": checkpoint.name}}
    path = root / PRESET
    path.write_text(_HEAD + yaml.safe_dump(whole, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return [*told, *(resolve(Given(str(path))).problems() if "tokens" in tree else [])]


def began_run(out: Path) -> bool:
    """Give a run directory without a config the one of the preset in its folder of imported weights, so that commands
    need no more than --out. Returns whether `out` has that config now: not where it had another, or where training
    still needs something, such as a tokenizer."""
    at = Workspace(out)
    config = resolve(Given(str(at.imported / PRESET)))
    if at.config.exists() or config.tokens.tokenizer is None or config.problems():
        return False
    write_json(at.config, to_tree(config))
    return True


def with_weights(run: Run) -> tuple[Run, str | None]:
    """Return the run with a checkpoint as training.start_from, and the Hugging Face model that `bring` has to import
    there first: its place is in the run directory."""
    given = run.config.training.start_from
    if given is None or not (is_hub_name(given) or describes_model(Path(given))):
        return run, None
    place = run.at.imported / step_name(0)
    if place.is_dir():
        _refuse_other_weights(given, place)
    training = run.config.training.model_copy(update={"start_from": str(place.absolute())})
    mapped = replace(run, config=run.config.model_copy(update={"training": training}))
    return mapped, None if place.is_dir() else given


def _refuse_other_weights(given: str, place: Path) -> None:
    """Raise ConfigError if the checkpoint at `place` was not imported from the Hugging Face model `given`."""
    from trivium.interchange.bring import sampled_sha256

    there = read_manifest(place).get("imported_from", {})
    name = given.removeprefix(PREFIX).partition("@")[0] if is_hub_name(given) else name_of(Path(given))
    if there.get("folder") != name:
        source = there.get("folder")
    elif not is_hub_name(given) and sampled_sha256(Path(given)) != there.get("sampled_sha256"):
        source = f"{name} with other weights"
    else:
        return
    raise ConfigError(
        f"training.start_from is {given}, but {place} was imported from {source}; give another --out, or "
        f"--set training.start_from={place}"
    )


def refuse_adapters_alone(place: Path) -> None:
    """Raise DataError for a folder of PEFT, which has no weights of a model. The import verifies its base."""
    if is_adapter_folder(place):
        command = ["trivium", "checkpoint", "import", str(place), "--to", f"{place}-with-base"]
        raise DataError(
            f"{place} is a folder of adapters, and a checkpoint is needed here; write one of its base and the "
            f"adapters: `{shlex.join(command)}`"
        )


def bring(run: Run, given: str) -> None:
    """Import the weights of a Hugging Face model into a run directory, unless that is done."""
    from trivium.interchange.bring import import_hf

    if not (run.at.imported / step_name(0)).is_dir():
        import_hf(asked_model(given), run.at.imported)
