"""Laws of the rules on words, lines and repetition: each holds up to its published threshold and no further."""

import re

import pytest

from trivium.corpus.clean.filters import FILTERS, named_steps
from trivium.corpus.clean.language import language_step
from trivium.corpus.clean.quality import fineweb_step, gopher_step, is_boilerplate, measure_quality, quality_step
from trivium.corpus.clean.repetition import measure_all, repetition_step
from trivium.corpus.config import CurateConfig, FineWebConfig, LanguageConfig, QualityConfig, RepetitionConfig
from trivium.corpus.document import Document
from trivium.corpus.harvest.plant import boilerplate_text, foreign_text, low_quality_text
from trivium.corpus.steps import Drop
from trivium.errors import ConfigError
from trivium.seeds import generator_for

COMMON = "the quick reader of"  # four words, two of them common
PROSE = """The station reads every page that was fetched and decides what becomes of it. A page that nobody wrote to
be read has no place among those that somebody did, and so the rules look at its words and at its lines.

Most of them were found by people who had looked at a great many pages. They ask whether the words have letters,
whether the lines end as sentences end, and whether the small words that hold a sentence together are there.

None of these rules understands a word of what it reads. That is why every one of them has a name, and why the
name is written down with each document that it sends away, so that anyone can see later what was lost and why."""


def reason(text, *steps):
    verdicts = (step.judge(Document("a", text, "s")) for step in steps)
    return next((verdict.reason for verdict in verdicts if isinstance(verdict, Drop)), "")


def words(count, word="paper"):
    return " ".join([COMMON, *[word] * (count - 4)])


def spread(signs):
    return words(100).replace("reader", f"reader{signs}")


@pytest.mark.parametrize(
    ("inside", "beyond", "rule"),
    [
        (words(50), words(49), "under 50 words"),
        (words(100_000), words(100_001), "over 100000 words"),
        (words(100, "abc"), words(100, "ab"), "words too short"),
        (words(100, "abcdefghij"), words(100, "abcdefghijk"), "words too long"),
        (words(100) + "#" * 10, words(100) + "#" * 11, "too many symbols"),
        (spread("…" * 10), spread("…" * 11), "too many symbols"),
        (spread("#" * 8 + "…" * 8), spread("…" * 18), "too many symbols"),
        (words(80) + " 1234" * 20, words(79) + " 1234" * 21, "too many words without letters"),
        ("the of " + "paper " * 60, "the the " + "paper " * 60, "too few common words"),
        ("\n".join(["-item"] * 9 + [words(50)]), "\n".join(["-item"] * 19 + [words(50)]), "too many bullet lines"),
        (
            "\n".join(["more words here…"] * 3 + [words(15)] * 7),
            "\n".join(["more words here…"] * 4 + [words(15)] * 6),
            "too many lines end in an ellipsis",
        ),
    ],
)
def test_each_rule_of_gopher_holds_up_to_its_threshold(inside, beyond, rule):
    assert [reason(text, gopher_step(QualityConfig())) for text in (inside, beyond)] == ["", rule]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda t: t[:300], "under 512 characters"),
        (lambda t: re.sub(r"[.,]", "", t), "too few lines end in punctuation"),
        (lambda t: t.replace(" ", ".\n"), "too many short lines"),
        (lambda t: t + "\nPlease read our privacy policy to learn how we use cookies on this site.", "boilerplate"),
    ],
)
def test_prose_passes_the_quality_rules_and_breaks_each_when_changed(change, rule):
    kept = quality_step(QualityConfig()).judge(Document("a", PROSE, "s"))
    assert kept.document.metadata["quality"]["words"] == len(PROSE.split())
    assert reason(change(PROSE), quality_step(QualityConfig())) == rule


def lines(count, end="", start=0):
    return [f"line number {n} has more than thirty characters{end}" for n in range(start, start + count)]


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        (lines(12, ".") + lines(88, start=12), "too few lines end in punctuation"),
        (lines(13, ".") + lines(87, start=13), ""),
        (lines(33, ".") + [f"short line {n}." for n in range(67)], "too many short lines"),
        (lines(34, ".") + [f"short line {n}." for n in range(66)], ""),
        ([*lines(60, "."), *lines(1, ".")], "repeated lines"),
        ([*lines(60, "."), "A line of thirty-one characters.", "Word."], ""),
        ([f"Antidisestablishmentarianism {'x' * n}." for n in range(9, 40)], "a list"),
        ([], "too few lines end in punctuation"),
    ],
)
def test_each_rule_of_fineweb_holds_up_to_its_threshold(text, broken):
    assert reason("\n".join(text), fineweb_step(FineWebConfig())) == broken


def test_fineweb_notes_its_figures():
    kept = fineweb_step(FineWebConfig()).judge(Document("a", "\n".join(lines(9, ".")), "s"))
    assert kept.document.metadata["fineweb"]["punctuated_lines"] == 1.0


def shares(text):
    return {name: (share, limit) for name, share, limit in measure_all([text], RepetitionConfig())[0]}


def test_every_repetition_threshold_is_the_published_one():
    assert {name: limit for name, (_, limit) in shares("a").items()} == {
        "lines": 0.30, "paragraphs": 0.30, "lines (characters)": 0.20, "paragraphs (characters)": 0.20,
        "2-gram": 0.20, "3-gram": 0.18, "4-gram": 0.16,
        "5-grams": 0.15, "6-grams": 0.14, "7-grams": 0.13, "8-grams": 0.12, "9-grams": 0.11, "10-grams": 0.10,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "rule", "share"),
    [
        ("\n".join(["same line"] * 4 + [f"line {n}" for n in range(6)]), "lines", 0.3),
        ("\n\n".join(["same part"] * 4 + [f"part {n}" for n in range(6)]), "paragraphs", 0.3),
        ("aaaa\naaaa\nbbbbbbbb\ncccc", "lines (characters)", 0.2),
        ("aaaa\n\naaaa\n\nbbbbbbbb\n\ncccc", "paragraphs (characters)", 0.2),
        ("aa bb aa bb cc dd ee ff gg hh", "2-gram", 0.4),
        ("aa bb cc aa bb cc dd ee ff gg", "3-gram", 0.6),
        ("aa bb cc dd aa bb cc dd ee ff", "4-gram", 0.8),
        ("a b c d e a b c d e f g h i j k l m n o", "5-grams", 0.25),
        ("word", "lines", 0),
        ("", "5-grams", 0),
    ],
)
def test_repetition_shares_are_those_counted_by_hand(text, rule, share):
    assert shares(text)[rule][0] == pytest.approx(share)


def test_a_document_is_dropped_beyond_a_share_and_kept_at_it():
    step = repetition_step(RepetitionConfig(top_ngram=(), repeated_ngram=()))
    for repeated, expected in ((4, ""), (5, "repeated lines")):
        rest = [f"a longer line with number {n}" for n in range(10 - repeated)]
        assert reason("\n".join(["x y"] * repeated + rest), step) == expected


@pytest.mark.parametrize("compose", [boilerplate_text, foreign_text, low_quality_text])
def test_composed_junk_breaks_some_rule(compose):
    steps = language_step(LanguageConfig()), quality_step(QualityConfig()), repetition_step(RepetitionConfig())
    assert reason(PROSE, *steps) == ""
    assert sum(not reason(compose(generator_for(n, "junk")), *steps) for n in range(60)) <= 3


@pytest.mark.timeout(60)
@pytest.mark.parametrize("filler", [".", ",", "k.", "!"])
def test_a_long_line_that_is_almost_a_counter_takes_linear_time(filler):
    line = "1" + filler * 500_000
    assert is_boilerplate(line)
    assert measure_quality([f"{line}b"])[0]["boilerplate_words"] == 0


def test_menu_words_inside_sentences_are_not_boilerplate():
    found = ("Sign in", "12 comments", "Register a hook that runs before the backward pass.", "JavaScript can be read.")
    assert list(map(is_boilerplate, found)) == [True, True, False, False]


def test_filters_are_listed_by_name_in_the_order_they_judge():
    names = ("c4", "gopher", "fineweb", "privacy")
    assert tuple(step.name for step in named_steps(CurateConfig(filters=names), seed=1)) == names
    trained = tuple(name for name in FILTERS if name != "classifier")
    assert len(named_steps(CurateConfig(filters=trained), seed=1)) == len(FILTERS) - 1
    with pytest.raises(ConfigError, match="curate.classifier.model is not set"):
        named_steps(CurateConfig(filters=("classifier",)), seed=1)
    with pytest.raises(ConfigError, match="did you mean 'gopher'"):
        named_steps(CurateConfig(filters=("gofer",)), seed=1)
