"""The preset beside an imported checkpoint: a training that begins with its weights, and how it draws texts."""

from pathlib import Path

import yaml

from trivium.checkpoint.format import published, step_of
from trivium.cli.run_config import LAYOUTS, Given, resolve
from trivium.config import Tree, build, merge, to_tree
from trivium.errors import ConfigError, DataError
from trivium.serving.config import Drawing
from trivium.tokens.marks import GENERATION
from trivium.tokens.tokenizer import FILE, given_tokenizer, load_tokenizer
from trivium.untrusted import read_json

PRESET = "preset.yaml"
BASE = "demo"
_DRAWN_BY = ("temperature", "top_k", "top_p")  # of generation_config.json, where it says do_sample
_HEAD = "# The model that was imported, its tokenizer and how it draws texts; paths are relative to this folder.\n"


def refuse_preset(root: Path) -> None:
    """ConfigError where a preset is there already."""
    if (root / PRESET).exists():
        raise ConfigError(f"{root / PRESET} exists already; choose another --to")


def preset_beside(target: Path) -> Path | None:
    """The preset that lies beside an imported checkpoint, which is named by its directory or the one it is in."""
    root = target.parent if step_of(target.name) is not None else target
    return root / PRESET if (root / PRESET).is_file() and published(root) else None


def write_preset(checkpoint: Path) -> list[str]:
    """Write the preset of an imported checkpoint beside it; returns what a user should know of it."""
    from trivium.checkpoint.load import Checkpoint

    root = checkpoint.parent
    model = to_tree(Checkpoint.open(checkpoint).plan.model)
    words, told = _tokens_of(root)
    sampling, more = _sampling_of(root)
    tree: Tree = {"base": BASE, "plan": {"model": model, **LAYOUTS[1]}}
    tree |= {"tokens": words} if words else {}
    tree["training"] = {"start_from": checkpoint.name}
    tree |= {"generation": {"sampling": sampling}} if sampling else {}
    path = root / PRESET
    path.write_text(_HEAD + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return [*told, *more, *(resolve(Given(str(path))).problems() if words else [])]


def _tokens_of(root: Path) -> tuple[Tree, list[str]]:
    """The section `tokens` of the tokenizer in a folder, and what ends its documents."""
    if not (root / FILE).is_file():
        return {}, []
    try:
        words = given_tokenizer(str(root))
    except (ConfigError, DataError) as error:  # of several ends, the first is right for prompts
        told = [f"to train from it: {error}"]
        try:
            return {"tokenizer": FILE, "vocabulary": load_tokenizer(root / FILE).vocabulary}, told
        except DataError:
            return {}, told
    return {"tokenizer": FILE, "vocabulary": words.vocabulary}, [f"documents end with {words.marks.end}"]


def _sampling_of(root: Path) -> tuple[Tree, list[str]]:
    """How a folder's generation_config.json says that texts are drawn, and which of its settings are not taken."""
    try:
        said = read_json(root / GENERATION)
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
    return found, []
