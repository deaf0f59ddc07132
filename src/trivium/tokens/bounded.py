"""Whether a tokenizer that somebody else wrote encodes text in bounded time and memory.

Its file holds patterns, which may backtrack without end, and replacements, which may multiply a text: sixteen steps
that each replace a letter by two make 65,536 of it.
"""

import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers

# What all steps together may make of a character. Published files reach 4 (a character as its bytes), and 2 for a
# pattern of several blanks.
MOST_GROWTH = 64
MOST_STEPS = 64  # of published files, the longest list has about 10
# The library takes cubic time in the length of a word that a WordPiece model looks up. Published ones allow 100.
LONGEST_WORDPIECE = 4096
PROBE_SECONDS = 0.5  # of processor time; a text of _PROBE_CHARACTERS takes less than a millisecond
# Patterns that take exponential time reach the library's own limit in 64 characters, those that take cubic time in 512.
_PROBE_CHARACTERS = (64, 512)
_PROBED = "a b1.\n-é中"  # letters, blanks, digits, marks
_MOST_PROBED = 32  # characters of the file's own patterns
SIMPLER = (
    "write the patterns of its normalizer and pre_tokenizer without nested repeats, as a++ in place of (a+)+"
)
_PARTS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}


def problem_of(tree: Mapping[str, Any]) -> str:
    """What is wrong with the description of a tokenizer, and what to do; nothing where its steps are bounded."""
    longest = tree["model"].get("max_input_chars_per_word") or 0
    if longest > LONGEST_WORDPIECE:
        return (
            f"model.max_input_chars_per_word = {longest}, but a word takes time cubic in its length; set it to "
            f"{LONGEST_WORDPIECE} or less (published tokenizers have 100)"
        )
    for part in _PARTS:
        growth = 1
        steps = list(_steps(tree.get(part)))
        if len(steps) > MOST_STEPS:
            return (
                f"{part} has {len(steps)} steps, and each takes time; the limit is {MOST_STEPS}: remove some"
            )
        for step in steps:
            growth *= _growth(step)
            if growth > MOST_GROWTH:
                return (
                    f"{part} may make {growth:,} characters of one up to its step {step['type']}; the limit is "
                    f"{MOST_GROWTH}: remove or shorten its replacements"
                )
    return ""


def slow_text(library: tokenizers.Tokenizer, tree: Mapping[str, Any]) -> str:
    """What is wrong with the patterns of a tokenizer, found by encoding short texts of few characters; nothing where
    they encode at once."""
    patterns = "".join(_patterns(tree))
    own = dict.fromkeys(re.sub(r"[^\w\s]", "", patterns))
    letters = "".join(dict.fromkeys([*_PROBED, *list(own)[:_MOST_PROBED]]))
    # The library skips a text that lacks a letter of which the pattern says that it must come: all stand at the end.
    end = "\0" + "".join(own)
    for size in _PROBE_CHARACTERS:
        for text in (letter * size + end for letter in letters):
            begin = time.thread_time()
            try:
                library.encode(text, add_special_tokens=False)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # a panic of the library is no Exception
                return f"{size} times {text[0]!r} cannot be encoded ({error}); {SIMPLER}"
            if (seconds := time.thread_time() - begin) > PROBE_SECONDS:
                return f"{size} times {text[0]!r} take {seconds:.1f} s to encode; {SIMPLER}"
    return ""


def _steps(step: Any) -> Iterator[Mapping[str, Any]]:
    """The steps of a normalizer, pre-tokenizer or decoder, those of sequences one by one."""
    if not isinstance(step, Mapping):
        return
    if step.get("type") != "Sequence":
        yield step
    for inner in _PARTS.values():
        for one in step.get(inner) or ():
            yield from _steps(one)


def _growth(step: Mapping[str, Any]) -> int:
    """Characters that a step may make of one."""
    match step.get("type"):
        case "Replace":
            pattern, content = step.get("pattern"), len(step.get("content") or "")
            if isinstance(pattern, Mapping) and pattern.get("String"):
                return max(1, -(-content // len(pattern["String"])))
            return 1 + content  # a pattern may match between any two characters
        case "Prepend":
            return max(1, len(step.get("prepend") or ""))  # of a text of one character or more
        case "ByteLevel":
            return 4  # a character has up to four bytes
        case "BertNormalizer":
            return 3  # blanks around an ideograph
        case _:
            return 1


def _patterns(tree: Mapping[str, Any]) -> Iterator[str]:
    for part in _PARTS:
        for step in _steps(tree.get(part)):
            pattern = step.get("pattern")
            if isinstance(pattern, Mapping):
                yield from (one for one in pattern.values() if isinstance(one, str))
