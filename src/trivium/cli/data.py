"""`trivium data`: the document of every token of every step, and back; `data adopt` is in a file of its own."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trivium.cli.options import (
    CORPUS_MADE,
    DEFAULT_OUT,
    EVERY_SECTION,
    AsJson,
    Out,
    Preset,
    Reads,
    Redo,
    Sets,
    given_for,
    open_run,
    with_options_of,
)
from trivium.cli.paths import local_path, path_or_url
from trivium.cli.run_config import Given, resolve
from trivium.cli.settings import App, shows
from trivium.cli.show import progress_of, say, say_either, table
from trivium.cli.stage import Result, Run, perform
from trivium.cli.tokenize import ADOPT, TOKENIZE, never_read_lines, refuse_if_trained_on
from trivium.cli.workspace import Workspace
from trivium.errors import ConfigError, DataError
from trivium.progress import Progress
from trivium.provenance import fingerprint, read_stamp
from trivium.redact import redact
from trivium.stores.folder import download, upload
from trivium.stores.remote import Remote, is_object_store
from trivium.tokens.manifest import never_read, read_tokens_manifest
from trivium.training.lineage import trace as lineage
from trivium.training.record import Record, read_record
from trivium.units import counted, format_bytes

if TYPE_CHECKING:
    from trivium.tokens.tokenizer import Tokenizer

app = App(
    help="From tokens to documents and back, for every step of a run; tokens made elsewhere.", no_args_is_help=True
)

# The combinations of options that `show` takes.
SHOWN = (
    ["--step"],
    ["--step", "--row"],
    ["--step", "--row", "--position"],
    ["--step", "--counts"],
    ["--step", "--culprit"],
    ["--document"],
    ["--check"],
)


@dataclass(frozen=True)
class Asked:
    """The argument and options of `data show`."""

    run: Annotated[Path, typer.Argument(parser=local_path, metavar="RUN", help="A run directory.")]
    step: Annotated[
        int | None, typer.Option("--step", metavar="S", help="A step, counted from 1 as in metrics.jsonl.")
    ] = None
    row: Annotated[int | None, typer.Option("--row", metavar="R", help="Only this row of the step, from 0.")] = None
    position: Annotated[
        int | None, typer.Option("--position", metavar="P", help="The token at this position of the row, from 0.")
    ] = None
    counts: Annotated[bool, typer.Option("--counts", help="Samples of each source up to the step (0: none).")] = False
    culprit: Annotated[
        bool, typer.Option("--culprit", help="Replay the step, and name the row and document that spoil it.")
    ] = False
    document: Annotated[str | None, typer.Option("--document", metavar="ID", help="A document's id, or a piece's.")] = (
        None
    )
    check: Annotated[bool, typer.Option("--check", help="Check every step's hash, and every document.")] = False
    tokens: Annotated[
        Path | None,
        typer.Option("--tokens", parser=local_path, metavar="DIR", help="Where its token shards are now, if moved."),
    ] = None
    as_json: AsJson = False


@app.command(short_help="Show what a step read, or which steps read a document.")
@with_options_of(Asked)
def show(asked: Asked) -> None:
    """Show what a step read: its rows, or the document of one token, with what curation decided and scored.

    --document ID: every (step, row) done so far that read it. Exit code 4 if the tokens that lie there are not those
    that the trainer logged. --culprit: does the step again from the nearest checkpoint before, on one process, where
    the model must fit; names the micro-batch, row and document that spoil it, and the layer where it shows first.
    --check: every step's hash, and every document both ways; exit code 4 when anything disagrees.
    """
    run, step, row, position = asked.run, asked.step, asked.row, asked.position
    numbers = {"--step": step, "--row": row, "--position": position}
    flags = {"--counts": asked.counts, "--culprit": asked.culprit, "--check": asked.check}
    given = [name for name, value in {**numbers, "--document": asked.document}.items() if value is not None]
    given += [name for name, is_given in flags.items() if is_given]
    if given not in SHOWN:
        raise ConfigError(f"{' '.join(given) or 'no option'}: give {', or '.join(' '.join(each) for each in SHOWN)}")
    record = read_record(Workspace(run).folder("training"), asked.tokens)
    if asked.check:
        _check(run, record, asked.as_json)
        return
    if asked.document is not None:
        found = lineage.where(record, asked.document)
        lines, step = _where_lines(found), int(found["steps_done"])
    elif step is None:
        raise AssertionError("every other combination has a step")
    elif asked.culprit:
        _show_culprit(record, step, asked.as_json)
        return
    elif asked.counts:
        step, found, lines = _counts(record, step)
    elif row is None or position is None:
        found = lineage.batch(record, step, row)
        lines = _batch_lines(found)
    else:
        found = {**lineage.trace(record, step, row, position), **_texts(record, step, row, position)}
        found["curation"], found["without_curation"] = _curation(record, found["document"])
        lines = _trace_lines(found)
    say_either(lines, found, asked.as_json)
    _refuse_others(run, found, step)


def _counts(record: Record, step: int) -> tuple[int, dict[str, Any], list[str]]:
    """Return the last step done up to `step`, and the samples of each source up to `step`, as data and as lines."""
    samples, done = lineage.counts(record, step), record.steps_done
    last, sequence = min(step, done), record.plan.model.sequence
    logged = record.last_logged if last == done else record.logged_of(last)
    manifest = read_tokens_manifest(record.tokens)
    found = {
        "step": step,
        "steps_done": done,
        "samples": samples,
        "agrees": lineage.agrees(record, logged),
        "never_read": never_read(manifest, sequence),
    }
    return last, found, [*_counts_lines(found, sequence), *never_read_lines(manifest, sequence)]


def _check(run: Path, record: Record, as_json: bool) -> None:
    found = lineage.round_trip(record)
    line = (
        f"{found['steps']} steps, {len(found['wrong_hashes'])} with another hash of its rows; "
        f"{found['documents_seen']} of {found['documents']} documents were read, {found['sightings']} times in all; "
        f"{found['only_forward']} were found only in the steps, {found['only_backward']} only in the documents"
    )
    say_either([line], found, as_json)
    if not found["agrees"]:
        raise DataError(f"{run}: lineage disagrees ({found}); tokens or records changed since the training")


def _show_culprit(record: Record, step: int, as_json: bool) -> None:
    from trivium.training.lineage.culprit import find_culprit

    with progress_of("culprit") as progress:
        found = find_culprit(record, step, progress)
    say_either(_culprit_lines(found), found, as_json)


def _refuse_others(run: Path, found: dict[str, Any], step: int) -> None:
    """DataError where the tokens that lie there are not those that a step was trained on."""
    if found["agrees"] is False:
        raise DataError(
            f"step {step} of {run} logged another hash than its data has now: the tokens or the record of samples left "
            f"out changed since, and this is not what it was trained on; restore them, or name the tokens with --tokens"
        )


def _where_lines(found: dict[str, Any]) -> list[str]:
    lines = []
    for piece in found["pieces"]:
        seen = piece["seen"]
        lines.append(
            f"{piece['document']}: {piece['tokens']} tokens of {piece['source']}, seen in {len(seen)} rows "
            f"of {found['steps_done']} steps"
        )
        rows = [(s["step"], s["row"], s["epoch"], s["offset"], s["length"], s["begin"]) for s in seen]
        lines += table(rows, header=("step", "row", "epoch", "position", "tokens", "from its token"))
    return lines


def _counts_lines(found: dict[str, Any], sequence: int) -> list[str]:
    total = max(1, sum(found["samples"].values()))
    rows = [(source, n, n * sequence, f"{100 * n / total:.2f}") for source, n in found["samples"].items()]
    lines = table(rows, header=("source", "samples", "tokens", "%"))
    if found["step"] > found["steps_done"]:
        lines.append(f"{found['steps_done']:,} steps are done; this is what {found['step']:,} will have taken")
    return lines


def _texts(record: Record, step: int, row: int, position: int) -> dict[str, Any]:
    """The token, and its document's part of the row, as text."""
    from trivium.tokens.manifest import TOKENIZER
    from trivium.tokens.tokenizer import load_tokenizer

    words = load_tokenizer(record.tokens / TOKENIZER)
    found = lineage.trace(record, step, row, position)
    return {"text": words.decode([found["token"]]), "text_in_row": words.decode(found["tokens_in_row"])}


def _curation(record: Record, document: str) -> tuple[dict[str, Any] | None, str | None]:
    """Return what curation kept of the document, or why that is unknown: the corpus was deleted or replaced."""
    from trivium.corpus.publish.views import history

    if record.curated is None:
        return None, f"its curation is neither beside {record.tokens} nor in {record.folder.parent}"
    try:
        return history(record.curated, document), None
    except DataError as error:
        return None, f"its curation is not known: {error}"


def _batch_lines(found: dict[str, Any]) -> list[str]:
    said = {None: "no hash was logged", True: "as logged", False: f"LOGGED: {found['logged_hash']}"}
    lines = [
        f"step {found['step']}: samples {found['first_sample']} to "
        f"{found['first_sample'] + found['sequences'] - 1}, hash {found['hash']} ({said[found['agrees']]})",
        "  so far: " + ", ".join(f"{source} {n}" for source, n in found["counts"].items()),
    ]
    for row in found["rows"]:
        documents = ", ".join(f"{d['document']} [{d['begin']}+{d['length']}]" for d in row["documents"])
        lines.append(
            f"row {row['row']}: sample {row['sample']}, {row['source']} epoch {row['epoch']}, from its token "
            f"{row['start']}: {documents}"
        )
        lines.append("  " + " ".join(map(str, row["tokens"])))
    return lines


def _culprit_lines(found: dict[str, Any]) -> list[str]:
    logged = found["logged"]
    lines = [
        f"step {found['step']}: {found['cause']}",
        f"  done again from step {found['replayed_from']}: loss {found['loss']}, gradient norm "
        f"{found['gradient_norm']} (logged: {logged['loss']}, {logged['gradient_norm']})",
    ]
    if not found["reproduced"]:
        lines.append("  NOT REPRODUCED: neither data nor weights explain what was logged; suspect the machine")
    if found["weights"]:
        lines.append(f"  not finite before the step: {', '.join(found['weights'])}")
    if found["layer"]:
        lines.append(f"  the first value that is not finite: {found['layer']}, {found['pass']}")
    if found["every_row"]:
        lines.append("  every row alone is as bad: no document is to blame")
    if found["culprits"] and not found["spiked"]:
        lines.append("  no document is to blame; one has to have the largest loss:")
    lines += [_blame_line(one) for one in found["culprits"]]
    return lines


def _blame_line(one: dict[str, Any]) -> str:
    where = f"  micro-batch {one['micro_batch']}, row {one['row']} (sample {one['sample']} of {one['source']})"
    first, stop = one["positions"]
    if one["document"] is None:
        return f"{where}: no document of it alone ({', '.join(one['documents'])})"
    document = f"document {one['document']} from its token {one['from_its_token']}"
    return f"{where}, positions {first} to {stop - 1}: {document}"


def _trace_lines(found: dict[str, Any]) -> list[str]:
    from trivium.corpus.publish.views import history_lines

    lines = [
        f"step {found['step']}, row {found['row']}, position {found['position']}: token {found['token']} "
        f"{found['text']!r}",
        f"  is token {found['offset']} of {found['document']}, source {found['source']}, epoch {found['epoch']}",
        f"  the row has of it: {found['text_in_row']!r}",
    ]
    if found["curation"] is None:
        return [*lines, f"  {found['without_curation']}"]
    return [*lines, *(f"  {line}" for line in history_lines(found["curation"]))]


# As `trivium tokenize`, but of no corpus; what may be replaced is looked at with the pairs.
STAGE = replace(TOKENIZE, name="adopt", verb=ADOPT, sections=(), reads=(), check=lambda run, state: None)


@app.command(short_help="Publish a folder at the URL of an object store.")
def push(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Tokens, or any other folder.", parser=local_path)],
    url: Annotated[str, typer.Argument(metavar="URL", help="s3://BUCKET/NAME, gs:// or hf://.")],
) -> None:
    """Publish all files of a folder at a URL. Repeated, it sends what the store lacks; the manifest is written last, so
    that `trivium data pull` never brings a part."""
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder; name one that is")
    every = [p for p in sorted(folder.rglob("*")) if p.is_file() and not p.name.startswith(".")]
    sent = upload(folder, _store(url), [p.relative_to(folder).as_posix() for p in every])
    say(f"  {counted(len(every), 'file')} at {redact(url)}, {format_bytes(sent)} sent")


@app.command(short_help="Bring a published folder from a URL.")
def pull(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where `trivium data push` published it.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the files go.", parser=local_path)],
) -> None:
    """Bring a folder from a URL; every part is compared with its sha256, and files that are here are not read again."""
    say(f"  {format_bytes(download(_store(url), folder))} read into {folder}")


def _store(url: str) -> Remote:
    named = path_or_url(url, "URL")
    if not isinstance(named, str) or not is_object_store(url):
        raise ConfigError(f"URL {redact(url)} names no object store; give one as s3://BUCKET/NAME, or copy the folder")
    return Remote(named)


@app.command(short_help="Train on Megatron-LM's .bin/.idx pairs as they are.")
@shows("tokens")
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
    never = {**CORPUS_MADE, "tokens.dtype": "pairs keep the dtype that they have; leave it out"}
    if validation:
        never["tokens.validation_fraction"] = "--validation names what validates; leave one of the two out"
    Reads(ADOPT, EVERY_SECTION, never).check(sets)
    adopt_into(out, given_for(out, preset, sets), prefixes, tuple(validation or ()), ended=not unended, redo=redo)
    say(f"train on them: trivium train --out {shlex.quote(str(out))}")


def adopt_into(
    out: Path,
    given: Given,
    prefixes: list[str],
    validation: tuple[Path, ...] = (),
    *,
    ended: bool = True,
    redo: bool = False,
    retrains: bool = False,
) -> None:
    """Make the tokens of a run directory of pairs, unless they are already. retrains: a training of it begins anew."""
    from trivium.tokens.adopt import Pairs, adopt_pairs, source_names

    words = _tokenizer(given)
    known = [f"{field}={words.vocabulary}" for field in ("tokens.vocabulary", "plan.model.vocabulary")]
    known.append(f"plan.model.end_of_text={words.end_of_text}")
    others = [said for said in given.assignments if said not in known]
    run = open_run(out, given._replace(assignments=(*known, *others)))
    train, weights = _weighted(prefixes)
    pairs = Pairs(train, weights, validation, run.config.tokens.validation_fraction, ended)
    _refuse_files((*pairs.train, *pairs.validation))
    sources = source_names((*pairs.train, *pairs.validation))
    folder = run.at.folder("tokens")
    _refuse_to_replace(folder, sources.values(), redo=redo)
    # The paths of pairs are no input, so a training may resume after they have moved.
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
    if not moved:
        refuse_if_trained_on(stage, run, redo=redo or retrains)
    perform(stage, run, redo=redo or moved)


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
