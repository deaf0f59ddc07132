import pytest

from evaluation.scorers import passages
from trivium.errors import DataError
from trivium.evaluation.config import EvaluationConfig
from trivium.evaluation.tasks.continuation import continuation_task
from trivium.evaluation.tasks.items import Item, cut_last_sentence, head
from trivium.evaluation.tasks.task import choose_shots

CONFIG = EvaluationConfig(context_characters=90)
ITEMS = [Item(**i) for i in passages(60)]


def test_each_choice_is_an_ending_and_exactly_one_is_the_passages_own():
    common = [Item(f"c{n}", f"d{n}", f"It begins {n}. Ends of {n % 7} are told often.") for n in range(30)]
    for example in continuation_task(common, CONFIG, seed=1).examples:
        assert len(set(example.choices)) == 4
    endings = {head(cut_last_sentence(i.text)[1], CONFIG.ending_characters): i for i in ITEMS}
    for example in continuation_task(ITEMS, CONFIG, seed=1).examples:
        texts = [c.strip() for c in example.choices]
        assert len(set(texts)) == 4
        owners = [endings[t] for t in texts]
        assert [k for k, o in enumerate(owners) if o.id == example.id] == [example.answer]
        assert sum(o.document == example.document for o in owners) == 1


def test_a_question_is_a_passage_before_its_last_sentence_and_chance_is_a_guess_among_its_choices():
    task = continuation_task([*ITEMS, Item("single", "its own", "Only one sentence.")], CONFIG, seed=1)
    assert len(task.pool) == len(ITEMS)
    text_of = {item.id: " ".join(item.text.split()) for item in ITEMS}
    for example in task.pool:
        assert task.chance == 1 / len(example.choices)
        assert f"{example.context}{example.solution}" in text_of[example.id]


def test_the_right_choice_stands_in_every_place_about_equally_often():
    items = [Item(**i) for i in passages(400)]
    task = continuation_task(items, CONFIG.model_copy(update={"continuation_examples": 400}), seed=1)
    places = [sum(e.answer == k for e in task.examples) for k in range(4)]
    assert min(places) > 70  # 100 expected, standard deviation 9


def test_no_shot_of_a_question_ends_in_one_of_its_choices():
    """Distractors are endings of passages that are shots of other questions: a solved one would point to itself."""
    task = continuation_task(ITEMS, CONFIG, seed=1)
    choose = choose_shots(task, shots=len(task.pool) - 4, seed=1)
    for example in task.examples:
        assert not {s.solution for s in choose(example)} & set(example.choices)
    with pytest.raises(DataError, match="only 56 examples .* and end in none of its choices"):
        choose_shots(task, shots=len(task.pool) - 3, seed=1)(task.examples[0])


def test_too_few_passages_for_four_choices_are_refused():
    with pytest.raises(DataError, match="3 of 3 evaluation items"):
        continuation_task(ITEMS[:3], CONFIG, seed=1)
    same = [Item(i.id, "one document", i.text) for i in ITEMS]
    with pytest.raises(DataError, match="of several documents"):
        continuation_task(same, CONFIG, seed=1)
