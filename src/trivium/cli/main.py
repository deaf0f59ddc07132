"""The entry point: finds the verb, runs it, and turns every error into one line and an exit code."""

import importlib
import resource
import sys
import traceback
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from io import TextIOWrapper
from typing import Annotated, Any, Literal, NamedTuple, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from trivium import __version__
from trivium.cli.commands import refuse_unknown
from trivium.cli.ending import ended_in_order, leave_exit_code, told, usage_errors_told
from trivium.errors import Preempted, TriviumError
from trivium.jsonlines import text_lines
from trivium.mkl import prefer_fast_kernels
from trivium.training.supervision.preemption import BY_SCHEDULERS, held_back
from trivium.units import plain

INTERRUPTED = 130
GO_ON = (
    "demo",
    "corpus",
    "tokenize",
    "train",
    "tune",
    "suite",
    "recipes",
    "judge",
    "prove",
)  # after an interruption; other verbs begin anew
# These verbs ask a model, which may be brought in for it.
ASKING = ("evaluate", "incontext", "bias", "generate", "chat", "judge", "serve")
MAX_OPEN_FILES = 1 << 18  # open at once: 65,536 sources of a blend, each with two files in two splits


class Verb(NamedTuple):
    """A command, the group under which help lists it, and its module, which is imported only when it is called."""

    name: str
    group: Literal["Start", "Data", "Plan", "Train", "Tune", "Use", "Prove"]
    module: str
    summary: str


VERBS = (
    Verb("demo", "Start", "trivium.cli.demo", "The whole path on this machine, from raw text to report.html."),
    Verb("recipes", "Start", "trivium.cli.recipes", "Run a published training; compare its curve with the band."),
    Verb("doctor", "Start", "trivium.cli.doctor", "Check that this machine can run the demo; list what to fix."),
    Verb("init", "Start", "trivium.cli.init", "Write a short config, from four questions or from options."),
    Verb("models", "Start", "trivium.cli.models", "List the models that are known by name, or show one."),
    Verb("config", "Start", "trivium.cli.config", "Show and document configs."),
    Verb("corpus", "Data", "trivium.cli.corpus", "Harvest raw text; curate it into a clean corpus."),
    Verb("tokenize", "Data", "trivium.cli.tokenize", "Train a tokenizer and write token shards."),
    Verb("data", "Data", "trivium.cli.data", "From tokens to documents and back; take tokens made elsewhere."),
    Verb("plan", "Plan", "trivium.cli.plan", "Show what a run is and what it costs, before anything runs."),
    Verb("launch", "Plan", "trivium.cli.launch", "Print a job file for Slurm, Kubernetes or torchrun."),
    Verb("train", "Train", "trivium.cli.train", "Train under a layout; resume from the last checkpoint."),
    Verb("suite", "Train", "trivium.cli.suite", "Train several sizes on the same batches; examine every checkpoint."),
    Verb("tune", "Tune", "trivium.cli.tune", "Tune a model on conversations, with adapters or in full."),
    Verb("metrics", "Train", "trivium.cli.metrics", "Show a training's steps; hand them to TensorBoard or wandb."),
    Verb("checkpoint", "Train", "trivium.cli.checkpoint", "List, verify, exchange and remove checkpoints."),
    Verb("generate", "Use", "trivium.cli.generate", "Let a checkpoint continue a prompt."),
    Verb("chat", "Use", "trivium.cli.chat", "Talk with a tuned model on a terminal or through a pipe."),
    Verb("serve", "Use", "trivium.cli.serve", "Answer over HTTP, with a playground, on this machine."),
    Verb("evaluate", "Use", "trivium.cli.evaluate", "Score a checkpoint on held-out tasks, zero- and few-shot."),
    Verb("incontext", "Use", "trivium.cli.incontext", "Study how answers depend on the solved examples before them."),
    Verb("judge", "Use", "trivium.cli.judge", "Score translations or summaries; compare judges with people."),
    Verb("bias", "Use", "trivium.cli.bias", "Measure what a checkpoint associates with whom."),
    Verb("report", "Use", "trivium.cli.report", "Gather a run's results in one self-contained page."),
    Verb("diff", "Use", "trivium.cli.diff", "Compare two checkpoints, corpora or configs."),
    Verb("certify", "Prove", "trivium.cli.certify", "Prove that a layout computes what one process computes."),
    Verb("prove", "Prove", "trivium.cli.prove", "Kill a rank, resume in another layout, compare the losses."),
)


def command_of(verb: Verb) -> Any:
    """Import and return the command of a verb."""
    command: Any = typer.main.get_command(importlib.import_module(verb.module).app)
    command.name = verb.name
    return command


def commands_near(asked: str) -> Iterator[tuple[str, Any]]:
    """Yield every command as it is typed, and itself: those of the group of `asked`, then `train`, then the others."""
    group = next((verb.group for verb in VERBS if verb.name in asked.split()[1:2]), None)
    for verb in sorted(VERBS, key=lambda verb: (verb.group != group, verb.name != "train")):
        command = command_of(verb)
        for part, each in getattr(command, "commands", {"": command}).items():
            yield f"trivium {verb.name} {part}".rstrip(), each


class LazyVerbs(TyperGroup):
    """Lists the verbs from the table above; imports the file of the one that is called."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands by group, in the order of the groups."""
        width = max(len(verb.name) for verb in VERBS)
        for group in get_args(Verb.__annotations__["group"]):
            rows = [(verb.name.ljust(width), verb.summary) for verb in VERBS if verb.group == group]
            if rows:
                with formatter.section(group):
                    formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb's own command in place of the line that stands for it in the list."""
        refuse_unknown(ctx, args[0], self.commands)
        name, command, rest = super().resolve_command(ctx, args)
        verb = next((v for v in VERBS if v.name == name), None)
        if verb is not None:
            command = command_of(verb)
        return name, command, rest

    def make_context(self, info_name: Any, args: list[str], *more: Any, **extra: Any) -> Any:
        """Call TyperGroup.make_context, with usage errors as below."""
        with usage_errors_told(commands_near):
            return super().make_context(info_name, args, *more, **extra)

    def invoke(self, ctx: Any) -> Any:
        """The verb. A file that breaks off is an error: typer takes EOFError for a user who left, and says nothing."""
        try:
            with usage_errors_told(commands_near):
                return super().invoke(ctx)
        except EOFError as error:
            raise told(error) from error


def command_line() -> Any:
    """The whole command line, its verbs not yet imported."""
    app = typer.Typer(
        name="trivium",
        cls=LazyVerbs,
        help="Train GPT-class language models the way MT-NLG 530B was trained, end to end.",
        epilog="First: trivium doctor, then trivium demo. Every setting: trivium config explain.",
        rich_markup_mode=None,
        no_args_is_help=True,
    )
    app.callback()(_options)
    group: Any = typer.main.get_command(app)
    for verb in VERBS:
        group.add_command(TyperCommand(verb.name, help=verb.summary, rich_markup_mode=None))
    return group


def main() -> None:
    """Run the command line; every error a user can act on is printed without a traceback."""
    words = [word for word in sys.argv[1:] if word != "--debug"]
    debug = len(words) < len(sys.argv) - 1
    _open_many_files()
    prefer_fast_kernels()
    if isinstance(sys.stdout, TextIOWrapper):  # a locale without … or ✓ costs these signs, and not the work
        sys.stdout.reconfigure(errors="replace")
    # A training that is asked to end before it listens would be killed; importing alone takes it a second or two.
    listens = words[:1] == ["train"] and "--dry-run" not in words
    waiting = held_back(BY_SCHEDULERS) if listens else nullcontext()
    ending = ended_in_order() if words[:1] and words[0] in ASKING else nullcontext()
    try:
        with waiting, ending:
            command_line()(words, prog_name="trivium")
    except (KeyboardInterrupt, SystemExit) as ended:
        if isinstance(ended, SystemExit) and ended.code != INTERRUPTED:
            raise
        # What interrupts a verb comes as SystemExit: typer catches it, and says nothing.
        more = " to go on" if words[:1] and words[0] in GO_ON else ""
        print(plain(f"\ninterrupted; run the same command again{more}"), file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BaseException as error:  # libraries of Rust panic with something that is no Exception
        failure = told(error)
        _print_error(failure, debug=debug)
        leave_exit_code(failure.exit_code)
        sys.exit(failure.exit_code)


def _open_many_files() -> None:
    """Open as many files as the system allows: shells allow 1024 at first, and each source of a corpus has some."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if most == resource.RLIM_INFINITY else min(most, MAX_OPEN_FILES)
    if now != resource.RLIM_INFINITY and now < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _show_version(asked: bool) -> None:
    if asked:
        print(plain(__version__))
        raise typer.Exit(0)


def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version and stop.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; may stand anywhere.")] = False,
) -> None:
    """Options that stand before any verb."""


def _print_error(failure: TriviumError, *, debug: bool) -> None:
    if debug:
        print(plain(traceback.format_exc()), file=sys.stderr)
    kind = "interrupted: " if isinstance(failure, Preempted) else "error: "
    first, *rest = text_lines(str(failure)) or ["failed without a message"]
    print(plain("\n".join([f"{kind}{first}", *(f"{' ' * len(kind)}{line}" for line in rest)])), file=sys.stderr)


if __name__ == "__main__":
    main()
