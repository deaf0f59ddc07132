"""`trivium data adopt`: `.bin/.idx` pairs that somebody has already become a run's tokens, where they lie."""

import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trivium.cli.local_path import local_path
from trivium.cli.options import (
    CORPUS_MADE,
    DEFAULT_OUT,
    EVERY_SECTION,
    Out,
    Preset,
    Reads,
    Redo,
    Sets,
    given_for,
    open_run,
)
from trivium.cli.run_config import Given, resolve
from trivium.cli.show import say
from trivium.cli.stage import Result, Run, perform
from trivium.cli.tokenize import ADOPT, TOKENIZE
from trivium.errors import ConfigError
from trivium.progress import Progress
from trivium.provenance import fingerprint, read_stamp

if TYPE_CHECKING:
    from trivium.tokens.tokenizer import Tokenizer

# As `trivium tokenize`, but of no corpus; what may be replaced is looked at with the pairs.
STAGE = replace(TOKENIZE, name="adopt", verb=ADOPT, sections=(), reads=(), check=lambda run, state: None)


def adopt(
    prefixes: Annotated[
        list[str],
        typer.Argument(
            metavar="[WEIGHT] PREFIX",
            help="As Megatron-LM's --data-path: PREFIX.bin and PREFIX.idx, all with a weight or none.",
        ),
    ],
    out: Out = DEFAULT_OUT,
    validation: Annotated[
        list[Path] | None,
        typer.Option(
            "--validation",
            parser=local_path,
            metavar="PREFIX",
            help="A pair that validates. Default: the last documents of each (tokens.validation_fraction).",
        ),
    ] = None,
    unended: Annotated[
        bool, typer.Option("--unended", help="Accept documents without an end (made without --append-eod).")
    ] = False,
    preset: Preset = None,
    sets: Sets = None,
    redo: Redo = False,
) -> None:
    """Train on Megatron-LM's .bin/.idx pairs as they are: checked and hashed once, linked, never copied or changed.

    What made their ids: --set tokens.tokenizer=FILE, a tokenizer.json.
    """
    from trivium.tokens.adopt import Pairs, adopt_pairs, source_names

    never = {**CORPUS_MADE, "tokens.dtype": "pairs keep the dtype that they have; leave it out"}
    if validation:
        never["tokens.validation_fraction"] = "--validation names what validates; leave one of the two out"
    Reads(ADOPT, EVERY_SECTION, never).check(sets)
    given = given_for(out, preset, sets)
    words = _tokenizer(given)
    known = [f"{field}={words.vocabulary}" for field in ("tokens.vocabulary", "plan.model.vocabulary")]
    known.append(f"plan.model.end_of_text={words.end_of_text}")
    others = [said for said in given.assignments if said not in known]
    run = open_run(out, given._replace(assignments=(*known, *others)))
    train, weights = _weighted(prefixes)
    pairs = Pairs(train, weights, tuple(validation or ()), run.config.tokens.validation_fraction, not unended)
    _refuse_files((*pairs.train, *pairs.validation))
    sources = source_names((*pairs.train, *pairs.validation))
    folder = run.at.folder("tokens")
    _refuse_to_replace(folder, sources.values(), redo=redo)
    # Where a pair lies is no part of what it is: a training goes on when its pairs have moved.
    inputs = {
        "tokenizer": words.identity,
        "pairs": fingerprint([[source, _state(prefix)] for source, prefix in sources.items()]),
        "asked": fingerprint([pairs.weights, len(pairs.validation), pairs.fraction, pairs.ended]),
    }

    def work(run: Run, out: Path, progress: Progress) -> Result:
        found: dict[str, Any] = adopt_pairs(pairs, out, words, progress)
        return {**found, "sequence": run.config.plan.model.sequence}

    stage = replace(STAGE, work=work, outside=lambda run: inputs)
    named = {file for prefix in sources.values() for file in _files(prefix)}
    moved = folder.is_dir() and any(p.is_symlink() and p.resolve() not in named for p in folder.iterdir())
    perform(stage, run, redo=redo or moved)
    say(f"train on them: trivium train --out {shlex.quote(str(out))}")


def _tokenizer(given: Given) -> "Tokenizer":
    """The one that the config names."""
    from trivium.tokens.tokenizer import given_tokenizer

    tokens = resolve(given).tokens
    if tokens.tokenizer is None:
        raise ConfigError(
            "tokens.tokenizer is null: pairs hold ids, and only their tokenizer knows them; --set "
            "tokens.tokenizer=FILE, its tokenizer.json"
        )
    return given_tokenizer(tokens.tokenizer, tokens.end_of_text)


def _weighted(words: list[str]) -> tuple[tuple[Path, ...], tuple[float, ...]]:
    """Prefixes, and their weights where every other word is a number."""
    weights = [_number(word) for word in words[::2]]
    if len(words) % 2 or None in weights:
        prefixes = tuple(map(Path, words))
        for word, prefix in zip(words, prefixes, strict=True):
            if _number(word) is not None and not any(path.is_file() for path in _files(prefix)):
                raise ConfigError(f"WEIGHT {word}: a weight stands before every PREFIX or before none: {words}")
        return prefixes, ()
    return tuple(map(Path, words[1::2])), tuple(weight for weight in weights if weight is not None)


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _files(prefix: Path) -> list[Path]:
    from trivium.tokens.shards import files_of

    return [path.resolve() for path in files_of(prefix)]


def _refuse_files(prefixes: Iterable[Path]) -> None:
    """ConfigError where one file of a pair is named, as a shell completes it, or the folder it is in."""
    for prefix in prefixes:
        if not prefix.name or (prefix.is_dir() and not any(path.is_file() for path in _files(prefix))):
            raise ConfigError(f"PREFIX {prefix} is a folder; name a pair in it, its path without .bin and .idx")
        if prefix.suffix in (".idx", ".bin") and prefix.is_file() and not _files(prefix)[0].is_file():
            raise ConfigError(f"PREFIX {prefix} is one file of a pair; name both as {prefix.with_suffix('')}")


def _state(prefix: Path) -> list[tuple[int, int]]:
    """Size and last change of a pair's files; those that are missing are refused when they are opened."""
    return [(path.stat().st_size, path.stat().st_mtime_ns) for path in _files(prefix) if path.is_file()]


def _refuse_to_replace(folder: Path, prefixes: Iterable[Path], *, redo: bool) -> None:
    """ConfigError where the links would take the place of tokens: other ones, or the very pairs."""
    inside = [prefix for prefix in prefixes if any(folder.resolve() in file.parents for file in _files(prefix))]
    if inside:
        raise ConfigError(f"PREFIX {inside[0]} lies in {folder}, which would be replaced; give another --out")
    stamp = read_stamp(folder)
    if folder.exists() and stamp is None:
        raise ConfigError(f"--out: trivium did not make what is in {folder}; give another --out")
    if stamp is not None and not redo and stamp.get("verb") != ADOPT:
        raise ConfigError(
            f"--out: {folder} holds tokens of `trivium {stamp.get('verb')}`; give another --out, or --redo"
        )
