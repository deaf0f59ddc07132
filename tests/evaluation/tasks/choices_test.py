"""Laws of the tasks with given choices: the right one is the passage, and guessing without context is no better than
chance."""

from collections import Counter

import pytest

from trivium.errors import DataError
from trivium.evaluation.config import EvaluationConfig
from trivium.evaluation.tasks.choices import OTHER_FORM, agreement_task, names_task, word_order_task
from trivium.evaluation.tasks.items import Item

CONFIG = EvaluationConfig()
NAMES = ("Anna", "Bella", "Clara", "Dora", "Emma")
ITEMS = [
    Item(
        f"i{n}",
        f"d{n}",
        f"Long ago {NAMES[n % 5]} {'was' if n % 3 else 'were'} near the river where she saw him and them. Later on "
        f"the old woman gave {NAMES[n % 5]} a golden apple number {'abc'[n % 3]} to eat.",
    )
    for n in range(60)
]


@pytest.mark.parametrize("build", [agreement_task, word_order_task, names_task])
def test_the_solution_alone_goes_on_as_the_passage_does(build):
    task, by_id = build(ITEMS, CONFIG, seed=3), {item.id: item.text for item in ITEMS}
    assert task.examples
    for example in task.examples:
        text = by_id[example.id.split("-")[0]]
        goes_on = [f"{example.context}{choice}" in text for choice in example.choices]
        assert goes_on == [n == example.answer for n in range(len(example.choices))]
        assert task.chance == 1 / len(example.choices)


@pytest.mark.parametrize("build", [agreement_task, word_order_task, names_task])
def test_the_place_of_the_solution_tells_nothing(build):
    answers = Counter(example.answer for example in build(ITEMS, CONFIG, seed=3).pool)
    expected = answers.total() / len(build(ITEMS, CONFIG, seed=3).pool[0].choices)
    assert all(0.4 * expected < number < 1.6 * expected for number in answers.values())


def test_both_forms_of_a_pair_are_right_equally_often():
    solved = Counter(example.solution.split()[0] for example in agreement_task(ITEMS, CONFIG, seed=3).pool)
    assert solved["was"] == solved["were"] == 20
    assert all(solved[form] == solved[other] for form, other in OTHER_FORM.items())


def test_the_choices_of_an_exchange_have_the_same_words():
    for example in word_order_task(ITEMS, CONFIG, seed=3).examples:
        first, second = (sorted(choice.split()) for choice in example.choices)
        assert first == second


def test_a_name_that_the_passage_repeats_is_asked_for_among_those_of_other_documents():
    task = names_task(ITEMS, CONFIG, seed=3)
    for example in task.examples:
        name = example.solution.strip()
        assert name in example.context and len(set(example.choices)) == 4
        assert not any(choice.strip() in example.context for choice in example.choices if choice != example.solution)


@pytest.mark.parametrize("build", [agreement_task, word_order_task, names_task])
def test_passages_without_such_words_are_refused_with_the_name_of_the_task(build):
    bare = [Item(f"i{n}", f"d{n}", "1 2 3 4 5.") for n in range(9)]
    with pytest.raises(DataError, match=f"task {build.__name__.removesuffix('_task')}; give more text"):
        build(bare, CONFIG, seed=3)
