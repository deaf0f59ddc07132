"""Conversations and preference pairs, read from JSON lines, JSON lists and Parquet in the formats that are in use.

| format | columns of a row |
| --- | --- |
| messages | `messages`: list of {role, content} |
| ShareGPT | `conversations`: list of {from, value} |
| Alpaca | `instruction`, `output`; optional `input` |
| prompt and completion | `prompt`, `completion`: texts or lists of messages |
| preference pair | `prompt` (without it, their common beginning), `chosen`, `rejected`: texts or lists of messages |

The last three, with a prompt, may have `history`: a list of earlier [instruction, output].
An answer whose message has `weight` 0 (OpenAI), `train` false (axolotl) or `loss` false (ms-swift) is read, but does
not count as a target.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from trivium.corpus.read.arrow import ARROW, without_arrow
from trivium.errors import DataError, nearest
from trivium.tokens.chat.rows import read_rows
from trivium.units import counted, shown

SYSTEM, USER, ASSISTANT, TOOL = ROLES = ("system", "user", "assistant", "tool")
_ROLES = {
    **{role: role for role in ROLES},
    "developer": SYSTEM,
    "human": USER,
    **dict.fromkeys(("gpt", "chatgpt", "bot", "model"), ASSISTANT),
    **dict.fromkeys(("observation", "function", "function_response"), TOOL),
}
# The roles that may precede each role.
_MAY_FOLLOW = {SYSTEM: ("",), USER: ("", SYSTEM, ASSISTANT), ASSISTANT: (USER, TOOL), TOOL: (ASSISTANT, TOOL)}
# What a template would have to show, so that leaving it out would change the conversation.
_UNREAD_OF_ROW, _UNREAD_OF_TURN = (
    ("tools", "functions", "image", "images", "video", "videos", "audio", "audios"),
    ("tool_calls", "function_call", "reasoning", "reasoning_content", "thinking"),
)
_LABELS = ("label", "kto_tag")  # false marks an answer to be avoided (KTO)
_QUESTIONS = ("question", "query", "instruction", "input", "messages", "conversations")
_COUNTED = ("weight", "train", "loss")
_NONE_COUNTS = "no answer of it counts as a target: each has weight 0, train false or loss false"
_HH_TURN = re.compile(r"\n\n(Human|Assistant): ?")  # how Anthropic's HH-RLHF writes a conversation as one text
SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet")  # of the files in a folder
_SHOWN_ROWS = 10
_FORMATS = "messages; conversations; instruction and output; prompt and completion"
_PAIR_FORMATS = "chosen and rejected, with or without prompt"
T = TypeVar("T")


class Turn(NamedTuple):
    """A message. role: system, user, assistant or tool. counted: of an answer, whether it counts as a target."""

    role: str
    content: str
    counted: bool = True


class Conversation(NamedTuple):
    """A conversation that ends with an answer. name: FILE:LINE, the document of its tokens in the lineage."""

    turns: tuple[Turn, ...]
    name: str


class Pair(NamedTuple):
    """Two continuations of a prompt, of which `chosen` is preferred. name: FILE:LINE."""

    prompt: tuple[Turn, ...]
    chosen: tuple[Turn, ...]
    rejected: tuple[Turn, ...]
    name: str


def read_conversations(path: Path) -> Iterator[Conversation]:
    """Yield the conversations of a file, or of all files in a folder.

    Raises DataError that lists all invalid rows of a file, by line and reason, when its end is reached.
    """
    return _read(path, lambda row, name: Conversation(conversation_of(row), name))


def read_pairs(path: Path) -> Iterator[Pair]:
    """Yield the preference pairs of a file, or of all files in a folder. Raises DataError as `read_conversations`."""
    return _read(path, lambda row, name: Pair(*pair_of(row), name))


def _read(path: Path, made: Callable[[Mapping[str, Any], str], T]) -> Iterator[T]:
    """Yield what `made` makes of each row and its name, collecting the ValueErrors of each file into one DataError."""
    for file in _files(path):
        name = os.fspath(file.relative_to(path)) if file != path else file.name
        wrong: list[tuple[int, str]] = []
        rows = 0
        for row in read_rows(file):
            rows += 1
            try:
                if isinstance(row.value, ValueError):
                    raise row.value
                yield made(_fields(row.value), f"{name}:{row.number}")
            except ValueError as error:
                wrong.append((row.number, str(error)))
        if wrong:
            raise DataError(_report(file, rows, wrong))
        if not rows:
            raise DataError(f"{file} has no rows; give each conversation a line of JSON, or leave the file out")


def _report(file: Path, rows: int, wrong: Sequence[tuple[int, str]]) -> str:
    """Describe all invalid rows of a file: the first ones, and the number of each reason."""
    lines = [f"  line {number}: {shown(why, 240)}" for number, why in wrong[:_SHOWN_ROWS]]
    alike: dict[str, list[tuple[int, str]]] = {}
    for number, why in wrong[_SHOWN_ROWS:]:
        # Numbers and quoted texts differ from row to row where the reason is the same.
        alike.setdefault(re.sub(r"'[^']*'|\d+", "…", why), []).append((number, why))
    most = sorted(alike.values(), key=len, reverse=True)
    for rest in most[:_SHOWN_ROWS]:
        numbers = [number for number, _ in rest]
        lines.append(f"  and {counted(len(rest), 'row')} ({_lines(numbers)}): {shown(rest[0][1], 240)}")
    if left := sum(map(len, most[_SHOWN_ROWS:])):
        lines.append(f"  and {counted(left, 'row')} for other reasons")
    head = f"{shown(os.fspath(file))}: {len(wrong):,} of {counted(rows, 'row')} cannot be used; correct or remove them"
    return "\n".join([head, *lines])


def _lines(numbers: Sequence[int], most: int = 3) -> str:
    listed = ", ".join(map(str, numbers[:most]))
    return f"line{'s' if len(numbers) > 1 else ''} {listed}{', …' if len(numbers) > most else ''}"


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return without_arrow([path])
    read = (*SUFFIXES, ARROW)
    found = sorted(file for file in path.rglob("*") if file.suffix.lower() in read and file.is_file())
    if not found:
        raise DataError(f"{path} has no file that ends in {', '.join(SUFFIXES)}; name a file or folder that has some")
    return without_arrow(found)


def _fields(value: Any) -> Mapping[str, Any]:
    """Return the columns of a row that have a value."""
    if not isinstance(value, Mapping):
        raise ValueError(f"a row is an object with named columns; found {_kind(value)}")
    row = {str(name): one for name, one in value.items() if one is not None}
    for name in _UNREAD_OF_ROW:
        if _has_content(row.get(name)):
            raise ValueError(
                f"{name} is {_short(row[name])}, and only text without tools is supported; remove the row, or only "
                f"{name} if the answers do not depend on it"
            )
    return row


def _has_content(value: Any) -> bool:
    """Whether a value has anything but nulls: the library datasets writes a missing struct with a null per field."""
    inside = value.values() if isinstance(value, Mapping) else value
    return any(map(_has_content, inside)) if isinstance(value, (Mapping, list)) else bool(value)


def counts(turn: Turn) -> bool:
    """Whether the tokens of a turn count as targets."""
    return turn.role == ASSISTANT and turn.counted


def conversation_of(row: Mapping[str, Any]) -> tuple[Turn, ...]:
    """Return the turns of a row. Raises ValueError with the reason for one that is no valid conversation."""
    for name in _LABELS:
        if row.get(name) is False:
            raise ValueError(
                f"its {name} is false, which marks an answer to avoid, and it would be learned; remove the row"
            )
    if "messages" in row or "conversations" in row or "conversation" in row:
        name = next(one for one in ("messages", "conversations", "conversation") if one in row)
        turns = _with_system(row, _turns(row[name], name))
    elif "instruction" in row and "output" in row:
        extra = _text(row.get("input", ""), "input")
        instruction = _text(row["instruction"], "instruction")
        question = f"{instruction}\n\n{extra}" if extra.strip() else instruction
        answer = Turn(ASSISTANT, _text(row["output"], "output"))
        turns = _with_system(row, _with_history(row, (Turn(USER, question), answer)))
    elif "prompt" in row and "completion" in row:
        asked = _either(row["prompt"], "prompt", USER)
        answered = _either(row["completion"], "completion", ASSISTANT)
        turns = _with_system(row, _with_history(row, (*asked, *answered)))
    elif "chosen" in row and "rejected" in row:
        raise ValueError("it is a preference pair, and a conversation is expected; choose a method for preferences")
    else:
        raise ValueError(_no_format(row, _FORMATS))
    check(turns)
    return turns


def pair_of(row: Mapping[str, Any]) -> tuple[tuple[Turn, ...], tuple[Turn, ...], tuple[Turn, ...]]:
    """Return prompt, chosen and rejected turns of a row. Raises ValueError with the reason for an invalid one."""
    if "chosen" not in row or "rejected" not in row:
        raise ValueError(_no_format(row, _PAIR_FORMATS))
    if row["chosen"] == row["rejected"]:
        raise ValueError("chosen and rejected are equal, so the pair prefers nothing")
    prompt, answers = _prompt_and_answers(row)
    prompt = _with_system(row, prompt)
    if not prompt:
        raise ValueError("chosen and rejected have no common beginning; give the row a prompt")
    for name, answer in zip(("chosen", "rejected"), answers, strict=True):
        try:
            check((*prompt, *answer))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        if not answer or answer[0].role != ASSISTANT:
            raise ValueError(f"{name} has to go on with an assistant's turn; the prompt ends at turn {len(prompt)}")
        if not any(map(counts, answer)):
            raise ValueError(f"{name}: {_NONE_COUNTS}")
    if answers[0] == answers[1]:
        raise ValueError("chosen and rejected are equal, so the pair prefers nothing")
    return prompt, answers[0], answers[1]


def check(turns: Sequence[Turn]) -> None:
    """Raise ValueError unless user and assistant alternate, nobody but the system is silent, and an answer ends it."""
    for number, turn in enumerate(turns, 1):
        if not turn.content.strip() and turn.role != SYSTEM:
            raise ValueError(f"turn {number} ({turn.role}) is empty")
    for number, (before, turn) in enumerate(pairwise((Turn("", ""), *turns)), 1):
        if before.role not in _MAY_FOLLOW[turn.role]:
            if before.role == turn.role:
                raise ValueError(f"turns {number - 1} and {number} are both the {turn.role}'s")
            after = f"follows the {before.role}'s" if before.role else "begins the conversation"
            may = " or ".join(f"the {role}'s" if role else "nothing" for role in _MAY_FOLLOW[turn.role])
            raise ValueError(f"turn {number} ({turn.role}) {after}; it may follow {may}")
    if not turns:
        raise ValueError("it has no turns")
    if turns[-1].role != ASSISTANT:
        raise ValueError(f"it ends with turn {len(turns)} ({turns[-1].role}), which nobody answers")
    if not any(map(counts, turns)):
        raise ValueError(_NONE_COUNTS)


def agreement(one: Sequence[object], other: Sequence[object]) -> int:
    """Return the number of elements at the beginning of both that are equal."""
    both = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(both) if a != b), min(len(one), len(other)))


def _prompt_and_answers(row: Mapping[str, Any]) -> tuple[tuple[Turn, ...], list[tuple[Turn, ...]]]:
    texts = [row["chosen"], row["rejected"]]
    if "prompt" in row:
        prompt = _either(row["prompt"], "prompt", USER)
        answers = [_either(row[name], name, ASSISTANT) for name in ("chosen", "rejected")]
        # Some data sets repeat the prompt in both.
        answers = [one[len(prompt) :] if one[: len(prompt)] == prompt else one for one in answers]
        return _with_history(row, prompt), answers
    if all(isinstance(text, str) for text in texts) and not all(_HH_TURN.match(text) for text in texts):
        asked = [(name, row[name]) for name in _QUESTIONS if row.get(name)]
        unread = next((n for n, said in asked if not all(text.startswith(str(said)) for text in texts)), None)
        if unread is not None:
            raise ValueError(
                f"it has no prompt but {unread}, which is not read from preference pairs; rename it to prompt"
            )
        common = texts[0][: agreement(*texts)]
        cut = len(common.rstrip()) if common[-1:].isspace() else common.rfind(" ") + 1  # between words
        begin = common[:cut].rstrip()
        prompt = (Turn(USER, begin),) if begin else ()
        return prompt, [(Turn(ASSISTANT, text[len(begin) :].lstrip()),) for text in texts]
    both = [
        _hh_turns(row[name]) if isinstance(row[name], str) else _turns(row[name], name)
        for name in ("chosen", "rejected")
    ]
    shared = agreement(*both)
    return both[0][:shared], [turns[shared:] for turns in both]


def _hh_turns(text: str) -> tuple[Turn, ...]:
    """Return the turns of a text that writes each as "\\n\\nHuman: …" or "\\n\\nAssistant: …"."""
    _, *parts = _HH_TURN.split(_text(text, "chosen or rejected"))
    roles = {"Human": USER, "Assistant": ASSISTANT}
    return tuple(Turn(roles[name], said) for name, said in zip(parts[::2], parts[1::2], strict=True))


def _either(value: Any, name: str, role: str) -> tuple[Turn, ...]:
    """Return the turns of a column that is a list of messages, or a text that `role` says."""
    return (Turn(role, _text(value, name)),) if isinstance(value, str) else _turns(value, name)


def _with_system(row: Mapping[str, Any], turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """Return the turns with the row's own system text before them, if it has one."""
    said = row.get("system") or row.get("system_prompt") or ""
    return (Turn(SYSTEM, _text(said, "system")), *turns) if said else turns


def _with_history(row: Mapping[str, Any], turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """Return the turns with the row's earlier instructions and outputs before them, after a system text."""
    at = int(bool(turns) and turns[0].role == SYSTEM)
    return (*turns[:at], *_history(row), *turns[at:])


def _history(row: Mapping[str, Any]) -> Iterator[Turn]:
    history = row.get("history", [])
    if not isinstance(history, list):
        raise ValueError(f"history has to be a list of [instruction, output]; found {_kind(history)}")
    for number, pair in enumerate(history, 1):
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError(f"history, item {number} has to be [instruction, output]; found {_short(pair)}")
        for role, said in zip((USER, ASSISTANT), pair, strict=True):
            yield Turn(role, _text(said, f"history, item {number}"))


def _turns(value: Any, name: str) -> tuple[Turn, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise ValueError(f"{name} has to be a list of messages; found {_kind(value)}")
    return tuple(_turn(one, f"{name}, turn {number}") for number, one in enumerate(value, 1))


def _turn(value: Any, where: str) -> Turn:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} has to be a message with role and content; found {_kind(value)}")
    for name in _UNREAD_OF_TURN:
        if value.get(name):
            raise ValueError(f"{where} has {name}, which is not supported; write it into content, or remove the row")
    role = value.get("role", value.get("from"))
    if not isinstance(role, str) or role.lower() not in _ROLES:
        known = nearest(role, _ROLES) if isinstance(role, str) else f"known: {', '.join(ROLES)}"
        raise ValueError(f"{where} has the role {_short(role)}; {known}")
    content = value.get("content", value.get("value"))
    if isinstance(content, Sequence) and not isinstance(content, str | bytes):
        content = "".join(_text_part(part, where) for part in content)
    given = [(name, value[name]) for name in _COUNTED if value.get(name) is not None]
    for name, said in given:
        if said not in (0, 1):
            raise ValueError(f"{where} has the {name} {_short(said)}; give 1 if it counts as a target, otherwise 0")
    return Turn(_ROLES[role.lower()], _text(content, f"{where}, content"), all(said for _, said in given))


def _text_part(part: Any, where: str) -> str:
    if not isinstance(part, Mapping) or part.get("type", "text") != "text" or not isinstance(part.get("text"), str):
        raise ValueError(f"{where} has a part that is no text: {_short(part)}; only text is supported")
    return str(part["text"])


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} has to be a text; found {_kind(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} has a lone surrogate ({value[error.start]!a} at position {error.start}), which is no character"
        ) from None
    return value


def _no_format(row: Mapping[str, Any], formats: str) -> str:
    columns = ", ".join(map(repr, list(row)[:8])) or "none"
    return f"its columns are {columns}; they have to be one of: {formats}"


def _kind(value: Any) -> str:
    names = {type(None): "nothing", str: "a text", bool: "true or false", list: "a list", dict: "an object"}
    return names.get(type(value), f"{_short(value)}")


def _short(value: object) -> str:
    return shown(repr(value), 60)
