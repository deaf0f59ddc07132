"""Personal data in a text: e-mail addresses, telephone numbers, IP addresses, secret keys; masked or dropped.

The patterns rather miss a number than mistake one: a telephone number needs a country code or ten digits in a
separated form, and a key needs the form that its issuer documents. They are slow, so a kernel first selects the texts
that may contain a kind.
"""

import ipaddress
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from trivium.corpus.config import PrivacyConfig
from trivium.corpus.document import Document
from trivium.corpus.kernels.personal import EMAIL, IP, PHONE, may_be_personal
from trivium.corpus.kernels.texts import joined
from trivium.corpus.steps import Drop, Keep, Step, Verdict, batched_step, noted

_EMAIL = re.compile(
    r"(?<![\w.+-])[\w.+-]{1,64}@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,8}[A-Za-z]{2,24}(?![\w-])"
)
# Possessive (`++`), because with backtracking, hostile texts would take seconds.
_PHONE = re.compile(
    r"(?<![\w.+-])(?:"
    r"\+\d{1,3}+(?:[ .-]?(?:\(\d{1,4}\)|\d{1,4}+)){2,5}"  # +49 (89) 123 4567
    r"|(?:1[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}"  # (212) 555-0123
    r")(?![\w-]|\.\d)"
)
_IPV4 = r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w]|\.\d)"
_IPV6 = r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:.])"
_IP = re.compile(f"{_IPV4}|{_IPV6}")
_KEY = re.compile(
    r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----(?:[^-]++|-(?!----))++-----END [A-Z ]{0,30}PRIVATE KEY-----"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"  # Amazon
    r"|\bgh[pousr]_[A-Za-z0-9]{36,255}\b|\bgithub_pat_\w{50,255}\b"  # GitHub
    r"|\bAIza[0-9A-Za-z_-]{35}(?![\w-])"  # Google
    r"|\bxox[abprs]-[0-9A-Za-z-]{10,250}\b"  # Slack
    r"|\b[sr]k_live_[0-9A-Za-z]{16,250}\b"  # Stripe
    # A JSON web token, only the first in a run of its characters, so that no run is read twice. `kept` precedes it.
    r"|(?<![\w-])(?P<kept>(?:(?!\beyJ)[\w-])*+)eyJ[A-Za-z0-9_-]{10,2000}+\.eyJ[A-Za-z0-9_-]{10,4000}+\.[A-Za-z0-9_-]{10,2000}"
)
# Every key contains one of these.
_KEY_SIGNS = (
    *("-----BEGIN ", "AKIA", "ASIA", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "AIza", "xox"),
    *("sk_live_", "rk_live_", "eyJ"),
)
_ALLOCATED = ipaddress.ip_network("2000::/3")
_MIN_DIGITS, _MAX_DIGITS = 8, 15  # digits of an international number (E.164: at most 15)
KINDS = ("key", "email", "ip", "phone")  # in this order, because masked text is not searched again


def privacy_step(config: PrivacyConfig) -> Step:
    """Return the step that masks or drops by kind; metadata gains `privacy`, the number of each kind."""

    def verdict(document: Document, bits: int) -> Verdict:
        text, found = _masked(document.text, config, bits)
        dropped = next((kind for kind in KINDS if found[kind] and getattr(config, kind) == "drop"), None)
        if dropped:
            return Drop(f"holds {dropped}", f"privacy.{dropped}=mask")
        if not found:
            return Keep(document)
        return Keep(noted(replace(document, text=text), privacy=dict(sorted(found.items()))))

    def judge_all(documents: Sequence[Document]) -> list[Verdict]:
        bits = may_be_personal(joined([document.text for document in documents]))
        return list(map(verdict, documents, bits.tolist()))

    return batched_step("privacy", judge_all)


def _masked(text: str, config: PrivacyConfig, bits: int) -> tuple[str, Counter[str]]:
    found: Counter[str] = Counter()

    def is_personal(kind: str, match: str) -> bool:
        if kind == "ip":
            return _is_address(match, spare=config.spare_private_ips)
        return kind != "phone" or _is_number(match)

    for kind, pattern, possible in (
        ("key", _KEY, any(sign in text for sign in _KEY_SIGNS)),
        ("email", _EMAIL, bits & EMAIL),
        ("ip", _IP, bits & IP),
        ("phone", _PHONE, bits & PHONE),
    ):

        def mask(match: re.Match[str], kind: str = kind) -> str:
            if not is_personal(kind, match[0]):
                return match[0]
            found[kind] += 1
            return f"{match.groupdict().get('kept') or ''}[{kind.upper()}]"

        if possible and getattr(config, kind) != "keep":
            text = pattern.sub(mask, text)
    return text, found


def _is_address(text: str, *, spare: bool) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if address.is_global:  # `a::b` is a name in C++, so version 6 only counts within what is allocated
        return address.version == 4 or address in _ALLOCATED
    return not spare


def _is_number(text: str) -> bool:
    return _MIN_DIGITS <= sum(map(str.isdigit, text)) <= _MAX_DIGITS
