"""The config of a whole run: the sections of every station, and where each value came from."""

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import Field

from trivium.config import (
    Config,
    Short,
    Tree,
    as_count,
    build,
    changes,
    leaves,
    merge,
    parse_assignments,
    preset_names,
    read_preset,
    shipped,
    to_tree,
)
from trivium.corpus.config import CurateConfig, HarvestConfig
from trivium.cost.hardware import machine_names, machine_problem
from trivium.errors import ConfigError, TriviumError
from trivium.evaluation.bias.config import BiasConfig
from trivium.evaluation.config import EvaluationConfig
from trivium.hub import is_hub_name
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
BASE = "demo"  # default settings of a training from a Hugging Face model


def _ready(schedule: str, **degrees: Any) -> Tree:
    """A plan's overrides, with all that a preset may say of its own ranks: it would change or refuse these."""
    layout = to_tree(Layout(**degrees))
    return {"layout": layout, "schedule": schedule, "rows": None, "partition": {"layers": None}}


# Layouts by number of processes on one machine; --ranks chooses one.
LAYOUTS: Mapping[int, Tree] = {
    1: _ready("1f1b", tensor=1, pipeline=1, data=1, chunks=1),
    4: _ready("interleaved", tensor=2, pipeline=2, data=1, chunks=2),
    8: _ready("interleaved", tensor=2, pipeline=2, data=2, chunks=2),
}
# Overrides of BASE for models from elsewhere: one rank, and neutral prompts in place of the demo's.
OF_ANY_MODEL: Tree = {"plan": LAYOUTS[1], "generation": {"prompts": None}}


class RunConfig(Config):
    """Everything a run from raw text to report depends on."""

    remedy: ClassVar[str] = f'{Config.remedy}; or begin the file with "base: demo" and name only what differs'

    @classmethod
    def meant(cls, name: str, paths: Mapping[str, str]) -> Iterable[str]:
        """Return the fields with this name, including those that other training systems call so."""
        return fields_meant(name, paths)

    seed: Annotated[int, Field(ge=0), Short("seed")] = 1234  # seed of every random choice
    plan: Plan
    # what plans are priced on: this machine, one of cost/machines/, or a machine file's path
    machine: Annotated[str, Short("machine", machine_names)] = HERE
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
        """Return whether the model has a row for each of `ids` ids. With a given tokenizer it may have more,
        because published models often round the number of rows up."""
        rows = self.plan.model.vocabulary
        return ids == rows or (ids < rows and self.tokens.tokenizer is not None)

    def checked(self, world_size: int | None = None) -> "RunConfig":
        """The config itself when it is free of contradictions; otherwise ConfigError with all of them."""
        problems = self.problems(world_size)
        if problems:
            raise ConfigError("\n".join(problems))
        return self


class Given(NamedTuple):
    """The arguments of the user: a preset or config file, a number of ranks, and overrides; later ones win.

    defaults: settings of the command, which replace those of the preset unless the user gives others.
    """

    preset: str
    assignments: tuple[str, ...] = ()
    ranks: int | None = None
    defaults: Mapping[str, Any] = MappingProxyType({})


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


def based_on(preset: str, config: RunConfig, folder: Path) -> tuple[str, Tree]:
    """Return what a config file in `folder` names as its base, for a preset or file, and the settings in which a config
    differs from it. A file in the same folder or below is named relative to it, so that both can be moved together."""
    from trivium.cli.model_argument import model_named

    named = model_named(preset)
    base = named.place if named.kind == "config" else BASE
    differing = changes(to_tree(resolve(Given(base))), to_tree(config))
    if base in preset_names():
        return base, differing
    place, folder = (Path(os.path.abspath(path)) for path in (base, folder))  # noqa: PTH100 `..` is taken out, links are kept
    is_near = place.is_file() and place.is_relative_to(folder)
    return str(place.relative_to(folder) if is_near else place), differing


def origins(given: Given) -> dict[str, str]:
    """Return the origin of each value of the resolved config: default, preset NAME, --ranks or --set."""
    found = {path: "default" for path, _ in leaves(to_tree(resolve(given)))}
    for name, layer in _layers(given):
        for path, _ in leaves(layer):
            inside = [p for p in found if p == path or p.startswith(f"{path}.")]
            found |= dict.fromkeys(inside, name)
    return found


def ranks_tree(ranks: int) -> Tree:
    """Return the ready-made layout for `ranks` processes as overrides. The whole training keeps it."""
    if ranks not in LAYOUTS:
        here = f"for {ranks}, give --ranks 1 --set plan.layout.data={ranks}" if ranks > 1 else "give one of them"
        raise ConfigError(
            f"--ranks {ranks}: there are ready layouts for {', '.join(map(str, LAYOUTS))} ranks; {here}, or leave "
            f"--ranks out and set plan.layout.tensor, plan.layout.pipeline and plan.layout.data"
        )
    return {"plan": LAYOUTS[ranks], "training": {"fastest_after": 0}}


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
    """Add what a layer implies: the number of ids of a tokenizer that it names, and its end of documents.

    A layer that gives the number of ids of the model, and neither a tokenizer nor its number, means both numbers,
    unless the tokenizer to be trained has more.
    """
    layer = _with_ids_of_tokenizer(layer)
    ids = as_count(_at(layer, "plan", "model", "vocabulary"))
    enough = isinstance(ids, int) and (ids > BYTE_ALPHABET or _at(layer, "tokens", "tokenizer") is not None)
    if enough and _at(layer, "tokens", "vocabulary") is None:
        return merge(layer, {"tokens": {"vocabulary": ids}})
    return layer


def _with_ids_of_tokenizer(layer: Tree) -> Tree:
    """A tokenizer that cannot be opened is reported by the command that reads it."""
    place = _at(layer, "tokens", "tokenizer")
    model = _at(layer, "plan", "model") or {}
    if not isinstance(place, str) or ("vocabulary" in model and ("end_of_text" in model or is_hub_name(place))):
        return layer  # the layer has it; the Hub is not asked for the end of documents alone
    with suppress(TriviumError):
        ids, end = _ids_of(place, _at(layer, "tokens", "end_of_text"))
        implied = {"plan": {"model": {"vocabulary": ids, "end_of_text": end}}, "tokens": {"vocabulary": ids}}
        return merge(implied, layer)
    return layer


@lru_cache(maxsize=4)  # a command resolves its config several times
def _ids_of(place: str, end: str | None) -> tuple[int, int]:
    from trivium.tokens.tokenizer import given_tokenizer

    tokenizer = given_tokenizer(place, end)
    return tokenizer.vocabulary, tokenizer.end_of_text


def _with_full_paths(tree: Tree, folder: Path) -> Tree:
    """The paths of a machine file, a file of rows, a tokenizer and a checkpoint to start from are relative to `folder`,
    if they are there: the config is read from other folders later."""
    machine = _at(tree, "machine")
    if isinstance(machine, str) and is_machine_file(machine):
        tree = merge(tree, {"machine": _full_path(machine, folder)})
    for section, field in (("plan", "rows"), ("tokens", "tokenizer"), ("training", "start_from")):
        named = _at(tree, section, field)
        is_name = is_hub_name(str(named)) or (field == "tokenizer" and _is_tokenizer_name(str(named)))
        if isinstance(named, str) and not is_name:
            tree = merge(tree, {section: {field: _full_path(named, folder)}})
    return tree


def _of_file(tree: Tree, folder: Path) -> Tree:
    """Return the content of a preset's file before it is merged with others. A published model may have more rows than
    its tokenizer has ids."""
    full = _with_full_paths(tree, folder)
    return full if folder == shipped("families") else _with_ids_of_tokenizer(full)


def _is_tokenizer_name(named: str) -> bool:
    from trivium.tokens.tokenizer import is_tokenizer_name

    return is_tokenizer_name(named)


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


def _tree_of(name: str) -> Tree:
    """Return the config of a preset, a config file, a run or a model of another kind."""
    from trivium.cli.model_argument import model_named, settings_of

    found = model_named(name)
    if found.kind == "config":
        return read_preset(found.place, _of_file)
    return merge(merge(read_preset(BASE), OF_ANY_MODEL), settings_of(found)[0])


def _layers(given: Given) -> list[tuple[str, Tree]]:
    name = f"preset {given.preset}" if given.preset in preset_names() else given.preset
    layers = [(name, _with_what_follows(_tree_of(given.preset))), ("the command's defaults", dict(given.defaults))]
    if given.ranks is not None:
        layers.append((f"--ranks {given.ranks}", ranks_tree(given.ranks)))
    stated = _with_full_paths(parse_assignments(given.assignments, RunConfig), Path())
    return [*layers, ("--set", _with_what_follows(stated))]


# A table of data: a field, and what Megatron-LM, DeepSpeed, transformers, nanoGPT and others call it.


_NAMES = {
    "seed": "random_seed",
    "plan.model.layers": "num_layers n_layer n_layers num_hidden_layers depth",
    "plan.model.hidden": "hidden_size d_model n_embd dim width embedding_dim embed_dim model_dim",
    "plan.model.heads": "num_heads n_head n_heads num_attention_heads attention_heads",
    "plan.model.kv_heads": "num_key_value_heads n_kv_heads num_kv_heads num_query_groups",
    "plan.model.head_width": "head_dim head_size kv_channels",
    "plan.model.ffn": "ffn_hidden_size intermediate_size d_ff ffn_dim mlp_size",
    "plan.model.vocabulary": "vocab_size vocab",
    "plan.model.sequence": "seq_length seq_len sequence_length max_seq_len max_seq_length max_sequence_length "
    "context_length context_size block_size n_positions n_ctx max_position_embeddings",
    "plan.model.window": "sliding_window window_size",
    "plan.model.dropout": "hidden_dropout attention_dropout resid_pdrop",
    "plan.model.rope_base": "rope_theta rotary_base",
    "plan.model.init_std": "initializer_range init_method_std",
    "plan.batch.sequences": "batch_size global_batch_size train_batch_size global_batch",
    "plan.batch.micro": "micro_batch micro_batch_size microbatch_size per_device_train_batch_size "
    "train_micro_batch_size_per_gpu device_batch_size",
    "plan.batch.ramp": "rampup_batch_size batch_rampup",
    "plan.layout.tensor": "tp tensor_parallel tensor_parallel_size tensor_model_parallel_size",
    "plan.layout.pipeline": "pp pipeline_parallel pipeline_parallel_size pipeline_model_parallel_size",
    "plan.layout.data": "dp data_parallel data_parallel_size",
    "plan.layout.context": "cp context_parallel context_parallel_size",
    "plan.layout.expert": "ep expert_parallel expert_parallel_size expert_model_parallel_size",
    "plan.layout.chunks": "vpp virtual_pipeline_model_parallel_size num_layers_per_virtual_pipeline_stage",
    "plan.zero": "zero_stage fsdp use_distributed_optimizer",
    "plan.precision.weights": "mixed_precision torch_dtype bf16 fp16",
    "plan.recompute.mode": "gradient_checkpointing activation_checkpointing recompute_activations "
    "checkpoint_activations",
    "plan.compiled": "compile torch_compile",
    "training.steps": "max_steps num_steps total_steps train_steps train_iters max_iters iters num_iters",
    "training.lr": "learning_rate max_lr peak_lr base_lr",
    "training.lr_final_fraction": "min_lr lr_min final_lr",
    "training.warmup_tokens": "warmup warmup_steps warmup_iters lr_warmup_iters lr_warmup_samples warmup_ratio",
    "training.decay": "lr_decay_style lr_scheduler lr_scheduler_type lr_schedule scheduler",
    "training.decay_tokens": "lr_decay_iters decay_steps lr_decay_steps",
    "training.weight_decay": "wd",
    "training.clip": "grad_clip clip_grad max_grad_norm gradient_clipping gradient_clip_val",
    "training.beta1": "adam_beta1",
    "training.beta2": "adam_beta2",
    "training.epsilon": "eps adam_eps adam_epsilon",
    "training.checkpoint_every": "save_every save_interval save_steps checkpoint_interval",
    "training.keep_last": "save_total_limit",
    "training.validate_every": "eval_every eval_interval eval_steps",
    "training.start_from": "load resume resume_from init_from resume_from_checkpoint load_checkpoint",
    "tokens.tokenizer": "tokenizer_path tokenizer_model tokenizer_name",
    "generation.sampling.max_tokens": "max_new_tokens",
    "generation.sampling.temperature": "temp",
}
SYNONYMS: Mapping[str, str] = MappingProxyType({name: path for path, names in _NAMES.items() for name in names.split()})
_MIN_SIMILARITY = 0.75  # similarity of two names by difflib from which one may be a misspelling of the other


def fields_meant(name: str, paths: Mapping[str, str]) -> Iterator[str]:
    """Yield the paths of the fields that a name may mean, the likeliest first, each once. paths: of all fields, with
    the last part of each."""
    plain = name.strip("-").lower().replace("-", "_").rpartition(".")[2]
    names: dict[str, list[str]] = {}
    for path, last in paths.items():
        names.setdefault(last, []).append(path)
    for synonym, path in SYNONYMS.items():
        names.setdefault(synonym, []).append(path)
    close = [plain] if plain in names else difflib.get_close_matches(plain, names, n=3, cutoff=_MIN_SIMILARITY)
    yield from dict.fromkeys(path for one in close for path in names[one])
