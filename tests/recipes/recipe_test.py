"""Every recipe is complete: its settings agree, its text is named, and a missing band is admitted."""

import pytest

from trivium.cli.price import machine_of
from trivium.cli.run_config import Given, resolve
from trivium.cost.estimate import estimate
from trivium.errors import ConfigError
from trivium.plan.parameters import count
from trivium.recipes.recipe import band_of_recipe, folder_of, read_recipe, recipe_names, settings_of

HOUR = 3600.0


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_is_complete_and_fits_its_machine(name: str) -> None:
    recipe, config = read_recipe(name), resolve(Given(str(settings_of(name)))).checked()
    assert (folder_of(name) / "README.md").is_file()
    price = estimate(config.plan, machine_of(config.machine))
    if config.machine != "here":
        assert price.memory.total <= price.memory_limit
    assert ("not run" in recipe.note) is (band_of_recipe(name) is None)


def test_books_124m_is_gpt_2_and_takes_less_than_an_hour_of_one_h100_by_the_planner() -> None:
    config = resolve(Given(str(settings_of("books-124m"))))
    model = config.plan.model
    assert count(model) - (model.vocabulary - 50_257) * model.hidden == 124_439_808
    assert config.plan.layout.world_size == 1 and config.plan.compiled and config.plan.cuda_graphs
    assert estimate(config.plan, machine_of(config.machine)).seconds * config.training.steps < HOUR


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="there is no recipe 'book-small'; did you mean 'books-small'"):
        folder_of("book-small")
