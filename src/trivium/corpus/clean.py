"""Text made plain: encoding damage repaired, control characters gone, blanks and empty lines collapsed."""

import re
import unicodedata

import ftfy
from ftfy.badness import is_bad
from ftfy.chardata import LIGATURES, WIDTH_MAP

_BLANKS = re.compile(r"[ \t\u00a0]+")
_GAPS = re.compile(r" ?\n ?(?:\n ?)+")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufeff\u206a-\u206f\ufff9-\ufffc]")
# What ftfy repairs besides mis-decoded text: C1 controls, odd line ends, half characters, ligatures, full-width
# letters. A text without these and without mis-decoded words is left as it is, at a tenth of the time.
_ODD = re.compile("[\x80-\x9f\u2028\u2029\ud800-\udfff" + "".join(map(chr, (*LIGATURES, *WIDTH_MAP))) + "]")


def tidy(text: str) -> str:
    """Encoding damage repaired (ftfy), NFC, no control characters, blanks collapsed, one empty line at most."""
    if not text.isascii():
        if _ODD.search(text) or is_bad(text):
            text = ftfy.fix_text(text, normalization="NFC", uncurl_quotes=False)
        else:
            text = unicodedata.normalize("NFC", text)
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _GAPS.sub("\n\n", _BLANKS.sub(" ", _CONTROL.sub("", text))).strip()
