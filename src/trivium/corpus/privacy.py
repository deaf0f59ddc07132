"""Personal data in a text: e-mail addresses, telephone numbers, IP addresses, secret keys; masked or dropped.

The patterns prefer missing a number to mistaking one: a telephone number needs a country code or a separated form
of ten digits; an IP address must be one; a key must have the form its issuer documents.
"""

import ipaddress
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from trivium.corpus.config import PrivacyConfig
from trivium.corpus.document import Document
from trivium.corpus.steps import Drop, Keep, Step, Verdict, noted

_EMAIL = re.compile(
    r"(?<![\w.+-])[\w.+-]{1,64}@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,8}[A-Za-z]{2,24}(?![\w-])"
)
_PHONE = re.compile(
    r"(?<![\w.+-])(?:"
    r"\+\d{1,3}(?:[ .-]?(?:\(\d{1,4}\)|\d{1,4})){2,5}"  # +49 (89) 123 4567
    r"|(?:1[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}"  # (212) 555-0123
    r")(?![\w-]|\.\d)"
)
_IPV4 = r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w]|\.\d)"
_IPV6 = r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:.])"
_IP = re.compile(f"{_IPV4}|{_IPV6}")
_KEY = re.compile(
    r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[\s\S]{1,8000}?-----END [A-Z ]{0,30}PRIVATE KEY-----"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"  # Amazon
    r"|\bgh[pousr]_[A-Za-z0-9]{36,255}\b|\bgithub_pat_\w{50,255}\b"  # GitHub
    r"|\bAIza[0-9A-Za-z_-]{35}(?![\w-])"  # Google
    r"|\bxox[abprs]-[0-9A-Za-z-]{10,250}\b"  # Slack
    r"|\b[sr]k_live_[0-9A-Za-z]{16,250}\b"  # Stripe
    r"|\beyJ[\w-]{10,2000}\.eyJ[\w-]{10,4000}\.[\w-]{10,2000}"  # JSON web token
)
_MIN_DIGITS, _MAX_DIGITS = 8, 15  # of an international number (E.164: at most 15)
KINDS = ("key", "email", "ip", "phone")  # in this order: what is masked is not looked at again


def privacy_step(config: PrivacyConfig) -> Step:
    """The step that masks or drops by kind; metadata gains `privacy`: how many of each kind were found."""

    def judge(document: Document) -> Verdict:
        text, found = masked(document.text, config)
        dropped = next((kind for kind in KINDS if found[kind] and getattr(config, kind) == "drop"), None)
        if dropped:
            return Drop(f"holds {dropped}")
        if not found:
            return Keep(document)
        return Keep(noted(replace(document, text=text), privacy=dict(sorted(found.items()))))

    return Step("privacy", judge)


def masked(text: str, config: PrivacyConfig) -> tuple[str, Counter[str]]:
    """The text with every kind that is not kept replaced by its mask (`[EMAIL]`), and the finds of each kind."""
    found: Counter[str] = Counter()
    looks: dict[str, tuple[re.Pattern[str], str, Callable[[str], bool]]] = {
        "key": (_KEY, "", lambda _: True),
        "email": (_EMAIL, "@", lambda _: True),
        "ip": (_IP, "", lambda match: _is_address(match, spare=config.spare_private_ips)),
        "phone": (_PHONE, "", _is_number),
    }
    for kind in KINDS:
        if getattr(config, kind) == "keep":
            continue
        pattern, needs, valid = looks[kind]
        if needs and needs not in text:
            continue

        def mask(match: re.Match[str], kind: str = kind, valid: Callable[[str], bool] = valid) -> str:
            if not valid(match[0]):
                return match[0]
            found[kind] += 1
            return f"[{kind.upper()}]"

        text = pattern.sub(mask, text)
    return text, found


def _is_address(text: str, *, spare: bool) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return address.is_global or not spare


def _is_number(text: str) -> bool:
    return _MIN_DIGITS <= sum(map(str.isdigit, text)) <= _MAX_DIGITS
