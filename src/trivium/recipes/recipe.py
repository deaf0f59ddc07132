"""Recipes: a folder each, with recipe.yaml, config.yaml, README.md and, if the recipe has been run, band.json."""

from pathlib import Path
from typing import Any, ClassVar

from trivium.config import Config, build_named, shipped, tree_of_file
from trivium.errors import ConfigError, nearest
from trivium.provenance import read_described
from trivium.recipes.band import FORMAT

_FOLDER = "recipes"  # inside the package
_ABOUT = "recipe.yaml"


class Recipe(Config):
    """The content of recipe.yaml."""

    remedy: ClassVar[str] = "give it in the file"

    summary: str
    text: str  # the text for --data, and where to get it
    data: str | None = None  # used without --data
    hardware: str
    note: str  # whether, when and on what it has been run


def recipe_names() -> list[str]:
    return sorted(path.parent.name for path in shipped(_FOLDER).glob(f"*/{_ABOUT}"))


def folder_of(name: str) -> Path:
    """Return the folder of a recipe. Raises ConfigError for an unknown one."""
    if name not in recipe_names():
        raise ConfigError(f"there is no recipe '{name}'; {nearest(name, recipe_names())}")
    return shipped(f"{_FOLDER}/{name}")


def read_recipe(name: str) -> Recipe:
    path = folder_of(name) / _ABOUT
    return build_named(Recipe, tree_of_file(path, str(path), "a recipe is a mapping"), str(path))


def settings_of(name: str) -> Path:
    """Return the config file of a recipe."""
    return folder_of(name) / "config.yaml"


def band_of_recipe(name: str) -> dict[str, Any] | None:
    """Return the published band of a recipe, or None if there is none yet."""
    path = folder_of(name) / "band.json"
    if not path.is_file():
        return None
    return read_described(path, FORMAT, missing="", remedy="install trivium again")
