import pytest

from evaluation.scorers import passages
from trivium.errors import DataError
from trivium.evaluation.config import EvaluationConfig
from trivium.evaluation.tasks.continuation import continuation_task
from trivium.evaluation.tasks.items import Item, cut_last_sentence, head
from trivium.evaluation.tasks.task import choose_shots

CONFIG = EvaluationConfig(context_characters=90)
ITEMS = [Item(**i) for i in passages(60)]


def test_exactly_one_choice_is_the_passages_own_ending():
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


def test_question_is_passage_without_last_sentence():
    task = continuation_task([*ITEMS, Item("single", "its own", "Only one sentence.")], CONFIG, seed=1)
    assert len(task.pool) == len(ITEMS)
    text_of = {item.id: " ".join(item.text.split()) for item in ITEMS}
    for example in task.pool:
        assert task.chance == 1 / len(example.choices)
        assert f"{example.context}{example.solution}" in text_of[example.id]


def test_correct_choice_is_uniformly_placed():
    items = [Item(**i) for i in passages(400)]
    task = continuation_task(items, CONFIG.model_copy(update={"continuation_examples": 400}), seed=1)
    places = [sum(e.answer == k for e in task.examples) for k in range(4)]
    assert min(places) > 70  # expected 100, standard deviation 9


def test_shots_do_not_end_in_choices_of_the_question():
    """Distractors are endings of other passages. A shot with such an ending would suggest the distractor."""
    task = continuation_task(ITEMS, CONFIG, seed=1)
    choose = choose_shots(task, shots=len(task.pool) - 4, seed=1)
    for example in task.examples:
        assert not {s.solution for s in choose(example)} & set(example.choices)
    with pytest.raises(DataError, match="only 56 examples .* and end in none of its choices"):
        choose_shots(task, shots=len(task.pool) - 3, seed=1)(task.examples[0])


def test_too_few_passages_are_rejected():
    with pytest.raises(DataError, match="3 of 3 evaluation items"):
        continuation_task(ITEMS[:3], CONFIG, seed=1)
    same = [Item(i.id, "one document", i.text) for i in ITEMS]
    with pytest.raises(DataError, match="of several documents"):
        continuation_task(same, CONFIG, seed=1)
