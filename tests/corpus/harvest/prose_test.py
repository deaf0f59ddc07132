"""Laws of finding prose in docstrings."""

from trivium.corpus.harvest.python_prose import comment_paragraphs, is_prose, prose_paragraphs

DOCSTRING = """
    Compute the sum of all the numbers that are given to this function.

    It works with :class:`~fractions.Fraction` and with ``float``, and *never* rounds::

        total(1, 2)
        total(3)

    Parameters
    ----------
    values : list of numbers
        The numbers that are to be added to each other in the order given.

    >>> total(1, 2)
    3

    .. math:: a^2 + b^2

    .. note::
        The result of an empty call is the number zero and not an error.
"""


def test_sentences_stay_and_code_markup_headings_and_doctests_go():
    assert list(prose_paragraphs(DOCSTRING)) == [
        "Compute the sum of all the numbers that are given to this function.",
        "It works with fractions.Fraction and with float, and never rounds:",
        "The numbers that are to be added to each other in the order given.",
        "The result of an empty call is the number zero and not an error.",
    ]


def test_legal_notices_are_not_prose_to_learn_from():
    assert list(comment_paragraphs("# Copyright of this file is held by the people who have written it.")) == []


def test_code_is_not_prose():
    assert not is_prose("x = f(a[0], b[1]) if c else d")
    assert not is_prose("alpha beta gamma delta epsilon zeta eta theta")
    assert is_prose("This is the kind of sentence that we are looking for.")


def test_a_million_spaces_are_one() -> None:
    """No pattern tries each of them: whoever wrote a docstring cannot keep a harvest for hours."""
    spaces = " " * 1_000_000
    for text in (f"see :func:`name{spaces}of it", f"see `name{spaces}of it", f"a title\nword{spaces}and more"):
        assert not list(prose_paragraphs(text))
    sentence = "This is the way that a sentence of the language is written, and it is not long."
    assert list(prose_paragraphs(sentence.replace(" ", spaces))) == [sentence]
