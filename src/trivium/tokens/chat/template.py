"""Chat templates: Jinja programs that turn a conversation into text."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from trivium.errors import DataError, nearest
from trivium.tokens.chat.conversation import Turn
from trivium.tokens.chat.render import CPU_SECONDS, NONCHARACTERS
from trivium.tokens.marks import CONFIG, MAP, token_of, tree_of
from trivium.tokens.tokenizer import Tokenizer
from trivium.units import shown
from trivium.untrusted import CONFIG_BYTES, parse_json, read_text

FILE = "chat_template.jinja"
KEY = "chat_template"
START, END = "<|im_start|>", "<|im_end|>"
# The marks are written as literals, so that other programs can use the file.
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' }}"
    "{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message.content + '<|im_end|>' }}{% endif %}"
    "{{ '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# For a tokenizer without ChatML's marks: its end-of-text token, which no message can contain, ends every turn.
PLAIN = CHATML.replace("'<|im_start|>' + message", "message").replace(START, "").replace("'<|im_end|>'", "eos_token")
_NONCHARACTER = re.compile(f"[{NONCHARACTERS[0]}-{NONCHARACTERS[-1]}]")
_KNOWN_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Text(NamedTuple):
    """A rendered conversation. spans: the places of its generation tags."""

    text: str
    spans: list[tuple[int, int]]


class Request(NamedTuple):
    """Turns to render. renders: (number of turns, whether the header of an answer follows them) of each text."""

    turns: Sequence[Turn]
    renders: Sequence[tuple[int, bool]]


class ChatTemplate:
    """A chat template, rendered in a process of its own, which starts when it is first needed.

    source: Jinja. variables: the special tokens that it may write, by name, such as eos_token. origin: for errors.
    """

    cpu_seconds = CPU_SECONDS  # of a request

    def __init__(self, source: str, variables: Mapping[str, str], origin: str = "the chat template") -> None:
        self.source, self.variables, self.origin = source, variables, origin
        self._lock = threading.Lock()
        self._worker: subprocess.Popen[str] | None = None
        self._owner = 0  # the process that may talk to the worker
        self._tagged = False

    def render(self, turns: Sequence[Turn], add_generation_prompt: bool = False) -> str:
        """Return the text of a conversation, including the beginning-of-text token if the template writes it.

        Raises DataError if the template raises or exceeds its limits.
        """
        return self.texts([Request(turns, [(len(turns), add_generation_prompt)])])[0][0].text

    def texts(self, requests: Sequence[Request]) -> list[list[Text]]:
        """Render several conversations. Raises DataError if the template raises or exceeds its limits."""
        asked = [
            {
                "messages": [{"role": turn.role, "content": turn.content} for turn in request.turns],
                "renders": request.renders,
                "variables": self.variables,
                "marks": free_marks([turn.content for turn in request.turns], 2),
            }
            for request in requests
        ]
        with self._lock:
            self._start()
            answer = self._ask(asked)
        return [[Text(one["text"], [(a, b) for a, b in one["spans"]]) for one in texts] for texts in answer]

    @property
    def has_tags(self) -> bool:
        """Whether the template says by generation tags which text an assistant writes."""
        with self._lock:
            self._start()
            return self._tagged

    @cached_property
    def end_of_turn(self) -> str:
        """The text that ends an answer, such as <|im_end|>, without white space; empty if there is none.

        Raises DataError if the template does not write what an assistant says.
        """
        answer = NONCHARACTERS[-1]
        text = self.render([Turn("user", "a"), Turn("assistant", answer)])
        if answer not in text:
            raise DataError(
                f"{self.origin} leaves out what the assistant says: of an answer it writes {shown(text)!r}; give a "
                f"template for messages whose content is a text, in {FILE}"
            )
        return text.rpartition(answer)[2].strip()

    def save(self, folder: Path) -> Path:
        """Write the template into a folder and return the path of the file."""
        path = folder / FILE
        path.write_text(self.source, encoding="utf-8", newline="")
        return path

    def _start(self) -> None:
        """Start the process if this one has none."""
        if self._worker is not None and self._worker.poll() is None and self._owner == os.getpid():
            return
        command = [sys.executable, "-P", "-m", "trivium.tokens.chat.render", str(self.cpu_seconds)]
        self._worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._owner = os.getpid()
        self._close = weakref.finalize(self, _end, self._worker)
        self._tagged = self._ask(self.source)["has_tags"]

    def _stop(self) -> None:
        if self._worker is not None and self._owner == os.getpid():
            self._close()
        self._worker = None

    def _ask(self, question: object) -> Any:
        worker = self._worker
        assert worker is not None and worker.stdin and worker.stdout, "the process was started"
        try:
            worker.stdin.write(json.dumps(question) + "\n")
            worker.stdin.flush()
            line = worker.stdout.readline()
        except BrokenPipeError:
            line = ""
        answer = parse_json(line) if line else {"error": self._cause_of_death(worker)}
        if isinstance(answer, dict) and "error" in answer:
            if question is self.source or not line:
                self._stop()
            raise DataError(
                f"{self.origin} cannot render a conversation: {shown(str(answer['error']))}; correct the template, or "
                f"write another one into {FILE}"
            )
        return answer

    def _cause_of_death(self, worker: "subprocess.Popen[str]") -> str:
        code = worker.wait()
        if code == -signal.SIGPROF:
            return f"it takes more than {self.cpu_seconds:g} s of CPU time"
        return f"its process ended with code {code}"


def read_template(folder: Path | None, tokenizer: Tokenizer) -> ChatTemplate:
    """Return the chat template of a model's folder, a token folder or a file; without one, ChatML.

    A tokenizer without ChatML's marks writes ChatML without them: its end-of-text token ends every turn, which no
    message can contain. Raises DataError if a file cannot be read.
    """
    marks = tokenizer.marks
    variables = {"eos_token": marks.end} | ({} if marks.begin is None else {"bos_token": marks.begin})
    if folder is not None:
        beside = folder if folder.is_dir() else folder.parent
        trees = [tree_of(beside / name) for name in (CONFIG, MAP)]
        for name in _KNOWN_TOKENS:
            for tree, file in zip(trees, (CONFIG, MAP), strict=True):
                token = token_of(tree, name, beside / file)
                if token is not None:
                    variables[name] = token
                    break
        path = folder / FILE if folder.is_dir() else folder
        if path.is_file():
            return ChatTemplate(_read(path), variables, shown(str(path)))
        if KEY in trees[0]:
            config = beside / CONFIG
            return ChatTemplate(_named(trees[0][KEY], config), variables, f"{KEY} of {shown(str(config))}")
    has_marks = START in tokenizer.words and END in tokenizer.words
    return ChatTemplate(CHATML if has_marks else PLAIN, variables, "the default chat template")


def free_marks(texts: Sequence[str], count: int) -> list[str]:
    """Return characters that no text contains. Raises DataError if the texts contain all candidates."""
    used = {one for text in texts for one in _NONCHARACTER.findall(text)}
    found = [one for one in NONCHARACTERS if one not in used][:count]
    if len(found) < count:
        raise DataError(
            f"a conversation contains nearly all of the noncharacters U+{ord(NONCHARACTERS[0]):X} to "
            f"U+{ord(NONCHARACTERS[-1]):X}, which no text may use; remove them"
        )
    return found


def _read(path: Path) -> str:
    try:
        return read_text(path, CONFIG_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as a chat template ({error}); download it again") from None


def _named(found: Any, path: Path) -> str:
    """Return the template of a config: a string, or the one called "default" of a list."""
    if isinstance(found, str):
        return found
    try:
        named = {str(one["name"]): str(one["template"]) for one in found}
    except (KeyError, TypeError):
        named = {}
    if "default" not in named:
        raise DataError(
            f"{path}: {KEY} is neither a text nor a list with a template named 'default'"
            f"{'; ' + nearest('default', named) if named else ''}; write the one to use into {FILE}"
        )
    return named["default"]


def _end(worker: "subprocess.Popen[str]") -> None:
    """End a process of a template. The end of its input is not enough: forked processes may hold it open."""
    worker.kill()
    worker.wait()
    for pipe in (worker.stdin, worker.stdout):
        if pipe:
            pipe.close()
