"""Text made plain: encoding damage repaired, control characters gone, blanks and empty lines collapsed."""

import unicodedata
from functools import lru_cache

import ftfy
import numpy as np
from ftfy.badness import BADNESS_RE
from ftfy.chardata import LIGATURES, WIDTH_MAP

from trivium.corpus.kernels.characters import CODE_POINTS
from trivium.corpus.kernels.tidiness import ODD, SIGN, Kinds, beyond_ascii, plain_blanks

# What ftfy repairs besides mis-decoded text: C1 controls, odd line ends, half characters, ligatures, full-width
# letters. A text without these and without mis-decoded words is left as it is, at a twentieth of the time.
REPAIRED_LETTERS = frozenset(
    map(chr, (*range(0x80, 0xA0), 0x2028, 0x2029, *range(0xD800, 0xE000), *LIGATURES, *WIDTH_MAP))
)
# Every sign of mis-decoded text that ftfy knows is shorter than this and has, side by side, two characters beyond
# ASCII; or it has a C1 control or one of four letters.
_LONGEST_SIGN, _SIGNS = 8, "ŒœÃÂ"


def tidy(text: str) -> str:
    """Encoding damage repaired (ftfy), NFC, no control characters, blanks collapsed, one empty line at most."""
    if not text.isascii():
        if looks_damaged(text):
            text = ftfy.fix_text(text, normalization="NFC", uncurl_quotes=False)
        else:
            text = unicodedata.normalize("NFC", text)
    return plain_blanks(text)


def looks_damaged(text: str) -> bool:
    """Whether ftfy may repair something: an odd character, or what its `is_bad` calls mis-decoded.

    Its pattern looks at every character; here it is asked only where a sign of damage can be.
    """
    odd, suspects = beyond_ascii(text, _kinds())
    return odd or any(
        BADNESS_RE.search(text, max(start - _LONGEST_SIGN, 0), end + _LONGEST_SIGN) for start, end in suspects
    )


@lru_cache(maxsize=1)
def _kinds() -> Kinds:
    kinds = np.zeros(CODE_POINTS, np.uint8)
    kinds[list(map(ord, _SIGNS))] = SIGN
    kinds[list(map(ord, REPAIRED_LETTERS))] = ODD
    kinds.flags.writeable = False
    return kinds
