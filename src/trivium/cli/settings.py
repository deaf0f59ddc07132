"""Options of commands for fields of the config: `--lr 3e-4` is `--set training.lr=3e-4`, in every command with --set.

A field names its option itself (`Short` in its annotation). A command says with `shows` which of them its help lists.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from inspect import Parameter, Signature
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from trivium.cli.commands import refuse_unknown
from trivium.config import Config, kinds_at, short_options

SETS = "--set"
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


class Typed(str):
    """An assignment, as --set takes it, for which the user typed the option of a field."""

    option: str


def as_typed(path: str, sets: Iterable[str] | None) -> str:
    """Return how the user named a field: by its option, or by --set with its path. sets: what --set was given."""
    options = (one.option for one in sets or () if isinstance(one, Typed) and one.partition("=")[0] == path)
    return next(options, f"{SETS} {path}")


class Setting(NamedTuple):
    """A field that has an option."""

    option: str  # with its dashes
    path: str
    kinds: tuple[Any, ...]  # types of the field, without None
    values: Callable[[], Iterable[str]]  # others than `choices` that a shell proposes

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that the field may have, where they are few."""
        return tuple(str(one) for kind in self.kinds if get_origin(kind) is Literal for one in get_args(kind))

    @property
    def is_switch(self) -> bool:
        return self.kinds == (bool,)

    @property
    def is_list(self) -> bool:
        return any(get_origin(kind) is tuple for kind in self.kinds)

    @property
    def metavar(self) -> str:
        """Return the placeholder of the value in a help text."""
        if self.is_list:
            return "A,B,…"
        words = {int: "N", float: "NUMBER", str: "TEXT", bool: ""}
        return "|".join(self.choices) or next((words[kind] for kind in self.kinds if kind in words), "VALUE")

    def assignment(self, value: Any) -> Typed:
        """Return what --set takes for a value that the option was given."""
        text = str(value).lower() if self.is_switch else str(value)
        found = Typed(f"{self.path}={f'[{text}]' if self.is_list and not text.startswith('[') else text}")
        found.option = self.option
        return found


@cache
def settings_of(root: type[Config], shown: tuple[str, ...]) -> tuple[Setting, ...]:
    """Return the fields of a config that have options, those below the paths `shown` first. Where a section is used in
    several places, its options are for the first of these."""
    found: dict[str, Setting] = {}
    for path, short in sorted(short_options(root), key=lambda pair: not _is_below(pair[0], shown)):
        kinds = tuple(sorted(kinds_at(root, tuple(path.split("."))) - {NoneType}, key=str))
        found.setdefault(short.name, Setting(f"--{short.name}", path, kinds, short.values))
    return tuple(found.values())


def _is_below(path: str, places: Sequence[str]) -> bool:
    return any(f"{path}.".startswith(f"{place}.") for place in places)


class Shown(NamedTuple):
    """The fields that the help of a command lists: those of the config `root` below these paths."""

    places: tuple[str, ...]
    root: type[Config] | None = None  # None: that of a run


def shows(*places: str, root: type[Config] | None = None) -> Callable[[FunctionT], FunctionT]:
    """Say which fields the help of a command lists. The options of other fields work too, and the command rejects them
    where it rejects --set for these fields."""

    def decorate(function: FunctionT) -> FunctionT:
        vars(function)["shown"] = Shown(places, root)
        return function

    return decorate


def shown_by(command: Any) -> Shown:
    """Return what `shows` said of a click command."""
    shown: Shown = getattr(command.callback, "shown", Shown(()))
    return shown


def is_shown(command: Any, path: str) -> bool:
    """Whether the help of a click command lists the section of this field, or refers to it: the command may reject
    fields of other sections of a run's config."""
    shown = shown_by(command)
    return shown.root is not None or not shown.places or _is_below(path, shown.places)


def root_of(command: Any) -> type[Config]:
    """Return the config that --set overrides in a click command."""
    from trivium.cli.run_config import RunConfig

    return shown_by(command).root or RunConfig


def options_of(command: Any) -> dict[str, Setting]:
    """Return the fields that a click command takes options for, by option: all but those whose option means something
    else there; none where it has no --set."""
    own = {option for one in command.params for option in one.opts}
    if SETS not in own:
        return {}
    every = settings_of(root_of(command), shown_by(command).places)
    return {setting.option: setting for setting in every if setting.option not in own}


@cache
def _click_options(settings: tuple[Setting, ...], shown: tuple[str, ...]) -> tuple[Any, ...]:
    """Return click's options for fields; typer makes them of a signature."""

    def parameter(setting: Setting) -> Parameter:
        kind = bool if setting.is_switch else str
        names = f"{setting.option}/--no{setting.option[1:]}" if setting.is_switch else setting.option
        about = typer.Option(
            names,
            metavar=setting.metavar or None,
            help=setting.path,
            hidden=not _is_below(setting.path, shown),
            autocompletion=lambda: [*setting.choices, *setting.values()],
        )
        name = _parameter_name(setting)
        return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, about])

    def command(**_: Any) -> None:
        """Stand for a command with these options."""

    command.__signature__ = Signature([parameter(setting) for setting in settings])  # pyrefly: ignore[missing-attribute]
    app = typer.Typer(add_completion=False)
    app.command()(command)
    return tuple(typer.main.get_command(app).params)


def _parameter_name(setting: Setting) -> str:
    return f"setting_{setting.option.strip('-').replace('-', '_')}"


def _with_settings(command: Any, params: list[Any]) -> list[Any]:
    settings = tuple(options_of(command).values())
    return [*params, *_click_options(settings, shown_by(command).places)] if settings else params


def _assign(command: Any, ctx: Any) -> None:
    """Add what options of fields were given to what --set was given."""
    sets = next((one.name for one in command.params if SETS in one.opts), "")
    for setting in options_of(command).values():
        name = _parameter_name(setting)
        given = ctx.params.pop(name, None)
        if given is not None:
            ctx.params[sets] = [*(ctx.params[sets] or ()), setting.assignment(given)]
            ctx.set_parameter_source(sets, ctx.get_parameter_source(name))


def _write_options(command: Any, ctx: Any, formatter: Any) -> None:
    own = [one for one in command.get_params(ctx) if not one.name.startswith("setting_")]
    for title, kind in (("Arguments", "argument"), ("Options", "option")):
        rows = [row for one in own if one.param_type_name == kind and (row := one.get_help_record(ctx))]
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)
    rows = list(_setting_rows(command))
    if rows:
        others = "" if shown_by(command).root else " (all others: --set; `trivium config explain`)"
        with formatter.section(f"Fields of the config{others}"):
            formatter.write_dl(rows)


def _setting_rows(command: Any) -> Iterator[tuple[str, str]]:
    from trivium.cli.fields import fields_of, meaning_of

    for setting in options_of(command).values():
        if _is_below(setting.path, shown_by(command).places):
            meaning = meaning_of(root_of(command), setting.path)
            yield f"{setting.option} {setting.metavar}".strip(), f"{setting.path}: {meaning}"
    if root := shown_by(command).root:  # `trivium config explain` knows the config of a run only
        own = {one.name for one in command.params} | {setting.path for setting in options_of(command).values()}
        for field in fields_of(root):
            if field.path not in own:
                yield f"{SETS} {field.path}=VALUE", field.meaning


class _WithSettings:
    """Adds to a click command that has --set an option for each field of the config that names one."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the command's own parameters and the options of fields."""
        return _with_settings(self, super().get_params(ctx))  # pyrefly: ignore[missing-attribute]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse all options; those of fields are added to what --set was given."""
        rest: list[str] = super().parse_args(ctx, args)  # pyrefly: ignore[missing-attribute]
        _assign(self, ctx)
        return rest


class Command(_WithSettings, TyperCommand):
    """A command."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the command's own options, and then those of fields."""
        _write_options(self, ctx, formatter)


class Group(_WithSettings, TyperGroup):
    """A group of commands, which may work without a command too."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the group's own options, those of fields, and the commands."""
        _write_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is called. Fails with the nearest for one that does not exist."""
        refuse_unknown(ctx, args[0], self.commands)
        return super().resolve_command(ctx, args)


class App(typer.Typer):
    """A factory of typer apps and commands for the files of `cli/`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=settings.pop("cls", Group), rich_markup_mode=None, add_completion=False, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[FunctionT], FunctionT]:
        """Return a decorator as typer's, for commands that have options for fields of the config."""
        return super().command(name, cls=settings.pop("cls", Command), **settings)
