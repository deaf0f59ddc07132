"""What of a docstring or comment is prose: code, tables, markup and lists of names are left out."""

import inspect
import re
from collections.abc import Iterator

_ROLE = re.compile(r":(?:[a-z]+:)?[a-z]+:`~?\.?([^`<]+?)(?:\s*<[^`>]*>)?`")
_LINK = re.compile(r"`([^`<]+?)\s*<[^`>]*>`__?")
_TICKS = re.compile(r"`{1,2}([^`]+)`{1,2}_{0,2}")
_STRONG = re.compile(r"\*\*([^*\s][^*]*)\*\*|\*([^*\s][^*]*)\*(?!\w)")
_BULLET = re.compile(r"^(?:[-*+•]|\d+[.)]|[a-z]\))\s+")
_LABEL = re.compile(r"^\*{0,2}\w+(?:, \*{0,2}\w+)*\s*(?:\([^)]*\))?\s*:\s.*$")
_RULE = re.compile(r"^[\s=\-~^#*_+.|]{3,}$")
_CODE = re.compile(r"[=<>{}\[\]|\\^_@$&;/~+]|\(\)|::|--|\d")
_WORD = re.compile(r"[A-Za-z]+(?:['’-][A-Za-z]+)*")
_COMMON = frozenset(
    [
        "the",
        "of",
        "to",
        "and",
        "a",
        "in",
        "is",
        "that",
        "for",
        "be",
        "it",
        "this",
        "with",
        "as",
        "are",
        "by",
        "not",
        "or",
        "if",
        "on",
        "an",
        "can",
        "will",
    ]
)
_LEGAL = re.compile(r"copyright|\(c\)|licen[sc]e|all rights reserved|warrant(?:y|ies)|coding[:=]", re.I)
_FOR_PROGRAMMERS = (  # how comments begin that are no prose
    "TODO",
    "FIXME",
    "XXX",
    "HACK",
    "type:",
    "noqa",
    "pylint:",
)
_DIRECTIVE = re.compile(r"^\.\. (\S+)::")
_TEXT_DIRECTIVES = frozenset(
    {"note", "warning", "versionadded", "versionchanged", "deprecated", "seealso", "tip"}
)


def prose_paragraphs(docstring: str) -> Iterator[str]:
    """The paragraphs of a docstring that read as English sentences, each on one line, markup removed."""
    for lines in _blocks(inspect.cleandoc(docstring).split("\n")):
        for part in _items(lines):
            text = plain(" ".join(part))
            if is_prose(text):
                yield text


def comment_paragraphs(comment: str) -> Iterator[str]:
    """The same for a block of comment lines; legal notices are left out."""
    text = "\n".join(line.strip().lstrip("#").removeprefix(" ") for line in comment.split("\n"))
    if not _LEGAL.search(text):
        yield from prose_paragraphs(text)


def plain(text: str) -> str:
    """A line without reStructuredText roles, links, ticks and stars."""
    text = _ROLE.sub(r"\1", _spaced(text))
    text = _TICKS.sub(r"\1", _LINK.sub(r"\1", text))
    text = _STRONG.sub(lambda m: m.group(1) or m.group(2), text)
    text = _BULLET.sub("", _spaced(text))
    return text.removesuffix("::").rstrip() + (":" if text.endswith("::") else "")


def is_prose(text: str) -> bool:
    """Whether a paragraph is made of English sentences: enough words, common ones among them, little code."""
    words = _WORD.findall(text)
    if len(words) < 6 or not text[0].isalpha() or text[-1] in ",;-(=" or text.startswith(_FOR_PROGRAMMERS):
        return False
    letters = sum(map(len, words))
    common = sum(map(_COMMON.__contains__, map(str.lower, words)))
    return (
        letters >= 0.70 * len(text)
        and common >= 0.12 * len(words)
        and len(_CODE.findall(text)) <= 0.06 * len(text)
    )


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """Runs of text lines; doctests, literal blocks and the bodies of unknown directives skipped."""
    block: list[str] = []
    skip_deeper_than: int | None = None
    in_doctest = False
    for line in lines:
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        if not stripped or _RULE.match(line):
            # a rule under a line makes that line a heading
            if block and not (stripped and len(block) == 1):
                yield block
            block, in_doctest = [], False
            continue
        if skip_deeper_than is not None and indent > skip_deeper_than:
            continue
        skip_deeper_than = None
        directive = _DIRECTIVE.match(stripped)
        if stripped.startswith((">>>", "...", "$ ", "|")) or in_doctest:
            in_doctest = in_doctest or stripped.startswith(">>>")
        elif directive or stripped.startswith(".. "):
            if not directive or directive.group(1) not in _TEXT_DIRECTIVES:
                skip_deeper_than = indent
        else:
            block.append(line)
            if stripped.endswith("::"):
                yield block
                block, skip_deeper_than = [], indent
    if block:
        yield block


def _items(lines: list[str]) -> Iterator[list[str]]:
    """A block's list items and labelled parameters as parts of their own."""
    part: list[str] = []
    for number, line in enumerate(lines):
        stripped = line.strip()
        deeper = number > 0 and _indent(line) > _indent(lines[number - 1])
        label = deeper and len(part) == 1 and not part[0].endswith((".", ","))
        if part and (
            _BULLET.match(stripped)
            or _LABEL.match(_spaced(stripped))
            or label
            or _indent(line) < _indent(lines[number - 1])
        ):
            yield part
            part = []
        part.append(stripped)
    if part:
        yield part


def _spaced(text: str) -> str:
    """With one space wherever there are several: patterns would try each of a million in turn."""
    return " ".join(text.split())


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
