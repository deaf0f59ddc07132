"""Experts in a config.json of Hugging Face, read and written.

The weights of each expert are tensors of their own, as transformers reads and writes them.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Any, NamedTuple

from trivium.errors import ConfigError, DataError
from trivium.families.common.family import NOTHING, Config, Family, Names, Tree
from trivium.plan.experts import Experts
from trivium.plan.layers.mlp_gated import MlpGated
from trivium.plan.model_shape import ModelShape

MODULES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "mlp.router": ("mlp.gate",),
        "mlp.experts.up": ("mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj"),
        "mlp.experts.down": ("mlp.experts.{}.down_proj",),
    }
)
_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")  # the names of one field
# Settings that decide what is computed, besides sizes; those that a family does not tell have their defaults.
_COMPUTED = (
    "scores",
    "normalized",
    "scale",
    "groups",
    "chosen_groups",
    "group_score",
    "shared",
    "shared_gate",
    "capacity",
    "bias_rate",
)


class Dense(NamedTuple):
    """Layers without experts in a config.json. is_dense: whether a layer is one, by its number. fields: those for the
    numbers of these layers; raises ConfigError where the family cannot have them."""

    is_dense: Callable[[Config, int], bool]
    fields: Callable[[list[int]], Tree]


class Mixture(NamedTuple):
    """How the config.json of a family describes its experts.

    number: name of the field with their number in an export. modules: of tensors. columns: name of the field with their
    columns; None if it is `intermediate_size`. fields: other fields by the settings that have the same values. must:
    settings that have one value in this family, where it is not the default. balance: name of the field with the factor
    of the balance loss; None if there is none. dense: layers without experts; None if all have experts. read and write:
    settings from a config.json, and fields of a config.json, which the other fields do not tell. converted: the
    settings that these convert.
    """

    number: str
    modules: Mapping[str, tuple[str, ...]] = MODULES
    columns: str | None = None
    fields: Mapping[str, str] = NOTHING
    must: Mapping[str, Any] = NOTHING
    balance: str | None = "router_aux_loss_coef"
    dense: Dense | None = None
    read: Callable[[Config, str], Tree] = lambda config, where: {}
    write: Callable[[Experts], Tree] = lambda experts: {}
    converted: tuple[str, ...] = ()


def with_experts(family: Family, mixture: Mixture) -> Family:
    """Return a family whose feed-forward halves are made of experts, in all layers or in most."""

    def read(config: Config, where: str) -> Tree:
        found = family.read(config, where)
        return {**found, "experts": _read(config, where, mixture), **_layers(config, found, mixture.dense)}

    def write(model: ModelShape) -> Tree:
        return {**family.write(model), **_write(model, mixture, family.architecture)}

    def names(model: ModelShape) -> Names:
        own = family.names(model)
        return own._replace(modules=MappingProxyType({**own.modules, **mixture.modules}))

    return family._replace(
        settings=MappingProxyType({**family.settings, "feed_forward": "experts"}),
        read=read,
        write=write,
        names=names,
        free=(*family.free, "experts"),
        differs=family.differs if mixture.dense is None else (*family.differs, "feed_forward"),
    )


def _read(config: Config, where: str, mixture: Mixture) -> Tree:
    """Return the settings of experts."""
    counts = {name: config[name] for name in _COUNTS if config.get(name) is not None}
    if len(set(counts.values())) != 1:
        said = f"{mixture.number} is None" if not counts else " and ".join(f"{n} is {x}" for n, x in counts.items())
        raise DataError(f"{where}: {said}, and the number of experts must be one whole number above 0")
    needed = ["num_experts_per_tok", *mixture.fields.values(), mixture.columns, mixture.balance]
    for field in needed:
        if field is not None and config.get(field) is None:
            raise DataError(f"{where}: {field} is {config.get(field)!r}, and experts need it; download the file again")
    balance = {} if mixture.balance is None else {
        "balance_loss": config[mixture.balance], "balance_convention": "transformers"
    }  # fmt: skip
    return {
        "count": next(iter(counts.values())),
        "chosen": config["num_experts_per_tok"],
        "columns": None if mixture.columns is None else config[mixture.columns],
        **{setting: config[field] for setting, field in mixture.fields.items()},
        **mixture.must,
        **balance,
        **mixture.read(config, where),
    }


def _layers(config: Config, found: Tree, dense: Dense | None) -> Tree:
    """Return `first` and `pattern` of a model, where some of its layers have no experts."""
    layers = config["num_hidden_layers"]
    own = [dense is not None and dense.is_dense(config, n) for n in range(layers)]
    if not any(own):
        return {}
    first = [other for run in found.get("first", ()) for other in _repeated(run)]
    pattern = [other for run in found.get("pattern", ()) for other in _repeated(run)] or [{}]
    others = [*first, *(pattern[n % len(pattern)] for n in range(layers - len(first)))]
    gated = {"feed_forward": "gated"}
    return runs_of([{**other, **(gated if is_dense else {})} for other, is_dense in zip(others, own, strict=True)])


def runs_of(each: Sequence[Tree]) -> Tree:
    """Return the shortest `first` and `pattern` that say in which settings each layer differs from the model's own."""
    total = len(each)
    shortest = total, 1
    for period in range(1, total + 1):
        if period >= sum(shortest):
            break
        differs = (n for n in reversed(range(total - period)) if each[n] != each[n + period])
        shortest = min(shortest, (next(differs, -1) + 1, period), key=sum)
    start, period = shortest
    pattern = _runs(each[start : start + period])
    return {"first": _runs(each[:start]), "pattern": () if pattern == ({"times": 1},) else pattern}


def _runs(each: Sequence[Tree]) -> tuple[Tree, ...]:
    return tuple({"times": len(list(equal)), **settings} for settings, equal in groupby(each))


def _repeated(run: Tree) -> list[Tree]:
    times: int = run.get("times", 1)
    return [{name: value for name, value in run.items() if name != "times"}] * times


def _write(model: ModelShape, mixture: Mixture, architecture: str) -> Tree:
    """Return the fields of config.json. Raises ConfigError where they cannot say what the model computes."""
    forms = [model.form_of(n) for n in range(model.layers)]
    experts = next((form.experts for form in forms if form.feed_forward == "experts"), model.experts)
    assert experts is not None, "a layer of experts has their settings"
    train = "train with that for a model that is to be exported"
    for number, form in enumerate(forms):
        if form.feed_forward == "experts" and form.experts != experts:
            raise ConfigError(
                f"plan.model: layer {number} has other experts than the layers before it, and all layers of "
                f"{architecture} with experts have equal ones; {train}"
            )
        if form.feed_forward not in ("experts", "gated"):
            raise ConfigError(
                f"plan.model: layer {number} has feed_forward '{form.feed_forward}', and layers of {architecture} "
                f"without experts are 'gated'; {train}"
            )
    _refuse_others(experts, mixture, architecture)
    width, dense = MlpGated.of(model).columns, [n for n, form in enumerate(forms) if form.feed_forward == "gated"]
    columns = width if experts.columns is None else experts.columns
    return {
        mixture.number: experts.count,
        "num_experts_per_tok": experts.chosen,
        **({"intermediate_size": columns} if mixture.columns is None else {mixture.columns: columns}),
        **({} if mixture.columns is None else {"intermediate_size": width}),
        **{field: getattr(experts, setting) for setting, field in mixture.fields.items()},
        **({} if mixture.dense is None else mixture.dense.fields(dense)),
        **({} if mixture.balance is None else {mixture.balance: _balance_loss(experts, model.layers - len(dense))}),
        "output_router_logits": False,
        **mixture.write(experts),
    }


def _refuse_others(experts: Experts, mixture: Mixture, architecture: str) -> None:
    """Raise ConfigError for experts that compute something else than those of the family."""
    for setting in _COMPUTED:
        value, default = getattr(experts, setting), Experts.model_fields[setting].default
        wanted = mixture.must.get(setting, default)
        if setting in (*mixture.fields, *mixture.converted) or value == wanted:
            continue
        if setting == "bias_rate" and None not in (value, wanted):
            continue  # there is a bias, and its rate is one of training alone
        raise ConfigError(
            f"plan.model.experts.{setting} is {value!r}, and {architecture} computes with {wanted!r}; train with that "
            f"for a model that is to be exported"
        )


def _balance_loss(experts: Experts, layers: int) -> float:
    """Return the factor with which the balance loss of transformers has the same gradients where all layers have equal
    loads: in Megatron-LM's convention it is the sum over layers, and 1 / `chosen` of it in each."""
    if experts.balance_convention == "transformers":
        return experts.balance_loss
    return experts.balance_loss * layers / experts.chosen
