"""The stations of the corpus one by one: `corpus step`, `dedup`, `select`, `classify`, `blend`, `against`,
`extract-check`.

Each reads a folder or file and writes a folder: documents/, rejects.jsonl.gz, funnel.json and its stamp.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trivium.cli.options import DEFAULT_OUT, DEFAULT_PRESET, Out, Sets, refuse_inside
from trivium.cli.paths import local_path
from trivium.cli.run_config import Given, RunConfig, resolve
from trivium.cli.show import progress_of, say, say_either
from trivium.cli.tokenize import ENGINES, Workers, chosen_engine
from trivium.cli.workspace import Workspace, read_result
from trivium.config import to_tree
from trivium.errors import ConfigError, DataError, nearest
from trivium.finite import dumps
from trivium.progress import Progress
from trivium.provenance import discard, fingerprint, publishing, read_stamp, stamp_hash, work_of, write_json
from trivium.units import format_bytes, parse_count

if TYPE_CHECKING:
    from trivium.corpus.read.files import Input
    from trivium.tokens.recipe import Recipe

# verbs whose output the same or another of them may replace: nothing but theirs, for a training has a stamp too
_REPLACED = ("corpus step", "corpus dedup", "corpus select", "corpus classify")

READ = "read"  # the station without a step: what cannot be read is set aside

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Preset = Annotated[
    str, typer.Option("--preset", metavar="NAME", help="A shipped preset or a YAML/JSON file, for its settings.")
]
Source = Annotated[
    Path,
    typer.Argument(
        parser=local_path, metavar="IN", help="Files that can be read, a document store, or the output of another verb."
    ),
]
Target = Annotated[Path, typer.Argument(parser=local_path, metavar="OUT", help="A folder to be made.")]
Engine = Annotated[str, typer.Option("--engine", metavar="|".join(ENGINES), help="Where the work runs.")]

classify = typer.Typer(
    help="Train the quality classifier, or score documents with it.", rich_markup_mode=None, add_completion=False
)


def step(
    name: Annotated[str, typer.Argument(metavar="NAME", help="read, extract, clean, or a filter's name.")],
    source: Source,
    out: Target,
    preset: Preset = DEFAULT_PRESET,
    sets: Sets = None,
    engine: Engine = "here",
    workers: Workers = None,
) -> None:
    """One station alone, documents in and documents out; killed at any moment, the same command goes on."""
    from trivium.corpus.clean.filters import FILTERS
    from trivium.corpus.pipeline import run_steps

    if name not in (READ, *FILTERS):
        raise ConfigError(f"NAME '{name}': no such station; {nearest(name, (READ, *FILTERS))}")
    config = _config(preset, sets)
    filters = () if name == READ else (name,)
    curate = config.curate.model_copy(update={"filters": filters})
    runner = chosen_engine(engine, workers)

    def work(into: Path, progress: Progress) -> dict[str, Any]:
        with _work(out) as pieces:
            return run_steps(
                curate, _read(source, config), into, seed=config.seed, work=pieces, progress=progress, engine=runner
            )

    _say_funnel(_written(out, f"corpus step {name}", config, {"in": source}, work))


def dedup(
    source: Source,
    out: Target,
    by: Annotated[str, typer.Option("--by", metavar="near|text|lines|paragraphs", help="What is compared.")] = "near",
    index: Annotated[
        Path | None,
        typer.Option(
            "--index",
            parser=local_path,
            metavar="DIR",
            help="What earlier snapshots held: they are compared with, and this one is added.",
        ),
    ] = None,
    preset: Preset = DEFAULT_PRESET,
    sets: Sets = None,
) -> None:
    """Drop documents that repeat an earlier one, or their lines or paragraphs that do."""
    from trivium.corpus.dedup.deduplicate import KINDS, deduplicate

    way = next((one for one in KINDS if one == by), None)
    if way is None:
        raise ConfigError(f"--by {by}: unknown kind of deduplication; {nearest(by, KINDS)}")
    if index is not None and way != "near":
        raise ConfigError(f"--index {index} goes with --by near, not with --by {by}; leave one of the two out")
    if index is not None:
        _refuse_replaced("--index", index, out)
        refuse_inside("--index", index, "IN", source)
    config = _config(preset, sets)
    if config.curate.dedup.urls:
        raise ConfigError(
            "curate.dedup.urls=true: addresses are compared by `trivium corpus curate` alone; "
            "--set curate.dedup.urls=false"
        )

    def work(into: Path, progress: Progress) -> dict[str, Any]:
        with _work(out) as pieces:
            return deduplicate(
                config.curate,
                _read(source, config),
                into,
                by=way,
                seed=config.seed,
                work=pieces,
                index=index,
                progress=progress,
            )

    _say_funnel(_written(out, f"corpus dedup --by {by}", config, {"in": source}, work))


def select(
    source: Source,
    target: Annotated[
        Path, typer.Argument(parser=local_path, metavar="TARGET", help="Documents like which more are wanted.")
    ],
    out: Target,
    preset: Preset = DEFAULT_PRESET,
    sets: Sets = None,
) -> None:
    """Keep the documents that bring training closest to a target set, best first (curate.selection)."""
    from trivium.corpus.select.select import choose_documents

    config = _config(preset, sets)

    def work(into: Path, progress: Progress) -> dict[str, Any]:
        pool, wanted = (_read(path, config) for path in (source, target))
        return choose_documents(config.curate.selection, pool, wanted, into, seed=config.seed)

    _say_funnel(_written(out, "corpus select", config, {"in": source, "target": target}, work))


@classify.command()
def train(
    positives: Annotated[Path, typer.Argument(parser=local_path, metavar="GOOD", help="Documents of high quality.")],
    negatives: Annotated[Path, typer.Argument(parser=local_path, metavar="CRAWL", help="Documents of the crawl.")],
    out: Target,
    preset: Preset = DEFAULT_PRESET,
    sets: Sets = None,
) -> None:
    """Train the classifier of high-quality text against crawl; its accuracy is that on documents held out."""
    from trivium.corpus.select.classifier import FILE
    from trivium.corpus.select.classifier import train as train_classifier
    from trivium.corpus.select.select import texts_drawn

    config = _config(preset, sets)
    most, seed = config.curate.classifier.documents, config.seed

    def work(into: Path, progress: Progress) -> dict[str, Any]:
        good, crawl = (texts_drawn(_read(path, config), most, seed=seed) for path in (positives, negatives))
        model, report = train_classifier(good, crawl, config.curate.classifier, seed=seed)
        model.save(into / FILE)
        write_json(into / "report.json", report.as_json())
        return report.as_json()

    found = _written(out, "corpus classify train", config, {"good": positives, "crawl": negatives}, work)
    say(
        f"accuracy {found['accuracy']:.1%} and area under the curve {found['auc']:.4f} on "
        f"{found['held_out']:,} documents held out; trained on {found['trained_on']:,}"
    )
    named = f"curate.classifier.model={shlex.quote(str(out))}"
    say(f"use it, in a curation with classifier among curate.filters: --set {named}")


@classify.command()
def score(
    model: Annotated[
        Path,
        typer.Argument(
            parser=local_path, metavar="MODEL", help="The folder of `classify train`, or its classifier.npz."
        ),
    ],
    source: Source,
    out: Target,
    preset: Preset = DEFAULT_PRESET,
    sets: Sets = None,
) -> None:
    """Write every document with its score as `classifier_score`; none is dropped."""
    from trivium.corpus.select.select import score_documents

    config = _config(preset, sets)

    def work(into: Path, progress: Progress) -> dict[str, Any]:
        return score_documents(model, _read(source, config), into)

    found = _written(out, "corpus classify score", config, {"model": model, "in": source}, work)
    _say_funnel(found)
    for name, value in found["scores"].items():
        say(f"  score, {name}: {value:.3f}")


def blend(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A shipped recipe, a YAML file, or a run directory with tokens.")
    ] = "mt-nlg",
    after: Annotated[
        str | None, typer.Option("--after", metavar="TOKENS", help="Tokens read, as 270B. Default: the recipe's.")
    ] = None,
    sequence: Annotated[int, typer.Option("--sequence", metavar="N", help="Tokens in a sample.")] = 2048,
    as_json: AsJson = False,
) -> None:
    """Show weights and epochs of a blend, and what it contains after so many tokens."""
    from trivium.tokens.recipe import contents_after, recipe_lines

    if sequence < 1:
        raise ConfigError(f"--sequence {sequence}: a sample has 1 token or more; give its length")
    table = _recipe(recipe)
    tokens = parse_count(after) if after else int(table.tokens_trained)
    contents = contents_after(tokens, table, sequence=sequence)
    data = {source: one._asdict() for source, one in contents.items()}
    say_either(recipe_lines(contents, table), data, as_json)


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


def extract_check(
    gold: Annotated[Path, typer.Argument(parser=local_path, metavar="GOLD", help="A folder of pages with gold text.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", parser=local_path, metavar="DIR", help="A run directory whose report will show it."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """F1 and speed of each extractor on pages whose text is known."""
    from trivium.corpus.clean.extract_check import check_extraction, extraction_lines
    from trivium.corpus.kernels.warm_up import compile_once

    with progress_of("corpus extract-check") as progress:
        compile_once(progress)
    rows = check_extraction(gold)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "extraction.json", rows)
    say_either(extraction_lines(rows), rows, as_json)


def _recipe(name: str) -> "Recipe":
    from trivium.tokens.manifest import MANIFEST
    from trivium.tokens.recipe import load_recipe, recipe_names, recipe_of_tokens

    tokens = Path(name) / "tokens"
    if (tokens / MANIFEST).is_file():
        return recipe_of_tokens(tokens)
    if Path(name).is_dir() and name not in recipe_names():
        raise ConfigError(
            f"RECIPE '{name}' is a folder without {tokens / MANIFEST}, and the blend of a run is that of its tokens; "
            f"run `trivium tokenize --out {shlex.quote(name)}` first, or give a recipe: {', '.join(recipe_names())}"
        )
    return load_recipe(name)


def _config(preset: str, sets: list[str] | None) -> RunConfig:
    return resolve(Given(preset, tuple(sets or ()))).checked()


def _read(path: Path, config: RunConfig) -> "Input":
    """What is read there, by the settings of a harvest."""
    from trivium.corpus.read.files import Input

    return Input(path, config.harvest.read)


@contextmanager
def _work(out: Path) -> Iterator[Path]:
    """Where finished pieces lie until the output is there: a command that was killed goes on with them. One that is
    refused does not, as whatever fixes its input or settings makes other work of it, and leaves none."""
    pieces = work_of(out)
    try:
        yield pieces
    except (ConfigError, DataError):
        discard(pieces)
        raise


def _written(
    out: Path,
    verb: str,
    config: RunConfig,
    inputs: Mapping[str, Path],
    work: Callable[[Path, Progress], dict[str, Any]],
) -> dict[str, Any]:
    """Do a verb's work into a folder that appears, stamped, when it is complete."""
    if out.exists() and not (out.is_dir() and (_verb_of(out) in _REPLACED or not any(out.iterdir()))):
        made = f"was made by `trivium {_verb_of(out)}`" if _verb_of(out) else "was not made by trivium"
        raise ConfigError(f"OUT {out} is there and {made}; give a folder that is not")
    for name, path in inputs.items():
        _refuse_replaced(name.upper(), path, out)
        if name != "model":  # which is no text
            refuse_inside("OUT", out, name.upper(), path)
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    from trivium.corpus.kernels.warm_up import compile_once

    whole = to_tree(config)
    settings = {"seed": config.seed, "curate": whole["curate"], "harvest": {"read": whole["harvest"]["read"]}}
    names = {name: fingerprint(str(path.resolve())) for name, path in inputs.items()}
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
    """The first two words of the verb that made a folder; none where it is not stamped."""
    return " ".join(str((read_stamp(out) or {}).get("verb", "")).split()[:2])


def _say_funnel(found: Mapping[str, Any]) -> None:
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
    for line in loss_lines(found["funnel"]):
        say(line)


STATIONS = ("curated", "tokens")  # of a run directory
SHOWN = 300  # characters of a reject's text

RunDirectory = Annotated[Path, typer.Argument(parser=local_path, metavar="DIR", help="A run directory.")]


def diff(a: RunDirectory, b: RunDirectory) -> None:
    """Compare the corpora of two run directories byte for byte; exit code 1 when they differ."""
    from trivium.corpus.publish.views import differences_between

    lines, compared = [], []
    for station in STATIONS:
        if (a / station).is_dir() or (b / station).is_dir():
            compared.append(station)
            lines += [f"{station}/{line}" for line in differences_between(a / station, b / station)]
    if not compared:
        raise DataError(f"neither {a} nor {b} holds a corpus; run `trivium corpus run` first")
    for line in lines or [f"identical: every file of {' and '.join(compared)}"]:
        say(line)
    if lines:
        raise typer.Exit(1)


def inspect(
    document: Annotated[str, typer.Argument(metavar="ID", help="A document's id.")],
    out: Out = DEFAULT_OUT,
    as_json: AsJson = False,
) -> None:
    """Show a document's whole history: every figure, every decision, and the copies dropped in its favour."""
    from trivium.corpus.publish.views import history, history_lines

    found = history(out / "curated", document)
    say_either(history_lines(found), found, as_json)


def rejects(
    out: Out = DEFAULT_OUT,
    step: Annotated[str, typer.Option("--step", metavar="NAME", help="Only of this step of the funnel.")] = "",
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Only those whose reason holds this text.")
    ] = "",
    count: Annotated[int, typer.Option("--count", metavar="N", min=1, help="How many, drawn evenly.")] = 10,
    characters: Annotated[
        int | None,
        typer.Option("--characters", metavar="N", min=0, help=f"How much of each text is shown; default: {SHOWN}."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show some of the documents that were dropped, and why."""
    from trivium.corpus.publish.views import reject_lines, some_rejects

    if as_json and characters is not None:
        raise ConfigError(f"--characters {characters}: --json has each text whole; leave one of the two out")
    found = some_rejects(out / "curated", step=step, reason=reason, count=count)
    if not found:
        raise DataError(
            f"no reject of {out / 'curated'} has --step '{step}' and --reason '{reason}'; `trivium corpus stats` "
            "counts them"
        )
    whole = [dumps(row, ensure_ascii=False) for row in found] if as_json else []
    for line in whole or reject_lines(found, characters=SHOWN if characters is None else characters):
        say(line)


def stats(out: Out = DEFAULT_OUT, as_json: AsJson = False) -> None:
    """Show distributions: lengths, scores, reasons for rejection, similarities of near duplicates."""
    from trivium.corpus.publish.views import corpus_statistics, statistics_lines

    found = keep_statistics(Workspace(out)) or corpus_statistics(out / "curated")
    say_either(statistics_lines(found), found, as_json)


def keep_statistics(at: Workspace) -> dict[str, Any]:
    """The statistics of a run's finished corpus, kept beside it for the report; nothing where there is none."""
    from trivium.corpus.publish.views import corpus_statistics

    curated, kept = at.folder("curated"), at.folder("statistics.json")
    key = stamp_hash(curated)
    if not key:
        return {}
    before = read_result(kept) if kept.is_file() else {}
    if before.get("of") == key:
        return before
    found = {"of": key, **corpus_statistics(curated)}
    write_json(kept, found)
    return found
