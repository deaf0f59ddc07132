"""Laws of the quality rules: honest prose passes, each kind of junk breaks a named rule."""

import re

import pytest

from trivium.corpus.clean.language import language_step
from trivium.corpus.clean.quality import broken_rule, is_boilerplate, measure_all, quality_step
from trivium.corpus.clean.repetition import repetition_step
from trivium.corpus.config import LanguageConfig, QualityConfig, RepetitionConfig
from trivium.corpus.document import Document
from trivium.corpus.harvest.plant import boilerplate_text, foreign_text, low_quality_text
from trivium.corpus.steps import Drop, Keep
from trivium.seeds import generator_for

PROSE = """The station reads every page that was fetched and decides what becomes of it. A page that nobody wrote to
be read has no place among those that somebody did, and so the rules look at its words and at its lines.

Most of them were found by people who had looked at a great many pages. They ask whether the words have letters,
whether the lines end as sentences end, and whether the small words that hold a sentence together are there.

None of these rules understands a word of what it reads. That is why every one of them has a name, and why the
name is written down with each document that it sends away, so that anyone can see later what was lost and why."""


def rules(text):
    for step in (language_step(LanguageConfig()), quality_step(QualityConfig()), repetition_step(RepetitionConfig())):
        verdict = step.judge(Document("a", text, "s"))
        if isinstance(verdict, Drop):
            return verdict.reason
    return ""


def test_honest_prose_passes_every_rule_and_carries_its_figures():
    assert rules(PROSE) == ""
    verdict = quality_step(QualityConfig()).judge(Document("a", PROSE, "s"))
    assert isinstance(verdict, Keep)
    assert verdict.document.metadata["quality"]["words"] == len(PROSE.split())


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda t: t[:300], "under 512 characters"),
        (lambda t: t.replace("a", "a…"), "too many symbols"),
        (lambda t: t + " 12345" * 60, "too many words without letters"),
        (lambda t: t.replace(" a", "supercalifragilistic").replace(" t", "expialidocious"), "words too long"),
        (lambda t: " ".join(c for c in t if c.isalpha()), "words too short"),
        (lambda t: re.sub(r"[.,]", "", t), "too few lines end in punctuation"),
        (lambda t: t.replace(" ", ".\n"), "too many short lines"),
        (lambda t: "\n".join(f"- {line}" for line in t.split("\n") if line), "too many bullet lines"),
        (lambda t: "\n".join(f"{line}…" for line in t.split("\n") if line), "too many lines end in an ellipsis"),
        (lambda t: t + "\nPlease read our privacy policy to learn how we use cookies on this site.", "boilerplate"),
        (lambda t: re.sub(r"(?i)\b(the|be|to|of|and|that|have|with)\b", "all", t), "too few common words"),
    ],
)
def test_each_rule_is_broken_by_the_text_it_is_for(change, rule):
    assert broken_rule(measure_all([change(PROSE)])[0], QualityConfig()).reason == rule


@pytest.mark.parametrize("compose", [boilerplate_text, foreign_text, low_quality_text])
def test_composed_junk_breaks_some_rule(compose):
    passed = [n for n in range(60) if not rules(compose(generator_for(n, "junk")))]
    assert len(passed) <= 3


@pytest.mark.timeout(60)
@pytest.mark.parametrize("filler", [".", ",", "k.", "!"])
def test_a_line_that_is_nearly_a_counter_is_read_once_however_long(filler):
    line = "1" + filler * 500_000
    assert not is_boilerplate(f"{line}b")
    assert measure_all([f"{line}b"])[0].boilerplate_words == 0
    assert is_boilerplate(line)


def test_menu_words_inside_sentences_are_no_boilerplate():
    assert is_boilerplate("Sign in")
    assert is_boilerplate("12 comments")
    assert not is_boilerplate("Register a hook that runs before the backward pass.")
    assert not is_boilerplate("JavaScript documents can be read too.")
