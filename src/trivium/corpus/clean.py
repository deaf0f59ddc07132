"""Text made plain: encoding damage repaired, control characters gone, blanks and empty lines collapsed."""

import re
import unicodedata
from functools import lru_cache

import ftfy
import numpy as np
from ftfy.badness import BADNESS_RE
from ftfy.chardata import CONTROL_CHARS, LIGATURES, WIDTH_MAP

from trivium.corpus.kernels.characters import CODE_POINTS
from trivium.corpus.kernels.tidiness import ODD, SIGN, Kinds, beyond_ascii, plain_blanks

# Letters and digits of another width are written as usual; ftfy would take the full-width punctuation of Chinese and
# Japanese for ASCII's too, and their texts have no other.
_WIDTHS = {
    code: usual for code, usual in WIDTH_MAP.items() if not usual.isascii() or usual.isalnum() or usual == " "
}
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


def tidy(text: str) -> str:
    """Encoding damage repaired (ftfy), NFC, no control characters or soft hyphens, blanks collapsed, one empty line at
    most.

    Repeated until nothing changes: what one round takes away or composes can bring together what then looks damaged.
    """
    while not text.isascii():
        repaired = _repaired(text) if looks_damaged(text) else text
        plain = plain_blanks(unicodedata.normalize("NFC", repaired))
        if plain == text:
            return plain
        text = plain
    return plain_blanks(text)


def _repaired(text: str) -> str:
    """ftfy's repair of the lines that look damaged; it too looks at lines one by one.

    Entities stay: extraction has read those of the page, and what is left of them is meant. So do vertical tabs and
    form feeds, as ends of lines: ftfy would drop them, and glue what they part.
    """
    return "".join(
        ftfy.fix_text(
            line, normalization="NFC", uncurl_quotes=False, unescape_html=False, fix_character_width=False
        ).translate(_WIDTHS)
        if not line.isascii() and looks_damaged(line)
        else line
        for line in _LINE.findall(text.translate(_ENDS_OF_LINES))
    )


def looks_damaged(text: str) -> bool:
    """Whether ftfy may repair something: an odd character, or what its `is_bad` calls mis-decoded.

    Its pattern looks at every character of each line; here it is asked only where a sign of damage can be.
    """
    odd, suspects = beyond_ascii(text, _kinds(), 2 * _LONGEST_SIGN)
    return odd or any(
        _is_bad(text[max(start - _LONGEST_SIGN, 0) : end + _LONGEST_SIGN]) for start, end in suspects
    )


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
