"""Laws of Gopher's rules (table A1 and A1.1), each just inside and just beyond its published threshold."""

import pytest

from trivium.corpus.clean.filters import FILTERS, named_steps
from trivium.corpus.clean.quality import gopher_step
from trivium.corpus.clean.repetition import measure_all, repetition_step
from trivium.corpus.config import CurateConfig, QualityConfig, RepetitionConfig
from trivium.corpus.document import Document
from trivium.corpus.steps import Drop, Keep
from trivium.errors import ConfigError

COMMON = "the quick reader of"  # four words, two of them common


def judge(text):
    verdict = gopher_step(QualityConfig()).judge(Document("a", text, "s"))
    return verdict.reason if isinstance(verdict, Drop) else ""


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
def test_each_length_rule_holds_up_to_its_threshold_and_no_further(inside, beyond, rule):
    assert judge(inside) == ""
    assert judge(beyond) == rule


def shares(text):
    return {name: (share, limit) for name, share, limit in measure_all([text], RepetitionConfig())[0]}


def test_every_repetition_threshold_is_the_published_one():
    limits = {name: limit for name, (_, limit) in shares("a").items()}
    assert limits == {
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
    ],
)
def test_repetition_shares_are_those_counted_by_hand(text, rule, share):
    assert shares(text)[rule][0] == pytest.approx(share)


def test_a_document_is_dropped_beyond_a_share_and_kept_at_it():
    def lines(repeated):
        return "\n".join([*["x y"] * repeated, *[f"a longer line with number {n}" for n in range(10 - repeated)]])

    step = repetition_step(RepetitionConfig(top_ngram=(), repeated_ngram=()))
    assert isinstance(step.judge(Document("a", lines(4), "s")), Keep)
    assert step.judge(Document("a", lines(5), "s")) == Drop("repeated lines")


def test_filters_are_listed_by_name_in_the_order_they_judge():
    steps = named_steps(CurateConfig(filters=("c4", "gopher", "fineweb", "privacy")), seed=1)
    assert [step.name for step in steps] == ["c4", "gopher", "fineweb", "privacy"]
    trained = tuple(name for name in FILTERS if name != "classifier")
    assert len(named_steps(CurateConfig(filters=trained), seed=1)) == len(FILTERS) - 1
    with pytest.raises(ConfigError, match="curate.classifier.model is not set"):
        named_steps(CurateConfig(filters=("classifier",)), seed=1)
    with pytest.raises(ConfigError, match="did you mean 'gopher'"):
        named_steps(CurateConfig(filters=("gofer",)), seed=1)
