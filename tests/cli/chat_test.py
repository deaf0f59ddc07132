"""`trivium chat` keeps a conversation, and shows the model as much of it as it can read."""

import io
import os
import pty
import subprocess
import sys

import pytest

from evaluation.models import plan_of, write_checkpoint
from serving.chat_test import CHAT, WRITER
from trivium.cli.chat import Talk
from trivium.cli.main import command_line
from trivium.errors import ConfigError, DataError
from trivium.seeds import seed_for
from trivium.serving.config import Drawing
from trivium.tokens.chat.conversation import Turn

GREEDY = ("--temperature", "0", "--max-tokens", "6")
SETTINGS = Drawing(temperature=0.8, top_p=1, max_tokens=6, seed=5)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = tmp_path_factory.mktemp("talked") / "run"
    (run / "training").mkdir(parents=True)
    write_checkpoint(run / "training", plan_of(sequence=96))
    (run / "tokens").mkdir()
    (run / "training" / "tokenizer.json").rename(run / "tokens" / "tokenizer.json")
    return run


def said(capsys, monkeypatch, run, lines, *words):
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    command_line()(["chat", str(run), *GREEDY, *words], prog_name="trivium", standalone_mode=False)
    return capsys.readouterr()


def directly(turns, number, **settings):
    """Return the answer of the model itself to a conversation."""
    drawing = SETTINGS.model_copy(update=settings)
    draft = WRITER.draft(CHAT.prompt(turns), drawing, seed=seed_for(5, "prompt", number), ends=CHAT.ends)
    WRITER.write_drafts([draft])
    return WRITER.written(draft).text


def test_answers_follow_the_whole_conversation():
    talk, heard = Talk(WRITER, CHAT, SETTINGS, "Be brief."), []
    turns = [Turn("system", "Be brief.")]
    for number, message in enumerate(("Item 7?", "And 8?")):
        pieces = []
        assert talk.answer(message, pieces.append) == 0
        turns.append(Turn("user", message))
        heard.append(directly(turns, number))
        turns.append(Turn("assistant", heard[-1]))
        assert "".join(pieces) == heard[-1]
    assert talk.turns == turns[1:] and heard[0] != heard[1]


def test_oldest_messages_are_left_out_when_there_is_no_room():
    talk = Talk(WRITER, CHAT, SETTINGS, "Be brief.")
    left_out = [talk.answer(f"Item {number} opens the parser?", lambda text: None) for number in range(5)]
    assert left_out[0] == 0 and max(left_out) >= 2 and not any(count % 2 for count in left_out)
    assert talk.turns[0].role == "user" and talk.turns[-2].content == "Item 4 opens the parser?"
    assert len(CHAT.prompt([Turn("system", "Be brief."), *talk.turns[:-1]])) + 6 <= WRITER.scorer.sequence + 1
    before = list(talk.turns)
    with pytest.raises(DataError, match=r"the message x x x.* has \d+ tokens .* room for 160; shorten it"):
        talk.answer("x " * 200, lambda text: None)
    assert talk.turns == before


def test_stopped_answer_remains_in_the_conversation():
    talk, pieces = Talk(WRITER, CHAT, SETTINGS), []

    def stop_at_third(text):
        pieces.append(text)
        if len(pieces) == 3:
            raise KeyboardInterrupt

    talk.answer("Item 7?", stop_at_third)
    assert talk.turns[-1].role == "assistant" and talk.turns[-1].content.startswith("".join(pieces))


def test_lines_of_a_pipe_are_answered_and_commands_obeyed(run, capsys, monkeypatch):
    once = said(capsys, monkeypatch, run, ["Item 7"]).out
    assert once.endswith("\n") and "> " not in once[:2]
    lines = ["Item 7", "/clear", "", "Item 7", "/quit", "Item 7"]
    assert said(capsys, monkeypatch, run, lines).out == 2 * once
    system = said(capsys, monkeypatch, run, ["Item 7"], "--system", "Be brief.").out
    assert said(capsys, monkeypatch, run, ["/system Be brief.", "Item 7"]).out == system != once
    assert said(capsys, monkeypatch, run, ["/system Be brief.", "/system", "Item 7"]).out == once
    told = said(capsys, monkeypatch, run, ["/what is it", "Item 7"])
    assert told.out == once and "there is no command /what: /system TEXT" in told.err


def test_settings_that_are_not_read_are_refused(run, capsys, monkeypatch):
    for place, value in (("generation.prompts", "[a]"), ("serve.texts", "2"), ("training.lr", "1")):
        with pytest.raises(ConfigError, match=f"--set {place}: `trivium chat` does not read this"):
            said(capsys, monkeypatch, run, ["Item 7"], "--set", f"{place}={value}")
    with pytest.raises(ConfigError, match="`trivium serve --tp 2` splits a model over two"):
        said(capsys, monkeypatch, run, ["Item 7"], "--tp", "2")
    with pytest.raises(DataError, match="shorten it"):  # a program that uses a pipe sees the exit code
        said(capsys, monkeypatch, run, ["x " * 200])


def test_template_beside_the_tokens_of_a_run_is_used(run, capsys, monkeypatch):
    template = run / "tokens" / "chat_template.jinja"
    template.write_text("{{ raise_exception('this model has no ' ~ messages[0].role) }}")
    try:
        with pytest.raises(DataError, match="this model has no system"):
            said(capsys, monkeypatch, run, ["Item 7"], "--system", "Be brief.")
    finally:
        template.unlink()


@pytest.mark.broad
def test_terminal_shows_a_prompt_and_answers(run):
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "trivium", "chat", str(run), *GREEDY]
    with subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "dumb"}) as one:
        os.close(theirs)
        shown = b""
        for prompts, line in ((1, b"Item 7\n"), (2, b"/quit\n")):
            while shown.count(b"> ") < prompts:
                shown += os.read(ours, 4096)
            os.write(ours, line)
        assert one.wait(60) == 0
    os.close(ours)
    assert b"/clear forgets the conversation" in shown and b"Item 7" in shown
