"""The options that several verbs share, and how they become a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from trivium.cli.addresses import path_or_url
from trivium.cli.failure import no_new_files_in
from trivium.cli.imported import preset_beside
from trivium.cli.local_path import local_path
from trivium.cli.run_config import Given, RunConfig, resolve
from trivium.cli.stage import CORPUS_PATH, Run
from trivium.cli.workspace import Workspace
from trivium.config import leaves, parse_assignments
from trivium.corpus.config import CurateConfig
from trivium.errors import ConfigError, DataError, MachineError
from trivium.interchange.settings import is_model_folder
from trivium.provenance import read_stamp
from trivium.tokens.config import TokensConfig

DEFAULT_PRESET = "demo"
DEFAULT_OUT = Path("runs/demo")
OF_DEFAULT_CORPUS = ("max_bytes", "packages", "shortest", "html_fraction", "planted")  # of the harvest
# Sections of the curation, and the filters that have their thresholds from each.
FILTERS_OF: Mapping[str, tuple[str, ...]] = {
    name: (name,) for name in ("language", "repetition", "c4", "fineweb", "privacy", "classifier")
} | {"quality": ("quality", "gopher")}
ROWS_FOLLOW = ("vocabulary", "tokenizer")  # of tokens: what a model's rows are compared with

Out = Annotated[Path, typer.Option("--out", parser=local_path, metavar="DIR", help="The run directory.")]
AskedModel = Annotated[
    Path | None,
    typer.Argument(
        parser=local_path,
        metavar="RUN_OR_CHECKPOINT",
        help="A run, a checkpoint or a folder of Hugging Face. Without it: the run of --out.",
    ),
]
SameAsOut = Annotated[
    Path | None, typer.Argument(parser=local_path, metavar="RUN", help="The same as --out RUN.")
]
Preset = Annotated[
    str | None,
    typer.Option(
        "--preset",
        metavar="NAME",
        help="A shipped preset or a YAML/JSON file. Default: DIR/config.json if there is one, otherwise demo.",
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override one field; may be given many times."),
]
Ranks = Annotated[
    int | None,
    typer.Option("--ranks", metavar="8|4|1", help="Take the ready layout for so many processes."),
]
Corpus = Annotated[
    str | None,
    typer.Option(
        "--corpus",
        metavar="PATH",
        help="Your own text: a .txt, .md, .jsonl, .warc or .wet file (also .gz, .zst), a .parquet file, or a folder of "
        "them; or a URL (s3://, gs://, hf://, https://) that fsspec has a package for.",
    ),
]
Tokens = Annotated[
    Path | None,
    typer.Option(
        "--tokens", parser=local_path, metavar="DIR", help="Token shards; default: DIR/tokens of --out."
    ),
]
Redo = Annotated[bool, typer.Option("--redo", help="Do it again even when the output is up to date.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print config, problems and price; start and write nothing.")
]


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
    """What the user gave; without --preset, the run directory's own config goes on."""
    stored = Workspace(out).config
    if preset is None and is_model_folder(out):  # its config.json is another file than a run's
        raise ConfigError(
            f"{out} is a folder of Hugging Face, and this verb works in a run directory; `trivium checkpoint import` "
            f"brings its weights into one, and evaluate, incontext, generate and serve ask it as it is"
        )
    return Given(preset or (str(stored) if stored.is_file() else DEFAULT_PRESET), tuple(sets or ()), ranks)


def directory_of(place: Path | None, out: Path) -> Path:
    """The run directory, named as RUN or by --out. ConfigError where each names another."""
    if place is not None and out not in (DEFAULT_OUT, place):
        raise ConfigError(f"--out {out}: {place} is named already, and stands for it; name one of the two")
    return place or out


def refuse_unused(verb: str, sets: list[str] | None, *uses: str) -> None:
    """ConfigError for a setting of a section that the verb does not use, besides the seed: who gives it takes the
    answers for those of a model that was trained with it."""
    takes = ", ".join(f"{name}.…" for name in uses)
    refuse_fields(
        [name for name in RunConfig.model_fields if name not in (*uses, "seed")],
        sets,
        f"`trivium {verb}` reads what is trained already, and takes no setting but {takes} and seed; leave it out, or "
        f"give it to the verb that uses it",
    )


def refuse_done(verb: str, sets: list[str] | None, *done: str) -> None:
    """ConfigError for a setting of a section whose work the verb finds done: it would be noted of a corpus that was
    made without it."""
    law = f"`trivium {verb}` takes the corpus as it is; give it to the verb that makes it, `trivium corpus"
    for section in done:
        refuse_fields([section], sets, f"{law} {section}`")


def refuse_done_for_training(sets: list[str] | None) -> None:
    """ConfigError for a setting whose work a training finds done: of its corpus, or of its tokens."""
    refuse_done("train", sets, "harvest", "curate")
    refuse_fields(
        [f"tokens.{name}" for name in TokensConfig.model_fields if name not in ROWS_FOLLOW],
        sets,
        "`trivium train` takes the tokens as they are; give it to the verb that makes them, `trivium tokenize`",
    )


def refuse_idle_harvest(sets: list[str] | None, corpus: Path | str | None) -> None:
    """ConfigError for a setting of the default corpus, where files are read instead."""
    if corpus is not None:
        law = f"this is of the default corpus alone, and {corpus} is read instead; leave it out"
        refuse_fields([f"harvest.{name}" for name in OF_DEFAULT_CORPUS], sets, law)


def refuse_idle_curation(sets: list[str] | None, config: CurateConfig) -> None:
    """ConfigError for a setting of a filter that the curation does not ask, or of what other verbs do."""
    for section, filters in FILTERS_OF.items():
        if not any(name in config.filters for name in filters):
            law = f"curate.filters is {list(config.filters)}, without {filters[0]}, and this would change nothing"
            refuse_fields([f"curate.{section}"], sets, f"{law}; add it there, or leave this out")
    for field, verb in (("selection", "corpus select"), ("dedup.shortest", "corpus dedup")):
        refuse_fields(
            [f"curate.{field}"], sets, f"this would change nothing here; give it to `trivium {verb}`"
        )


def refuse_fields(places: Sequence[str], sets: list[str] | None, law: str) -> None:
    """ConfigError for a setting of one of the places, which are sections, or fields of one."""
    given = [path for path, _ in leaves(parse_assignments(sets or (), RunConfig))]
    refused = [path for path in given if any(f"{path}.".startswith(f"{place}.") for place in places)]
    if refused:
        raise ConfigError(f"--set {', '.join(refused)}: {law}")


def open_run(out: Path, given: Given, *, corpus: Path | str | None = None, tokens: Path | None = None) -> Run:
    """The run, its config checked; nothing is written yet. corpus: a path, or a URL."""
    config = resolve(given).checked()
    named = None if corpus is None else path_or_url(corpus, "--corpus")
    for path, flag in ((named, "--corpus"), (tokens, "--tokens")):
        if isinstance(path, Path) and not path.exists():
            raise DataError(f"{flag} {path} does not exist; give a file or folder that does")
    if out.exists() and not out.is_dir():
        raise DataError(f"--out {out} is a file; give a directory")
    if isinstance(named, Path):
        refuse_inside("--out", out, "--corpus", named)
    return Run(
        config, Workspace(out), corpus=named or _corpus_before(out), tokens=tokens or _tokens_before(out)
    )


def open_asked(target: Path | None, out: Path, preset: str | None, sets: list[str] | None) -> Run:
    """The run whose settings hold where a model is asked: the target's own; the one of --out where none is named; for
    a target that is of no run, a preset's, which may lie beside it. ConfigError where a target and a run are named."""
    if target is None:
        return open_run(out, given_for(out, preset, sets))
    if out != DEFAULT_OUT:
        raise ConfigError(f"--out {out}: {target} is asked already; name one of the two")
    from trivium.interchange.target import run_of

    home, beside = run_of(target), preset_beside(target)
    if home is None or beside is not None:
        chosen = preset or (str(beside) if beside else DEFAULT_PRESET)
        return open_run(out, Given(chosen, tuple(sets or ())))
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
    """The user's text that this run directory was harvested from, so that --corpus is given only once."""
    stamp = read_stamp(Workspace(out).folder("harvest"))
    path = stamp["inputs"].get(CORPUS_PATH) if stamp else None
    return path_or_url(path, "--corpus") if path else None
