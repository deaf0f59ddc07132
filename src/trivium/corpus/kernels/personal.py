"""A fast test of which texts may contain an e-mail address, a telephone number or an IP address."""

import numpy as np
from numba import uint8, uint32

from trivium.corpus.kernels.cache import njit
from trivium.corpus.kernels.characters import DIGIT, Classes, character_classes
from trivium.corpus.kernels.texts import Bytes, Offsets, Texts
from trivium.corpus.kernels.words import code_point

EMAIL, PHONE, IP = 1, 2, 4  # bits
# Minimum counts in one run of such characters for a match of a pattern of corpus/clean/privacy.py: digits of a number
# with blanks, points, hyphens, brackets and plus signs; points of an IPv4 address; colons of an IPv6 address.
_PHONE_DIGITS, _ADDRESS_DOTS, _ADDRESS_COLONS = 8, 3, 2
_AT, _DOT, _COLON = uint32(ord("@")), uint32(ord(".")), uint32(ord(":"))
_IN_NUMBER, _IN_HEX, _OTHER = uint8(1), uint8(2), uint8(0)


def _ascii_kinds() -> Bytes:
    kinds = np.zeros(128, np.uint8)
    kinds[[ord(sign) for sign in " .-()+"]] |= _IN_NUMBER
    kinds[[ord(sign) for sign in "0123456789abcdefABCDEF:"]] |= _IN_HEX
    return kinds


_KINDS = _ascii_kinds()


def may_be_personal(texts: Texts) -> Bytes:
    """Return bits for each text, [texts]. A kind whose bit is missing has no match in the text."""
    bits = np.zeros(texts.num_texts, np.uint8)
    _may_be_personal(texts.data, texts.offsets, character_classes(), bits)
    return bits


@njit(cache=True, nogil=True)
def _may_be_personal(data: Bytes, offsets: Offsets, classes: Classes, bits: Bytes) -> None:
    for text in range(len(offsets) - 1):
        found = uint8(0)
        phone_digits = address_digits = dots = colons = 0  # in the current runs
        at, end = offsets[text], offsets[text + 1]
        while at < end:
            point, at = code_point(data, at)
            kind = _KINDS[point] if point < uint32(128) else _OTHER
            if classes[point] & DIGIT:
                phone_digits += 1
                address_digits += 1
                if phone_digits >= _PHONE_DIGITS:
                    found |= PHONE
            else:
                if point == _DOT:
                    dots += 1
                    if dots >= _ADDRESS_DOTS and address_digits >= _ADDRESS_DOTS:
                        found |= IP  # a last group of digits is not asked for
                else:
                    address_digits = dots = 0
                if not kind & _IN_NUMBER:
                    phone_digits = 0
            if point == _COLON:
                colons += 1
                if colons >= _ADDRESS_COLONS:
                    found |= IP
            elif not kind & _IN_HEX:
                colons = 0
            if point == _AT:
                found |= EMAIL
        bits[text] = found
