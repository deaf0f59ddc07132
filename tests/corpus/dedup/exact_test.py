"""Laws of exact deduplication."""

from trivium.corpus.dedup.groups import SAME_ADDRESS, SAME_ID, SAME_TEXT, FirstOnly, text_key


def test_case_blanks_and_punctuation_do_not_make_texts_different():
    assert text_key("One, two.\nThree!") == text_key("one two  three")
    assert text_key("one two three") != text_key("one three two")


def test_the_first_of_equal_texts_stays_and_equal_ids_do_not_pass_unseen():
    first = FirstOnly()
    asked = [(b"one", "a"), (b"one", "b"), (b"two", "a"), (b"two", "c")]
    # a document that is dropped is as if it had never been there: its text and id bar nobody
    found = [first.repeats(10 + n, *one) for n, one in enumerate(asked)]
    assert found == [None, (SAME_TEXT, 10), (SAME_ID, 10), None]


def test_the_first_document_of_an_address_stays_and_documents_without_one_are_not_compared():
    first = FirstOnly()
    asked = [(b"1", "a", b"x"), (b"2", "b", b"x"), (b"3", "c", b""), (b"4", "d", b"")]
    found = [first.repeats(10 + n, *one) for n, one in enumerate(asked)]
    assert found == [None, (SAME_ADDRESS, 10), None, None]
