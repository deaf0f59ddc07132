"""`trivium data`: the document of every token of every step, and back; `data adopt` is in a file of its own."""

from pathlib import Path
from typing import Annotated, Any

import typer

from trivium.cli.adopt import adopt
from trivium.cli.local_path import local_path
from trivium.cli.show import progress_of, say, table
from trivium.cli.tokenize import never_read_lines
from trivium.cli.workspace import Workspace
from trivium.errors import DataError
from trivium.finite import dumps
from trivium.tokens.manifest import never_read, read_tokens_manifest
from trivium.training.lineage import trace as lineage
from trivium.training.record import Record, read_record

app = typer.Typer(
    help="From tokens to documents and back, for every step of a run; tokens made elsewhere.",
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
)
app.command(short_help="Train on Megatron-LM's .bin/.idx pairs as they are.")(adopt)

RunDirectory = Annotated[Path, typer.Argument(parser=local_path, metavar="RUN", help="A run directory.")]
Step = Annotated[int, typer.Option("--step", metavar="S", help="A step, counted from 1 as in metrics.jsonl.")]
Tokens = Annotated[
    Path | None,
    typer.Option("--tokens", parser=local_path, metavar="DIR", help="Where its token shards lie now, if they moved."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command(short_help="Print exactly what a step consumed.")
def batch(
    run: RunDirectory,
    step: Step,
    row: Annotated[int | None, typer.Option("--row", metavar="R", help="Only this row.")] = None,
    tokens: Tokens = None,
    as_json: AsJson = False,
) -> None:
    """Print exactly what a step consumed; exit code 4 when its hash is not the one the trainer logged."""
    found = lineage.batch(_record(run, tokens), step, row)
    if as_json:
        say(dumps(found))
    else:
        for line in _batch_lines(found):
            say(line)
    _refuse_others(run, found, step)


@app.command(short_help="Name the document of one token.")
def trace(
    run: RunDirectory,
    step: Step,
    row: Annotated[int, typer.Option("--row", metavar="R", help="A row of the batch, from 0.")],
    position: Annotated[int, typer.Option("--position", metavar="P", help="A position of the row, from 0.")],
    tokens: Tokens = None,
    as_json: AsJson = False,
) -> None:
    """Name the document of one token: its offset and source, and what curation decided and scored."""
    record = _record(run, tokens)
    found = {**lineage.trace(record, step, row, position), **_texts(record, step, row, position)}
    found["curation"], found["without_curation"] = _curation(record, found["document"])
    for line in [dumps(found, ensure_ascii=False)] if as_json else _trace_lines(found):
        say(line)
    _refuse_others(run, found, step)


@app.command()
def where(
    run: RunDirectory,
    document: Annotated[str, typer.Option("--document", metavar="ID", help="A document's id, or a piece's.")],
    tokens: Tokens = None,
    as_json: AsJson = False,
) -> None:
    """Name every (step, row) done so far that saw a document."""
    found = lineage.where(_record(run, tokens), document)
    for line in [dumps(found)] if as_json else _where_lines(found):
        say(line)
    _refuse_others(run, found, found["steps_done"])


@app.command(short_help="Count the samples of each source up to a step.")
def counts(run: RunDirectory, step: Step, tokens: Tokens = None, as_json: AsJson = False) -> None:
    """Print how many samples of each source were taken up to a step (0: none yet)."""
    record = _record(run, tokens)
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
    lines = [*_counts_lines(found, sequence), *never_read_lines(manifest, sequence)]
    for line in [dumps(found)] if as_json else lines:
        say(line)
    _refuse_others(run, found, last)


@app.command(short_help="Check every step's hash, and every document.")
def check(run: RunDirectory, tokens: Tokens = None, as_json: AsJson = False) -> None:
    """Check every step's hash, and every document both ways; exit code 4 when anything disagrees."""
    found = lineage.round_trip(_record(run, tokens))
    if as_json:
        say(dumps(found))
    else:
        say(
            f"{found['steps']} steps, {len(found['wrong_hashes'])} with another hash; {found['documents']} documents, "
            f"{found['documents_seen']} of them seen, {found['sightings']} times: "
            f"{found['only_forward']} found only from the rows, {found['only_backward']} only from the documents"
        )
    if not found["agrees"]:
        raise DataError(f"{run}: lineage disagrees ({found}); tokens or records changed since the training")


@app.command(short_help="Name the document that spoils a step.")
def culprit(run: RunDirectory, step: Step, tokens: Tokens = None, as_json: AsJson = False) -> None:
    """Do a step again, and name the micro-batch, row and document that spoil it, and the layer where it shows first.

    It starts from the nearest checkpoint before, on one process, whatever the layout was; the model must fit there.
    """
    from trivium.training.lineage.culprit import find_culprit

    with progress_of("culprit") as progress:
        found = find_culprit(_record(run, tokens), step, progress)
    for line in [dumps(found)] if as_json else _culprit_lines(found):
        say(line)


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


def _record(run: Path, tokens: Path | None) -> Record:
    return read_record(Workspace(run).folder("training"), tokens)


def _texts(record: Record, step: int, row: int, position: int) -> dict[str, Any]:
    """The token, and its document's part of the row, as text."""
    from trivium.tokens.manifest import TOKENIZER
    from trivium.tokens.tokenizer import load_tokenizer

    words = load_tokenizer(record.tokens / TOKENIZER)
    found = lineage.trace(record, step, row, position)
    return {"text": words.decode([found["token"]]), "text_in_row": words.decode(found["tokens_in_row"])}


def _curation(record: Record, document: str) -> tuple[dict[str, Any] | None, str | None]:
    """What curation kept of the document, or why that is not known: the corpus is gone, or another one by now."""
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
