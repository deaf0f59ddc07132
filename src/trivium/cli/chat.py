"""`trivium chat`: a conversation with a checkpoint on a terminal, or through pipes."""

import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from trivium.cli.generate import lines_of_input
from trivium.cli.model_argument import asked_model
from trivium.cli.options import DEFAULT_OUT, AskedAdapter, AskedModel, Out, Preset, Reads, Sets, open_asked
from trivium.cli.run_config import RunConfig
from trivium.cli.settings import App, shows
from trivium.cli.show import say, say_aside, tell
from trivium.config import parse_assignments
from trivium.errors import DataError
from trivium.seeds import seed_for
from trivium.serving.config import Drawing
from trivium.tokens.chat.conversation import ASSISTANT, SYSTEM, USER, Turn
from trivium.units import counted, shown

COMMANDS = (
    "/system TEXT sets the system message (without TEXT: removes it); /clear forgets the conversation; /quit ends"
)
ONE_PROCESS = "a chat has one process; `trivium serve --tp 2` splits a model over two, and its playground has a chat"
MIN_ANSWER_FRACTION = 0.25  # of the model's sequence; older messages are left out if an answer would have less

app = App()


@app.command()
@shows("seed", "generation.sampling")
def chat(
    target: AskedModel = None,
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="A message that tells the model how to answer.")
    ] = None,
    out: Out = DEFAULT_OUT,
    adapter: AskedAdapter = None,
    preset: Preset = None,
    sets: Sets = None,
) -> None:
    """Talk with a model: each line of standard input is a message, and answers are printed as they are written.

    The model's chat template makes the prompt. /system TEXT, /clear and /quit are commands; Ctrl-C stops an answer.
    Without --max-tokens, an answer may be as long as the model allows.
    """
    Reads("chat", ("generation.sampling",), {"plan.layout": ONE_PROCESS}).check(sets)
    target = None if target is None else asked_model(target)
    run = open_asked(target, out, preset, sets)
    given = parse_assignments(sets or (), RunConfig).get("generation", {}).get("sampling", {})
    from trivium.evaluation.answer import NativeScorer
    from trivium.interchange.target import opened
    from trivium.serving.chat import Chat
    from trivium.serving.writer import Writer

    with opened(target or out, adapter=adapter) as found:
        writer = Writer(NativeScorer.open(found.newest, found.tokenizer))
        settings = run.config.generation.drawing(seed=run.config.seed)
        if "max_tokens" not in given:
            settings = settings.model_copy(update={"max_tokens": writer.scorer.sequence})
        talk = Talk(writer, Chat(found.tokenizer.parent, writer.tokenizer), settings, system)
        if sys.stdin.isatty():
            say_aside(COMMANDS)
        _converse(talk, lines_of_input())


class Talk:
    """A conversation and its settings. Older messages are left out when the model has no room for them."""

    def __init__(self, writer: Any, chat: Any, settings: Drawing, system: str | None = None) -> None:
        """writer, chat: of `trivium.serving`, which imports torch."""
        self.writer, self.chat, self.settings, self.system = writer, chat, settings, system
        self.turns: list[Turn] = []
        self.answers = 0
        self._sequence = writer.scorer.sequence

    def answer(self, message: str, send: Callable[[str], None]) -> int:
        """Answer a message; `send` receives the answer in pieces. Return how many older messages were left out.

        Raises DataError, and forgets the message, if the model has no room for it or the template refuses it.
        """
        turns = [*self.turns, Turn(USER, message)]
        ids = self._ids(turns)
        least = min(self.settings.max_tokens, int(MIN_ANSWER_FRACTION * self._sequence))
        while len(ids) + least > self._sequence + 1 and len(turns) > 2:
            turns = turns[2:]
            ids = self._ids(turns)
        room = self._sequence + 1 - len(ids)
        if room < 1:
            raise DataError(
                f"the message {shown(message)} has {len(ids):,} tokens with the chat template, and the model has room "
                f"for {self._sequence:,}; shorten it"
            )
        stops = (*self.settings.stop, *self.chat.stops)
        settings = self.settings.model_copy(update={"stop": stops, "max_tokens": min(self.settings.max_tokens, room)})
        seed = seed_for(self.settings.seed, "prompt", self.answers)
        draft = self.writer.draft(ids, settings, seed=seed, ends=self.chat.ends)
        try:
            text = self.writer.stream(draft, send).text
        except KeyboardInterrupt:  # what is written remains part of the conversation
            text = self.writer.written(draft).text
        left_out = len(self.turns) + 1 - len(turns)
        self.turns = [*turns, Turn(ASSISTANT, text)]
        self.answers += 1
        return left_out

    def _ids(self, turns: list[Turn]) -> list[int]:
        first = [] if self.system is None else [Turn(SYSTEM, self.system)]
        return list(self.chat.prompt([*first, *turns]))


def _converse(talk: Talk, lines: Iterator[str]) -> None:
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "/quit":
            return
        if word == "/clear":
            talk.turns = []
        elif word == "/system":
            talk.system = rest.strip() or None
        elif word.startswith("/"):
            say_aside(f"there is no command {shown(word)}: {COMMANDS}; a message may begin with a space before /")
        else:
            _answer(talk, line)


def _answer(talk: Talk, message: str) -> None:
    try:
        left_out = talk.answer(message, tell)
    except DataError as error:
        if not sys.stdin.isatty():
            raise
        say_aside(f"error: {error}")
        return
    say()
    if left_out:
        say_aside(
            f"the answer does not consider the first {counted(left_out, 'message')}, for which the model has no room"
        )
