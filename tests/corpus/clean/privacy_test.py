"""Laws of privacy: what is personal is masked or dropped and counted, what only looks like it stays."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.corpus.clean import privacy
from trivium.corpus.clean.privacy import KINDS, privacy_step
from trivium.corpus.config import PrivacyConfig
from trivium.corpus.document import Document
from trivium.corpus.steps import Drop, Keep

PERSONAL = {
    "email": ["jane.doe+news@mail.example.co.uk", "a_b@x.org", "jürgen@x.de", "O.Neil-1@sub.a-b.museum"],
    "phone": [
        "+49 89 1234567", "(212) 555-0123", "212-555-0123", "1-800-555-0199", "+1 (212) 555-0123",
        "+33 1 23 45 67 89",
    ],
    "ip": ["8.8.8.8", "2606:4700:4700::1111", "93.184.216.34"],
    "key": [
        "AKIA" + "ABCDEFGHIJ123456",
        "ghp_" + "a1B2" * 9,
        "AIza" + "x" * 35,
        "-----BEGIN RSA PRIVATE KEY-----\nMIIabc\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nlQOYBF\n=aB1c\n-----END PGP PRIVATE KEY BLOCK-----",
    ],
}  # fmt: skip
HARMLESS = [
    "version 1.2.3.4.5", "at 12:34:56 today", "192.168.0.1 and 127.0.0.1 are local", "ISBN 978-3-16-148410-0",
    "pages 100-200 of 2019-2020", "3.14159265358979", "user@localhost", "@handle and a@b", "999.999.999.999",
    "2021-01-15T00:00:00", "std::vector::size", "the year 1984 and 10 000 000 people", "AKIAshort", "1-2-3",
    "a::b in C++, and cafe::add(1)",
]  # fmt: skip


def masked(text, config):
    """A text as its document comes out, and the finds of each kind."""
    verdict = privacy_step(config).judge(Document("a", text, "s"))
    return verdict.document.text, verdict.document.metadata.get("privacy", {})


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in PERSONAL.items() for text in texts])
def test_every_form_is_masked_and_counted_once(kind, text):
    for around in ("{}", "call {} now", "see ({}), please.", "it is {}.", "first:\n{}\nlast"):
        found_text, found = masked(around.format(text), PrivacyConfig())
        assert found == {kind: 1}
        assert found_text == around.format(f"[{kind.upper()}]")


@pytest.mark.parametrize("around", ["メールは{}まで", "电话{}号", "ที่{}ครับ", "주소는 {}으로", "ຢູ່{}ແລະ"])
@pytest.mark.parametrize("kind", ["email", "phone", "ip"])
def test_a_word_of_a_script_without_blanks_may_stand_beside(kind, around):
    for text in PERSONAL[kind]:
        assert masked(around.format(text), PrivacyConfig())[0] == around.format(f"[{kind.upper()}]")


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_looks_personal_stays(text):
    assert masked(text, PrivacyConfig()) == (text, {})


def test_private_addresses_are_masked_when_asked():
    assert masked("192.168.0.1", PrivacyConfig(spare_private_ips=False))[0] == "[IP]"


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_masked_dropped_or_kept_as_configured(kind):
    document = Document("a", f"here it is: {PERSONAL[kind][0]}", "s")
    assert privacy_step(PrivacyConfig(**{kind: "drop"})).judge(document) == Drop(f"holds {kind}")
    kept = privacy_step(PrivacyConfig(**{kind: "keep"})).judge(document)
    assert isinstance(kept, Keep) and kept.document == document
    verdict = privacy_step(PrivacyConfig()).judge(document)
    assert isinstance(verdict, Keep)
    assert verdict.document.metadata["privacy"] == {kind: 1}


@given(st.text(max_size=300))
def test_masking_what_is_masked_changes_nothing(text):
    once, found = masked(text, PrivacyConfig())
    assert masked(once, PrivacyConfig())[0] == once
    assert (once == text) == (not found)


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_with_a_match_is_passed_over(kind):
    pattern, is_possible = KINDS[kind]

    @settings(max_examples=200, deadline=None)
    @given(st.from_regex(pattern) | st.text("0123456789abF:.-() +@x\n٣é", max_size=60))
    def check(text):
        matches = [m[0] for m in pattern.finditer(text) if kind != "phone" or privacy._is_number(m[0])]
        assert is_possible(text) or not matches

    check()


# what the pattern of telephone numbers says, with every way of trying it
_PLAINLY = re.compile(
    rf"(?<![.+-])(?<!{privacy._WORD})(?:\+\d{{1,3}}(?:[ .-]?(?:\(\d{{1,4}}\)|\d{{1,4}})){{2,5}}"
    rf"|(?:1[ .-])?(?:\(\d{{3}}\) ?|\d{{3}}[ .-])\d{{3}}[ .-]\d{{4}})(?!{privacy._WORD}|-|\.\d)"
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.text("0123+(). -", max_size=30) | st.from_regex(_PLAINLY), max_size=4).map(" ".join))
def test_the_pattern_of_telephone_numbers_finds_the_same_as_with_backtracking(text):
    plainly, found = (
        [m.span() for m in pattern.finditer(text) if privacy._is_number(m[0])] for pattern in (_PLAINLY, privacy._PHONE)
    )
    assert found == plainly


def test_no_key_but_a_whole_one_is_masked():
    pem = "-----BEGIN PRIVATE KEY-----\nMIIabc-def\n-----END PRIVATE KEY-----"
    token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"
    for key in (pem, token):
        assert masked(f"a {key} b", PrivacyConfig())[0] == "a [KEY] b"
        assert masked(f"a {key[:-30]} b", PrivacyConfig())[0] != "a [KEY] b"
    opening = pem[:40]
    assert masked(opening + pem, PrivacyConfig())[0] == opening + "[KEY]"
