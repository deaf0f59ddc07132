"""The config of a whole run: the sections of every station, and where each value came from."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import Field

from trivium.cli.synonyms import fields_meant
from trivium.config import (
    Config,
    Tree,
    as_count,
    build,
    leaves,
    merge,
    parse_assignments,
    preset_names,
    read_preset,
    to_tree,
)
from trivium.corpus.config import CurateConfig, HarvestConfig
from trivium.cost.hardware import machine_problem
from trivium.errors import ConfigError
from trivium.evaluation.bias.config import BiasConfig
from trivium.evaluation.config import EvaluationConfig
from trivium.jsonlines import text_lines
from trivium.plan.layout import Layout
from trivium.plan.plan import Plan
from trivium.planner.config import SearchSpace
from trivium.redact import secrets_in
from trivium.serving.config import GenerationConfig, ServeConfig
from trivium.tokens.config import BYTE_ALPHABET, TokensConfig
from trivium.training.config import TrainingConfig
from trivium.training.rates import recipe_problems
from trivium.untrusted import read_text

HERE = "here"  # the machine this runs on


def _ready(schedule: str, **degrees: int) -> Tree:
    """A plan's overrides, with all that a preset may say of its own ranks: it would change or refuse these."""
    layout = to_tree(Layout(**degrees))
    return {"layout": layout, "schedule": schedule, "rows": None, "partition": {"layers": None}}


# Layouts for so many processes on one machine; --ranks chooses one.
LAYOUTS: Mapping[int, Tree] = {
    1: _ready("1f1b", tensor=1, pipeline=1, data=1, chunks=1),
    4: _ready("interleaved", tensor=2, pipeline=2, data=1, chunks=2),
    8: _ready("interleaved", tensor=2, pipeline=2, data=2, chunks=2),
}


class RunConfig(Config):
    """Everything a run from raw text to report depends on."""

    remedy: ClassVar[str] = f'{Config.remedy}; or begin the file with "base: demo" and name only what differs'

    @classmethod
    def meant(cls, name: str, paths: Mapping[str, str]) -> Iterable[str]:
        """Also those that other training systems call so."""
        return fields_meant(name, paths)

    seed: Annotated[int, Field(ge=0)] = 1234  # of every random choice
    plan: Plan
    machine: str = HERE  # what plans are priced on: this machine, one of cost/machines/, or a machine file's path
    search: SearchSpace = SearchSpace()
    harvest: HarvestConfig = HarvestConfig()
    curate: CurateConfig = CurateConfig()
    tokens: TokensConfig = TokensConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    bias: BiasConfig = BiasConfig()
    generation: GenerationConfig = GenerationConfig()
    serve: ServeConfig = ServeConfig()

    def problems(self, world_size: int | None = None) -> list[str]:
        """Every contradiction between fields, each with path, value, law and remedy."""
        found = [*self.plan.check(world_size), *recipe_problems(self.training, self.plan)]
        if not self.predicts(self.tokens.vocabulary):
            found.append(
                f"tokens.vocabulary ({self.tokens.vocabulary}) must equal plan.model.vocabulary "
                f"({self.plan.model.vocabulary}): the model predicts the tokenizer's ids; set plan.model.vocabulary, "
                f"and tokens.vocabulary follows where nothing else is said of it"
            )
        if self.tokens.tokenizer is None and self.tokens.vocabulary <= BYTE_ALPHABET:
            found.append(
                f"tokens.vocabulary ({self.tokens.vocabulary}) must be {BYTE_ALPHABET + 1} or more where a tokenizer "
                "is trained: it has an id for every byte and for the end of a text; raise it, or name another one in "
                "tokens.tokenizer"
            )
        if is_machine_file(self.machine):
            if not Path(self.machine).is_file():
                found.append(f"machine: there is no file {self.machine}; `trivium plan probe` writes one")
        elif self.machine != HERE and (problem := machine_problem(self.machine)):
            found.append(f"machine: {problem}")
        return found

    def predicts(self, ids: int) -> bool:
        """Whether the model has rows for so many ids: as many, or more where tokenizer and weights come from elsewhere,
        whose rows were often rounded up."""
        rows = self.plan.model.vocabulary
        return ids == rows or (ids < rows and self.tokens.tokenizer is not None)

    def checked(self, world_size: int | None = None) -> "RunConfig":
        """The config itself when it is free of contradictions; otherwise ConfigError with all of them."""
        problems = self.problems(world_size)
        if problems:
            raise ConfigError("\n".join(problems))
        return self


class Given(NamedTuple):
    """What the user gave: a preset or config file, a number of ranks, and overrides; later ones win."""

    preset: str
    assignments: tuple[str, ...] = ()
    ranks: int | None = None


def with_options(sets: Iterable[str] | None, options: Mapping[str, object]) -> tuple[str, ...]:
    """Overrides, joined by those options, by the path of their field, that were given: a field that is given in both
    ways is given twice."""
    stated = (f"{path}={json.dumps(value)}" for path, value in options.items() if value is not None)
    return (*(sets or ()), *stated)


def resolve(given: Given) -> RunConfig:
    """The config that was asked for; every field that is wrong is named at once."""
    tree: Tree = {}
    for _, layer in _layers(given):
        tree = merge(tree, layer)
    for path, hidden in secrets_in(tree):
        raise ConfigError(
            f"{path} is '{hidden}': it holds a user name, password or token, and a config is stored with every output; "
            "leave that out, and give it in the environment of the library that reads the address"
        )
    tree = _with_rows_read(tree)
    try:
        config = build(RunConfig, tree)
    except ConfigError as error:
        if given.preset in preset_names():
            raise
        afresh = "" if given.preset.endswith((".yaml", ".yml")) else "; --preset NAME starts afresh"
        raise ConfigError(f"{error}\n(values not given with --set come from {given.preset}{afresh})") from None
    return config


def origins(given: Given) -> dict[str, str]:
    """Where each value of the resolved config came from: default, preset NAME, --ranks or --set."""
    found = {path: "default" for path, _ in leaves(to_tree(resolve(given)))}
    for name, layer in _layers(given):
        for path, _ in leaves(layer):
            inside = [p for p in found if p == path or p.startswith(f"{path}.")]
            found |= dict.fromkeys(inside, name)
    return found


def ranks_tree(ranks: int) -> Tree:
    """The ready-made layout for so many processes, as overrides of the plan."""
    if ranks not in LAYOUTS:
        raise ConfigError(
            f"--ranks {ranks}: there are ready layouts for {', '.join(map(str, LAYOUTS))} ranks; for another number "
            f"give --set plan.layout.tensor=… --set plan.layout.pipeline=… --set plan.layout.data=…"
        )
    return {"plan": LAYOUTS[ranks]}


def _with_rows_read(tree: Tree) -> Tree:
    """plan.rows may name a text file, one row of actions per pipeline rank; the config keeps its content."""
    named = _at(tree, "plan", "rows")
    if not isinstance(named, str):
        return tree
    try:
        rows = [line for line in text_lines(read_text(named)) if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"plan.rows: {named} cannot be read as text: {error}") from None
    return merge(tree, {"plan": {"rows": rows}})


def is_machine_file(machine: str) -> bool:
    """Whether `machine` is the path of a machine file, and no name."""
    return machine.endswith((".yaml", ".yml"))


def _with_what_follows(layer: Tree) -> Tree:
    """A layer that says how many ids the model predicts, and not how many the tokenizer has, means both, unless they
    are fewer than a tokenizer that is trained has."""
    ids = as_count(_at(layer, "plan", "model", "vocabulary"))
    enough = isinstance(ids, int) and (ids > BYTE_ALPHABET or _at(layer, "tokens", "tokenizer") is not None)
    if enough and _at(layer, "tokens", "vocabulary") is None:
        return merge(layer, {"tokens": {"vocabulary": ids}})
    return layer


def _with_full_paths(tree: Tree, folder: Path) -> Tree:
    """The paths of a machine file, a file of rows, a tokenizer and a checkpoint to start from are relative to `folder`,
    if they are there: the config is read from other folders later."""
    machine = _at(tree, "machine")
    if isinstance(machine, str) and is_machine_file(machine):
        tree = merge(tree, {"machine": _full_path(machine, folder)})
    for section, field in (("plan", "rows"), ("tokens", "tokenizer"), ("training", "start_from")):
        named = _at(tree, section, field)
        if isinstance(named, str):
            tree = merge(tree, {section: {field: _full_path(named, folder)}})
    return tree


def _full_path(named: str, folder: Path) -> str:
    try:
        beside = (folder / named).exists()
    except OSError:  # no name of a file, such as many actions in the place of theirs
        beside = False
    return str((folder / named if beside else Path(named)).absolute())


def _at(tree: Tree, *path: str) -> Any:
    """The value at a path; None where there is none."""
    node: Any = tree
    for key in path:
        node = node.get(key) if isinstance(node, dict) else None
    return node


def _layers(given: Given) -> list[tuple[str, Tree]]:
    name = f"preset {given.preset}" if given.preset in preset_names() else given.preset
    layers = [(name, _with_what_follows(read_preset(given.preset, _with_full_paths)))]
    if given.ranks is not None:
        layers.append((f"--ranks {given.ranks}", ranks_tree(given.ranks)))
    stated = _with_full_paths(parse_assignments(given.assignments, RunConfig), Path())
    return [*layers, ("--set", _with_what_follows(stated))]
