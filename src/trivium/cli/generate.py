"""`trivium generate`: a checkpoint continues prompts."""

import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from trivium.cli.benchmarks import answered
from trivium.cli.model_argument import asked_model, is_asked
from trivium.cli.options import DEFAULT_OUT, AskedAdapter, AskedModel, Out, Preset, Reads, Redo, Sets, open_asked
from trivium.cli.run_config import RunConfig
from trivium.cli.settings import App, shows
from trivium.cli.show import say, say_aside, tell
from trivium.cli.stage import Result, Run, Stage, is_current, perform
from trivium.cli.train import joins_torchrun
from trivium.config import parse_assignments, to_tree
from trivium.errors import ConfigError
from trivium.progress import Progress
from trivium.provenance import write_json
from trivium.units import counted

SAMPLES = "samples.json"  # in the folder of a run's samples

app = App()


@app.command()
@shows("seed", "generation")
def generate(
    target: AskedModel = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", help="Continue this and print it as it is written.")
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", metavar="NAME|FILE", help="Prompts: shipped ones, or .txt, .jsonl, .yaml.")
    ] = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Continue each line of standard input until it ends.")
    ] = False,
    out: Out = DEFAULT_OUT,
    adapter: AskedAdapter = None,
    preset: Preset = None,
    sets: Sets = None,
    redo: Redo = False,
) -> None:
    """Continue the prompts of the config and keep the samples; of a target, or prompts given here, only print them.

    --logprobs 5 prints the probability of each token and of the 5 likeliest. --set generation.sampling.stop=[TEXT], and
    so repetition_penalty and seed. generation.together texts are written in one batch, over the ranks of the layout.
    """
    named = {"--prompt": prompt is not None, "--file": file is not None, "--interactive": interactive}
    imported = target is None and is_asked(out)
    kept = target is None and adapter is None and not any(named.values()) and not imported
    if redo and not kept:
        raise ConfigError("--redo: only samples that a run keeps can be redone; leave --redo out")
    given_prompts = [option for option, is_given in named.items() if is_given]
    if len(given_prompts) > 1:
        raise ConfigError(f"{' and '.join(given_prompts)} were given together; give one of them")
    Reads(
        "generate",
        GENERATE.sections,
        {"generation.prompts": f"{given_prompts[0]} gives the prompts; leave one out"} if given_prompts else {},
    ).check(sets)
    target = None if target is None else asked_model(target)
    run = open_asked(target, out, preset, sets)
    if kept and joins_torchrun(os.environ):
        _join(run, redo=redo)
        return
    if kept:
        perform(GENERATE, run, redo=redo)
        return
    if target is None and not imported:
        GENERATE.inputs(run)
    from trivium.interchange.target import opened

    with opened(target or out, adapter=adapter) as found:
        place = found.newest, found.tokenizer
        if interactive or prompt is not None:
            _stream(run, place, lines_of_input() if interactive else iter([str(prompt)]))
        else:
            given = parse_assignments(sets or (), RunConfig).get("generation", {}).get("sampling", {})
            _print_all(run, place, file, given)


def _stream(run: Run, place: tuple[Path, Path], prompts: Iterator[str]) -> None:
    """Print each text while it is written; by several ranks, when it is complete."""
    from trivium.evaluation.answer import NativeScorer
    from trivium.serving.writer import Writer

    config = run.config.generation
    settings = config.drawing(seed=run.config.seed)
    if config.layout.world_size > 1:
        for prompt in prompts:
            _print(_write(run, place, [prompt], settings))
        return
    writer = Writer(NativeScorer.open(*place))
    for prompt in prompts:
        _warn_of_unseen(writer.unseen([prompt]), writer.scorer.sequence)
        tell(prompt)
        written = writer.write_streamed(prompt, settings, tell, config.logprobs)
        say()
        _print_tokens(writer, written, config.logprobs)


def _print_all(run: Run, place: tuple[Path, Path], file: str | None, given: Mapping[str, Any]) -> None:
    """Continue the prompts of a file, or those of the config. given: what --set says of the sampling."""
    from trivium.serving.prompts import PromptFile, drawing_for, read_prompts

    config = run.config.generation
    read = PromptFile(prompts=_prompts(run, place[1])) if file is None else read_prompts(file)
    config = config.model_copy(update={"sampling": drawing_for(read, config.sampling, given)})
    _print(_write(run, place, read.prompts, config.drawing(seed=run.config.seed)))


def _write(run: Run, place: tuple[Path, Path], prompts: Sequence[str], settings: Any) -> list[dict[str, Any]] | None:
    """The texts, written by the ranks of the layout; None on ranks of torchrun that have nothing to say."""
    from trivium.serving.answer import token_rows
    from trivium.serving.writer import Writer

    config = run.config.generation

    def work(scorer: Any) -> dict[str, Any]:
        writer = Writer(scorer, together=config.together)
        texts = writer.write(prompts, settings, alternatives=config.logprobs)
        more = [{} if config.logprobs is None else {"tokens": token_rows(w, writer.tokenizer)} for w in texts]
        shown = to_tree(settings)
        samples = [
            {"prompt": prompt, "continuation": text.text, "settings": shown, **tokens}
            for prompt, text, tokens in zip(prompts, texts, more, strict=True)
        ]
        return {"samples": samples, "unseen": writer.unseen(prompts), "sequence": scorer.sequence}

    found = answered(work, *place, config.layout)
    if found is None:
        return None
    _warn_of_unseen(found["unseen"], found["sequence"])
    return list(found["samples"])


def _warn_of_unseen(unseen: Sequence[int], sequence: int) -> None:
    cut = [tokens for tokens in unseen if tokens]
    if cut:
        lost = f"{len(cut):,} of {counted(len(unseen), 'prompt')} lost the beginning"
        say_aside(f"warning: {lost}: longer than the model's {sequence:,} tokens, by up to {max(cut):,}")


def _print(samples: list[dict[str, Any]] | None) -> None:
    for sample in samples or ():
        say(sample["prompt"] + sample["continuation"])
        for token in sample.get("tokens", ()):
            say(_token_line(token))
        say("---")


def _print_tokens(writer: Any, written: Any, logprobs: int | None) -> None:
    from trivium.serving.answer import token_rows

    if logprobs is not None:
        for token in token_rows(written, writer.tokenizer):
            say(_token_line(token))


def _token_line(token: Result) -> str:
    others = ", ".join(f"{o['token']!r} {o['logprob']:.3f}" for o in token["top"])
    whole = f", making {token['joined']!r}" if "joined" in token else ""
    return f"  {token['token']!r} {token['logprob']:.3f}{whole}" + (f"  ({others})" if others else "")


def lines_of_input() -> Iterator[str]:
    """Yield the lines of standard input that are not blank. A terminal shows a prompt and edits lines."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        with suppress(ImportError):
            importlib.import_module("readline")  # gives `input` a history and the keys that edit a line
    while True:
        try:
            line = input("> ") if is_terminal else sys.stdin.readline()
        except EOFError:
            return
        if not line and not is_terminal:
            return
        if line.strip():
            yield line.rstrip("\n")


def _join(run: Run, *, redo: bool) -> None:
    """Write with the first rank, on the same decision: whether there is anything to write. It alone keeps the samples,
    and has none before all have written."""
    if redo or not is_current(GENERATE, run):
        _samples(run)


def _generate(run: Run, out: Path, progress: Progress) -> Result:
    samples = _samples(run)
    write_json(out / SAMPLES, samples)
    return {"samples": samples or []}


def _samples(run: Run) -> list[dict[str, Any]] | None:
    """The prompts of the config, continued."""
    from trivium.interchange.target import opened

    config = run.config.generation
    settings = config.drawing(seed=run.config.seed)
    with opened(run.at.root) as found:
        return _write(run, (found.newest, found.tokenizer), _prompts(run, found.tokenizer), settings)


def _prompts(run: Run, tokenizer: Path) -> tuple[str, ...]:
    """The prompts of the config; those of the run's held-out documents where it names none."""
    from trivium.serving.prompts import default_prompts

    return run.config.generation.prompts or default_prompts(tokenizer)


def _lines(result: Result) -> list[str]:
    return [
        f"  {' '.join(sample['prompt'].split())} | {' '.join(sample['continuation'].split())}"
        for sample in result["samples"]
    ]


GENERATE = Stage(
    name="generate",
    verb="generate",
    folder="generate",
    sections=("generation",),
    reads=("tokens", "training"),
    work=_generate,
    summary=_lines,
)
