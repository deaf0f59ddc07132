"""`trivium tune`: a trained model learns to answer as conversations show it."""

import json
import os
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from heapq import nlargest
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from trivium.checkpoint.format import read_manifest
from trivium.cli.benchmarks import answered
from trivium.cli.imported import bring, refuse_adapters_alone, with_weights
from trivium.cli.model_argument import asked_model, model_path
from trivium.cli.options import DryRun, Ranks, Redo, Sets, open_run, refuse_inside, with_options_of
from trivium.cli.paths import local_path
from trivium.cli.planned import planned
from trivium.cli.price import NOTHING_DONE, AnyMachine, Gpus, dry_run_lines
from trivium.cli.run_config import LAYOUTS, Given, RunConfig, resolve
from trivium.cli.settings import App, shows
from trivium.cli.show import percent, percent_range, progress_of, say
from trivium.cli.stage import Result, Run, Stage, perform
from trivium.cli.teacher import Teacher, ask_teacher, first_pass_lines, taught, teacher_named
from trivium.cli.tokenize import for_a_training, refuse_if_trained_on
from trivium.cli.train import TRAIN, check_host, under_torchrun
from trivium.cli.workspace import Workspace
from trivium.config import Tree, differences, first_lines, leaves, merge, parse_assignments, to_tree
from trivium.errors import ConfigError, DataError
from trivium.families.common.hf_config import describes_model, read_settings
from trivium.objectives.config import DISTILLATION
from trivium.objectives.preferences.losses import PREFERENCES
from trivium.plan.layout import Layout
from trivium.plan.precision import Dtype
from trivium.progress import Progress
from trivium.provenance import file_sha256, fingerprint, write_json
from trivium.tokens.chat.conversation import Turn, read_conversations, read_pairs
from trivium.tokens.chat.encode import encode_conversation
from trivium.tokens.chat.pairs import encode_pair, write_pairs
from trivium.tokens.chat.shard import PackSettings, write_conversations
from trivium.tokens.chat.template import ChatTemplate, read_template
from trivium.tokens.manifest import read_tokens_manifest
from trivium.tokens.tokenizer import FILE, Tokenizer, load_tokenizer
from trivium.training.tuning import (
    ADAPTERS,
    Method,
    Size,
    course_for,
    length_for,
    method_named,
    methods,
    micro_for,
    sequences_for,
    settings_for,
    steps_for,
)
from trivium.units import counted
from trivium.untrusted import read_bytes

ANSWERS_ASKED = 200  # held-out answers that the model gives before and after the training
MOST_EPOCHS = 1_000_000
SURVEYED_CONVERSATIONS = 64  # longest conversations, whose tokens decide the length of the sequences
_LENGTH = "plan.model.sequence"

app = App()


@dataclass(frozen=True)
class Asked:
    """The options of `tune`."""

    model: Annotated[
        Path,
        typer.Argument(
            parser=model_path,
            metavar="MODEL",
            help="The model to tune: a run, a checkpoint, a Hugging Face folder or hf:ORG/NAME.",
        ),
    ]
    data: Annotated[
        Path,
        typer.Option(
            "--data",
            parser=local_path,
            metavar="PATH",
            help="Conversations or preference pairs: a .jsonl, .json or .parquet file, or a folder of them.",
        ),
    ]
    out: Annotated[Path, typer.Option("--out", parser=local_path, metavar="DIR", help="The run directory.")]
    method: Annotated[
        str,
        typer.Option(
            "--method",
            metavar="NAME",
            help=f"What is trained: {', '.join(methods())}. For preference pairs, alone or after a comma, the "
            f"objective: {', '.join(PREFERENCES)}.",
        ),
    ] = ADAPTERS
    epochs: Annotated[float, typer.Option("--epochs", metavar="X", help="How often each conversation is read.")] = 3.0
    teacher: Annotated[
        Path | None,
        typer.Option(
            "--teacher",
            parser=model_path,
            metavar="MODEL",
            help="Distil: a model with the same tokenizer, whose probabilities of the tokens are learned too.",
        ),
    ] = None
    template: Annotated[
        Path | None,
        typer.Option(
            "--template",
            parser=local_path,
            metavar="PATH",
            help="A chat template, or a folder with a chat_template.jinja. Default: the model's own, otherwise ChatML.",
        ),
    ] = None
    gpus: Gpus = None
    sets: Sets = None
    ranks: Ranks = None
    redo: Redo = False
    prepare: Annotated[
        bool,
        typer.Option("--prepare", help="Do all but the training, which `trivium train --out DIR` then does in a job."),
    ] = False
    dry_run: DryRun = False
    any_machine: AnyMachine = False


class Base(NamedTuple):
    """The model that is tuned. weights: its checkpoint or Hugging Face folder; dtype: in which it is stored; adapters:
    as plain data."""

    weights: Path
    dtype: Dtype
    adapters: list[Tree]
    tokenizer_file: Path
    tokenizer: Tokenizer
    template: ChatTemplate


@app.command()
@shows("seed", "plan", "training", "machine")
@with_options_of(Asked)
def tune(asked: Asked) -> None:
    """Tune a model on conversations; an interrupted run resumes from its last checkpoint, in any layout.

    The result is a run like any other, which `trivium chat`, `report` and `checkpoint export` accept.
    """
    method = method_named(asked.method)
    if asked.teacher is not None:
        if method.of_pairs:
            raise ConfigError(f"--teacher and --method {asked.method} exclude each other; leave out one of them")
        method = method._replace(objective=DISTILLATION)
    if not 0 < asked.epochs <= MOST_EPOCHS:
        raise ConfigError(
            f"--epochs ({asked.epochs:g}) must be above 0 and at most {MOST_EPOCHS:,}; give such a number"
        )
    if not asked.data.exists():
        raise DataError(f"--data {asked.data} does not exist; give a file or folder that does")
    refuse_inside("--out", asked.out, "--data", asked.data)
    if under_torchrun(os.environ):
        raise ConfigError(
            "every process of this job would prepare the conversations; run the same `trivium tune` with --prepare "
            f"before the job, and `trivium train --out {shlex.quote(str(asked.out))}` in it"
        )
    model = asked_model(asked.model)
    if model.resolve() == asked.out.resolve():
        raise ConfigError(f"--out {asked.out} is the model that is tuned; give another --out")
    base = base_of(model, asked.template)
    with teacher_named(asked.teacher, model, base.tokenizer) as teacher:
        _tune(asked, method, Given(str(model), tuple(asked.sets or ()), asked.ranks), base, teacher)


def _tune(asked: Asked, method: Method, given: Given, base: Base, teacher: Teacher | None) -> None:
    of_teacher = {} if teacher is None else teacher.settings
    given = given._replace(defaults=merge(merge(settings_for(method), _of_base(base)), of_teacher))
    _refuse_other_shape(given)
    _refuse_other_adapters(given, base.adapters)
    run = open_run(asked.out, given)
    stage = conversations_stage(asked.data, base, method, is_given=_LENGTH in stated(given))
    refuse_if_trained_on(stage, run, redo=asked.redo)
    if asked.dry_run:
        _dry_run(asked, given, stage, run, teacher)
        return
    with _config_kept(run.at):
        perform(stage, run, redo=asked.redo)
    given = fitted(given, read_tokens_manifest(run.at.folder(stage.folder)), asked)
    run, weights = with_weights(open_run(asked.out, given))
    check_host(run, given, insists=asked.any_machine, redo=asked.redo, words=_words(asked))
    if weights is not None:
        bring(run, weights)
    if asked.prepare:
        if teacher is not None:
            ask_teacher(teacher, run)
        write_json(run.at.config, to_tree(run.config))
        say(f"everything is ready for `trivium train --out {shlex.quote(str(asked.out))}`")
        return
    perform(taught(TRAIN, teacher), run, redo=asked.redo)
    if not method.of_pairs:
        perform(ANSWERS, run, redo=asked.redo)


def _refuse_other_shape(given: Given) -> None:
    """Raise ConfigError if the user gave settings on which weights depend, such as plan.model.hidden, that are not
    those of the tuned model."""
    shapes = [resolve(one).plan.model for one in (given._replace(assignments=()), given)]
    there, here = (shape.model_copy(update={"adapters": ()}).of_weights() for shape in shapes)
    if found := differences(there, here, "plan.model."):
        raise ConfigError(
            f"{given.preset} was trained with other settings (the model -> this run):\n{first_lines(found)}\n"
            f"leave them out, or name a model that has them"
        )


def _refuse_other_adapters(given: Given, there: list[Tree]) -> None:
    """Raise ConfigError if the tuned model has adapters that differ from those of the run."""
    if there and there != to_tree(resolve(given).plan.model)["adapters"]:
        merging = shlex.join(["trivium", "checkpoint", "merge", given.preset])
        raise ConfigError(
            f"{given.preset} has other adapters than this run; merge them into its weights with {merging} and tune the "
            f"checkpoint that it names, or give the same adapters: "
            f"--set plan.model.adapters={shlex.quote(json.dumps(there))}"
        )


@contextmanager
def _config_kept(at: Workspace) -> Iterator[None]:
    """Restore the config of the run at the end: that of the conversations has no batch and no steps yet. A folder that
    is then empty, because the conversations were refused, is removed."""
    before = read_bytes(at.config) if at.config.is_file() else None
    try:
        yield
    finally:
        if before is None:
            at.config.unlink(missing_ok=True)
            with suppress(OSError):
                at.root.rmdir()
        else:
            at.config.write_bytes(before)


def _dry_run(asked: Asked, given: Given, stage: Stage, run: Run, teacher: Teacher | None) -> None:
    """Print what would be trained, and on what; the tokens are written to a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="trivium-tune-") as folder, progress_of(stage.name) as progress:
        manifest = stage.work(run, Path(folder), progress)
    given = fitted(given, manifest, asked)
    lines, problems = dry_run_lines(given)
    for line in [*stage.summary(manifest), *lines]:
        say(line)
    if problems:
        raise ConfigError("\n".join(problems))
    for line in first_pass_lines(resolve(given), manifest["packed"], teacher):
        say(line)
    check_host(open_run(asked.out, given), given, insists=asked.any_machine, redo=True, words=_words(asked))
    say(NOTHING_DONE)


def _words(asked: Asked) -> list[str]:
    """Return how the command begins, before the settings of its config."""
    words = ["tune", str(asked.model), "--data", str(asked.data), "--method", asked.method]
    return words if asked.teacher is None else [*words, "--teacher", str(asked.teacher)]


def base_of(model: Path, template: Path | None) -> Base:
    """Return weights, tokenizer and template of a model. Raises DataError if it has no tokenizer."""
    if describes_model(model):
        weights, file = model, model / FILE
        if not file.is_file():
            raise DataError(f"{model} has no {FILE}, and conversations need it; download the tokenizer into the folder")
        said = read_settings(model / "config.json")
        dtype: Dtype = "bf16" if "bfloat16" in (said.get("dtype"), said.get("torch_dtype")) else "fp32"
        adapters: list[Tree] = []
    else:
        from trivium.interchange.target import opened

        refuse_adapters_alone(model)
        with opened(model) as target:
            weights, file = target.newest, target.tokenizer
        plan = read_manifest(weights)["plan"]
        dtype, adapters = plan["precision"]["weights"], plan["model"]["adapters"]
    tokenizer = load_tokenizer(file)
    return Base(weights, dtype, adapters, file, tokenizer, read_template(template or file.parent, tokenizer))


def _of_base(base: Base) -> Tree:
    """Return the settings that follow from the model, until the conversations are known."""
    one = {"sequences": 1, "micro": 1, "ramp": None}
    plan: Tree = {
        "model": {"end_of_text": base.tokenizer.end_of_text},
        "batch": one,
        "precision": {"weights": base.dtype},
    }
    return {
        "plan": merge(LAYOUTS[1], plan),
        "tokens": {"tokenizer": str(base.tokenizer_file.absolute()), "vocabulary": base.tokenizer.vocabulary},
        "training": {"start_from": str(base.weights.absolute())},
    }


def stated(given: Given) -> set[str]:
    """Return the paths of the settings that the user gave."""
    return {path for path, _ in leaves(parse_assignments(given.assignments, RunConfig))}


def fitted(given: Given, manifest: Mapping[str, Any], asked: Asked) -> Given:
    """Return what was given with length, batch, steps and warm-up for these conversations among the defaults."""

    def with_defaults(tree: Tree) -> Given:
        return given._replace(defaults=merge(given.defaults, tree))

    packed = manifest["packed"]
    length, reads = packed["sequence"], resolve(Given(given.preset)).plan.model.in_use.sequence
    positions = {"sequence": length, "max_positions": reads if reads > length else None}
    given = with_defaults({"plan": {"model": positions}})
    many = packed["train"].get("pairs") or packed["train"]["conversations"]
    size = Size(many, packed["train"]["bins"])
    plan = resolve(given).plan
    ranks = asked.gpus or plan.layout.data * plan.layout.pipeline
    given = with_defaults({"plan": {"batch": {"sequences": sequences_for(size, ranks * plan.batch.micro)}}})
    plan = resolve(given).plan
    steps = steps_for(size.sequences, plan.batch.sequences, asked.epochs)
    given = with_defaults({"plan": {"batch": {"micro": micro_for(plan, ranks)}}, "training": {"steps": steps}})
    config = resolve(given)
    given = with_defaults({"training": course_for(config.training, config.plan)})
    return planned(given, asked.gpus, asked.out)


class Source(NamedTuple):
    """Data that a method learns from: its name, and how it is read, measured in characters and tokens, and written."""

    name: str
    read: Callable[[Path], Iterator[Any]]
    characters: Callable[[Any], int]
    tokens: Callable[[Any, ChatTemplate, Tokenizer], int]
    write: Callable[..., dict[str, Any]]


CONVERSATIONS = Source(
    "conversation",
    read_conversations,
    lambda one: _characters(one.turns),
    lambda one, template, tokenizer: len(encode_conversation(one, template, tokenizer).ids),
    write_conversations,
)
PAIRS = Source(
    "pair",
    read_pairs,
    lambda one: _characters((*one.prompt, *one.prompt, *one.chosen, *one.rejected)),
    lambda one, template, tokenizer: sum(len(half.ids) for half in encode_pair(one, template, tokenizer)),
    write_pairs,
)


def _characters(turns: Sequence[Turn]) -> int:
    return sum(len(turn.content) for turn in turns)


def conversations_stage(data: Path, base: Base, method: Method, *, is_given: bool) -> Stage:
    """Return the stage that turns conversations or pairs into packed tokens. is_given: whether the user gave the length
    of a sequence."""
    source = PAIRS if method.of_pairs else CONVERSATIONS
    return Stage(
        name="conversations",
        verb="tune",
        folder="tokens",
        sections=("tokens",),
        reads=(),
        work=partial(_encode, data, base, source, is_given),
        summary=partial(_lines, source),
        outside=lambda run: {
            f"{source.name}s": digest_of(data),
            "template": fingerprint(base.template.source),
            "tokenizer": base.tokenizer.identity,
            "length": f"{run.config.plan.model.sequence} {'given' if is_given else 'at most'}",
        },
        needed=for_a_training,
    )


def digest_of(data: Path) -> str:
    """Return the hash of a file, or of the names and contents of all files in a folder that are not hidden."""
    if data.is_file():
        return file_sha256(data)
    files = sorted(path for path in data.rglob("*") if path.is_file() and not path.name.startswith("."))
    return fingerprint([(str(path.relative_to(data)), file_sha256(path)) for path in files])


def _encode(data: Path, base: Base, source: Source, is_given: bool, run: Run, out: Path, progress: Progress) -> Result:
    model = run.config.plan.model
    length, how = model.sequence, (base.template, base.tokenizer)
    if not is_given:
        most = nlargest(SURVEYED_CONVERSATIONS, source.read(data), key=source.characters)
        length = length_for(max((source.tokens(one, *how) for one in most), default=1), model)
    settings = PackSettings(length, run.config.seed, run.config.tokens.validation_fraction)
    return source.write(source.read(data), out, *how, settings, progress)


def _lines(source: Source, result: Result) -> list[str]:
    packed, lines = result["packed"], []
    for split in ("train", "validation"):
        part, tokens = packed[split], result["totals"][split]["tokens"]
        many, bins = counted(part[f"{source.name}s"], source.name), counted(part["bins"], "sequence")
        answers = counted(part.get("answers", 2 * part.get("pairs", 0)), "answer")
        lines.append(f"  {split}: {many} in {bins} of {packed['sequence']:,} tokens")
        lines.append(
            f"    the {part['counted']:,} tokens of {answers} are trained on, of {tokens:,} in all, of which "
            f"{part['padding']:,} are padding"
        )
        if too_long := part.get("too_long", 0):
            whole = part[f"{source.name}s"] + (too_long if source is PAIRS else 0)
            what = f"{too_long:,} of {whole:,} ({too_long / whole:.1%}) have more than {packed['sequence']:,} tokens"
            lines.append(f"    {what}, the limit (--sequence): {_lost(part, source)}")
    return lines


def _lost(part: Mapping[str, Any], source: Source) -> str:
    """Return what a split lost because some of it is too long."""
    if source is PAIRS:
        return "they are left out"
    cut, gone = (part.get(key, 0) for key in ("counted_cut_off", "without_targets"))
    share = cut / max(1, part["counted"] + cut)
    return f"{cut:,} tokens of their answers ({share:.1%} of all) are cut off, and {gone:,} have no answer left"


def _answer(run: Run, out: Path, progress: Progress) -> Result:
    from trivium.evaluation.replies import replies, score_replies
    from trivium.interchange.target import opened

    asked = replies(run.folder("tokens"), limit=ANSWERS_ASKED, seed=run.config.seed)
    layout = run.config.plan.layout
    ranks = Layout(tensor=layout.tensor, pipeline=layout.pipeline)
    found: dict[str, Any] = {}
    with opened(run.at.root) as target:
        for name, checkpoint in (("before", run.config.training.start_from), ("after", target.newest)):
            progress(len(found), 2, f"{name} the training")
            work = partial(score_replies, asked=asked)
            found[name] = answered(work, Path(str(checkpoint)), run.tokenizer, ranks)
    write_json(out / "results.json", found)
    return found


def _answer_lines(result: Result) -> list[str]:
    def told(name: str, when: str) -> str:
        score = result[name]
        share = f"{percent(score['accuracy'])}, 95 % interval {percent_range(score['interval'])}"
        return f"{round(score['accuracy'] * score['n']):,} {when} ({share})"

    many = counted(result["after"]["n"], "held-out answer")
    return [f"  exactly right of {many}: {told('before', 'before the training')}, {told('after', 'after it')}"]


ANSWERS = Stage(
    name="answers",
    verb="tune",
    folder="answers",
    sections=(),
    reads=("tokens", "training"),
    work=_answer,
    summary=_answer_lines,
)
