"""Personal data in a text: e-mail addresses, telephone numbers, IP addresses, secret keys; masked or dropped.

The patterns rather miss a number than mistake one: a telephone number needs a country code or ten digits in a
separated form, and a key needs the form that its issuer documents. They are slow, so signs that every match contains
are looked for first.
"""

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from trivium.corpus.config import PrivacyConfig
from trivium.corpus.document import Document
from trivium.corpus.steps import Drop, Keep, Step, Verdict, noted

# A letter, digit or underscore with which a number or an address would go on. In Thai, Lao, Tibetan, Burmese, Khmer,
# Chinese, Japanese and Korean, words stand beside them without a blank, so their letters do not count.
_WORD = (
    r"[^\W\u0e01-\u0e4f\u0e81-\u0ecf\u0f40-\u0fbc\u1000-\u103f\u1050-\u108f\u1100-\u11ff\u1780-\u17d3"
    r"\u3005-\u9fff\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_EMAIL = re.compile(
    rf"(?<![.+-])(?<!{_WORD})(?:{_WORD}|[.+-]){{1,64}}@"
    rf"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{{0,61}}[A-Za-z0-9])?\.){{1,8}}[A-Za-z]{{2,24}}(?!{_WORD}|-)"
)
# Possessive (`++`), because with backtracking, hostile texts would take seconds.
_PHONE = re.compile(
    rf"(?<![.+-])(?<!{_WORD})(?:"
    r"\+\d{1,3}+(?:[ .-]?(?:\(\d{1,4}\)|\d{1,4}+)){2,5}"  # +49 (89) 123 4567
    r"|(?:1[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}"  # (212) 555-0123
    rf")(?!{_WORD}|-|\.\d)"
)
_IPV4 = rf"(?<!\.)(?<!{_WORD})(?:\d{{1,3}}\.){{3}}\d{{1,3}}(?!{_WORD}|\.\d)"
_IPV6 = rf"(?<![:.])(?<!{_WORD})(?:[0-9A-Fa-f]{{0,4}}:){{2,7}}[0-9A-Fa-f]{{0,4}}(?!{_WORD}|:|\.\w)"
_IP = re.compile(f"{_IPV4}|{_IPV6}")
_KEY = re.compile(
    r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----(?:[^-]++|-(?!----))++"
    r"-----END [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"  # Amazon
    r"|\bgh[pousr]_[A-Za-z0-9]{36,255}\b|\bgithub_pat_\w{50,255}\b"  # GitHub
    r"|\bAIza[0-9A-Za-z_-]{35}(?![\w-])"  # Google
    r"|\bxox[abprs]-[0-9A-Za-z-]{10,250}\b"  # Slack
    r"|\b[sr]k_live_[0-9A-Za-z]{16,250}\b"  # Stripe
    # A JSON web token, only the first in a run of its characters, so that no run is read twice. `kept` precedes it.
    r"|(?<![\w-])(?P<kept>(?:(?!\beyJ)[\w-])*+)eyJ[A-Za-z0-9_-]{10,2000}+\.eyJ[A-Za-z0-9_-]{10,4000}+\.[A-Za-z0-9_-]{10,2000}"
)
_ALLOCATED = ipaddress.ip_network("2000::/3")
_MIN_DIGITS, _MAX_DIGITS = 8, 15  # digits of an international number (E.164: at most 15)
_KEY_SIGNS = (
    *("-----BEGIN ", "AKIA", "ASIA", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "AIza", "xox"),
    *("sk_live_", "rk_live_", "eyJ"),
)
_DIGITS = re.compile(rf"\d(?:[ .()+-]{{0,3}}+\d){{{_MIN_DIGITS - 1}}}")
_GROUPS = re.compile(r"\.\d{1,3}\.\d{1,3}\.|:[0-9A-Fa-f]{0,4}:")
# The kinds in the order in which they are masked, because masked text is not searched again: the pattern of each, and
# whether a text has what every text with a match has.
KINDS: Mapping[str, tuple[re.Pattern[str], Callable[[str], object]]] = {
    "key": (_KEY, lambda text: any(sign in text for sign in _KEY_SIGNS)),
    "email": (_EMAIL, lambda text: "@" in text),
    "ip": (_IP, _GROUPS.search),
    "phone": (_PHONE, _DIGITS.search),
}


def privacy_step(config: PrivacyConfig) -> Step:
    """Return the step that masks or drops by kind; metadata gains `privacy`, the number of each kind."""

    def judge(document: Document) -> Verdict:
        text, found = _masked(document.text, config)
        dropped = next((kind for kind in KINDS if found[kind] and getattr(config, kind) == "drop"), None)
        if dropped:
            return Drop(f"holds {dropped}", f"privacy.{dropped}=mask")
        if not found:
            return Keep(document)
        return Keep(noted(replace(document, text=text), privacy=dict(sorted(found.items()))))

    return Step("privacy", judge)


def _masked(text: str, config: PrivacyConfig) -> tuple[str, Counter[str]]:
    found: Counter[str] = Counter()

    def is_personal(kind: str, match: str) -> bool:
        if kind == "ip":
            return _is_address(match, spare=config.spare_private_ips)
        return kind != "phone" or _is_number(match)

    for kind, (pattern, is_possible) in KINDS.items():

        def mask(match: re.Match[str], kind: str = kind) -> str:
            if not is_personal(kind, match[0]):
                return match[0]
            found[kind] += 1
            return f"{match.groupdict().get('kept') or ''}[{kind.upper()}]"

        if getattr(config, kind) != "keep" and is_possible(text):
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
