from dataclasses import replace

import pytest

from evaluation.scorers import passages
from trivium.errors import DataError
from trivium.evaluation.config import EvaluationConfig
from trivium.evaluation.tasks.items import Item
from trivium.evaluation.tasks.passages import build_task
from trivium.evaluation.tasks.task import Example, Template, choose_shots, others_than
from trivium.seeds import generator_for

CONFIG = EvaluationConfig(context_characters=90)
ITEMS = [Item(**i) for i in passages(60)]
TASK = build_task("last_word", ITEMS, CONFIG, seed=1)


def test_braces_in_passages_are_text():
    template = Template(alone="{context}", among="{context} ->")
    example = Example("q", "q", "a {dict} of {0} {context}", (" x",), 0)
    assert template.prompt(example, [example]) == "a {dict} of {0} {context} -> x\n\na {dict} of {0} {context} ->"


@pytest.mark.parametrize("name", ["last_word", "continuation"])
def test_shots_exclude_question_and_its_document(name):
    task = build_task(name, [Item(**i) for i in passages(60, documents=20)], CONFIG, seed=1)
    for example in task.examples:
        shots = choose_shots(task, shots=10, seed=1)(example)
        assert len({s.id for s in shots}) == 10
        assert all(s.id != example.id and s.document != example.document for s in shots)


def test_more_shots_are_added_at_the_front():
    for example in TASK.examples[:10]:
        five = choose_shots(TASK, shots=5, seed=1)(example)
        assert choose_shots(TASK, shots=2, seed=1)(example) == five[-2:]
        assert choose_shots(TASK, shots=0, seed=1)(example) == []
        assert choose_shots(TASK, shots=5, seed=2)(example) != five


def test_more_shots_than_examples_are_rejected():
    with pytest.raises(DataError, match="60 shots were requested, but only 59"):
        choose_shots(TASK, shots=60, seed=1)(TASK.examples[0])


def test_duplicate_question_is_not_its_own_shot():
    twice = replace(TASK.examples[0], id="again", document="another")
    task = replace(TASK, pool=(*TASK.pool, twice))
    everything = len(task.pool) - 2
    for example in (task.examples[0], twice):
        assert all(s.text != twice.text for s in choose_shots(task, shots=everything, seed=1)(example))
    same_document = replace(TASK.examples[0], id="beside", context="Of the same document.")
    left = others_than(task.examples[:1], (*task.pool, same_document))
    assert len(left) == everything and all(e.text != twice.text for e in left)


def test_choosing_shots_does_not_scan_the_pool_per_question():
    class Document(str):
        compared = 0
        __hash__ = str.__hash__

        def __eq__(self, other):
            Document.compared += 1
            return str.__eq__(self, other)

        def __ne__(self, other):
            return not self == other

    pool = tuple(replace(e, document=Document(n % 150)) for n, e in enumerate(TASK.pool * 5))
    choose = choose_shots(replace(TASK, examples=pool, pool=pool), shots=3, seed=1)
    for example in pool[:200]:
        others = [e for e in pool if str(e.document) != str(example.document) and e.text != example.text]
        order = generator_for(1, "shots", TASK.name, example.id).permutation(len(others))[:3].tolist()
        assert choose(example) == [others[k] for k in order][::-1]
    Document.compared = 0
    for example in pool:
        choose(example)
    assert Document.compared <= 2 * len(pool)


def test_higher_limit_keeps_earlier_questions():
    few = build_task("last_word", ITEMS, CONFIG.model_copy(update={"last_word_examples": 10}), seed=1).examples
    assert len(few) == 10 and TASK.examples[:10] == few
    assert build_task("last_word", ITEMS, CONFIG, seed=2).examples != TASK.examples
