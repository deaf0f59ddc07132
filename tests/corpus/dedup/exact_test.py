"""Laws of exact deduplication."""

from trivium.corpus.dedup.exact import exact_step, text_key
from trivium.corpus.document import Document
from trivium.corpus.steps import Drop, Keep


def test_case_blanks_and_punctuation_do_not_make_texts_different():
    assert text_key("One, two.\nThree!") == text_key("one two  three")
    assert text_key("one two three") != text_key("one three two")


def test_the_first_of_equal_texts_stays_and_equal_ids_do_not_pass_unseen():
    step = exact_step()
    verdicts = [
        step.judge(Document(i, text, "s"))
        for i, text in (("a", "one"), ("b", "One."), ("a", "two"), ("c", "two"))
    ]
    assert [type(v) for v in verdicts] == [Keep, Drop, Drop, Keep]
    assert verdicts[1].reason != verdicts[2].reason
