"""The models that a user may name, for every command and option."""

from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from trivium.checkpoint.format import MANIFEST, published, read_manifest, step_of
from trivium.cli.paths import local_path
from trivium.cli.workspace import Workspace
from trivium.config import Tree, build, merge, nearest_preset, preset_names, to_tree
from trivium.errors import ConfigError, DataError
from trivium.evaluation.config import NEUTRAL_VALUES
from trivium.families.common.hf_config import describes_model, is_model_folder, read_settings
from trivium.hub import downloaded, hub_names, is_hub_name, nearest_hub_name
from trivium.serving.config import Drawing
from trivium.tokens.marks import GENERATION
from trivium.tokens.tokenizer import FILE, given_tokenizer, load_tokenizer
from trivium.units import shown
from trivium.untrusted import read_json

PRESET = "preset.yaml"  # beside an imported checkpoint
MODELS = "a name that `trivium models` lists, a config file, a run, a checkpoint, a Hugging Face folder or hf:ORG/NAME"
_WITH_WEIGHTS = "a run, a checkpoint, a Hugging Face folder or hf:ORG/NAME"
_DRAWN_BY = ("temperature", "top_k", "top_p")  # fields of generation_config.json that apply with do_sample


class Model(NamedTuple):
    """A model that a user named. "config": a preset, or what a config file or a run has, by the name that reads it.
    "checkpoint" and "folder" (of Hugging Face): a directory."""

    kind: Literal["config", "checkpoint", "folder"]
    place: str


def model_named(name: str) -> Model:
    """Return what a name stands for where a model's settings are needed. Raises ConfigError for anything else."""
    if is_hub_name(name):
        return Model("folder", str(downloaded(name, weights=False)))
    path = Path(name)
    is_config = name.endswith((".yaml", ".yml")) or (name.endswith(".json") and not _is_part_of_model(path))
    if name in preset_names() or is_config:
        return Model("config", name)
    try:
        if describes_model(path):
            return Model("folder", name)
        if (path / "config.json").is_file():
            return Model("config", name)
        if path.is_dir() and (found := checkpoint_of(path)) is not None:
            beside, run = preset_beside(path), _run_of(found)
            settings = beside or run
            return Model("checkpoint", str(found)) if settings is None else Model("config", str(settings))
    except (OSError, ValueError):  # a name of thousands of characters, or one with a NUL
        return Model("config", name)  # the config rejects it
    if path.exists():
        raise ConfigError(f"{_no_model(path)}; give {MODELS}")
    raise ConfigError(f"there is no preset '{shown(name)}'; {_nearest(name)}")


def model_path(value: str | Path) -> Path:
    """The type of arguments that name a model with weights. Commands call `asked_model` with it, which reads and
    downloads."""
    return Path(value) if is_hub_name(str(value)) else local_path(value)


def asked_model(value: str | Path) -> Path:
    """Return the path of a model with weights, downloaded where it is one of the Hub.

    Raises DataError where there is none, and where a folder of Hugging Face has no weights.
    """
    name = str(value)
    if is_hub_name(name):
        return downloaded(name, weights=True)
    path = local_path(value)
    if describes_model(path) and not is_model_folder(path):
        raise DataError(
            f"{path} has the config.json of a Hugging Face model and no .safetensors files, and the weights are needed "
            f"here; download them into it: `hf download ORG/NAME --local-dir {path}`"
        )
    if path.is_file():
        raise DataError(f"{_no_model(path)}; give {_WITH_WEIGHTS}")
    if path.exists():
        return path
    if name in preset_names():
        hub = hub_names().get(name)
        weights = f"the published weights are {hub}" if hub else "no weights of it are published"
        raise DataError(
            f"{name} does not exist here: it is the name of a model's settings, and the weights are needed; {weights}, "
            f"and `trivium train --model {name}` trains others"
        )
    raise DataError(f"{shown(name)} does not exist; give {_WITH_WEIGHTS}")


def settings_of(model: Model) -> tuple[Tree, list[str]]:
    """Return the sections of a config that a checkpoint or a Hugging Face folder decides, and notes for the user.
    Reading the settings of a Hugging Face model imports torch."""
    place = Path(model.place)
    if model.kind == "checkpoint":
        shape: Tree = read_manifest(place)["plan"]["model"]
        return sections_of(place.parent, shape)
    from trivium.interchange.names import shape_of

    return sections_of(place, to_tree(shape_of(read_settings(place / "config.json"), str(place / "config.json"))))


def sections_of(folder: Path, shape: Tree) -> tuple[Tree, list[str]]:
    """Return the sections of a config for a model of this shape whose tokenizer and generation_config.json lie in
    `folder`, and notes for the user."""
    words, told = _tokens_of(folder)
    sampling, more = sampling_of(folder)
    tree: Tree = {"plan": {"model": shape}}
    tree |= {"tokens": words} if words else {}
    tree |= {"generation": {"sampling": sampling}} if sampling else {}
    return tree, [*told, *more]


def preset_beside(target: Path) -> Path | None:
    """Return the preset that lies beside an imported checkpoint, which is named by its directory or the one it is
    in."""
    root = target.parent if step_of(target.name) is not None else target
    return root / PRESET if (root / PRESET).is_file() and published(root) else None


def is_asked(place: Path) -> bool:
    """Whether a model with weights is no training of a run: a checkpoint, a folder of them, a Hugging Face folder, or a
    run that has only imported weights."""
    return describes_model(place) or (checkpoint_of(place) is not None and not published(Workspace(place).checkpoints))


def _is_part_of_model(path: Path) -> bool:
    """Return whether a file lies in a folder of Hugging Face."""
    with suppress(OSError, ValueError):  # a name of thousands of characters, or one with a NUL
        return path.is_file() and describes_model(path.parent)
    return False


def _no_model(path: Path) -> str:
    """Return what a path that exists is, if it is no model."""
    if _is_part_of_model(path):
        return f"{path} is one file of a model, whose folder is {path.parent}"
    if path.is_file():
        from trivium.corpus.read.files import SUFFIXES

        is_text = path.name.lower().endswith(SUFFIXES)
        return f"{path} is {'text, which --data takes,' if is_text else 'a file'} and no model"
    return f"the folder {path} contains no config.json of Hugging Face, no checkpoint and no run"


def _nearest(name: str) -> str:
    """Return the hint for a name that is no model."""
    hint = nearest_hub_name(name) if "/" in name else nearest_preset(name)
    return hint if hint.startswith("did you mean") else f"give {MODELS}"


def checkpoint_of(path: Path) -> Path | None:
    """Return the checkpoint that a directory is, or its newest."""
    if (path / MANIFEST).is_file():
        return path
    found = published(Workspace(path).saved) or published(path)
    return found[-1] if found else None


def _run_of(checkpoint: Path) -> Path | None:
    """Return the run directory of a checkpoint whose config is there."""
    above = list(checkpoint.resolve().parents)[:3]
    return next((p for p in above if Workspace(p).config.is_file() and Workspace(p).saved.is_dir()), None)


def _tokens_of(folder: Path) -> tuple[Tree, list[str]]:
    """Return the section `tokens` of the tokenizer in a folder, and what ends its documents."""
    path = folder / FILE
    if not path.is_file():
        return {}, []
    named = str(path.absolute())
    try:
        words = given_tokenizer(str(folder))
    except (ConfigError, DataError) as error:  # if there are several end tokens, the first is right for prompts
        told = [f"to train from it: {error}"]
        try:
            return {"tokenizer": named, "vocabulary": load_tokenizer(path).vocabulary}, told
        except DataError:
            return {}, told
    return {"tokenizer": named, "vocabulary": words.vocabulary}, [f"documents end with {words.marks.end}"]


def sampling_of(folder: Path) -> tuple[Tree, list[str]]:
    """Return how a folder's generation_config.json says that texts are drawn, and which of its settings are ignored."""
    try:
        said: Any = read_json(folder / GENERATION)
    except (OSError, ValueError):
        return {}, []
    if not isinstance(said, dict):
        return {}, [f"{GENERATION} is not taken: it is {type(said).__name__}, not an object"]
    names = ("repetition_penalty", *(_DRAWN_BY if said.get("do_sample") is True else ()))
    found = {name: said[name] for name in names if said.get(name) is not None}
    try:
        build(Drawing, merge(to_tree(Drawing()), found))
    except ConfigError as error:
        return {}, [f"{GENERATION} is not taken: {error}".replace("\n", "; ")]
    ignored = {name: said[name] for name in sorted(said.keys() & NEUTRAL_VALUES.keys()) if said[name] is not None}
    told = ", ".join(f"{name} {shown(repr(x))}" for name, x in ignored.items() if x not in NEUTRAL_VALUES[name])
    return found, [f"{GENERATION}: settings that are not supported are ignored: {told}"] if told else []
