"""Classes of characters, as defined by Python's str and re: blank, letter, part of a word, digit."""

import re
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Classes = NDArray[np.uint8]

BLANK, LETTER, WORD, DIGIT = 1, 2, 4, 8  # bits: str.isspace, str.isalpha, \w, \d
STOP, WEB_STOP, BULLET, ODD = (16, 32, 64, 128)  # ends of lines, in two lists; bullets; letters that fold into ASCII
# ends of a line of text as the quality rules and as FineWeb have it, and signs that begin an item of a list
STOPS = (".", "!", "?", '"', "'", "”", "’", ")", ":", ";", "…", ",")
WEB_STOPS = (".", "'", '"', "!", "?", "”", "’", "…")
BULLETS = ("-", "*", "•", "‣", "▪", "◦", "–")
# not ASCII, but equal to i, s or k where a pattern ignores case
ODD_LETTERS = ("\u0130", "\u0131", "\u017f", "\u212a")  # dotted I, dotless i, long s, Kelvin
CODE_POINTS = 0x110000
_ASSIGNED = 0x40000  # beyond it Unicode has no letters, digits or blanks


@lru_cache(maxsize=1)
def character_classes() -> Classes:
    """Return the bits of each code point, [0x110000]."""
    every = "".join(map(chr, range(_ASSIGNED)))
    table = np.zeros(CODE_POINTS, np.uint8)
    table[:_ASSIGNED] = LETTER * np.fromiter(map(str.isalpha, every), np.uint8, _ASSIGNED)
    for bit, pattern in ((BLANK, r"\s+"), (WORD, r"\w+"), (DIGIT, r"\d+")):
        for run in re.finditer(pattern, every):
            table[run.start() : run.end()] |= bit
    for bit, signs in ((STOP, STOPS), (WEB_STOP, WEB_STOPS), (BULLET, BULLETS), (ODD, ODD_LETTERS)):
        table[[ord(sign) for sign in signs]] |= bit
    table.flags.writeable = False
    return table
