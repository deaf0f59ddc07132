"""`trivium corpus`: raw text is harvested, then curated into documents."""

import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trivium.cli.commands import refuse_unknown
from trivium.cli.corpus_tools import against, show, step, step_names
from trivium.cli.model_argument import MODELS
from trivium.cli.options import (
    CURATES,
    DEFAULT_OUT,
    Corpus,
    Curation,
    Out,
    Preset,
    Redo,
    Sets,
    check_filters,
    given_for,
    harvesting,
    open_run,
    with_curation,
    with_options_of,
)
from trivium.cli.settings import App, Group, shows
from trivium.cli.show import say, table
from trivium.cli.stage import CORPUS_PATH, Result, Run, Stage, is_current, perform
from trivium.cli.tokenize import ENGINES, Workers, chosen_engine, tokenizing
from trivium.config import differences, first_lines, preset_names, shipped
from trivium.corpus.config import STORIES
from trivium.errors import DataError
from trivium.progress import Progress
from trivium.provenance import file_sha256, fingerprint, read_stamp, work_of
from trivium.units import counted, format_bytes, listed
from trivium.untrusted import read_json

if TYPE_CHECKING:
    from trivium.corpus.engine import Engine

EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="|".join(ENGINES),
        help="Where the work runs: in this process, on Daft's native runner, or on Ray.",
    ),
]
KeepWork = Annotated[
    bool | None,
    typer.Option(
        "--keep-work/--no-keep-work",
        help="Keep the filtered documents of each raw file in DIR/.curated.kept, so that the next curation need not "
        "read unchanged files again. They are about as large as the texts. Once there, they are used and updated; "
        "--no-keep-work deletes them.",
    ),
]
KEPT = ".curated.kept"
MAX_SOURCES_LISTED = 30  # by a dry run
MAX_DAMAGED_FILES_NAMED = 5


class _Corpus(Group):
    """Commands of the corpus, and the names of its steps: `corpus dedup` is `corpus step dedup`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Put `step` before the name of a step."""
        if args[0] in self.commands:
            return super().resolve_command(ctx, args)
        refuse_unknown(ctx, args[0], self.commands, step_names())
        return super().resolve_command(ctx, ["step", *args])


app = App(
    cls=_Corpus,
    help="Harvest raw text; curate it into a clean corpus.",
    epilog="The name of a step is a command too: `trivium corpus dedup IN OUT`.",
)


@app.command(short_help="Collect raw text, or your files.")
@shows("seed", "harvest")
def harvest(
    out: Out = DEFAULT_OUT,
    corpus: Corpus = None,
    preset: Preset = None,
    sets: Sets = None,
    redo: Redo = False,
    engine: EngineName = "here",
    workers: Workers = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say which files of --data would be read; write nothing.")
    ] = False,
) -> None:
    """Collect raw text: stories that the package ships, with junk planted among them, or your files."""
    opened = open_run(out, given_for(out, preset, sets), corpus=corpus)
    harvesting("corpus harvest", opened.corpus).check(sets)
    if dry_run:
        for line in listed_files(opened):
            say(line)
        return
    if not redo:
        refuse_changed(opened)
    perform(on_engine(HARVEST, _harvest, chosen_engine(engine, workers)), opened, redo=redo)


@dataclass(frozen=True)
class Curating:
    """The options of `corpus curate`."""

    out: Out = DEFAULT_OUT
    preset: Preset = None
    sets: Sets = None
    redo: Redo = False
    engine: EngineName = "here"
    workers: Workers = None
    keep_work: KeepWork = None
    curation: Curation = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print which results would be reused and which repeated; write nothing.")
    ] = False


@app.command(short_help="Filter, deduplicate, decontaminate and blend it.")
@shows("seed", "curate")
@with_options_of(Curating)
def curate(asked: Curating) -> None:
    """Extract, filter, deduplicate, decontaminate and blend what was harvested."""
    sets = with_curation(asked.sets, asked.curation, harvests=False)
    CURATES.check(sets)
    opened = open_run(asked.out, given_for(asked.out, asked.preset, sets))
    check_filters(sets, opened.config.curate)
    if asked.dry_run:
        for line in _foretold(opened, asked.keep_work, redo=asked.redo):
            say(line)
        return
    _perform_curation(opened, asked.keep_work, chosen_engine(asked.engine, asked.workers), redo=asked.redo)


@app.command(short_help="All of it, from raw text to token shards.")
@shows("seed", "harvest", "curate", "tokens")
def run(
    preset: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help=f"The model and its settings: {MODELS}.", autocompletion=preset_names),
    ] = None,
    out: Out = DEFAULT_OUT,
    corpus: Corpus = None,
    sets: Sets = None,
    engine: EngineName = "native",
    workers: Workers = None,
    keep_work: KeepWork = None,
    curation: Curation = None,
) -> None:
    """Turn raw text into token shards. After a kill, the same command resumes."""
    sets = with_curation(sets, curation)
    opened = open_run(out, given_for(out, preset, sets), corpus=corpus)
    harvesting("corpus run", opened.corpus).check(sets)
    check_filters(sets, opened.config.curate)
    tokenize = tokenizing(workers)  # it has threads under every engine
    runner = chosen_engine(engine, None if engine == "here" else workers)
    tokenize.check(opened, "anew")  # before what is done for it
    refuse_changed(opened)
    perform(on_engine(HARVEST, _harvest, runner), opened)
    _perform_curation(opened, keep_work, runner)
    perform(tokenize, opened)
    for line in large_losses(opened):
        say(line)


app.command(short_help="One step alone: a filter, dedup, select, classifier.")(step)
app.command(short_help="Statistics, one document, rejects, or a blend.")(show)
app.command(short_help="Write the texts of benchmarks, to be cut out.")(against)


def large_losses(run: Run) -> list[str]:
    """Return lines about each reason for which the curation of a run dropped more than a fifth of its text."""
    from trivium.corpus.publish.views import losses_in

    return losses_in(run.folder(CURATE.folder) / "funnel.json")


def on_engine(stage: Stage, work: Callable[..., Result], engine: "Engine | None") -> Stage:
    """A station whose work runs on this engine; what it writes does not depend on it."""
    return replace(stage, work=partial(work, engine=engine))


def _harvest(run: Run, out: Path, progress: Progress, engine: "Engine | None" = None) -> Result:
    from trivium.corpus.harvest.harvest import harvest

    found: dict[str, Any] = harvest(
        run.config.harvest,
        out,
        seed=run.config.seed,
        corpus=run.corpus,
        progress=progress,
        engine=engine,
        work=work_of(run.folder("harvest")),
    )
    return found


def refuse_changed(run: Run) -> None:
    """Raise DataError if a remote file is another one than this run directory was harvested from."""
    stamp = read_stamp(run.at.folder("harvest"))
    if not isinstance(run.corpus, str) or not run.corpus_is_typed or stamp is None:
        return
    if stamp["inputs"].get(CORPUS_PATH) != run.corpus:
        return
    from trivium.corpus.harvest.harvest_files import SOURCES
    from trivium.corpus.read.files import marks_of, relative_name
    from trivium.corpus.read.remote import changed

    now = {relative_name(url, run.corpus): mark for url, mark in marks_of(run.corpus).items()}
    again = ["trivium", HARVEST.verb, "--redo", "--data", run.corpus, "--out", str(run.at.root)]
    for entry in read_json(run.at.folder("harvest") / SOURCES):
        if "mark" in entry and entry["mark"] != (mark := now.get(entry["path"], [])):
            remedy = f"`{shlex.join(again)}` reads it again; another --out keeps this run as it is"
            raise changed(entry["path"], entry["mark"], mark, remedy)


def listed_files(run: Run, most: int = MAX_SOURCES_LISTED) -> list[str]:
    """Return what a harvest would read: files and bytes of each source, of the first `most` one by one."""
    from trivium.corpus.read.files import list_files, source_of, states_of, told_endings

    if run.corpus is None:
        return ["harvest: the stories that the package ships"]
    others = list_files(run.corpus).others
    files: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for file, size, *_ in states_of(run.corpus):
        source = source_of(file if isinstance(run.corpus, str) else Path(file), run.corpus)
        files[source] += 1
        sizes[source] += size or 0
    sources = sorted(files)
    lines = table(
        [(source, files[source], format_bytes(sizes[source])) for source in sources[:most]],
        header=("source", "files", "bytes"),
    )
    if more := sources[most:]:
        rest = sum(files[source] for source in more), format_bytes(sum(sizes[source] for source in more))
        lines.append(f"  and {counted(len(more), 'source')} more, with {counted(rest[0], 'file')} of {rest[1]}")
    lines += [f"not read, as they are of another kind: {told_endings(others)}"] if others else []
    return [f"harvest: {'up to date' if is_current(HARVEST, run) else 'to be done'}", *lines]


def _perform_curation(run: Run, keep: bool | None, engine: "Engine | None", *, redo: bool = False) -> None:
    lines = [] if redo else _nothing_kept(run, keep)
    perform(on_engine(CURATE, partial(_curate, keep=keep), engine), run, redo=redo)
    for line in lines:
        say(line)
    if keep is False:
        shutil.rmtree(run.folder(KEPT), ignore_errors=True)


def _kept(run: Run, keep: bool | None) -> Path | None:
    """The folder of kept work, where it is to be kept: when asked for, and since it once was."""
    folder = run.folder(KEPT)
    return folder if keep or (keep is None and folder.is_dir()) else None


def _nothing_kept(run: Run, keep: bool | None) -> list[str]:
    """Return the message for --keep-work on a finished curation, which can keep work only while it runs."""
    if not keep or run.folder(KEPT).is_dir() or not is_current(CURATE, run):
        return []
    again = f"trivium {CURATE.verb} --out {shlex.quote(str(run.at.root))} --redo --keep-work"
    return [f"  nothing of it is kept yet; `{again}` does it again and keeps it"]


def _foretold(run: Run, keep: bool | None, *, redo: bool) -> list[str]:
    """Return lines that say what a curation would do."""
    directory = run.at.folder(CURATE.folder)
    if is_current(CURATE, run) and not redo:
        return [f"curate: up to date in {directory}", *_nothing_kept(run, keep)]
    before = read_stamp(directory) or {}
    changed = differences(before["config"], CURATE.config(run)) if "config" in before else []
    return ["curate: to be done", *first_lines(changed).splitlines(), *_reuse_lines(run, _kept(run, keep))]


def _reuse_lines(run: Run, kept: Path | None) -> list[str]:
    from trivium.corpus.pipeline import reuse_lines

    if kept is None:
        return ["  nothing is kept, so everything is done again (--keep-work keeps it for the next curation)"]
    return reuse_lines(kept, run.folder("harvest"), run.config.curate, seed=run.config.seed)


def _curate(
    run: Run, out: Path, progress: Progress, engine: "Engine | None" = None, keep: bool | None = None
) -> Result:
    from trivium.corpus.pipeline import curate, kept_bytes

    kept = _kept(run, keep)
    if kept is not None:
        for line in _reuse_lines(run, kept):
            say(line)
    found: dict[str, Any] = curate(
        run.config.curate,
        run.folder("harvest"),
        out,
        seed=run.config.seed,
        progress=progress,
        engine=engine,
        work=work_of(run.folder("curated")),
        kept=kept,
    )
    return found if kept is None else {**found, KEPT: (kept, kept_bytes(kept))}


def _harvest_lines(result: Result) -> list[str]:
    lines = [
        f"  {result['documents']:,} documents, {format_bytes(result['text_bytes'])} of text from "
        f"{counted(result['files'], 'file')}; {result['heldout']:,} documents held out for evaluation, "
        f"{result['evaluation_items']:,} items made from them"
    ]
    if "planted" in result:
        planted = ", ".join(f"{number} {kind}" for kind, number in result["planted"].items())
        lines.append(f"  planted among {result['honest']:,} honest documents: {planted}")
    if result["quarantined"]:
        lines.append(f"  skipped {counted(result['quarantined'], 'unreadable record')}; see sources.json")
    if result.get("added"):
        lines.append(
            f"  texts of more than harvest.longest characters were cut: {result['added']:,} of the "
            f"{result['documents'] + result['heldout']:,} documents, held-out ones included, are later pieces of "
            f"another"
        )
    if passed_over := result.get("passed_over"):
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in _most_first(passed_over))
        lines.append(f"  {sum(passed_over.values()):,} records passed over, as they are no pages: {kinds}")
    if result.get("not_read"):
        from trivium.corpus.read.files import told_endings

        lines.append(f"  not read, as they are of another kind: {told_endings(result['not_read'])}")
    damaged = result["damaged"]
    more = (
        [f"  … and {len(damaged) - MAX_DAMAGED_FILES_NAMED} more in sources.json"]
        if len(damaged) > MAX_DAMAGED_FILES_NAMED
        else []
    )
    return [*lines, *(f"  damaged: {line}" for line in damaged[:MAX_DAMAGED_FILES_NAMED]), *more]


def _most_first(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


def _curate_lines(result: Result) -> list[str]:
    from trivium.corpus.publish.views import funnel_lines, loss_lines

    lines = [*funnel_lines(dict(result)), *loss_lines(result["funnel"])]
    weightless = [source for source, entry in result["blend"].items() if not entry["weight"]]
    if weightless:
        lines.append(f"never to be trained on, as of weight 0 (curate.blend): {listed(weightless)}")
    if KEPT in result:
        folder, size = result[KEPT]
        lines.append(f"kept for the next curation: {format_bytes(size)} in {folder} (--no-keep-work deletes it)")
    return lines


def _raw_input(run: Run) -> dict[str, str]:
    """The user's files by name, size and time of change; the default corpus by its content."""
    if run.corpus is None:
        return {"corpus": file_sha256(shipped(STORIES))}
    from trivium.corpus.read.files import states_of

    # not where links lead: what they lead to may have another name, as in the cache of Hugging Face
    corpus = run.corpus if isinstance(run.corpus, str) else run.corpus.absolute()
    before = (read_stamp(run.at.folder("harvest")) or {}).get("inputs", {})
    if isinstance(corpus, str) and not run.corpus_is_typed:  # no network where no URL was typed
        return {"corpus": before["corpus"], CORPUS_PATH: corpus}
    try:
        return {"corpus": fingerprint(states_of(corpus)), CORPUS_PATH: str(corpus)}
    except DataError:
        there = isinstance(corpus, Path) and corpus.exists()
        if there or before.get(CORPUS_PATH) != str(corpus):
            raise
        return {"corpus": before["corpus"], CORPUS_PATH: str(corpus)}  # harvested, and since then out of reach


def _beside(run: Run) -> dict[str, str]:
    """The hashes of the files that the config names: what matters is what is in them."""
    from trivium.corpus.pipeline import files_beside

    hashes = [file_sha256(path) for path in files_beside(run.config.curate)]
    return {"beside": fingerprint(hashes)} if hashes else {}


HARVEST = Stage(
    name="harvest",
    verb="corpus harvest",
    folder="harvest",
    sections=("harvest",),
    reads=(),
    work=_harvest,
    summary=_harvest_lines,
    outside=_raw_input,
)
CURATE = Stage(
    name="curate",
    verb="corpus curate",
    folder="curated",
    sections=("curate",),
    reads=("harvest",),
    work=_curate,
    summary=_curate_lines,
    outside=_beside,
)
