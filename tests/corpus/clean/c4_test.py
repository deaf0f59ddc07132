"""Laws of C4's rules, each against a hand-made case on either side of its published threshold."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.corpus.clean.c4 import c4_step, line_fault, num_sentences
from trivium.corpus.config import C4Config
from trivium.corpus.document import Document
from trivium.corpus.steps import Drop, Keep

FIVE = "\n".join(f"This is sentence number {n} of the page." for n in range(5))


def judge(text, **config):
    return c4_step(C4Config(**config)).judge(Document("a", text, "s"))


def test_a_page_of_five_whole_sentences_is_kept_as_it_is():
    verdict = judge(FIVE)
    assert isinstance(verdict, Keep)
    assert verdict.document.text == FIVE
    assert verdict.document.metadata["c4"] == {"lines": 5, "removed": 0}


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("Three words here.", ""),
        ("Two words.", "too few words"),
        ("A line that does not end as sentences do", "no end of a sentence"),
        ("A line that trails off...", "no end of a sentence"),
        ("A line that trails off…", "no end of a sentence"),
        ('She said "that is all"', ""),
        ("Is this the end?", ""),
        ("Please enable JavaScript in your browser.", "javascript"),
        ("By going on you accept our Privacy Policy.", "policy"),
        ("This site uses cookies for good reasons.", "policy"),
        (f"One word is {'x' * 1000} long.", ""),
        (f"One word is {'x' * 1001} long.", "word too long"),
    ],
)
def test_each_line_rule_removes_the_line_it_is_for(line, fault):
    assert line_fault(line, C4Config()) == fault
    verdict = judge(f"{FIVE}\n{line}")
    assert isinstance(verdict, Keep)
    assert (line in verdict.document.text) == (fault == "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (FIVE.rsplit("\n", 1)[0], "under 5 sentences"),
        (FIVE + "\nLorem ipsum dolor sit amet.", "lorem ipsum"),
        (FIVE + "\nfunction() { return 1 }", "curly bracket"),
        ("", "under 5 sentences"),
    ],
)
def test_each_page_rule_drops_the_page_it_is_for(text, reason):
    assert judge(text) == Drop(reason)


def test_citations_are_taken_out_and_bad_words_are_whole_words():
    verdict = judge(FIVE + "\nA fact[12] is cited [citation needed] here [edit].")
    assert isinstance(verdict, Keep)
    assert verdict.document.text.endswith("A fact is cited  here .")
    assert judge(FIVE + "\nThat is a darn shame.", bad_words=("darn",)) == Drop("bad word")
    assert isinstance(judge(FIVE + "\nThat is a darning needle.", bad_words=("darn",)), Keep)


def test_sentences_are_counted_by_their_ends():
    assert num_sentences("One. Two! Three? Four") == 3
    assert num_sentences('He paid 3.50 for it. "Why?"') == 2
    assert num_sentences("no end") == 1


@given(st.text(st.sampled_from(".!?\"'”)x \n"), max_size=40))
def test_sentences_end_where_marks_end_before_a_blank(line):
    ends = re.findall(r"[.!?]+[\"'”’)]*(?=\s|$)", line)  # the same, tried from every mark
    assert num_sentences(line) == max(1, len(ends))
