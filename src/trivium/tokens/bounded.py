"""Check that a third-party tokenizer encodes text in bounded time and memory.

Its patterns may backtrack exponentially. Its replacements may multiply the text: sixteen steps that each replace a
letter by two turn it into 65,536.
"""

import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers

# Maximum number of characters that all steps together may make of one. Published files reach 4 (a character as its
# bytes), and 2 for a pattern of several blanks.
MAX_GROWTH = 64
MAX_STEPS = 64  # published files have at most about 10
# The library takes time cubic in the length of a word that a WordPiece model looks up: 0.03 s for 1,024 characters.
# Published models allow 100.
MAX_WORDPIECE_CHARACTERS = 1024
PROBE_SECONDS = 0.5  # CPU time; a text of _PROBE_CHARACTERS normally takes less than a millisecond
# Exponential patterns reach the library's own limit within 64 characters, cubic ones within 512. Quadratic ones are
# accepted, as published tokenizers have some: that of DeepSeek-V2 takes 1 s for 16,384 blanks.
_PROBE_CHARACTERS = (64, 512, 2048)
_PROBED = "a b1.\n-é中"  # letters, blanks, digits and punctuation
_MAX_PROBED_CHARACTERS = 32  # taken from the file's own patterns
SIMPLER = "write the patterns of its normalizer and pre_tokenizer without nested repeats, as a++ in place of (a+)+"
_PARTS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}


def problem_of(tree: Mapping[str, Any]) -> str:
    """Return what is unbounded in a tokenizer's description and the remedy, or ""."""
    longest = tree["model"].get("max_input_chars_per_word") or 0
    if longest > MAX_WORDPIECE_CHARACTERS:
        return (
            f"model.max_input_chars_per_word = {longest}, but a word takes time cubic in its length; set it to "
            f"{MAX_WORDPIECE_CHARACTERS} or less (published tokenizers have 100)"
        )
    for part in _PARTS:
        growth = 1
        steps = list(_steps(tree.get(part)))
        if len(steps) > MAX_STEPS:
            return f"{part} has {len(steps)} steps, and each takes time; the limit is {MAX_STEPS}: remove some"
        for step in steps:
            growth *= _growth(step)
            if growth > MAX_GROWTH:
                return (
                    f"{part} may make {growth:,} characters of one up to its step {step['type']}; the limit is "
                    f"{MAX_GROWTH}: remove or shorten its replacements"
                )
    return ""


def slow_text(library: tokenizers.Tokenizer, tree: Mapping[str, Any]) -> str:
    """Return what is wrong with a tokenizer's patterns, found by encoding short repetitive texts, or ""."""
    patterns = "".join(_patterns(tree))
    own = dict.fromkeys(re.sub(r"[^\w\s]", "", patterns))
    letters = "".join(dict.fromkeys([*_PROBED, *list(own)[:_MAX_PROBED_CHARACTERS]]))
    # The library skips a text that lacks a character which the pattern requires, so all of them are appended.
    end = "\0" + "".join(own)
    for size in _PROBE_CHARACTERS:
        for letter in letters:
            begin = time.thread_time()
            try:
                library.encode(letter * size + end, add_special_tokens=False)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # a panic of the library is a BaseException
                return f"{size} times {letter!r} cannot be encoded ({error}); {SIMPLER}"
            if (seconds := time.thread_time() - begin) > PROBE_SECONDS:
                return f"{size} times {letter!r} take {seconds:.1f} s to encode; {SIMPLER}"
    return ""


def _steps(step: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the steps of a normalizer, pre-tokenizer or decoder, with sequences flattened."""
    if not isinstance(step, Mapping):
        return
    if step.get("type") != "Sequence":
        yield step
    for inner in _PARTS.values():
        for one in step.get(inner) or ():
            yield from _steps(one)


def _growth(step: Mapping[str, Any]) -> int:
    """Return the maximum number of characters that a step can make of one."""
    match step.get("type"):
        case "Replace":
            pattern, content = step.get("pattern"), len(step.get("content") or "")
            if isinstance(pattern, Mapping) and pattern.get("String"):
                return max(1, -(-content // len(pattern["String"])))
            return 1 + content  # a pattern can match between any two characters
        case "Prepend":
            return max(1, len(step.get("prepend") or ""))  # for a text of one character
        case "ByteLevel":
            return 4  # a character has up to four bytes in UTF-8
        case "BertNormalizer":
            return 3  # blanks are added around an ideograph
        case _:
            return 1


def _patterns(tree: Mapping[str, Any]) -> Iterator[str]:
    for part in _PARTS:
        for step in _steps(tree.get(part)):
            pattern = step.get("pattern")
            if isinstance(pattern, Mapping):
                yield from (one for one in pattern.values() if isinstance(one, str))
