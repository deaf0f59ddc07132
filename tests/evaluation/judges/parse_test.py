"""Answers of judges: a clear score is read, and everything else is reported with its reason."""

import time

import pytest

from trivium.evaluation.judges.config import JudgeConfig
from trivium.evaluation.judges.parse import errors_in, number_in
from trivium.evaluation.judges.prompts import prompt_named, prompt_names
from trivium.evaluation.judges.ratings import Item


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("85", 85),
        ("85.5", 85.5),
        (" **85** ", 85),
        ("85/100", 85),
        ("85 out of 100.", 85),
        ("Score: 85", 85),
        ("On a scale of 0-100: 85", 85),
        ("<think>It has 3 errors, so 40?</think>\n85", 85),
        ("three errors, perhaps 40</think>85", 85),
        ("85 <think>or 40", 85),
        ("I see 2 errors.\nScore: 85", 85),
        ("**Score:** 85\n\n- 2 minor errors", 85),
        ("Score: 85 - 2 minor errors", 85),
        ("0", 0),
        ("100", 100),
    ],
)
def test_one_clear_number_is_the_score(answer, score):
    assert number_in(answer, 0, 100).score == score


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("", "no number"),
        ("excellent", "no number"),
        ("80 or 90", "several numbers"),
        ("80-90", "several numbers"),
        ("Score: 80-90", "several numbers"),
        ("Score: 80 to 90", "several numbers"),
        ("Score: 80-90.\n- 2 minor errors", "several numbers"),
        ("Score: 80, or rather score: 90", "several numbers"),
        ("101", "number outside of the scale"),
        ("-5", "number outside of the scale"),
        ("−85", "number outside of the scale"),
        ("4,5", "no number"),  # 4.5, or 4 and 5
        ("1.2.3", "no number"),
        ("<think>85", "no number"),
    ],
)
def test_other_answers_have_a_reason_instead_of_a_score(answer, reason):
    found = number_in(answer, 0, 100)
    assert found.score is None and found.reason == reason


def test_number_after_the_label_counts_among_several():
    answer = "The 3 main points are there.\n- Relevance (1-5): 4"
    assert number_in(answer, 1, 5, label="relevance").score == 4
    assert number_in(answer, 1, 5, label="fluency").score is None


def test_recorded_answers_of_geval_begin_with_their_number():
    assert number_in(" 4\n- Consistency", 1, 5, at_start=True).score == 4
    assert number_in("Rating 4", 1, 5, at_start=True).score is None


LISTED = """Critical:
no-error
Major:
accuracy/mistranslation - "involvement"
accuracy/omission - "the account holder"
Minor:
fluency/grammar - "wäre"
fluency/register - "dir"
"""


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        (LISTED, -12),
        (LISTED.replace("Major:", "**Major:**").replace("Minor:", "## Minor errors:"), -12),
        (LISTED.replace("accuracy/", "- accuracy/").replace("fluency/", "2. fluency/"), -12),
        (LISTED.upper(), -12),
        ("Critical:\nno-error\nMajor:\nno-error\nMinor:\nno-error", 0),
        ("no-error", 0),
        ("**No errors.**", 0),
        ("Critical: no-error\nMajor: none\nMinor: style/awkward - 'x'", -1),
        ("Major: fluency: none\nMinor: no minor errors", 0),
        ("Critical: none; Major: none; Minor errors: no-error", 0),
        ("Critical:\nMajor:\nfluency/grammar - 'x'\nMinor:", -5),
        ("Critical:\naccuracy/addition - 'x'\nMajor:\naccuracy/omission", -25),
        ("Minor:\nnon-translation", -25),
        ('Minor:\n"wäre" - fluency/grammar\n„dir“ - fluency/register', -2),
        ("Minor:\nlocale convention (date) - '3/4'\nstyle - 'x'", -2),
        (LISTED + "\nOther than that, the translation is good.", -12),
        (LISTED + "\nOverall:\n- a good translation", -12),
        ("Here are the errors:\n" + LISTED, -12),
        (LISTED.replace("Critical:\n", "Critical errors: ").replace("Major:", "Major issues:"), -12),
        (LISTED.replace("Critical:", "Critical (0):").replace("Major:", "Major (2):").replace("Minor:", "Minor"), -12),
        (LISTED.replace("Major:", "Major mistakes").replace("Minor:", "Minor severity:"), -12),
    ],
)
def test_errors_are_weighted_by_the_heading_above_them(answer, score):
    assert errors_in(answer).score == score


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "Critical:\nMajor:\nMinor:",
        "The translation is good.",
        "accuracy/omission - 'x'\n- fluency/grammar - 'y'",  # no severity
        LISTED.replace("Major:", "Neutral:"),  # no weight
        LISTED.replace("Major:", "Critical or major:"),
        LISTED.replace("Major:", "Major ones are these"),
        LISTED.replace("Major:", "Of major severity:"),
        LISTED.replace("Minor:", "Minor - style/awkward"),
        "No errors.\naccuracy/omission - 'x'",  # no severity
        LISTED + "\nOverall the accuracy/fluency is fine.",  # an error or a remark
        "Major:\n- the word 'x' is wrong",  # no category
        "Critical: none; Major: none; Minor: accuracy/mistranslation - 'cat'",
        "Critical: no-error. Major errors: style - 'x'. Minor: no-error",
        "Critical:\nNone of it was translated (accuracy/omission - 'all')\nMajor:\nno-error",
        "Major:\nNo critical errors, but accuracy/mistranslation - 'x'\nMinor:\nno-error",
        "<think>no-error</think>",
    ],
)
def test_answer_that_states_neither_errors_nor_their_absence_is_not_perfect(answer):
    found = errors_in(answer)
    assert found.score is None and found.reason


def test_six_errors_count_as_the_five_most_severe():
    answer = "Minor:\n" + "style/awkward - 'x'\n" * 4 + "Major:\n" + "fluency/grammar - 'y'\n" * 2
    assert errors_in(answer).score == -(2 * 5 + 3)
    assert errors_in(answer, max_errors=10).score == -(2 * 5 + 4)
    assert errors_in(answer).errors == {"critical": 0, "major": 2, "minor": 4}


def test_non_translation_keeps_its_stated_severity_where_the_config_says_so():
    assert errors_in("Minor:\nnon-translation - all", non_translation="as stated").score == -1


def test_list_of_errors_that_was_cut_is_not_parsed():
    mqm, config = prompt_named("mqm"), JudgeConfig()
    assert mqm.parse(LISTED, config).score == -12
    assert mqm.parse(LISTED, config, cut=True).reason == "cut off at max_tokens"
    assert prompt_named("da").parse("85", config, cut=True).score == 85
    assert prompt_named("da").parse("<think>Let me", config, cut=True).reason == "cut off at max_tokens"


@pytest.mark.parametrize(
    "text",
    [
        "<think>",
        "- ",
        "1 ",
        "score ",
        "score:",
        "accuracy ",
        "minor ",
        "none minor ",
        "none minor:",
        "0 -",
        "(",
        "\n",
        "a" * 10,
    ],
)
def test_long_hostile_answers_are_read_in_linear_time(text):
    answer, begin = text * (400_000 // len(text)), time.process_time()
    number_in(answer, 0, 100)
    errors_in("Minor:\n" + answer)
    errors_in("Minor " + answer)
    assert time.process_time() - begin < 20  # quadratic time would be hours


@pytest.mark.parametrize("name", prompt_names())
def test_every_prompt_contains_the_texts_and_nothing_undefined(name):
    item = Item("A", "1", "The {{ source }}", "Die Quelle", "Eine Referenz", "English", "German")
    bare = item._replace(reference="", source_language="", target_language="")
    for one in (item, bare):
        (messages,) = prompt_named(name).conversations([one])
        assert one.source in messages[-1].content
        assert name == "likelihood" or one.output in messages[-1].content
        assert "None" not in messages[-1].content and "  " not in messages[-1].content.replace("\n   ", "")
    if name in ("da", "mqm"):
        assert item.reference in prompt_named(name).conversations([item])[0][-1].content
        assert "person" not in prompt_named(name).conversations([bare])[0][-1].content


def test_solved_examples_of_mqm_are_read_as_they_are_meant():
    messages = prompt_named("mqm").conversations([Item("A", "1", "s", "t")])[0]
    answers = [m.content for m in messages if m.role == "assistant"]
    assert [errors_in(answer).score for answer in answers] == [-11, 0]
