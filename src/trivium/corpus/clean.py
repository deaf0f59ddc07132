"""Text made plain: encoding damage repaired, control characters gone, blanks and empty lines collapsed."""

import re
import unicodedata

import ftfy
from ftfy.badness import BADNESS_RE
from ftfy.chardata import LIGATURES, WIDTH_MAP

from trivium.corpus.kernels.tidiness import plain_blanks

# What ftfy repairs besides mis-decoded text: C1 controls, odd line ends, half characters, ligatures, full-width
# letters. A text without these and without mis-decoded words is left as it is, at a tenth of the time.
_ODD = re.compile("[\x80-\x9f\u2028\u2029\ud800-\udfff" + "".join(map(chr, (*LIGATURES, *WIDTH_MAP))) + "]")
# Every sign of mis-decoded text that ftfy knows is shorter than this and has, side by side, two characters beyond
# ASCII; or it has a C1 control or one of four letters.
_LONGEST_SIGN = 8
_SUSPECT = re.compile("[^\x00-\x7f]{2,}|[ŒœÃÂ\x80-\x9f]")


def tidy(text: str) -> str:
    """Encoding damage repaired (ftfy), NFC, no control characters, blanks collapsed, one empty line at most."""
    if not text.isascii():
        if _ODD.search(text) or looks_misread(text):
            text = ftfy.fix_text(text, normalization="NFC", uncurl_quotes=False)
        else:
            text = unicodedata.normalize("NFC", text)
    return plain_blanks(text)


def looks_misread(text: str) -> bool:
    """As ftfy's `is_bad`, which looks at every character; this one looks where a sign of damage can be."""
    return any(
        BADNESS_RE.search(text, max(suspect.start() - _LONGEST_SIGN, 0), suspect.end() + _LONGEST_SIGN)
        for suspect in _SUSPECT.finditer(text)
    )
