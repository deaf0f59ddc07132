import pytest

from evaluation.scorers import passages
from trivium.errors import DataError
from trivium.evaluation.config import EvaluationConfig
from trivium.evaluation.tasks.items import Item
from trivium.evaluation.tasks.last_word import last_word_task
from trivium.evaluation.tasks.task import Example

CONFIG = EvaluationConfig(context_characters=90)
ITEMS = [Item(**i) for i in passages(60)]


def test_last_word_is_the_hidden_answer():
    item = Item("a", "d", 'It "returns" the mapping of each name to its (new) value.")')
    example = last_word_task([item], CONFIG, seed=1).examples[0]
    assert example.context == 'It "returns" the mapping of each name to its (new)'
    assert example.choices == (" value",)


def test_passages_without_final_word_are_skipped():
    bad = [
        Item(str(k), "d", t) for k, t in enumerate(["see f(x, y).", "about 12.", "word", "up to it.", "to run foo()."])
    ]
    assert [e.id for e in last_word_task([*bad, ITEMS[0]], CONFIG, seed=1).examples] == ["item-0"]
    with pytest.raises(DataError, match="none of 5"):
        last_word_task(bad, CONFIG, seed=1)


def test_chance_is_a_guess_among_passage_words():
    items = [
        Item("a", "d", "the name of the name is no other name"),
        Item("b", "e", "there is no such thing as luck"),
        Item("c", "f", "1 2 3 4 five"),  # no word to guess
    ]
    assert last_word_task(items, CONFIG, seed=1).chance == pytest.approx((2 / 8 + 0 + 0) / 3)


def test_shots_use_gpt3s_cloze_format():
    task = last_word_task(ITEMS, CONFIG, seed=1)
    shots = [
        Example("x", "x", "Alice went to visit her", (" friend",), 0),
        Example("y", "y", "Two plus two is", (" four",), 0),
    ]
    question = Example("q", "q", "It is", (" cold",), 0)
    assert task.template.prompt(question, []) == "It is"
    assert task.template.prompt(question, shots) == (
        "Alice went to visit her ____. -> friend\n\nTwo plus two is ____. -> four\n\nIt is ____. ->"
    )
