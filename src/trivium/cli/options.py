"""The options that several verbs share, and how they become a run."""

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import typer

from trivium.cli.ending import no_new_files_in
from trivium.cli.model_argument import MODELS, model_path, preset_beside, sampling_of
from trivium.cli.paths import local_path, path_or_url
from trivium.cli.run_config import Given, RunConfig, resolve
from trivium.cli.settings import as_typed
from trivium.cli.show import say_aside
from trivium.cli.stage import CORPUS_PATH, Run
from trivium.cli.workspace import Workspace
from trivium.config import leaves, parse_assignments, preset_names
from trivium.corpus.config import CurateConfig
from trivium.errors import ConfigError, DataError, MachineError
from trivium.families.common.hf_config import describes_model
from trivium.provenance import read_stamp
from trivium.tokens.config import TokensConfig

T = TypeVar("T")

DEFAULT_PRESET = "demo"
DEFAULT_OUT = Path("runs/demo")
OF_DEFAULT_CORPUS = ("max_bytes", "shortest", "html_fraction", "planted")  # fields of the harvest
# Sections of the curation, and the filters that have their thresholds from each.
FILTERS_OF: Mapping[str, tuple[str, ...]] = {
    name: (name,) for name in ("language", "repetition", "c4", "fineweb", "privacy", "classifier")
} | {"quality": ("quality", "gopher")}

Out = Annotated[Path, typer.Option("--out", parser=local_path, metavar="DIR", help="The run directory.")]
AskedModel = Annotated[
    Path | None,
    typer.Argument(
        parser=model_path,
        metavar="MODEL",
        help="A run, a checkpoint, a Hugging Face folder or hf:ORG/NAME. Without it: the run of --out.",
    ),
]
AskedAdapter = Annotated[
    Path | None,
    typer.Option("--adapter", parser=local_path, metavar="DIR", help="A PEFT folder with adapters for the model."),
]
SameAsOut = Annotated[Path | None, typer.Argument(parser=local_path, metavar="RUN", help="The same as --out RUN.")]
Preset = Annotated[
    str | None,
    typer.Option(
        "--preset",
        "--model",
        metavar="NAME",
        help=f"The model and its settings: {MODELS}. Default: DIR/config.json if there is one, otherwise demo.",
        autocompletion=preset_names,
    ),
]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Override one field; may be given many times.")
]
Ranks = Annotated[
    int | None, typer.Option("--ranks", metavar="8|4|1", help="Use the ready-made layout for this number of processes.")
]
Corpus = Annotated[
    str | None,
    typer.Option(
        "--data",
        "--corpus",
        metavar="PATH",
        help="Your own text: a .txt, .md, .jsonl, .warc or .wet file (also .gz, .zst), a .parquet file, or a folder of "
        "them; or a URL (s3://, gs://, hf://, https://) that fsspec has a package for.",
    ),
]
TrainedOn = Annotated[
    str | None,
    typer.Option(
        "--data",
        "--corpus",
        metavar="PATH",
        help="What is trained on: raw text as for `trivium corpus run`, tokens of `trivium tokenize`, or pairs of .bin "
        "and .idx (one prefix, or a folder of them).",
    ),
]
Curation = Annotated[
    bool | None,
    typer.Option(
        "--curation/--no-curation",
        help="--no-curation keeps every document unchanged, for text that is clean already (curate.keep_all=true, "
        "harvest.cut_rows=false).",
    ),
]
Tokens = Annotated[
    Path | None,
    typer.Option("--tokens", parser=local_path, metavar="DIR", help="Token shards; default: DIR/tokens of --out."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Redo = Annotated[
    bool,
    typer.Option("--redo", help="Repeat the work even if the output is up to date; a training starts again at step 0."),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Print what differs from the defaults, the problems and the price, in 40 lines; start nothing.",
    ),
]


def with_options_of(options: Callable[..., T]) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Make a command of a function of one dataclass, whose fields are the command's options: typer reads them from
    the signature."""

    def decorate(work: Callable[[T], None]) -> Callable[..., None]:
        @wraps(work)
        def command(**given: Any) -> None:
            work(options(**given))

        command.__signature__ = signature(options)  # pyrefly: ignore[missing-attribute]
        return command

    return decorate


def refuse_given(options: Mapping[str, Any], why: str) -> None:
    """Raise ConfigError for the options that were given: those whose value is neither None nor False."""
    given = [name for name, value in options.items() if value is not None and value is not False]
    if given:
        raise ConfigError(f"{', '.join(given)}: {why}")


def refuse_no_place_for(option: str, file: Path | None) -> None:
    """Refuse a file that could not be written, before the long work whose result goes there. Raises DataError for a
    name that is no file's, MachineError where the folder accepts no new files."""
    if file is None:
        return
    if file.is_dir():
        raise DataError(f"{option} {file} is a folder; name a file")
    if not file.parent.is_dir():
        raise DataError(f"{option} {file}: the folder {file.parent} does not exist; create it first")
    if why := no_new_files_in(file.parent):
        raise MachineError(f"{option} {file} cannot be made: {why}; name a folder elsewhere")


def given_for(out: Path, preset: str | None, sets: list[str] | None, ranks: int | None = None) -> Given:
    """Return what the user gave. Without --preset, the config of the run directory is used."""
    stored = Workspace(out).config
    refuse_model_folder(out)
    return Given(preset or (str(stored) if stored.is_file() else DEFAULT_PRESET), tuple(sets or ()), ranks)


def refuse_model_folder(out: Path) -> None:
    """Raise ConfigError for a folder of Hugging Face as a run directory, whose config would take the place of the
    model's."""
    if describes_model(out):
        raise ConfigError(
            f"{out} is a folder of Hugging Face, and a run directory is needed here; `trivium checkpoint import {out} "
            f"--out DIR` brings its weights into one, and generate, chat, serve, evaluate, incontext, bias and tune "
            f"take the folder as it is"
        )


def directory_of(place: Path | None, out: Path) -> Path:
    """The run directory, named as RUN or by --out. ConfigError where each names another."""
    if place is not None and out not in (DEFAULT_OUT, place):
        raise ConfigError(f"--out {out}: {place} is named already, and stands for it; name one of the two")
    return place or out


class Reads(NamedTuple):
    """The sections of a run's config that a command reads, besides the seed.

    verb: the command as it is typed. never: places in these sections that it does not read, with the message for each.
    """

    verb: str
    sections: tuple[str, ...]
    never: Mapping[str, str] = {}

    def check(self, sets: list[str] | None) -> None:
        """Raise ConfigError for a --set that the command does not read: the user would take the result for one of a
        run with that setting."""
        unread: dict[str, list[str]] = {}
        for path, _ in leaves(parse_assignments(sets or (), RunConfig)):
            why = next((why for place, why in self.never.items() if _is_in(path, place)), "")
            section = path.split(".")[0]  # an unknown one is named when the config is built
            if not why and section in _READER and not any(_is_in(path, name) for name in self.sections):
                why = f"give it to `trivium {_READER[section]}`"
            if why:
                unread.setdefault(why, []).append(as_typed(path, sets))
        if unread:
            law = f"`trivium {self.verb}` does not read this"
            raise ConfigError("\n".join(f"{', '.join(named)}: {law}; {why}" for why, named in unread.items()))


def _is_in(path: str, place: str) -> bool:
    return f"{path}.".startswith(f"{place}.")


_READER = {  # the command that reads a section first
    "harvest": "corpus harvest",
    "curate": "corpus curate",
    "tokens": "tokenize",
    "plan": "train",
    "training": "train",
    "machine": "plan show",
    "search": "plan search",
    "evaluation": "evaluate",
    "bias": "bias",
    "generation": "generate",
    "serve": "serve",
}
EVERY_SECTION = tuple(name for name in RunConfig.model_fields if name != "seed")
CORPUS_MADE = {
    name: f"the corpus is made already; give it to `trivium corpus {name}`" for name in ("harvest", "curate")
}
OF_OTHER_VERBS = {
    "curate.selection": "give it to `trivium corpus step select`",
    "curate.dedup.shortest": "give it to `trivium corpus step dedup`",
}
CURATES = Reads("corpus curate", EVERY_SECTION, {"harvest": CORPUS_MADE["harvest"], **OF_OTHER_VERBS})
# A model's rows are compared with the tokenizer, so `train` takes these two of its fields.
_TOKENS_MADE = {
    f"tokens.{name}": "the tokens are made already; give it to `trivium tokenize`"
    for name in TokensConfig.model_fields
    if name not in ("vocabulary", "tokenizer")
}
TRAINS_ON = Reads("train", EVERY_SECTION, {**CORPUS_MADE, **_TOKENS_MADE})


def harvesting(verb: str, corpus: Path | str | None) -> Reads:
    """Return what a command that begins with the harvest reads. Where files are given, no default corpus is made."""
    why = f"it belongs to the default corpus, and {corpus} is read instead; leave it out"
    default = {f"harvest.{name}": why for name in OF_DEFAULT_CORPUS} if corpus is not None else {}
    return Reads(verb, EVERY_SECTION, {**default, **OF_OTHER_VERBS})


def with_curation(sets: list[str] | None, curation: bool | None, *, harvests: bool = True) -> list[str]:
    """Return the assignments of --set and those of --curation or --no-curation."""
    if curation is None:
        return list(sets or ())
    cuts = [f"harvest.cut_rows={str(curation).lower()}"] if harvests else []
    return [*(sets or ()), f"curate.keep_all={str(not curation).lower()}", *cuts]


_OF_KEEP_ALL = ("keep_all", "extract", "document_seconds", "blend", "shard_bytes")  # keep_all leaves these in effect


def check_filters(sets: list[str] | None, config: CurateConfig) -> None:
    """Raise ConfigError for a setting that the curation does not apply: privacy, for one, would leave every address in
    the corpus."""
    if config.keep_all:
        every = [p for p, _ in leaves(parse_assignments(sets or (), RunConfig)) if _is_in(p, "curate")]
        if given := [p for p in every if not any(_is_in(p, f"curate.{name}") for name in _OF_KEEP_ALL)]:
            named = ", ".join(as_typed(p, sets) for p in given)
            raise ConfigError(
                f"{named}: curate.keep_all is true (--no-curation), so every document is kept unchanged; give "
                f"--curation, or leave this out"
            )
        return
    for section, filters in FILTERS_OF.items():
        given = [p for p, _ in leaves(parse_assignments(sets or (), RunConfig)) if _is_in(p, f"curate.{section}")]
        if given and not any(name in config.filters for name in filters):
            named = ", ".join(as_typed(p, sets) for p in given)
            raise ConfigError(
                f"{named}: curate.filters is {list(config.filters)}, without {filters[0]}; add it there, or leave this "
                f"out"
            )


def open_run(out: Path, given: Given, *, corpus: Path | str | None = None, tokens: Path | None = None) -> Run:
    """The run, its config checked; nothing is written yet. corpus: a path, or a URL."""
    config = resolve(given).checked()
    named = None if corpus is None else path_or_url(corpus, "--data")
    for path, flag in ((named, "--data"), (tokens, "--tokens")):
        if isinstance(path, Path) and not path.exists():
            raise DataError(f"{flag} {path} does not exist; give a file or folder that does")
    if out.exists() and not out.is_dir():
        raise DataError(f"--out {out} is a file; give a directory")
    refuse_model_folder(out)
    if isinstance(named, Path):
        refuse_inside("--out", out, "--data", named)
    return Run(
        config,
        Workspace(out),
        corpus=named or _corpus_before(out),
        corpus_is_typed=named is not None,
        tokens=tokens or _tokens_before(out),
    )


def open_asked(target: Path | None, out: Path, preset: str | None, sets: list[str] | None) -> Run:
    """The run whose settings hold where a model is asked: the target's own; the one of --out where none is named; for
    a target that is of no run, a preset's, which may lie beside it; for a Hugging Face folder, its
    generation_config.json says how texts are drawn. ConfigError where a target and a run are named."""
    if target is None:
        return open_run(out, given_for(out, preset, sets))
    if out != DEFAULT_OUT:
        raise ConfigError(f"--out {out}: {target} is asked already; name one of the two")
    from trivium.interchange.target import run_of

    home, beside = run_of(target), preset_beside(target)
    if home is None or beside is not None:
        if chosen := preset or (str(beside) if beside else None):
            return open_run(out, Given(chosen, tuple(sets or ())))
        sampling, notes = sampling_of(target)
        for note in notes:
            say_aside(note)
        drawn = {"generation": {"prompts": None, "sampling": sampling}}
        return open_run(out, Given(DEFAULT_PRESET, tuple(sets or ()), defaults=drawn))
    return open_run(home, given_for(home, preset, sets))


def refuse_inside(written: str, out: Path, read: str, corpus: Path) -> None:
    """ConfigError where what is written would be read as text the next time; what is hidden is not read. written, read:
    how the command line calls the two."""
    where, here = out.resolve(), corpus.resolve()
    inside = where.relative_to(here).parts if where.is_relative_to(here) else None
    if inside is not None and not any(part.startswith(".") for part in inside):
        raise ConfigError(
            f"{written} {out} lies in {read} {corpus}: what is written there would be read as text the next time; give "
            f"a place elsewhere for {written}, or a hidden one (.runs/mine)"
        )


def _tokens_before(out: Path) -> Path | None:
    """The tokens made elsewhere that this run directory was trained on, so that --tokens is given only once."""
    from trivium.tokens.manifest import tokens_of_training

    named = None if Workspace(out).folder("tokens").exists() else tokens_of_training(out)
    return named if named is not None and named.is_dir() else None


def _corpus_before(out: Path) -> Path | str | None:
    """The user's text that this run directory was harvested from, so that --data is given only once."""
    stamp = read_stamp(Workspace(out).folder("harvest"))
    path = stamp["inputs"].get(CORPUS_PATH) if stamp else None
    return path_or_url(path, "--data") if path else None
