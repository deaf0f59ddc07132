"""`trivium corpus step`, `show` and `against`.

A step reads a folder or file and writes a folder: documents/, rejects.jsonl.gz, funnel.json and its stamp.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trivium.cli.model_argument import asked_model, model_path
from trivium.cli.options import (
    DEFAULT_OUT,
    DEFAULT_PRESET,
    AsJson,
    Out,
    Sets,
    refuse_given,
    refuse_inside,
    with_options_of,
)
from trivium.cli.paths import local_path
from trivium.cli.run_config import Given, RunConfig, resolve
from trivium.cli.settings import shows
from trivium.cli.show import progress_of, say, say_aside, say_either
from trivium.cli.tokenize import ENGINES, Workers, chosen_engine
from trivium.cli.workspace import Workspace, read_result
from trivium.config import preset_names, to_tree
from trivium.errors import ConfigError, DataError, nearest
from trivium.finite import dumps
from trivium.progress import Progress
from trivium.provenance import discard, fingerprint, publishing, read_stamp, stamp_hash, work_of, write_json
from trivium.units import format_bytes, parse_count

if TYPE_CHECKING:
    from trivium.corpus.read.files import Input
    from trivium.corpus.select.points import Embed
    from trivium.tokens.recipe import Recipe

STEP = "corpus step"  # whose output it may replace: nothing but its own, for a training has a stamp too
VECTORS = ".npy"  # ending of a matrix of vectors
READ = "read"  # the step without a filter: what cannot be read is set aside

Preset = Annotated[
    str,
    typer.Option(
        "--preset", metavar="NAME", help="A model or config file, for its settings.", autocompletion=preset_names
    ),
]
Source = Annotated[
    Path,
    typer.Argument(
        parser=local_path, metavar="IN", help="Files that can be read, a document store, or another command's output."
    ),
]
Target = Annotated[Path, typer.Argument(parser=local_path, metavar="OUT", help="A folder to be made.")]


# The options that one step reads; all others, which are filters and `read`, read --engine and --workers.
_OWN: Mapping[str, tuple[str, ...]] = {
    "dedup": ("--by", "--index"),
    "select": ("--target", "--from", "--embedding"),
    "train-classifier": ("--crawl",),
    "score": ("--model",),
}


def step_names() -> tuple[str, ...]:
    """Return the names of all steps."""
    from trivium.corpus.clean.filters import FILTERS

    return (READ, *FILTERS, *_OWN)


@dataclass(frozen=True)
class Asked:
    """The arguments and options of `corpus step`."""

    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="read, extract, clean or a filter's name; dedup, select, train-classifier or score.",
            autocompletion=step_names,
        ),
    ]
    source: Source
    out: Target
    by: Annotated[
        str | None,
        typer.Option("--by", metavar="near|text|lines|paragraphs", help="dedup: what is compared; default: near."),
    ] = None
    index: Annotated[
        Path | None,
        typer.Option(
            "--index",
            parser=local_path,
            metavar="DIR",
            help="dedup: earlier snapshots, which this one is compared with and added to.",
        ),
    ] = None
    target: Annotated[
        Path | None,
        typer.Option(
            "--target", parser=local_path, metavar="DOCUMENTS", help="select: documents of what the model is for."
        ),
    ] = None
    trained_on: Annotated[
        Path | None,
        typer.Option(
            "--from",
            parser=local_path,
            metavar="RUN|DOCUMENTS",
            help="select: what the model was trained on, a run or documents; default: IN stands for it.",
        ),
    ] = None
    embedding: Annotated[
        Path | None,
        typer.Option(
            "--embedding",
            parser=model_path,
            metavar="MODEL|FILE.npy",
            help="select: mean hidden states of a run, checkpoint or Hugging Face folder, or a matrix with a row for "
            "each document of IN, --target and --from; default: hashed words and word pairs.",
        ),
    ] = None
    crawl: Annotated[
        Path | None,
        typer.Option(
            "--crawl",
            parser=local_path,
            metavar="DOCUMENTS",
            help="train-classifier: documents of the crawl; IN has those of high quality.",
        ),
    ] = None
    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            parser=local_path,
            metavar="MODEL",
            help="score: the folder that train-classifier wrote, or its classifier.npz.",
        ),
    ] = None
    preset: Preset = DEFAULT_PRESET
    sets: Sets = None
    engine: Annotated[
        str | None,
        typer.Option("--engine", metavar="|".join(ENGINES), help="Where read and filters run; default: here."),
    ] = None
    workers: Workers = None


Work = Callable[[Path, Progress], dict[str, Any]]


_NEEDED = ("--target", "--crawl", "--model")


@with_options_of(Asked)
@shows("seed", "curate")
def step(asked: Asked) -> None:
    """Run one step alone, from documents to documents. After a kill, the same command resumes.

    dedup drops documents that repeat an earlier one, or lines or paragraphs that do. select keeps the documents with
    which training comes closest to a target, best first (GOT-D): not those most like the target, but those that the
    target has and the training lacks. They are for a short warm-up before tuning on the target; deduplicate first.
    train-classifier trains the classifier of high-quality text on IN against --crawl; score writes every document with
    its score as `classifier_score`.
    """
    known = step_names()
    if asked.name not in known:
        raise ConfigError(f"NAME '{asked.name}': no such step; {nearest(asked.name, known)}")
    options: dict[str, Any] = {"--by": asked.by, "--index": asked.index, "--target": asked.target}
    options |= {"--from": asked.trained_on, "--embedding": asked.embedding}
    options |= {"--crawl": asked.crawl, "--model": asked.model, "--engine": asked.engine, "--workers": asked.workers}
    own = _OWN.get(asked.name, ("--engine", "--workers"))
    others = {name: value for name, value in options.items() if name not in own}
    refuse_given(others, f"`trivium corpus step {asked.name}` does not read this; leave it out")
    for option in own:
        if option in _NEEDED and options[option] is None:
            raise ConfigError(f"{option} is missing: `trivium corpus step {asked.name}` needs it")
    config = resolve(Given(asked.preset, tuple(asked.sets or ()))).checked()
    _STEPS.get(asked.name, _filter)(asked, config)


def _filter(asked: Asked, config: RunConfig) -> None:
    from trivium.corpus.pipeline import run_steps

    filters = () if asked.name == READ else (asked.name,)
    curate = config.curate.model_copy(update={"filters": filters})
    runner = chosen_engine(asked.engine or "here", asked.workers)

    def work(into: Path, progress: Progress) -> dict[str, Any]:
        with _work(asked.out) as pieces:
            source = _read(asked.source, config)
            return run_steps(curate, source, into, seed=config.seed, work=pieces, progress=progress, engine=runner)

    _say_funnel(_written(asked, config, work))


def _dedup(asked: Asked, config: RunConfig) -> None:
    from trivium.corpus.dedup.deduplicate import KINDS, deduplicate

    index, by = asked.index, asked.by or "near"
    way = next((one for one in KINDS if one == by), None)
    if way is None:
        raise ConfigError(f"--by {by}: unknown kind of deduplication; {nearest(by, KINDS)}")
    if index is not None and way != "near":
        raise ConfigError(f"--index {index} goes with --by near, not with --by {by}; leave one of the two out")
    if index is not None:
        _refuse_replaced("--index", index, asked.out)
        refuse_inside("--index", index, "IN", asked.source)
    if config.curate.dedup.urls:
        raise ConfigError(
            "curate.dedup.urls=true: addresses are compared by `trivium corpus curate` alone; "
            "--set curate.dedup.urls=false"
        )

    def work(into: Path, progress: Progress) -> dict[str, Any]:
        with _work(asked.out) as pieces:
            source = _read(asked.source, config)
            return deduplicate(
                config.curate, source, into, by=way, seed=config.seed, work=pieces, index=index, progress=progress
            )

    _say_funnel(_written(asked, config, work, more=f" --by {by}"))


def _select(asked: Asked, config: RunConfig) -> None:
    from trivium.corpus.select.select import Inputs, choose_documents

    target, before, selection = _checked(asked.target), _curated_of(asked.trained_on), config.curate.selection
    if selection.method == "importance":
        refuse_given(
            {"--from": before, "--embedding": asked.embedding},
            "curate.selection.method=importance does not read this; leave it out, or set method to transport",
        )
    encoder = asked.embedding
    if encoder is not None and encoder.suffix != VECTORS:
        encoder = asked_model(encoder)
    named = {"--target": target, "--from": before, "--embedding": encoder}

    def work(into: Path, progress: Progress) -> dict[str, Any]:
        pool, wanted = (_read(path, config) for path in (asked.source, target))
        inputs = Inputs(pool, wanted, None if before is None else _read(before, config))
        with _embedding(encoder, progress) as embed:
            return choose_documents(selection, inputs, into, seed=config.seed, embed=embed)

    found = _written(asked, config, work, {name: path for name, path in named.items() if path is not None})
    _say_funnel(found, losses=False)  # a selection is meant to drop most of the text
    say("median characters: " + ", ".join(f"{name} {most:,.0f}" for name, most in found["characters"].items()))


def _checked(path: Path | None) -> Path:
    assert path is not None, "checked with the options"
    return path


def _curated_of(path: Path | None) -> Path | None:
    """Return the documents that a run was trained on, or the path itself if it is no run."""
    folder = None if path is None else Workspace(path).folder("curated")
    return folder if folder is not None and folder.is_dir() else path


@contextmanager
def _embedding(encoder: Path | None, progress: Progress) -> Iterator["Embed | None"]:
    """Yield the embedding by a model or an .npy file; None for that by hashed words."""
    from trivium.corpus.select.points import encoded_by, vectors_in

    if encoder is None or encoder.suffix == VECTORS:
        yield None if encoder is None else vectors_in(encoder)
        return
    from trivium.evaluation.embedding import opened_encoder

    with opened_encoder(encoder, progress) as encode:
        yield encoded_by(encode)


def _train_classifier(asked: Asked, config: RunConfig) -> None:
    from trivium.corpus.select.classifier import FILE, train
    from trivium.corpus.select.select import draw

    crawl, most, seed = _checked(asked.crawl), config.curate.classifier.documents, config.seed

    def work(into: Path, progress: Progress) -> dict[str, Any]:
        good, bad = (draw(_read(path, config), most, seed=seed).texts for path in (asked.source, crawl))
        model, report = train(good, bad, config.curate.classifier, seed=seed)
        model.save(into / FILE)
        write_json(into / "report.json", report.as_json())
        return report.as_json()

    found = _written(asked, config, work, {"--crawl": crawl})
    say(
        f"accuracy {found['accuracy']:.1%} and area under the curve {found['auc']:.4f} on "
        f"{found['held_out']:,} documents held out; trained on {found['trained_on']:,}"
    )
    named = f"curate.classifier.model={shlex.quote(str(asked.out))}"
    say(f"use it, in a curation with classifier among curate.filters: --set {named}")


def _score(asked: Asked, config: RunConfig) -> None:
    from trivium.corpus.select.select import score_documents

    model = asked.model
    assert model is not None, "checked with the options"

    def work(into: Path, progress: Progress) -> dict[str, Any]:
        return score_documents(model, _read(asked.source, config), into)

    found = _written(asked, config, work, {"--model": model})
    _say_funnel(found)
    for name, value in found["scores"].items():
        say(f"  score, {name}: {value:.3f}")


_STEPS: Mapping[str, Callable[[Asked, RunConfig], None]] = {
    "dedup": _dedup,
    "select": _select,
    "train-classifier": _train_classifier,
    "score": _score,
}


def against(
    tasks: Annotated[
        str, typer.Argument(metavar="TASKS", help="A group or names with commas, as of evaluate --tasks: mt-nlg.")
    ],
    out: Annotated[Path, typer.Argument(parser=local_path, metavar="OUT", help="A file of JSON lines to be made.")],
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", parser=local_path, metavar="DIR", help="Where their rows lie; default: the Hugging Face hub."
        ),
    ] = None,
) -> None:
    """Write the texts of benchmarks that MT-NLG and GPT-3 looked for, for curate.decontamination.against."""
    from trivium.cli.benchmarks import Asked, config_of, rows_of
    from trivium.corpus.config import DecontaminationConfig
    from trivium.corpus.select.decontaminate import keys_of
    from trivium.evaluation.contamination import text_looked_for

    ready, missing = rows_of(Asked(tasks, data, config_of(None, None, []), field="TASKS"))
    lines: list[str] = []
    for benchmark in ready:
        texts = dict.fromkeys(map(text_looked_for, benchmark.task.examples))
        rows = ({"id": f"{benchmark.name}:{n}", "text": text} for n, text in enumerate(texts) if text)
        before = len(lines)
        lines += [dumps(row, ensure_ascii=False) + "\n" for row in rows]
        short = sum(not keys_of(text, DecontaminationConfig()) for text in texts if text)
        told = f", {short:,} of them with fewer words than are looked for" if short else ""
        say(f"{benchmark.name}: {len(lines) - before:,} texts{told}")
    for name, reason in missing.items():
        say(f"{name}: left out, {reason}")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(lines), encoding="utf-8")
    plain = re.fullmatch(r"[A-Za-z_./][A-Za-z0-9_./-]*", str(out))  # others would be cut at a comma, or read as YAML
    value = str(out) if plain else dumps([str(out)], ensure_ascii=False)
    say(f"use them: --set {shlex.quote(f'curate.decontamination.against={value}')}")


def _recipe(name: str) -> "Recipe":
    from trivium.tokens.manifest import MANIFEST
    from trivium.tokens.recipe import load_recipe, recipe_names, recipe_of_tokens

    tokens = Path(name) / "tokens"
    if (tokens / MANIFEST).is_file():
        return recipe_of_tokens(tokens)
    if Path(name).is_dir() and name not in recipe_names():
        raise ConfigError(
            f"--blend '{name}' is a folder without {tokens / MANIFEST}, and the blend of a run is that of its tokens; "
            f"run `trivium tokenize --out {shlex.quote(name)}` first, or give a recipe: {', '.join(recipe_names())}"
        )
    return load_recipe(name)


def _read(path: Path, config: RunConfig) -> "Input":
    """Read the documents of a path with the settings of a harvest."""
    from trivium.corpus.read.files import Input

    return Input(path, config.harvest.read)


@contextmanager
def _work(out: Path) -> Iterator[Path]:
    """Yield the folder of finished pieces, which exists until the output is complete, so that a killed command resumes.

    After an error in input or settings the pieces are deleted, because fixing it changes the work.
    """
    pieces = work_of(out)
    try:
        yield pieces
    except (ConfigError, DataError):
        discard(pieces)
        raise


def _written(
    asked: Asked, config: RunConfig, work: Work, inputs: Mapping[str, Path] | None = None, *, more: str = ""
) -> dict[str, Any]:
    """Do a step's work into a folder that appears, stamped, when it is complete. inputs: those besides IN."""
    out, verb = asked.out, f"{STEP} {asked.name}{more}"
    if out.exists() and not (out.is_dir() and (_verb_of(out) == STEP or not any(out.iterdir()))):
        made = f"was made by `trivium {_verb_of(out)}`" if _verb_of(out) else "was not made by trivium"
        raise ConfigError(f"OUT {out} is there and {made}; give a folder that is not")
    places = {"IN": asked.source, **(inputs or {})}
    for name, path in places.items():
        _refuse_replaced(name, path, out)
        if name not in ("--model", "--embedding"):  # these options name no text
            refuse_inside("OUT", out, name, path)
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    from trivium.corpus.kernels.warm_up import compile_once

    whole = to_tree(config)
    settings = {"seed": config.seed, "curate": whole["curate"], "harvest": {"read": whole["harvest"]["read"]}}
    names = {name.strip("-").lower(): fingerprint(str(path.resolve())) for name, path in places.items()}
    with progress_of(verb) as progress, publishing(out, verb=verb, config=settings, inputs=names) as partial:
        compile_once(progress)
        return work(partial, progress)


def _refuse_replaced(name: str, path: Path, out: Path) -> None:
    """ConfigError where the output would take the place of a folder that this is in, and it would be deleted."""
    if path.resolve().is_relative_to(out.resolve()):
        raise ConfigError(
            f"{name} {path} lies in OUT {out}, which is replaced as a whole; give another OUT, or move {name} elsewhere"
        )


def _verb_of(out: Path) -> str:
    """Return the first two words of the command that made a folder; "" where it is not stamped."""
    return " ".join(str((read_stamp(out) or {}).get("verb", "")).split()[:2])


def _say_funnel(found: Mapping[str, Any], *, losses: bool = True) -> None:
    from trivium.corpus.publish.views import loss_lines

    for tally in found["funnel"]:
        reasons = "; ".join(f"{number:,} {reason}" for reason, number in tally["dropped"].items())
        unreadable = tally["quarantined"]
        quarantined = f"; {unreadable:,} unreadable (why: rejects.jsonl.gz)" if unreadable else ""
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in tally["passed_over"].items())
        passed_over = f"; passed over, as they are no pages: {kinds}" if kinds else ""
        say(
            f"{tally['step']}: {tally['documents']:,} documents, {format_bytes(tally['bytes'])}"
            f"{quarantined}{passed_over}{f'; dropped: {reasons}' if reasons else ''}"
        )
    for line in loss_lines(found["funnel"]) if losses else ():
        say(line)


DEFAULT_CHARACTERS = 300  # of a reject's text
DEFAULT_REJECTS = 10
SAMPLE_TOKENS = 2048


@dataclass(frozen=True)
class Shown:
    """The argument and options of `corpus show`."""

    document: Annotated[
        str | None, typer.Argument(metavar="ID", help="A document's id: every figure and decision about it.")
    ] = None
    out: Out = DEFAULT_OUT
    rejects: Annotated[bool, typer.Option("--rejects", help="Documents that were dropped, drawn evenly, and why.")] = (
        False
    )
    step: Annotated[
        str | None, typer.Option("--step", metavar="NAME", help="--rejects: only of this step of the funnel.")
    ] = None
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="--rejects: only those whose reason holds this text.")
    ] = None
    count: Annotated[
        int | None,
        typer.Option("--count", metavar="N", min=1, help=f"--rejects: how many; default: {DEFAULT_REJECTS}."),
    ] = None
    characters: Annotated[
        int | None,
        typer.Option(
            "--characters", metavar="N", min=0, help=f"--rejects: how much of each text; default: {DEFAULT_CHARACTERS}."
        ),
    ] = None
    blend: Annotated[
        str | None,
        typer.Option(
            "--blend",
            metavar="RECIPE|DIR",
            help="Weights and epochs of a blend: of a shipped recipe (mt-nlg), a YAML file, or a run with tokens.",
        ),
    ] = None
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="TOKENS", help="--blend: tokens read, as 270B. Default: the recipe's."),
    ] = None
    sequence: Annotated[
        int | None,
        typer.Option("--sequence", metavar="N", help=f"--blend: tokens in a sample; default: {SAMPLE_TOKENS}."),
    ] = None
    as_json: AsJson = False


@with_options_of(Shown)
def show(asked: Shown) -> None:
    """Show the statistics of a run's corpus: lengths, scores, reasons for rejection, similarities of near duplicates.

    With ID: a document's whole history, and the copies dropped in its favour. With --rejects: dropped documents.
    With --blend: how often each source is read.
    """
    subjects = [("ID", asked.document), ("--rejects", asked.rejects or None), ("--blend", asked.blend)]
    given = [name for name, value in subjects if value is not None]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)}: each shows something else; give one of them")
    about_rejects = {"--step": asked.step, "--reason": asked.reason, "--count": asked.count}
    about_rejects["--characters"] = asked.characters
    if not asked.rejects:
        refuse_given(about_rejects, "only --rejects reads this; add --rejects, or leave it out")
    if asked.blend is None:
        refuse_given({"--after": asked.after, "--sequence": asked.sequence}, "only --blend reads this; leave it out")
    if asked.document is not None:
        from trivium.corpus.publish.views import history, history_lines

        found = history(asked.out / "curated", asked.document)
        say_either(history_lines(found), found, asked.as_json)
    elif asked.rejects:
        _show_rejects(asked)
    elif asked.blend is not None:
        _show_blend(asked, asked.blend)
    else:
        from trivium.corpus.publish.views import corpus_statistics, statistics_lines

        found = keep_statistics(Workspace(asked.out)) or corpus_statistics(asked.out / "curated")
        say_either(statistics_lines(found), found, asked.as_json)


def _show_rejects(asked: Shown) -> None:
    from trivium.corpus.publish.views import reject_lines, some_rejects

    step, reason = asked.step or "", asked.reason or ""
    if asked.as_json and asked.characters is not None:
        raise ConfigError(f"--characters {asked.characters}: --json has each text whole; leave one of the two out")
    found = some_rejects(asked.out / "curated", step=step, reason=reason, count=asked.count or DEFAULT_REJECTS)
    if not found and not step and not reason:
        say_aside(f"{asked.out / 'curated'} has no rejects: every document was kept")
    elif not found:
        wanted = " and ".join(f"{name} '{text}'" for name, text in (("--step", step), ("--reason", reason)) if text)
        raise DataError(f"no reject of {asked.out / 'curated'} has {wanted}; `trivium corpus show` counts them")
    whole = [dumps(row, ensure_ascii=False) for row in found] if asked.as_json else []
    for line in whole or reject_lines(
        found, characters=DEFAULT_CHARACTERS if asked.characters is None else asked.characters
    ):
        say(line)


def _show_blend(asked: Shown, recipe: str) -> None:
    from trivium.tokens.recipe import contents_after, recipe_lines

    sequence = SAMPLE_TOKENS if asked.sequence is None else asked.sequence
    if sequence < 1:
        raise ConfigError(f"--sequence {sequence}: a sample has 1 token or more; give its length")
    table = _recipe(recipe)
    tokens = parse_count(asked.after) if asked.after else int(table.tokens_trained)
    contents = contents_after(tokens, table, sequence=sequence)
    data = {source: one._asdict() for source, one in contents.items()}
    say_either(recipe_lines(contents, table), data, asked.as_json)


def keep_statistics(at: Workspace) -> dict[str, Any]:
    """The statistics of a run's finished corpus, kept beside it for the report; nothing where there is none."""
    curated, kept = at.folder("curated"), at.folder("statistics.json")
    key = stamp_hash(curated)
    if not key:
        return {}
    before = read_result(kept) if kept.is_file() else {}
    if before.get("of") == key:
        return before
    from trivium.corpus.publish.views import corpus_statistics  # takes half a second

    found = {"of": key, **corpus_statistics(curated)}
    write_json(kept, found)
    return found
