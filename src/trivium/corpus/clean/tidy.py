"""Text normalisation: repair mojibake, remove control characters, collapse blanks and empty lines."""

import re
import unicodedata
from functools import lru_cache

import ftfy
import numpy as np
from ftfy.badness import BADNESS_RE
from ftfy.chardata import CONTROL_CHARS, LIGATURES, WIDTH_MAP

from trivium.corpus.kernels.characters import CODE_POINTS
from trivium.corpus.kernels.tidiness import MARK, ODD, SIGN, Kinds, beyond_ascii, longest_runs, plain_blanks

# Letters and digits of another width become ordinary ones. ftfy would also replace full-width punctuation by ASCII's,
# but Chinese and Japanese texts have no other.
_WIDTHS = {code: usual for code, usual in WIDTH_MAP.items() if not usual.isascii() or usual.isalnum() or usual == " "}
# What is repaired besides mis-decoded text: C1 controls, odd line ends, lone surrogates, ligatures, other widths.
# A text without these and without mis-decoded words skips the repair, which takes a twentieth of the time.
REPAIRED_LETTERS = frozenset(
    map(chr, (*range(0x80, 0xA0), 0x2028, 0x2029, *range(0xD800, 0xE000), *LIGATURES, *_WIDTHS))
)
# Every sign of mis-decoded text that ftfy knows is shorter than this, and has two adjacent characters beyond ASCII, a
# C1 control, or one of four letters. Removing a control may also create one.
_MAX_SIGN, _SIGNS = 8, "ŒœÃÂ"
_BAD = re.compile(BADNESS_RE.pattern, BADNESS_RE.flags | re.MULTILINE)
_ENDS_OF_LINES = str.maketrans("\v\f", "\n\n")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
# Normalisation sorts each run of combining marks, in quadratic time. The Stream-Safe Text Format of UAX #15 allows
# runs of 30, and no language needs more.
MAX_COMBINING_MARKS = 30
# Text that was decoded wrongly n times is about 2**n times as long, so no natural text needs this many rounds.
MAX_REPAIR_ROUNDS = 16


class NotTidied(ValueError):
    """Tidying a text would take longer than its size allows. The message is the reason to drop it.

    remedy: a setting of `curate` and a value with which no text is dropped for this reason, or "".
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.remedy = remedy


def tidy(text: str, *, longest_run: int | None = None) -> str:
    """Repair encoding damage (ftfy), normalise to NFC, remove control characters and soft hyphens, collapse blanks, and
    leave at most one empty line.

    This is repeated until nothing changes, because removed or composed characters can join what then looks damaged.
    longest_run: how often a character other than a blank may follow itself, if that is limited. Raises NotTidied for
    text that exceeds this, MAX_COMBINING_MARKS or MAX_REPAIR_ROUNDS.
    """
    for _ in range(MAX_REPAIR_ROUNDS):
        if text.isascii():
            plain = plain_blanks(text)
        else:
            repaired = _repaired(text) if looks_damaged(text) else text
            _require_short_runs(repaired)
            plain = plain_blanks(unicodedata.normalize("NFC", repaired))
        if plain == text or text.isascii():
            _require_short_runs(plain, longest_run)
            return plain
        text = plain
    raise NotTidied(f"encoding damage not repaired after {MAX_REPAIR_ROUNDS} rounds")


def _require_short_runs(text: str, longest_run: int | None = None) -> None:
    if longest_run is None and text.isascii():
        return
    marks, equal = longest_runs(text, _marks())
    if marks > MAX_COMBINING_MARKS:
        raise NotTidied(f"over {MAX_COMBINING_MARKS} combining marks in a row")
    if longest_run is not None and equal > longest_run:
        raise NotTidied(f"over {longest_run} times one character in a row", "extract.longest_run=1000000000")


def _repaired(text: str) -> str:
    """Let ftfy repair the lines that look damaged.

    Entities stay, because extraction has decoded those of the page. Vertical tabs and form feeds become ends of lines,
    whereas ftfy would remove them and join what they separate. Normalisation is done here, between ftfy's rounds, after
    the marks have been counted.
    """
    text = text.translate(_ENDS_OF_LINES)
    for _ in range(MAX_REPAIR_ROUNDS):
        repaired = "".join(
            ftfy.fix_text(
                line, normalization=None, uncurl_quotes=False, unescape_html=False, fix_character_width=False
            ).translate(_WIDTHS)
            if not line.isascii() and looks_damaged(line)
            else line
            for line in _LINE.findall(text)
        )
        _require_short_runs(repaired)
        repaired = unicodedata.normalize("NFC", repaired)
        if repaired == text:
            return text
        text = repaired
    raise NotTidied(f"encoding damage not repaired after {MAX_REPAIR_ROUNDS} rounds")


def looks_damaged(text: str) -> bool:
    """Return whether ftfy may repair something: an odd character, or what its `is_bad` calls mis-decoded.

    ftfy's pattern examines every character of each line. Here it is applied only where a sign of damage can be.
    """
    odd, suspects = beyond_ascii(text, _kinds(), 2 * _MAX_SIGN)
    return odd or any(_is_bad(text[max(start - _MAX_SIGN, 0) : end + _MAX_SIGN]) for start, end in suspects)


def _is_bad(piece: str) -> bool:
    if _BAD.search(piece):
        return True
    without_controls = piece.translate(CONTROL_CHARS)
    return without_controls != piece and bool(_BAD.search(without_controls))


@lru_cache(maxsize=1)
def _kinds() -> Kinds:
    kinds = np.zeros(CODE_POINTS, np.uint8)
    kinds[[*map(ord, _SIGNS), *CONTROL_CHARS]] = SIGN
    kinds[list(map(ord, REPAIRED_LETTERS))] = ODD
    kinds.flags.writeable = False
    return kinds


@lru_cache(maxsize=1)
def _marks() -> Kinds:
    """Return which code points have a canonical combining class other than 0."""
    kinds = np.fromiter(map(bool, map(unicodedata.combining, map(chr, range(CODE_POINTS)))), np.uint8, CODE_POINTS)
    kinds *= MARK
    kinds.flags.writeable = False
    return kinds
