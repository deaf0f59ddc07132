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

# Letters and digits of another width are written as usual; ftfy would take the full-width punctuation of Chinese and
# Japanese for ASCII's too, and their texts have no other.
_WIDTHS = {code: usual for code, usual in WIDTH_MAP.items() if not usual.isascii() or usual.isalnum() or usual == " "}
# What is repaired besides mis-decoded text: C1 controls, odd line ends, half characters, ligatures, other widths.
# A text without these and without mis-decoded words is left as it is, at a twentieth of the time.
REPAIRED_LETTERS = frozenset(
    map(chr, (*range(0x80, 0xA0), 0x2028, 0x2029, *range(0xD800, 0xE000), *LIGATURES, *_WIDTHS))
)
# Every sign of mis-decoded text that ftfy knows is shorter than this and has, side by side, two characters beyond
# ASCII; or it has a C1 control or one of four letters. It can also come to light where a control is taken out.
_LONGEST_SIGN, _SIGNS = 8, "ŒœÃÂ"
_BAD = re.compile(BADNESS_RE.pattern, BADNESS_RE.flags | re.MULTILINE)
_ENDS_OF_LINES = str.maketrans("\v\f", "\n\n")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


# Normalisation sorts each run of combining marks, in time quadratic in its length. No language needs so many: the
# Stream-Safe Text Format of UAX #15 allows runs of 30.
MOST_MARKS = 30
# Text that was decoded wrongly n times is about 2**n times as long, so no honest text needs so many rounds.
MOST_ROUNDS = 16
_ANY_RUN = 1_000_000_000


class NotTidied(ValueError):
    """Tidying a text would take longer than its size allows. The message is the reason for which it is dropped.

    remedy: the setting of `curate`, and a value, under which no text is dropped for this reason, if there is one.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.remedy = remedy


def tidy(text: str, *, longest_run: int | None = None) -> str:
    """Repair encoding damage (ftfy), normalise to NFC, remove control characters and soft hyphens, collapse blanks, and
    leave one empty line at most.

    The rounds are repeated until nothing changes: what one round removes or composes can bring together what then
    looks damaged. longest_run: how often a character other than a blank may follow itself, if that is limited.
    Raises NotTidied for text that exceeds this, MOST_MARKS or MOST_ROUNDS.
    """
    for _ in range(MOST_ROUNDS):
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
    raise NotTidied(f"encoding damage not repaired after {MOST_ROUNDS} rounds")


def _require_short_runs(text: str, longest_run: int | None = None) -> None:
    if longest_run is None and text.isascii():
        return
    marks, equal = longest_runs(text, _marks())
    if marks > MOST_MARKS:
        raise NotTidied(f"over {MOST_MARKS} combining marks in a row")
    if longest_run is not None and equal > longest_run:
        raise NotTidied(f"over {longest_run} times one character in a row", f"extract.longest_run={_ANY_RUN}")


def _repaired(text: str) -> str:
    """Let ftfy repair the lines that look damaged; it looks at single lines, too.

    Entities stay: extraction has read those of the page, and what is left of them is meant. So do vertical tabs and
    form feeds, as ends of lines: ftfy would drop them, and glue what they part. ftfy would also normalise; here it is
    done between its rounds, once the marks have been counted.
    """
    text = text.translate(_ENDS_OF_LINES)
    for _ in range(MOST_ROUNDS):
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
    raise NotTidied(f"encoding damage not repaired after {MOST_ROUNDS} rounds")


def looks_damaged(text: str) -> bool:
    """Return whether ftfy may repair something: an odd character, or what its `is_bad` calls mis-decoded.

    Its pattern looks at every character of each line; here it is asked only where a sign of damage can be.
    """
    odd, suspects = beyond_ascii(text, _kinds(), 2 * _LONGEST_SIGN)
    return odd or any(_is_bad(text[max(start - _LONGEST_SIGN, 0) : end + _LONGEST_SIGN]) for start, end in suspects)


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
