"""`trivium train --data` before the training: it makes tokens from raw text, or adopts pairs of token files."""

from dataclasses import replace
from pathlib import Path

from trivium.cli.corpus import CURATE, HARVEST, large_losses, listed_files, refuse_changed
from trivium.cli.data import adopt_into
from trivium.cli.options import check_filters, harvesting, open_run
from trivium.cli.paths import path_or_url
from trivium.cli.run_config import Given
from trivium.cli.show import say
from trivium.cli.stage import Run, perform
from trivium.cli.tokenize import TOKENIZE, check_batch, refuse_if_trained_on
from trivium.errors import DataError
from trivium.units import counted

# A byte-level tokenizer makes at most one token of a byte. Ends of documents add far less than this.
_MOST_TOKENS_PER_BYTE, _MOST_TOKENS_PER_FILE = 1.01, 8


def tokens_at(data: str) -> Path | None:
    """Return the token directory that --data names, itself or as its run directory, or None if it names other data.

    Raises DataError for a path where there is nothing.
    """
    from trivium.tokens.manifest import MANIFEST

    named = path_or_url(data, "--data")
    if isinstance(named, str):
        return None
    if not named.exists() and not pairs_at(data):
        raise DataError(f"--data {named} does not exist; give a file or folder that does")
    return next((folder for folder in (named, named / "tokens") if (folder / MANIFEST).is_file()), None)


def pairs_at(data: str) -> list[str]:
    """Return the prefixes of the pairs of .bin and .idx that --data names: one pair, or all in a folder."""
    named = path_or_url(data, "--data")
    if isinstance(named, str):
        return []
    stem = named.with_suffix("") if named.suffix in (".bin", ".idx") else named
    indices = sorted(named.glob("*.idx")) if named.is_dir() else [Path(f"{stem}.idx")]
    stems = [str(index)[: -len(".idx")] for index in indices if index.is_file()]
    return [one for one in stems if Path(f"{one}.bin").is_file()]


def check_data(out: Path, given: Given, data: str | None, sets: list[str] | None, *, verb: str = "train") -> None:
    """Raise what would make `prepare` fail, before any work. data: None for the text of which `out` was made."""
    if data is None or not pairs_at(data):
        check_text(open_run(out, given, corpus=data), verb, sets)


def prepare(out: Path, given: Given, data: str | None, *, dry_run: bool = False, redo: bool = False) -> None:
    """Do everything that is missing between data that `check_data` accepts and the training. Finished work is not
    repeated. redo: whether the training begins anew."""
    if data is not None and (pairs := pairs_at(data)):
        if not dry_run:
            adopt_into(out, given, pairs, retrains=redo)
        return
    run = open_run(out, given, corpus=data)
    if dry_run:
        refuse_if_trained_on(HARVEST, run, redo=redo)
        for line in listed_files(run, most=3):  # beside the price, in 40 lines
            say(line)
        return
    run = replace(run, tokens=None)  # the tokens of this text, whatever was trained on here before
    refuse_changed(run)
    for stage in (HARVEST, CURATE, TOKENIZE):
        refuse_if_trained_on(stage, run, redo=redo)
        perform(stage, run)
    for line in large_losses(run):
        say(line)


def check_text(run: Run, verb: str, sets: list[str] | None) -> None:
    """Raise what would make the way from text to tokens fail, before any of it is walked: settings that the command
    does not read, a tokenizer that cannot be used, and text that cannot fill a batch."""
    harvesting(verb, run.corpus).check(sets)
    check_filters(sets, run.config.curate)
    TOKENIZE.check(run, "anew")
    _refuse_too_little(run)


def _refuse_too_little(run: Run) -> None:
    """Raise DataError for unpacked files that are too small for a batch, whatever curation keeps of them."""
    from trivium.corpus.read.files import LINES, PAGES, TEXTS, states_of

    if run.corpus is None:  # the text that the package ships
        return
    files = states_of(run.corpus)
    if all(str(name).lower().endswith((*PAGES, *LINES, *TEXTS)) and size is not None for name, size, *_ in files):
        if not any(size for _, size, *_ in files):
            raise DataError(
                f"--data {run.corpus} has no text: {counted(len(files), 'empty file')}; give files with text"
            )
        most = int(sum(size for _, size, *_ in files) * _MOST_TOKENS_PER_BYTE) + _MOST_TOKENS_PER_FILE * len(files)
        check_batch(run.config, most, f"--data {run.corpus}: this text, with at most a token for a byte,")
