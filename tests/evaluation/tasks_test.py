"""The three files of evaluation/tasks: cutting passages, and the two tasks made from them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.scorers import passages
from trivium.errors import DataError
from trivium.evaluation.config import EvaluationConfig
from trivium.evaluation.tasks.continuation import continuation_task
from trivium.evaluation.tasks.items import Item, cut_last_sentence, head, read_items, tail
from trivium.evaluation.tasks.last_word import last_word_task
from trivium.evaluation.tasks.task import Example, Template, choose_shots

CONFIG = EvaluationConfig(context_characters=90)
ITEMS = [Item(**i) for i in passages(60)]
TASKS = [last_word_task(ITEMS, CONFIG, seed=1), continuation_task(ITEMS, CONFIG, seed=1)]


def write(path, lines):
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines) + "\n")
    return path


def test_items_come_back_as_written(tmp_path):
    assert read_items(write(tmp_path / "i.jsonl", passages(5))) == ITEMS[:5]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "3",
        '{"id": "a"}',
        '{"id": 1, "document": "d", "text": "t"}',
        '{"id":"a","document":"d","text":" "}',
    ],
)
def test_a_line_that_is_no_item_is_named(tmp_path, line):
    with pytest.raises(DataError, match=r"i\.jsonl, line 3"):
        read_items(write(tmp_path / "i.jsonl", [*passages(2), line]))


def test_the_same_id_twice_is_refused(tmp_path):
    with pytest.raises(DataError, match="'item-0' twice"):
        read_items(write(tmp_path / "i.jsonl", [*passages(2), *passages(1)]))


def test_a_missing_empty_or_binary_file_is_refused(tmp_path):
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, message in (
        ("absent", "cannot be read"),
        ("empty", "no evaluation items"),
        ("binary", "UTF-8"),
    ):
        with pytest.raises(DataError, match=f"{name}.*{message}"):
            read_items(tmp_path / name)


@given(st.text("ab  cd\n", min_size=1, max_size=80).filter(str.strip), st.integers(1, 40))
def test_cuts_keep_whole_words_and_the_limit(text, limit):
    words = text.split()
    for cut, kept in ((tail(text, limit), words[::-1]), (head(text, limit), words)):
        shown = cut.split()
        assert shown == (kept[: len(shown)][::-1] if kept is not words else kept[: len(shown)])
        assert len(shown) >= 1
        assert len(cut) <= max(limit, len(kept[0]))
        if len(shown) < len(words):  # one more word would not have fitted
            assert len(cut) + 1 + len(kept[len(shown)]) > limit


def test_the_last_sentence_is_cut_off():
    assert cut_last_sentence("One. Two is e.g. here! Three?") == ("One. Two is e.g. here!", "Three?")
    assert cut_last_sentence("Only one.") is None


def test_the_last_word_is_the_answer_and_never_shown():
    item = Item("a", "d", 'It "returns" the mapping of each name to its (new) value.")')
    example = last_word_task([item], CONFIG, seed=1).examples[0]
    assert example.context == 'It "returns" the mapping of each name to its (new)'
    assert example.choices == (" value",)


def test_passages_without_a_word_at_the_end_are_left_out():
    bad = [
        Item(str(k), "d", t)
        for k, t in enumerate(["see f(x, y).", "about 12.", "word", "up to it.", "to run foo()."])
    ]
    assert [e.id for e in last_word_task([*bad, ITEMS[0]], CONFIG, seed=1).examples] == ["item-0"]
    with pytest.raises(DataError, match="none of 5"):
        last_word_task(bad, CONFIG, seed=1)


def test_chance_of_the_last_word_is_that_of_a_word_drawn_from_the_passage():
    items = [
        Item("a", "d", "the name of the name is no other name"),
        Item("b", "e", "there is no such thing as luck"),
    ]
    assert last_word_task(items, CONFIG, seed=1).chance == pytest.approx((2 / 8 + 0) / 2)


def test_shots_of_the_last_word_are_gpt3s_cloze():
    task = TASKS[0]
    shots = [
        Example("x", "x", "Alice went to visit her", (" friend",), 0),
        Example("y", "y", "Two plus two is", (" four",), 0),
    ]
    question = Example("q", "q", "It is", (" cold",), 0)
    assert task.template.prompt(question, []) == "It is"
    assert task.template.prompt(question, shots) == (
        "Alice went to visit her ____. -> friend\n\nTwo plus two is ____. -> four\n\nIt is ____. ->"
    )


def test_braces_in_a_passage_are_text():
    template = Template(alone="{context}", among="{context} ->")
    example = Example("q", "q", "a {dict} of {0} {context}", (" x",), 0)
    assert (
        template.prompt(example, [example])
        == "a {dict} of {0} {context} -> x\n\na {dict} of {0} {context} ->"
    )


def test_each_choice_is_an_ending_and_exactly_one_is_the_passages_own():
    endings = {head(cut_last_sentence(i.text)[1], CONFIG.ending_characters): i for i in ITEMS}
    for example in TASKS[1].examples:
        texts = [c.strip() for c in example.choices]
        assert len(set(texts)) == 4
        owners = [endings[t] for t in texts]
        assert [k for k, o in enumerate(owners) if o.id == example.id] == [example.answer]
        assert sum(o.document == example.document for o in owners) == 1


def test_the_right_choice_stands_in_every_place_about_equally_often():
    items = [Item(**i) for i in passages(400)]
    task = continuation_task(items, CONFIG.model_copy(update={"continuation_examples": 400}), seed=1)
    places = [sum(e.answer == k for e in task.examples) for k in range(4)]
    assert min(places) > 70  # 100 expected, standard deviation 9


def test_too_few_passages_for_four_choices_are_refused():
    with pytest.raises(DataError, match="3 of 3 evaluation items"):
        continuation_task(ITEMS[:3], CONFIG, seed=1)
    same = [Item(i.id, "one document", i.text) for i in ITEMS]
    with pytest.raises(DataError, match="of several documents"):
        continuation_task(same, CONFIG, seed=1)


@pytest.mark.parametrize("task", TASKS, ids=lambda t: t.name)
def test_no_question_is_among_its_own_shots_nor_any_of_its_document(task):
    shared = [Item(**i) for i in passages(60, documents=20)]
    task = {"last_word": last_word_task, "continuation": continuation_task}[task.name](shared, CONFIG, seed=1)
    for example in task.examples:
        shots = choose_shots(task, example, shots=10, seed=1)
        assert len({s.id for s in shots}) == 10
        assert all(s.id != example.id and s.document != example.document for s in shots)


def test_more_shots_only_add_at_the_front():
    task = TASKS[0]
    for example in task.examples[:10]:
        five = choose_shots(task, example, shots=5, seed=1)
        assert choose_shots(task, example, shots=2, seed=1) == five[-2:]
        assert choose_shots(task, example, shots=0, seed=1) == []
    assert choose_shots(task, task.examples[0], shots=5, seed=2) != choose_shots(
        task, task.examples[0], shots=5, seed=1
    )


def test_more_shots_than_there_are_examples_are_refused():
    with pytest.raises(DataError, match="60 shots were asked for, but only 59"):
        choose_shots(TASKS[0], TASKS[0].examples[0], shots=60, seed=1)


def test_a_higher_limit_keeps_the_questions_of_a_lower_one():
    few = last_word_task(ITEMS, CONFIG.model_copy(update={"last_word_examples": 10}), seed=1).examples
    assert len(few) == 10
    assert TASKS[0].examples[:10] == few
    assert last_word_task(ITEMS, CONFIG, seed=2).examples != TASKS[0].examples
