"""Laws of FineWeb's rules, each against a hand-made case on either side of its published threshold."""

import pytest

from trivium.corpus.clean.fineweb import broken_rule, fineweb_step, measure_all
from trivium.corpus.config import FineWebConfig
from trivium.corpus.document import Document
from trivium.corpus.steps import Drop, Keep


def lines(count, end="", start=0):
    return [f"line number {n} has more than thirty characters{end}" for n in range(start, start + count)]


def rule(text):
    config = FineWebConfig()
    return broken_rule(measure_all([text], short_line=config.short_line)[0], config)


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("\n".join(lines(12, ".") + lines(88, start=12)), "too few lines end in punctuation"),
        ("\n".join(lines(13, ".") + lines(87, start=13)), ""),
        ("\n".join(lines(33, ".") + [f"short line {n}." for n in range(67)]), "too many short lines"),
        ("\n".join(lines(34, ".") + [f"short line {n}." for n in range(66)]), ""),
        ("\n".join([*lines(60, "."), *lines(1, ".")]), "repeated lines"),
        ("\n".join([*lines(60, "."), "A line of thirty-one characters.", "Word."]), ""),
        ("\n".join(f"Antidisestablishmentarianism {'x' * n}." for n in range(9, 40)), "a list"),
        ("", "too few lines end in punctuation"),
    ],
)
def test_each_rule_is_broken_just_beyond_its_threshold(text, broken):
    assert rule(text) == broken


def test_the_step_drops_by_name_and_notes_its_figures():
    step = fineweb_step(FineWebConfig())
    assert step.judge(Document("a", "\n".join(lines(9)), "s")) == Drop("too few lines end in punctuation")
    kept = step.judge(Document("a", "\n".join(lines(9, ".")), "s"))
    assert isinstance(kept, Keep)
    assert kept.document.metadata["fineweb"]["punctuated_lines"] == 1.0
