"""Recipes: the paper's table adds up, and the contents of a blend are known at any place."""

import numpy as np
import pytest

from trivium.errors import ConfigError
from trivium.tokens.blend import Blend
from trivium.tokens.recipe import contents_after, load_recipe, recipe_lines, recipe_names

SEQUENCE = 2048


def test_table_of_the_paper_adds_up():
    recipe = load_recipe("mt-nlg")
    assert len(recipe.sources) == 15
    assert sum(row.tokens for row in recipe.sources.values()) == pytest.approx(339e9, abs=0.5e9)
    assert sum(recipe.weights.values()) == pytest.approx(100, abs=0.2)
    assert sum(row.tokens * row.epochs for row in recipe.sources.values()) == pytest.approx(270e9, rel=0.01)


def test_computed_epochs_equal_the_papers():
    recipe = load_recipe("mt-nlg")
    contents = contents_after(int(recipe.tokens_trained), recipe, sequence=SEQUENCE)
    for source, one in contents.items():
        # one decimal is printed, computed from weights with one decimal
        assert one.epochs == pytest.approx(recipe.sources[source].epochs, abs=0.12), source
    assert sum(one.tokens for one in contents.values()) == int(recipe.tokens_trained) // SEQUENCE * SEQUENCE


@pytest.mark.parametrize("samples", [0, 1, 777, 70_000])
def test_contents_equal_those_of_drawing_samples(samples):
    recipe = load_recipe("mt-nlg")
    blend = Blend(recipe.weights)
    drawn = np.bincount(blend.source(np.arange(samples)), minlength=len(blend.sources))
    contents = contents_after(samples * SEQUENCE + 5, recipe, sequence=SEQUENCE)
    assert {s: contents[s].samples for s in blend.sources} == dict(zip(blend.sources, drawn.tolist(), strict=True))


def test_unknown_and_damaged_recipes_are_explained(tmp_path):
    assert recipe_names() == ["mt-nlg"]
    with pytest.raises(ConfigError, match="did you mean 'mt-nlg'"):
        load_recipe("mtnlg")
    (tmp_path / "r.yaml").write_text("tokens_trained: 5\nsources: {a: {tokens: -1, weight: 1}}\n")
    with pytest.raises(ConfigError, match="tokens"):
        load_recipe(str(tmp_path / "r.yaml"))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\xff\xfe", "cannot be read as UTF-8 text"),
        (b"- 1", "holds a list; write sources and tokens_trained into it"),
        (b"a: [", "is not YAML"),
        (b"sources: {a: {tokens: 5, wieght: 1}}\ntokens_trained: 5", "sources.a.wieght: there is no such key"),
        (b"sources: {a: {tokens: 5, weight: 0}}\ntokens_trained: 5", "the weight of every source is 0"),
        (b"sources: {a: {tokens: 5, weight: 1.e+300}}\ntokens_trained: 5", "sources.a.weight is 1e+300"),
        (b"sources: {a: {tokens: 1.e-300, weight: 1}}\ntokens_trained: 5", "sources.a.tokens is 1e-300"),
        (b"sources: {a: {tokens: 5, weight: 1}}\ntokens_trained: 1.e+300", "tokens_trained is 1e+300"),
    ],
)
def test_invalid_recipe_is_rejected_by_name(tmp_path, content, told):
    path = tmp_path / "r.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as found:
        load_recipe(str(path))
    assert all(line.startswith(f"recipe '{path}'") for line in str(found.value).split("\n"))
    assert told in str(found.value)


def test_columns_stay_separated_for_large_numbers():
    recipe = load_recipe("mt-nlg")
    for tokens in (10**9, 270 * 10**9, 10**30):
        head, *rows = recipe_lines(contents_after(tokens, recipe, sequence=SEQUENCE), recipe)
        assert head.split() == ["source", "tokens", "weight", "%", "read", "epochs"]
        assert {len(row) for row in rows} == {len(head)}
        names = [*recipe.sources, "together"]
        assert all(len(row.replace(name, "", 1).split()) == 4 for name, row in zip(names, rows, strict=True))
