"""The objective of a training, by the name of its method. No torch here."""

from collections.abc import Mapping
from types import MappingProxyType

from pydantic import Field, model_validator

from trivium.config import Config, Tree, build
from trivium.errors import ConfigError
from trivium.objectives.distillation.objective import Distillation
from trivium.objectives.objective import NextToken, Objective
from trivium.objectives.preferences.losses import PREFERENCES
from trivium.plan.model_shape import ModelShape
from trivium.units import listed

NEXT_TOKEN_METHOD, DISTILLATION = "next_token", "distill"
METHODS: Mapping[str, type[Objective]] = MappingProxyType(
    {NEXT_TOKEN_METHOD: NextToken, DISTILLATION: Distillation, **PREFERENCES}
)


class ObjectiveConfig(Config):
    """Settings of the training objective."""

    # next_token; distill, from a teacher; or of preference pairs: dpo, cdpo, robust, ipo, hinge, kto, simpo, orpo
    method: str = NEXT_TOKEN_METHOD
    settings: Tree = Field(default={})  # settings of the method, such as beta

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    def made(self) -> Objective:
        """Return the objective."""
        return build(METHODS[self.method], self.settings)

    @property
    def forward_passes(self) -> int:
        """How many passes score a batch before the step that trains on it."""
        return METHODS[self.method].forward_passes

    def problems(self, model: ModelShape) -> list[str]:
        """Return why the objective cannot train a model, each with its remedy."""
        made, method = self.made(), f"training.objective.method {self.method}"
        if isinstance(made, NextToken):
            return []
        why = "it compares log-probabilities without dropout"
        wrong: list[tuple[str, object, object, str]] = [
            ("z_loss", model.z_loss, 0.0, "it minimises no term of the model")
        ]
        if made.of_pairs:
            apart = "the completions of a pair are documents of one sample"
            wrong += [("documents", model.documents, "apart", apart), ("dropout", model.dropout, 0.0, why)]
        found = [
            f"plan.model.{name} is {value}, and {method} needs {needed}: {reason}; set plan.model.{name}={needed}"
            for name, value, needed, reason in wrong
            if value != needed
        ]
        dropout = max((group.made().dropout for group in model.adapters), default=0.0)
        if made.of_pairs and dropout:
            found.append(f"plan.model.adapters has dropout {dropout:g}, and {method} needs 0: {why}; set it to 0")
        if isinstance(made, Distillation) and made.top > model.vocabulary:
            found.append(
                f"training.objective.settings.top is {made.top}, more than plan.model.vocabulary ({model.vocabulary}); "
                f"lower it"
            )
        return found

    @model_validator(mode="after")
    def _checked(self) -> "ObjectiveConfig":
        if self.method not in METHODS:
            known = listed(list(METHODS), most=len(METHODS))
            raise ValueError(f"the methods are {known}, and '{self.method}' is none of them; name one")
        try:
            self.made()
        except ConfigError as error:
            raise ValueError(f"settings: {error}") from None
        return self
