"""Parameter groups: which optimizer rule updates which parameters, and which parameters are frozen."""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import Field

from trivium.config import Config, Tree, build
from trivium.errors import ConfigError
from trivium.optim.rule import Rule, rule_named, rule_names
from trivium.plan.layers.part import Parameter
from trivium.plan.model_shape import ModelShape
from trivium.plan.parameters import parameters
from trivium.units import listed


class Group(Config):
    """The parameters whose names match a pattern, and how they are updated."""

    match: str = "*"  # pattern of parameter names, such as layers.*.mlp.* or *.norm.*
    rule: str = "adamw"  # optimizer: the name of a file in optim/rules
    lr_scale: Annotated[float, Field(ge=0)] = 1.0  # factor of the learning rate for this group
    # weight decay of this group; None: training.weight_decay; norms and biases have none
    weight_decay: Annotated[float, Field(ge=0)] | None = None
    settings: Tree = Field(default={})  # settings of the rule; those of AdamW are training.beta1, .beta2 and .epsilon
    trainable: bool = True  # whether the weights are trained; frozen ones have no gradient, master weight or state

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    def made(self, given: Mapping[str, Mapping[str, Any]]) -> Rule:
        """Return the rule with its settings. given: settings by the name of a rule, which those of the group replace.

        Raises ConfigError for a rule that does not exist or settings that it does not take.
        """
        if self.rule not in rule_names():
            raise ConfigError(f"the rules are {listed(rule_names())}, and '{self.rule}' is none of them; name one")
        return build(rule_named(self.rule), {**given.get(self.rule, {}), **self.settings})


class Optimizer(Config):
    """Groups of parameters, of which the first that matches a parameter counts. What none matches is updated by AdamW
    with the settings of `training`."""

    # parameter groups, each a mapping of match (a pattern of parameter names), rule (an optimizer), lr_scale,
    # weight_decay, settings (of the rule) and trainable; the first group that matches a parameter counts
    groups: tuple[Group, ...] = ()

    @property
    def every(self) -> tuple[Group, ...]:
        """The groups that are given, and the one that takes the rest."""
        return (*self.groups, Group())

    def number_of(self, name: str) -> int:
        """Return the number of a parameter's group in `every`."""
        return next(n for n, group in enumerate(self.every) if fnmatchcase(name, group.match))

    def trains(self, row: Parameter) -> bool:
        """Whether a parameter is trained, and not frozen."""
        return row.trainable and (not self.groups or self.every[self.number_of(row.name)].trainable)

    def of(self, model: ModelShape) -> "Optimizer":
        """The groups that take a parameter of a model, which may have fewer layers."""
        taken = {self.number_of(row.name) for row in parameters(model)} if self.groups else {*()}
        return Optimizer(groups=tuple(group for n, group in enumerate(self.groups) if n in taken))

    def problems(self, model: ModelShape) -> Iterator[str]:
        """Yield the contradictions among the groups."""
        if not self.groups or model.problems():
            return
        rows = parameters(model)
        taken: dict[int, list[Parameter]] = {}
        for row in rows:
            taken.setdefault(self.number_of(row.name), []).append(row)
        for number, group in enumerate(self.groups):
            at = f"plan.optimizer.groups.{number}"
            if number not in taken:
                yield (
                    f"{at}.match is '{group.match}', and no parameter has such a name that no group before it takes; a "
                    f"name is {rows[-1].name}"
                )
            try:
                rule = group.made({})
            except ConfigError as error:
                wrong = "settings" if group.rule in rule_names() else "rule"
                yield from (f"{at}.{wrong}: {line}" for line in str(error).splitlines())
                continue
            vectors = [p.name for p in taken.get(number, []) if len(p.shape) < 2]
            if rule.unit == "matrix" and group.trainable and vectors:
                yield (
                    f"{at}.rule is '{group.rule}', which updates matrices, and {at}.match '{group.match}' also takes "
                    f"{vectors[0]}, which is a vector; put a group that takes it before this one"
                )
        if not any(self.trains(row) for row in rows):
            yield "plan.optimizer.groups freezes every parameter; set trainable=true in one of the groups"


ALL_BY_ADAMW = Optimizer()
