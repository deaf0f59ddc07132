"""Frozen pydantic configs, presets in YAML, and typed overrides that are applied together."""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationError
from pydantic_core import PydanticCustomError, core_schema

from trivium.errors import ConfigError, TriviumError, nearest
from trivium.plain_yaml import Exponent, read_yaml, yaml_problem
from trivium.units import shown
from trivium.untrusted import CONFIG_BYTES, DOCUMENT_BYTES, MAX_NESTING_LEVELS, parse_json, read_text

MAX_PRESET_CHAIN = 32  # files in a chain of `base:`
MAX_LISTED_PROBLEMS = 20
LIST_PRESETS = "`trivium models` lists those that are shipped"
_MIN_NAME_SIMILARITY = 0.7  # ratio of difflib
_MAX_EXACT_INTEGER = 2**53  # in a float
Tree = dict[str, Any]
ModelT = TypeVar("ModelT", bound="Config")
MAX_COUNT = 2**63 - 1  # Counts fit into 64 bits.
Positive = Annotated[int, Field(ge=1, le=MAX_COUNT)]
NotNegative = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Weight = Annotated[float, Field(ge=0, le=MAX_COUNT)]  # weight of one of several things, in any unit


class Short(NamedTuple):
    """Annotates a field that has a command-line option, which is called --NAME in every command that has --set. values:
    lists what a shell proposes for it, if the type of the field does not say that."""

    name: str
    values: Callable[[], Iterable[str]] = tuple


def _unconverted(schema: Any) -> Any:
    """Return a pydantic schema that accepts numbers and booleans only from values of their own type."""
    if isinstance(schema, (list, tuple)):
        return type(schema)(map(_unconverted, schema))
    if not isinstance(schema, dict):
        return schema
    inner: Any = {key: _unconverted(value) for key, value in schema.items()}
    match inner:
        case {"type": "int" | "float" | "bool"}:
            return {**inner, "strict": True}
        case {"type": "literal", "expected": [int(), *_]}:  # Without this, true would be accepted as 1.
            return core_schema.no_info_before_validator_function(_no_truth_value, inner)
    return inner


def _no_truth_value(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("int_type", "Input should be a valid integer")
    return value


class Config(BaseModel):
    """Base of all configs. Configs are immutable. Unknown keys, numbers that are not finite, and values of another
    type (such as true or a string for a number) are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)
    # What to do if a required value is missing.
    remedy: ClassVar[str] = "give it in the file, or with --set {path}=VALUE"

    @classmethod
    def meant(cls, name: str, paths: Mapping[str, str]) -> Iterable[str]:
        """Return the paths of fields that an unknown name may stand for. paths: {path: its last part} of all fields."""
        return [path for path, last in paths.items() if last == name]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Return pydantic's schema without its conversions of true to 1, 1 to true and "2" to 2."""
        return _unconverted(handler(source))


def preset_names() -> list[str]:
    """Return the names of the included presets. Those that begin with _ are only for others to inherit from."""
    return sorted({*shipped_names("presets"), *(name for name in _family_presets() if name[0] != "_")})


def nearest_preset(name: str) -> str:
    """Return a hint for an unknown preset: the most similar one, or where they are listed."""
    hint = nearest(name, preset_names())
    return hint if hint.startswith("did you mean") else LIST_PRESETS


@cache
def _family_presets() -> Mapping[str, tuple[Path, Tree]]:
    """Return presets of families by name. Each file of families/ may have several, for the sizes of its models."""
    files = [shipped(f"families/{name}.yaml") for name in shipped_names("families")]
    trees = {path: mapping_of_yaml(read_text(path), str(path), "presets are a mapping by name") for path in files}
    return {name: (path, tree) for path, presets in trees.items() for name, tree in presets.items()}


def about_preset(name: str) -> Tree:
    """Return the published facts of a family's preset that are no part of a config: `license`, and `context` where it
    is not plan.model.sequence."""
    if name not in _family_presets():
        return {}
    tree = _family_presets()[name][1]
    return merge(about_preset(tree["base"]) if "base" in tree else {}, tree.get("about", {}))


def shipped(place: str) -> Path:
    """Return the path of a file or folder inside the package, such as presets/blends."""
    return Path(str(resources.files("trivium"))) / place


def shipped_names(folder: str) -> list[str]:
    """Return the sorted names of the YAML files in a folder inside the package."""
    return sorted(path.stem for path in shipped(folder).glob("*.yaml"))


def read_preset(name_or_path: str, found: Callable[[Tree, Path], Tree] = lambda tree, _: tree) -> Tree:
    """Read a preset as a tree, including the presets that it inherits from with `base:`.

    name_or_path: an included preset, a YAML or JSON file, or a run directory, whose config.json is read. found:
    resolves the paths in each file's tree relative to the file's folder.
    """
    whole: Tree = {}
    for path, tree in _files(name_or_path):
        whole = merge(whole, found(tree, path.parent))
    return whole


def preset_files(name_or_path: str) -> list[Path]:
    """Return the files of a preset: its own, and those that it inherits from."""
    return [path for path, _ in _files(name_or_path)]


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Tree:
    """Return `base` with every leaf of `over` replaced or added."""
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def changes(base: Mapping[str, Any], wanted: Mapping[str, Any]) -> Tree:
    """Return the leaves of `wanted` that differ from `base`. Merged into `base` they give `wanted`, if `wanted` has
    all keys of `base`."""
    found: Tree = {}
    for key, value in wanted.items():
        old = base.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            found |= {key: inner} if (inner := changes(old, value)) else {}
        elif key not in base or value != old:
            found[key] = value
    return found


def differing(config: Config) -> Tree:
    """Return the leaves of a config that differ from the defaults of their fields, and those without a default."""
    tree, found = to_tree(config), Tree()
    for name, field in type(config).model_fields.items():
        value, usual = getattr(config, name), field.default
        if isinstance(value, Config):
            inner = changes(to_tree(usual), tree[name]) if isinstance(usual, Config) else differing(value)
            found |= {name: inner} if inner else {}
        elif value != usual:
            found[name] = tree[name]
    return found


def parse_assignments(assignments: Iterable[str], model: type[BaseModel] | None = None) -> Tree:
    """Parse `a.b=value` texts into one tree, so that their order never matters.

    Values are YAML scalars or lists. model: the config that they override. Its string fields accept values as typed,
    whatever they are in YAML: `[SEP]`, `no`, `1e3`, `a #b`. For these, `null` means None if the field allows it, and
    quotes are removed.
    """
    tree: Tree = {}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path.strip():
            raise ConfigError(f"--set '{assignment}' is not an override; write section.field=value")
        *sections, field = path.strip().split(".")
        if len(sections) > MAX_NESTING_LEVELS:
            raise ConfigError(
                f"--set '{shown(assignment)}' has more than {MAX_NESTING_LEVELS} sections; write section.field=value"
            )
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
            if not isinstance(node, dict):
                raise ConfigError(f"--set '{assignment}': '{section}' was already given a value")
        if field in node:
            raise ConfigError(
                f"'{path}' is given twice ({node[field]} and {text}), by --set or by an option that stands for it; "
                "give it once"
            )
        kinds = kinds_at(model, (*sections, field))
        if _are_text(kinds):
            node[field] = _text_typed(text, may_be_nothing=type(None) in kinds)
            continue
        try:
            node[field] = _texts_typed(text) if _are_texts(kinds) else read_yaml(text)
        except yaml.YAMLError as error:
            remedy = "; quote it" if isinstance(error, yaml.MarkedYAMLError) else ""  # other problems name their remedy
            raise ConfigError(f"--set '{assignment}' is not YAML: {yaml_problem(error)}{remedy}") from None
        if node[field] is not None and _has_comment(text):
            raise ConfigError(
                f"--set '{assignment}': in YAML a comment begins at its '#'; quote the value: "
                f"{path}={json.dumps(text, ensure_ascii=False)}"
            )
    return tree


def kinds_at(model: type[BaseModel] | None, path: tuple[str, ...]) -> set[Any]:
    """Return the types of a field without constraints; an empty set if it does not exist."""
    owner = None if model is None else owner_of(model, path[:-1])
    field = None if owner is None else owner.model_fields.get(path[-1])
    return set() if field is None else set(_kinds(field.annotation))


def _kinds(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Annotated:
        yield from _kinds(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for choice in get_args(annotation):
            yield from _kinds(choice)
    else:
        yield annotation


def _are_text(kinds: Iterable[Any]) -> bool:
    """Whether a value of these types is a string or None."""
    values = [kind for kind in kinds if kind is not type(None)]
    return bool(values) and all(
        kind is str or (get_origin(kind) is Literal and all(isinstance(one, str) for one in get_args(kind)))
        for kind in values
    )


def _are_texts(kinds: Iterable[Any]) -> bool:
    """Whether a value of these types is a list of strings or None."""
    values = [kind for kind in kinds if kind is not type(None)]
    return bool(values) and all(
        get_origin(kind) in (list, tuple)
        and all(one is Ellipsis or _are_text(set(_kinds(one))) for one in get_args(kind))
        for kind in values
    )


def _text_typed(text: str, *, may_be_nothing: bool) -> str | None:
    """Return the value of a string field: the text itself, unless YAML reads it as another string or as null."""
    try:
        value = read_yaml(text)
        if _has_comment(text) or not isinstance(value, str | None):
            return text
    except yaml.YAMLError:
        return text
    if value is None:
        return None if may_be_nothing else text
    return str(value)  # including 1e3, which is a number for other fields


def _texts_typed(text: str) -> Any:
    """Return the value of a field of strings. Items of a list are strings, whatever they are in YAML (`[no, 1e3]`)."""
    value = read_yaml(text)
    if not isinstance(value, list):
        return value if value is None or isinstance(value, (str, dict)) else text
    if any(isinstance(one, (list, dict)) for one in value):
        return value
    loader = yaml.BaseLoader(text)  # parses every scalar as a string
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _has_comment(text: str) -> bool:
    """Whether YAML reads a part of the text as a comment, which is a "#" between two tokens."""
    end = 0
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        if "#" in text[end : token.start_mark.index]:
            return True
        end = max(end, token.end_mark.index)
    return "#" in text[end:]


def as_value(text: str) -> str:
    """Return what to write after `field=` so that a string field gets this text; usually the text itself."""
    as_it_is = text.isprintable() and _text_typed(text, may_be_nothing=True) == text
    return text if as_it_is else json.dumps(text, ensure_ascii=False)


def build(model: type[ModelT], tree: Mapping[str, Any]) -> ModelT:
    """Validate a tree. Raises ConfigError, which lists all problems with path, value and rule."""
    if not isinstance(tree, Mapping):
        raise ConfigError(f"it is of type {type(tree).__name__} and must be an object")
    given = counted = dict(tree)
    try:
        return model.model_validate(given)
    except ValidationError as error:
        found = error.errors(include_url=False)
    for e in found[:MAX_LISTED_PROBLEMS]:
        number = _NUMBERS.get(e["type"], lambda value: value)(e["input"])
        if number is not e["input"]:
            counted = _with(counted, e["loc"], number)
    if counted is not given:
        return build(model, counted)
    problems = [e for e in found if not _follows(e, found)]
    more = [f"and {len(problems) - MAX_LISTED_PROBLEMS:,} more problems"] if len(problems) > MAX_LISTED_PROBLEMS else []
    told: dict[str, str] = {}
    for e in problems[:MAX_LISTED_PROBLEMS]:
        about, must, rule = _explain(model, e).partition(_MUST)
        told[about] = f"{told[about]}, or {rule}" if about in told else about + must + rule
    raise ConfigError("\n".join([*told.values(), *more]))


def build_named(model: type[ModelT], tree: Mapping[str, Any], name: str) -> ModelT:
    """Validate a file's tree. Raises ConfigError, which prefixes every problem with the file's name."""
    try:
        return build(model, tree)
    except ConfigError as error:
        raise ConfigError("\n".join(f"{name}: {line}" for line in str(error).splitlines())) from None


def as_count(value: Any) -> Any:
    """Return the integer that a value such as 2e3 represents exactly; other values are returned unchanged."""
    number = _as_number(value)
    exact = isinstance(number, float) and number.is_integer() and abs(number) < _MAX_EXACT_INTEGER
    return int(number) if exact else value


def _as_number(value: Any) -> Any:
    return float(value) if isinstance(value, Exponent) else value


# Conversions to the expected type, by pydantic's error type.
_NUMBERS: Mapping[str, Callable[[Any], Any]] = {"int_type": as_count, "float_type": _as_number}


def to_tree(config: Config) -> Tree:
    """Return the config as plain data, as stored with every output."""
    return config.model_dump(mode="json")


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return `a.b: 1 -> 2` lines for all differences, such as between a checkpoint's config and a run's."""
    lines: list[str] = []
    for key in sorted(old.keys() | new.keys()):
        a, b = old.get(key, "(absent)"), new.get(key, "(absent)")
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            lines += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            lines.append(f"{prefix}{key}: {written(a)} -> {written(b)}")
    return lines


def written(value: Any) -> str:
    """Format a value as in `--set` and YAML: null, true, [1, 2]; strings are unchanged."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def first_lines(differing: Sequence[str], most: int = 12) -> str:
    """Format differences as indented lines of an error: at most `most`, and the number of the others."""
    more = [f"and {len(differing) - most} more"] if len(differing) > most else []
    return "\n".join(f"  {line}" for line in [*differing[:most], *more])


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of every leaf of a tree, depth first."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _files(name: str, folder: Path = Path(), heirs: tuple[Path, ...] = ()) -> list[tuple[Path, Tree]]:
    """Return (path, tree) of a preset's files, the last `base:` first. heirs: the files that inherit from this one."""
    path, tree = _preset(name, folder)
    line = (*heirs, path.resolve() / name if name in _family_presets() else path.resolve())
    if line[-1] in heirs:
        raise ConfigError(f"preset '{name}' inherits from itself: {' -> '.join(map(str, line))}")
    if len(line) > MAX_PRESET_CHAIN:
        raise ConfigError(
            f"preset '{name}' is the {len(line)}th of a chain of `base:`; at most {MAX_PRESET_CHAIN} files may follow "
            "one another: join some of them"
        )
    base = tree.pop("base", None)
    if base is None:
        return [(path, tree)]
    if not isinstance(base, str):
        raise ConfigError(f"{path}: base is {_shown_value(base)}; it must be one text, a preset's name or a path")
    try:
        under = _files(base, path.parent, line)
    except ConfigError as error:
        raise ConfigError(str(error) if heirs else f"{name}, base: {error}") from None
    return [*under, (path, tree)]


def _preset(name: str, folder: Path) -> tuple[Path, Tree]:
    """Return the path and tree of a preset."""
    if name in _family_presets():
        path, tree = _family_presets()[name]
        return path, {section: value for section, value in tree.items() if section != "about"}
    path, text = _preset_text(name, folder)
    read = mapping_of_json if path.suffix == ".json" else mapping_of_yaml
    return path, read(text, shown(str(path)), "a config is a mapping of sections", may_be_empty=True)


def _preset_text(name: str, folder: Path) -> tuple[Path, str]:
    """Return a preset's path and text. A path is relative to `folder` if it exists there."""
    if name in shipped_names("presets"):
        path = shipped(f"presets/{name}.yaml")
        return path, read_text(path)
    beside = folder / name
    try:
        path = beside if beside.exists() else Path(name)
        if (path / "config.json").is_file():
            path = path / "config.json"
        there = path.exists()
    except (OSError, ValueError) as error:  # a name of thousands of characters, or one with a NUL
        told = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"'{shown(name)}' is not the name of a preset or file: {told}; {LIST_PRESETS}") from None
    if path.suffix not in (".yaml", ".yml", ".json"):
        raise ConfigError(f"there is no preset '{shown(name)}'; {nearest_preset(name)}")
    if not there:
        raise ConfigError(f"preset file {shown(str(path))} does not exist; {LIST_PRESETS}")
    # A run's config.json may have a schedule of thousands of ranks. Reading JSON is a hundred times as fast as YAML.
    return path, _text_of(path, "preset file", DOCUMENT_BYTES if path.suffix == ".json" else CONFIG_BYTES)


def _text_of(path: Path, kind: str, at_most: int) -> str:
    try:
        return read_text(path, at_most)
    except OSError as error:
        raise ConfigError(f"{kind} {shown(str(path))} cannot be read: {error.strerror}; name another") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{kind} {shown(str(path))} is not UTF-8 text (byte {error.start}); save it as UTF-8"
        ) from None


def tree_of_file(path: Path, name: str, law: str) -> Tree:
    """Read a YAML file. Raises ConfigError, which calls the file `name`, if it is unreadable or not a mapping."""
    try:
        text = read_text(path, CONFIG_BYTES)
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}; {law}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} cannot be read as UTF-8 text (byte {error.start}); {law}") from None
    return mapping_of_yaml(text, name, law)


def mapping_of_yaml(
    text: str, where: str, law: str, wrong: type[TriviumError] = ConfigError, *, may_be_empty: bool = False
) -> Tree:
    """Parse a YAML mapping. Raises `wrong`, with the text's name `where` and the expectation `law`, for anything
    else."""
    try:
        tree = read_yaml(text)
    except yaml.YAMLError as error:
        raise wrong(f"{where} is not YAML: {yaml_problem(error)}") from None
    return _mapping(tree, where, law, wrong, may_be_empty=may_be_empty)


def mapping_of_json(
    text: str, where: str, law: str, wrong: type[TriviumError] = ConfigError, *, may_be_empty: bool = False
) -> Tree:
    """Parse a JSON mapping. Raises `wrong`, with the text's name `where` and the expectation `law`, for anything
    else."""
    try:
        tree = parse_json(text, object_pairs_hook=_unique) if text.strip() else None
    except json.JSONDecodeError as error:
        raise wrong(f"{where}, line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from None
    except ValueError as error:
        raise wrong(f"{where} is not JSON: {error}") from None
    return _mapping(tree, where, law, wrong, may_be_empty=may_be_empty)


def _mapping(tree: Any, where: str, law: str, wrong: type[TriviumError], *, may_be_empty: bool) -> Tree:
    if tree is None and may_be_empty:
        return {}
    if not isinstance(tree, dict):
        held = "nothing" if tree is None else f"a {type(tree).__name__}"
        raise wrong(f"{where} holds {held}; {law}")
    return tree


def _unique(pairs: list[tuple[str, Any]]) -> Tree:
    tree: Tree = {}
    for key, value in pairs:
        if key in tree:
            raise ValueError(f"it has '{shown(key)}' a second time; put both under the first")
        tree[key] = value
    return tree


def _follows(error: Any, found: Iterable[Any]) -> bool:
    """Whether a list is too short only because its items are invalid, which is reported already."""
    loc = error["loc"]
    return error["type"] == "too_short" and any(e["loc"][: len(loc)] == loc != e["loc"] for e in found)


_ALTERNATIVE = re.compile(r"(literal|constrained|function)[-\[]")  # how pydantic calls one of a union, after the path
_MUST = "; it must be "
_PARTS = {"too_short": "item", "string_too_short": "character"}  # the parts of a value that is too short


def _shown_value(value: Any) -> str:
    return f"'{shown(value)}'" if isinstance(value, str) else shown(json.dumps(value, default=str))


def _explain(model: type[Config], error: Any) -> str:
    path = shown(".".join(part for part in map(str, error["loc"]) if not _ALTERNATIVE.match(part)))
    value = error.get("input")
    told = _shown_value(value)
    if error["type"] == "extra_forbidden":
        name, owner = str(error["loc"][-1]), owner_of(model, error["loc"][:-1])
        hint = _hint(name, owner, model) if owner else "remove it"
        return f"{path}: there is no such key; {hint}"
    if error["type"] == "missing":
        remedy = model.remedy.format(path=path)
        return f"{path}: a value is required here and none was given; {remedy}"
    if error["type"] == "model_type":
        section = owner_of(model, error["loc"])
        fields = f": {', '.join(section.model_fields)}" if section else ""
        return f"{path} is {told}; it is a section: give its fields, as {path}.FIELD{fields}"
    if error["type"] in _PARTS:
        least, part = error["ctx"]["min_length"], _PARTS[error["type"]]
        return f"{path} is {told}; it must have {least} {part}{'' if least == 1 else 's'} or more"
    if error["type"] in ("tuple_type", "list_type"):
        if value is None:
            return f"{path} is null; it must be a list: write [], or quote what YAML takes for nothing, as ['###']"
        return f"{path} is {told}; it must be a list: write [{value}]"
    if error["type"] == "string_type":
        return f"{path} is {told}; it must be text: put it in quotes"
    law = error["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return f"{path} is {told}: {law}" if error["type"] == "value_error" else f"{path} is {told}{_MUST}{law}"


def _with(node: Any, path: Sequence[str | int], value: Any) -> Any:
    """Return a tree with another value at a path. The path's end may name a type of a union instead of a place."""
    if isinstance(node, Mapping):
        return {k: _with(v, path[1:], value) if k == path[0] else v for k, v in node.items()}
    if isinstance(node, (list, tuple)):
        return [_with(v, path[1:], value) if n == path[0] else v for n, v in enumerate(node)]
    return value


def owner_of(model: type[BaseModel], path: tuple[Any, ...]) -> type[BaseModel] | None:
    owner: Any = model
    for key in path:
        fields = getattr(owner, "model_fields", {})
        if key not in fields:
            return None
        owner = _section(fields[key].annotation)
    return owner if isinstance(owner, type) and issubclass(owner, BaseModel) else None


def _hint(name: str, owner: type[BaseModel], model: type[Config]) -> str:
    """Return a hint for an unknown name: how to write the path of a field, a similar field of the section, or else
    fields of other sections that it may mean."""
    if name in field_paths(owner):
        return f"write it nested: {name.replace('.', ': {')}: VALUE{'}' * name.count('.')}"
    if difflib.get_close_matches(name, owner.model_fields, n=1, cutoff=_MIN_NAME_SIMILARITY):
        elsewhere = [path for path, last in field_paths(model).items() if last == name]
        return nearest(name, owner.model_fields, also=elsewhere)
    meant = list(model.meant(name, field_paths(model)))
    return nearest(name, () if meant else owner.model_fields, also=meant)


def field_paths(model: type[BaseModel], prefix: str = "") -> dict[str, str]:
    """Return {path: name} of all fields of a config, in the order of its sections."""
    found: dict[str, str] = {}
    for key, field in model.model_fields.items():
        found[f"{prefix}{key}"] = key
        section = _section(field.annotation)
        if section is not None:
            found |= field_paths(section, f"{prefix}{key}.")
    return found


def short_options(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Short]]:
    """Yield (path, option) of all fields that have an option, in the order of the sections. A section that is used
    in several places yields its options once for each place."""
    for key, field in model.model_fields.items():
        for mark in field.metadata:
            if isinstance(mark, Short):
                yield f"{prefix}{key}", mark
        section = _section(field.annotation)
        if section is not None:
            yield from short_options(section, f"{prefix}{key}.")


def _section(annotation: Any) -> type[BaseModel] | None:
    choices = (annotation, *get_args(annotation))  # `Ramp | None` is a section too
    return next((c for c in choices if isinstance(c, type) and issubclass(c, BaseModel)), None)
