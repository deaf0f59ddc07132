"""An objective names what contradicts it, with a remedy."""

import pytest

from plans import small
from trivium.errors import ConfigError
from trivium.objectives.config import METHODS, ObjectiveConfig
from trivium.training.config import TrainingConfig
from trivium.training.rates import recipe_problems

APART = {"documents": "apart", "end_of_text": 3}


@pytest.mark.parametrize(
    ("method", "model", "problem"),
    [
        ("dpo", {}, "plan.model.documents is joined, and training.objective.method dpo needs apart"),
        ("kto", {**APART, "dropout": 0.1}, "plan.model.dropout is 0.1"),
        ("ipo", {**APART, "z_loss": 0.01}, "plan.model.z_loss is 0.01"),
        ("orpo", {**APART, "adapters": [{"settings": {"dropout": 0.2}}]}, "plan.model.adapters has dropout 0.2"),
        ("distill", {"z_loss": 0.01}, "plan.model.z_loss is 0.01"),
        ("distill", {}, "training.objective.settings.top is 64, more than plan.model.vocabulary (37)"),
    ],
)
def test_a_model_that_an_objective_cannot_train_is_refused(method: str, model: dict, problem: str) -> None:
    config = TrainingConfig(objective={"method": method})
    (found,) = (p for p in recipe_problems(config, small(model=model)) if problem in p)
    assert found.endswith(("lower it", "set it to 0")) or "; set plan.model." in found


@pytest.mark.parametrize("method", METHODS)
def test_the_defaults_of_a_method_train_a_model_that_fits(method: str) -> None:
    config = TrainingConfig(objective={"method": method})
    assert not config.objective.problems(small(model={**APART, "vocabulary": 64}).model)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "ppo"}, "the methods are next_token, distill, dpo, .* and 'ppo' is none of them"),
        ({"method": "dpo", "settings": {"gamma": 1.0}}, "gamma"),
        ({"method": "dpo", "settings": {"beta": 0.0}}, "beta"),
    ],
)
def test_unknown_methods_and_settings_are_refused(given: dict, message: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=message):
        ObjectiveConfig(**given)
