"""`trivium judge`: score translations and summaries with a language model, and compare its scores with people's."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trivium.cli.model_argument import asked_model, model_path
from trivium.cli.options import Sets, with_options_of
from trivium.cli.paths import local_path
from trivium.cli.settings import App, Group, shows
from trivium.cli.show import STANDARD_OUTPUT, progress_of, say, say_aside, say_found, table
from trivium.config import build, parse_assignments, to_tree
from trivium.errors import ConfigError
from trivium.evaluation.judges.config import JudgeConfig, MetaConfig
from trivium.provenance import file_sha256, write_whole
from trivium.units import counted, listed

if TYPE_CHECKING:
    from trivium.evaluation.judges.asking import Judged, Record
    from trivium.evaluation.judges.prompts import Prompt
    from trivium.evaluation.judges.ratings import Item

SCORE = "score"  # the command that `trivium judge FILE` means


class _ScoresByDefault(Group):
    """`trivium judge FILE` is `trivium judge score FILE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the command before arguments that do not begin with one."""
        begins = bool(args) and (args[0] in self.commands or args[0] == "--help")
        return super().parse_args(ctx, args if begins or not args else [SCORE, *args])


app = App(cls=_ScoresByDefault, no_args_is_help=True)


@app.callback()
def judge() -> None:
    """Score translations or summaries: `trivium judge FILE` is `trivium judge score FILE`. `meta` compares judges with
    people."""


@dataclass(frozen=True)
class Asked:
    """The options of `trivium judge FILE`."""

    file: Annotated[
        Path,
        typer.Argument(
            parser=local_path,
            metavar="FILE",
            help="JSON lines with source, output, system and perhaps segment, reference, source_language and "
            "target_language; a WMT table mqm_*.tsv; or SummEval's .json.",
        ),
    ]
    out: Annotated[
        Path, typer.Option("--out", parser=local_path, metavar="DIR", help="Folder of answers and scores; it resumes.")
    ]
    prompt: Annotated[
        str,
        typer.Option(
            "--prompt",
            metavar="NAME",
            help="What is asked: da, mqm, coherence, consistency, fluency, relevance, or likelihood, which needs no "
            "model that follows instructions.",
        ),
    ] = "da"
    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            parser=model_path,
            metavar="MODEL",
            help="The judge: a run, a checkpoint, a Hugging Face folder or hf:ORG/NAME.",
        ),
    ] = None
    endpoint: Annotated[
        str | None,
        typer.Option(
            "--endpoint",
            metavar="URL",
            help="The judge: an address with OpenAI's chat completions, as http://localhost:8000/v1. The texts are "
            "sent to it.",
        ),
    ] = None
    model_name: Annotated[
        str | None, typer.Option("--model-name", metavar="NAME", help="The model of the endpoint.")
    ] = None
    key_variable: Annotated[
        str | None,
        typer.Option("--key-variable", metavar="NAME", help="The environment variable that contains the API key."),
    ] = None
    sets: Sets = None


def _score(asked: Asked) -> None:
    """Score each row of FILE with a judge; the same command continues after an interruption.

    Without --model and --endpoint the recorded answers in DIR are used alone. --set overrides temperature_step, top_p,
    max_errors, non_translation, requests, timeout_seconds and retries, too.
    """
    from trivium.evaluation.judges.folder import write_scores
    from trivium.evaluation.judges.prompts import prompt_named
    from trivium.evaluation.judges.ratings import read_items

    config = build(JudgeConfig, parse_assignments(asked.sets or [], JudgeConfig))
    prompt = prompt_named(asked.prompt)
    _refuse(asked, prompt)
    items = read_items(asked.file)
    asked.out.mkdir(parents=True, exist_ok=True)
    model, judged = _judged(asked, prompt, items, config)
    about = {
        "prompt": asked.prompt,
        "prompt_version": prompt.version,
        "model": model,
        "config": to_tree(config),
        "input": {"name": asked.file.name, "sha256": file_sha256(asked.file)},
    }
    for line in _lines(write_scores(asked.out, judged, prompt, about)):
        say(line)
    say(f"  scores in {asked.out}")


app.command(SCORE, short_help="Score each row of a file, as `trivium judge FILE` does.")(
    shows("samples", "temperature", "attempts", "max_tokens", "reasoning_effort", "seed", root=JudgeConfig)(
        with_options_of(Asked)(_score)
    )
)


def _refuse(asked: Asked, prompt: "Prompt") -> None:
    """Raise ConfigError for options that contradict each other."""
    if asked.out.exists() and not asked.out.is_dir():
        raise ConfigError(f"--out {asked.out} is a file; name a folder")
    if asked.model is not None and asked.endpoint is not None:
        raise ConfigError("--model and --endpoint were given together; give the one that judges")
    if asked.endpoint is not None and asked.model_name is None:
        raise ConfigError(f"--endpoint {asked.endpoint} needs --model-name, the name of the model to ask there")
    if asked.key_variable is not None and asked.endpoint is None:
        raise ConfigError(f"--key-variable {asked.key_variable}: only an endpoint takes a key; leave it out")
    if prompt.reads == "likelihood" and asked.model is None:
        raise ConfigError("--prompt likelihood needs --model: endpoints do not return the likelihood of a given text")


def _judged(asked: Asked, prompt: "Prompt", items: list["Item"], config: JudgeConfig) -> tuple[str, "list[Judged]"]:
    """Return the judge's name and its result for each item."""
    from trivium.evaluation.judges.asking import ANSWERS, NoBackend, Record
    from trivium.evaluation.judges.asking import judge as ask_judge

    record = Record.open(asked.out / ANSWERS)
    if asked.model is not None:
        return _by_model(asked, prompt, items, config, record)
    if asked.endpoint is not None:
        from trivium.evaluation.judges.endpoint import Endpoint

        key = None if asked.key_variable is None else os.environ.get(asked.key_variable)
        if asked.key_variable is not None and not key:
            raise ConfigError(f"--key-variable {asked.key_variable}: the environment has no such variable; export it")
        model, backend = str(asked.model_name), Endpoint(asked.endpoint, str(asked.model_name), config, key)
        _refuse_other_work(asked, model)
        with progress_of("judge") as progress:
            return model, ask_judge(items, prompt, backend, record, config, model=model, progress=progress)
    model = asked.model_name or record.only_model()
    return model, ask_judge(items, prompt, NoBackend(), record, config, model=model)


def _by_model(
    asked: Asked, prompt: "Prompt", items: list["Item"], config: JudgeConfig, record: "Record"
) -> tuple[str, "list[Judged]"]:
    from trivium.cli.benchmarks import about_checkpoint
    from trivium.evaluation.answer import NativeScorer
    from trivium.evaluation.judges.asking import judge as ask_judge
    from trivium.evaluation.judges.native import Native, judge_by_likelihood
    from trivium.interchange.target import opened
    from trivium.tokens.chat.template import read_template

    place = asked_model(str(asked.model))
    with opened(place) as target, progress_of("judge") as progress:
        model = f"{place.name}, sha256 {about_checkpoint(target.newest)['sha256'][:16]}"
        _refuse_other_work(asked, model)
        scorer = NativeScorer.open(target.newest, target.tokenizer)
        if prompt.reads == "likelihood":
            judged, cut = judge_by_likelihood(items, prompt, scorer)
            if cut:
                say_aside(
                    f"warning: {cut:,} of {counted(len(items), 'prompt')} lost the beginning: longer than the model's "
                    f"{scorer.sequence:,} tokens"
                )
            return model, judged
        backend = Native(scorer, read_template(target.tokenizer.parent, scorer.tokenizer), config)
        return model, ask_judge(items, prompt, backend, record, config, model=model, progress=progress)


def _refuse_other_work(asked: Asked, model: str) -> None:
    """Raise ConfigError if the folder has the scores of another judge, which would be replaced."""
    from trivium.evaluation.judges.folder import FORMAT, SUMMARY
    from trivium.untrusted import read_optional_json

    found = read_optional_json(asked.out / SUMMARY)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        return
    before, now = (found.get("model"), found.get("prompt")), (model, asked.prompt)
    if before != now:
        raise ConfigError(
            f"--out {asked.out} has the scores of {before[0]} with prompt {before[1]}, and {now[0]} with prompt "
            f"{now[1]} would replace them; name another folder"
        )


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    from trivium.evaluation.judges.meta import POLICIES

    rows = [
        (system, str(about["n"]), str(about["without_score"]), *(_number(about["mean"][p]) for p in POLICIES))
        for system, about in found["systems"].items()
    ]
    header = ("system", "items", "without score", *(f"mean ({policy})" for policy in POLICIES))
    yield from table(rows, header=header)
    yield f"  {counted(found['answers'], 'answer')} of {found['model']}, prompt {found['prompt']}"
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in found["reasons"].items())
    yield f"  {found['unparsable']:,} could not be parsed" + (f": {reasons}" if reasons else "")
    if found["repeated"]:
        yield f"  {counted(found['repeated'], 'further attempt')} at answers that could not be parsed"
    if found["errors"] is not None:
        yield "  errors: " + ", ".join(f"{count:,} {severity}" for severity, count in found["errors"].items())
    if found["tokens_per_answer"] is not None:
        of_reasoning = found["reasoning_tokens_per_answer"]
        more = "" if of_reasoning is None else f", {of_reasoning:,.1f} of them reasoning"
        yield f"  {found['tokens_per_answer']:,.1f} tokens for each answer, all attempts together{more}"


@app.command(short_help="Compare judges with people, and with each other.")
@shows("seed", root=MetaConfig)
def meta(
    human: Annotated[
        Path,
        typer.Argument(
            parser=local_path,
            metavar="HUMAN",
            help="Human scores: WMT's mqm_*.tsv or *.avg_seg_scores.tsv, SummEval's .jsonl or .json, or JSON lines "
            "with system, segment and score.",
        ),
    ],
    judges: Annotated[
        list[Path],
        typer.Argument(
            parser=local_path,
            metavar="JUDGE",
            help="Folders of `trivium judge`, results of G-Eval, or files of scores as HUMAN.",
        ),
    ],
    aspect: Annotated[
        str | None, typer.Option("--aspect", metavar="NAME", help="Which score of SummEval, as coherence.")
    ] = None,
    without: Annotated[
        str, typer.Option("--without", metavar="A,B", help="Systems that do not count, as human references.")
    ] = "",
    json: Annotated[
        Path | None,
        typer.Option("--json", parser=local_path, metavar="FILE", help="Write the results, too; - prints only them."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", parser=local_path, metavar="FILE", help="Write a page with agreement against tokens spent."
        ),
    ] = None,
    sets: Sets = None,
) -> None:
    """Agreement of judges with people: by systems and by segments, with intervals over segments and paired tests.

    --set overrides confidence and resamples, the number of permutations too.
    """
    from trivium.cli.options import refuse_no_place_for
    from trivium.evaluation.judges.folder import read_judge
    from trivium.evaluation.judges.meta import meta as compared
    from trivium.evaluation.judges.ratings import read_ratings

    config = build(MetaConfig, parse_assignments(sets or [], MetaConfig))
    refuse_no_place_for("--json", None if json == STANDARD_OUTPUT else json)
    refuse_no_place_for("--html", html)
    excluded = [name for name in (part.strip() for part in without.split(",")) if name]
    gold, read = read_ratings(human, aspect), [read_judge(path, aspect) for path in judges]
    with progress_of("meta") as progress:
        found = compared(gold, read, config, without=excluded, progress=progress)
    if html is not None:
        from trivium.report.judges import render

        write_whole(html, render(found))
    say_found(_meta_lines(found), found, json, html)


def _meta_lines(found: Mapping[str, Any]) -> Iterator[str]:
    from trivium.evaluation.judges.agreement import NAMES
    from trivium.evaluation.judges.meta import POLICIES

    human = found["human"]
    left_out = f", without {listed(human['left_out'])}" if human["left_out"] else ""
    yield (
        f"  {human['name']}: {counted(human['items'], 'item')} of {counted(len(human['systems']), 'system')} and "
        f"{counted(human['segments'], 'segment')}{left_out}"
    )
    if human["not_judged"] or human["without_score"]:
        yield f"  {human['not_judged']:,} items were not judged, {human['without_score']:,} have no human score"
    for judge in found["judges"]:
        yield f"  {judge['name']}: {judge['unparsable']:,} of {counted(judge['answers'], 'answer')} not parsed"
        if judge["without_human_score"]:
            yield f"    {judge['without_human_score']:,} judged items are not among those compared"
        policies = judge["policies"]
        rows = [(title, *(_measure(policies[p][name]) for p in POLICIES)) for name, title in NAMES.items()]
        rows.append(("threshold of ties", *(_number(policies[p]["tie_threshold"]) for p in POLICIES)))
        rows.append(("items", *(f"{policies[p]['items']:,}" for p in POLICIES)))
        yield from table(rows, header=("unparsable answers:", *POLICIES), indent=4)
    for test in found["tests"]:
        yield f"  {test['judges'][0]} minus {test['judges'][1]}, paired permutation tests on what both answered:"
        rows = [
            (title, _number(test["measures"][name]["difference"], "+.3f"), _number(test["measures"][name]["p"]))
            for name, title in NAMES.items()
        ]
        yield from table(rows, header=("measure", "difference", "p"), indent=4)


def _measure(found: Mapping[str, Any]) -> str:
    if found["value"] is None:
        return "-"
    low, high = found["interval"] or (found["value"],) * 2
    return f"{found['value']:.3f} ({low:.3f} to {high:.3f})"


def _number(value: float | None, form: str = ".3f") -> str:
    return "-" if value is None else format(value, form)
