"""Recipes of data blends: sources, weights, and contents after N tokens. MT-NLG's (table 2) is included as `mt-nlg`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple

from pydantic import Field

from trivium.config import MAX_COUNT, Config, Weight, build_named, shipped, shipped_names, tree_of_file
from trivium.errors import ConfigError, nearest
from trivium.tokens.blend import Blend
from trivium.tokens.manifest import read_tokens_manifest
from trivium.units import format_count

FOLDER = "presets/blends"  # inside the package
Tokens = Annotated[float, Field(ge=1, le=MAX_COUNT)]


class SourceRow(Config):
    """A source: its number of tokens, its weight in any unit, and the epochs that its authors report."""

    tokens: Tokens
    weight: Weight
    epochs: float | None = None


class Recipe(Config):
    """Sources and the number of training tokens."""

    remedy: ClassVar[str] = "give it in the file"

    sources: dict[str, SourceRow] = Field(min_length=1)
    tokens_trained: Tokens

    @property
    def weights(self) -> dict[str, float]:
        return {source: row.weight for source, row in self.sources.items()}


class Content(NamedTuple):
    """The part of a source that was read: samples, tokens, weight, and epochs."""

    samples: int
    tokens: int
    weight: float
    epochs: float


def recipe_names() -> list[str]:
    return shipped_names(FOLDER)


def load_recipe(name: str) -> Recipe:
    """Load an included recipe by name, or a YAML file by path. Raises ConfigError if it is invalid."""
    path = shipped(f"{FOLDER}/{name}.yaml")
    if not path.is_file():
        path = Path(name)
        if not path.is_file():
            raise ConfigError(f"recipe '{name}' is neither shipped nor a file; {nearest(name, recipe_names())}")
    where = f"recipe '{name}'"
    tree = tree_of_file(path, where, "write sources and tokens_trained into it")
    recipe = build_named(Recipe, tree, where)
    if not any(recipe.weights.values()):
        raise ConfigError(f"{where}: the weight of every source is 0; give one of them more")
    return recipe


def recipe_of_tokens(directory: Path) -> Recipe:
    """Return the recipe of training on a token directory, for as many tokens as it contains."""
    manifest = read_tokens_manifest(directory)
    rows = {
        source: SourceRow(tokens=entry["train"]["tokens"], weight=entry["weight"])
        for source, entry in manifest["sources"].items()
        if entry.get("train", {}).get("tokens")
    }
    return Recipe(sources=rows, tokens_trained=manifest["totals"]["train"]["tokens"])


def contents_after(tokens: int, recipe: Recipe, *, sequence: int) -> dict[str, Content]:
    """Return the contents of a blend after `tokens` tokens, read as full samples of `sequence` tokens."""
    counts = Blend(recipe.weights).counts_after(tokens // sequence)
    total = sum(recipe.weights.values())
    return {
        source: Content(
            samples=counts.get(source, 0),
            tokens=counts.get(source, 0) * sequence,
            weight=row.weight / total,
            epochs=counts.get(source, 0) * sequence / row.tokens,
        )
        for source, row in recipe.sources.items()
    }


def recipe_lines(contents: Mapping[str, Content], recipe: Recipe) -> list[str]:
    """Format a recipe as a table for the terminal: tokens, weight, tokens read, and epochs of each source."""

    def row(source: str, tokens: float, percent: float, read: float, epochs: float) -> tuple[str, ...]:
        return source, format_count(tokens), f"{percent:.1f}", format_count(read), f"{epochs:.2f}"

    there = sum(source.tokens for source in recipe.sources.values())
    read = sum(one.tokens for one in contents.values())
    rows: list[tuple[str, ...]] = [("source", "tokens", "weight %", "read", "epochs")]
    for source, one in contents.items():
        rows.append(row(source, recipe.sources[source].tokens, 100 * one.weight, one.tokens, one.epochs))
    rows.append(row("together", there, 100, read, read / there))
    width, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
    # Columns are separated by at least two blanks.
    widths = [max(least, 2 + found) for least, found in zip((12, 10, 10, 8), widths, strict=True)]
    return [
        f"{name:<{width}}" + "".join(f"{cell:>{w}}" for cell, w in zip(cells, widths, strict=True))
        for name, *cells in rows
    ]
