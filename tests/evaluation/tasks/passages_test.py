import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evaluation.scorers import passages
from trivium.errors import DataError
from trivium.evaluation.config import EvaluationConfig
from trivium.evaluation.tasks.items import Item, cut_last_sentence, head, read_items, tail
from trivium.evaluation.tasks.passages import build_task
from trivium.evaluation.tasks.task import Example, choose_shots

CONFIG = EvaluationConfig(context_characters=90)
ITEMS = [Item(**i) for i in passages(60)]


def last_word(items):
    return build_task("last_word", items, CONFIG, seed=1)


def continuation(items, config=CONFIG):
    return build_task("continuation", items, config, seed=1)


def write(path, lines):
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines) + "\n")
    return path


def test_items_round_trip_with_unicode_line_ends(tmp_path):
    assert read_items(write(tmp_path / "i.jsonl", passages(60))) == ITEMS
    odd = {"id": "a\u2028", "document": "d\x85", "text": "one\u2029two"}
    assert read_items(write(tmp_path / "i.jsonl", [json.dumps(odd, ensure_ascii=False)])) == [Item(**odd)]


ITEM = {"id": "i", "document": "d", "text": "Some text."}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        *(
            ([*passages(2), line], r"i\.jsonl, line 3")
            for line in ("{", "[]", "3", '{"id": "a"}', {**ITEM, "id": 1}, {**ITEM, "text": " "})
        ),
        # A surrogate that is not rejected here would fail later without a name.
        *(
            ([json.dumps({**ITEM, name: "half \ud800"})], rf"i\.jsonl, line 1, {name}: '\\ud800' is a lone surrogate")
            for name in ITEM
        ),
        ([*passages(2), *passages(1)], "'item-0' twice"),
        ([""], "no evaluation items"),
        (None, "cannot be read"),
    ],
)
def test_invalid_items_are_named(tmp_path, lines, message):
    path = tmp_path / "i.jsonl"
    with pytest.raises(DataError, match=message):
        read_items(path if lines is None else write(path, lines))


@example("a b a", 3)
@example("a b cd", 3)
@example("a cd ab", 5)
@example("a bc", 2)
@given(st.text("ab  cd\n", min_size=1, max_size=80).filter(str.strip), st.integers(1, 40))
def test_cuts_keep_full_words_within_limit(text, limit):
    words = text.split()
    for cut, kept in ((tail(text, limit), words[::-1]), (head(text, limit), words)):
        shown = cut.split()
        assert shown == (kept[: len(shown)][::-1] if kept is not words else kept[: len(shown)])
        assert len(shown) >= 1
        assert len(cut) <= max(limit, len(kept[0]))
        if len(shown) < len(words):  # one more word would exceed the limit
            assert len(cut) + 1 + len(kept[len(shown)]) > limit


def test_last_sentence_is_cut_off():
    assert cut_last_sentence("One. Two is e.g. here! Three?") == ("One. Two is e.g. here!", "Three?")
    assert cut_last_sentence("Only one.") is None


def test_last_word_is_the_hidden_answer():
    item = Item("a", "d", 'It "returns" the mapping of each name to its (new) value.")')
    (question,) = last_word([item]).examples
    assert question.context == 'It "returns" the mapping of each name to its (new)'
    assert question.choices == (" value",)
    texts = ["see f(x, y).", "about 12.", "word", "up to it.", "to run foo()."]
    bad = [Item(str(k), "d", text) for k, text in enumerate(texts)]
    assert [e.id for e in last_word([*bad, ITEMS[0]]).examples] == ["item-0"]
    with pytest.raises(DataError, match="none of 5"):
        last_word(bad)


def test_chance_of_last_word_is_a_guess_among_passage_words():
    texts = ("the name of the name is no other name", "there is no such thing as luck", "1 2 3 4 five")
    assert last_word([Item(t, t, t) for t in texts]).chance == pytest.approx((2 / 8 + 0 + 0) / 3)


def test_shots_of_last_word_use_gpt3s_cloze_format():
    template = last_word(ITEMS).template
    shots = [
        Example("x", "x", "Alice went to visit her", (" friend",), 0),
        Example("y", "y", "Two plus two is", (" four",), 0),
    ]
    question = Example("q", "q", "It is", (" cold",), 0)
    assert template.prompt(question, []) == "It is"
    assert template.prompt(question, shots) == (
        "Alice went to visit her ____. -> friend\n\nTwo plus two is ____. -> four\n\nIt is ____. ->"
    )


def test_exactly_one_choice_is_the_passages_own_ending():
    common = [Item(f"c{n}", f"d{n}", f"It begins {n}. Ends of {n % 7} are told often.") for n in range(30)]
    assert all(len(set(e.choices)) == 4 for e in continuation(common).examples)
    endings = {head(cut_last_sentence(i.text)[1], CONFIG.ending_characters): i for i in ITEMS}
    for question in continuation(ITEMS).examples:
        owners = [endings[c.strip()] for c in question.choices]
        assert len({o.id for o in owners}) == 4
        assert [k for k, o in enumerate(owners) if o.id == question.id] == [question.answer]
        assert sum(o.document == question.document for o in owners) == 1


def test_question_is_passage_without_last_sentence():
    task = continuation([*ITEMS, Item("single", "its own", "Only one sentence.")])
    assert len(task.pool) == len(ITEMS) and task.chance == 1 / 4
    text_of = {item.id: " ".join(item.text.split()) for item in ITEMS}
    assert all(f"{e.context}{e.solution}" in text_of[e.id] for e in task.pool)


def test_correct_choice_is_uniformly_placed():
    items = [Item(**i) for i in passages(400)]
    task = continuation(items, CONFIG.model_copy(update={"continuation_examples": 400}))
    places = [sum(e.answer == k for e in task.examples) for k in range(4)]
    assert min(places) > 70  # expected 100, standard deviation 9


def test_shots_do_not_end_in_choices_of_the_question():
    """Distractors are endings of other passages. A shot with such an ending would suggest the distractor."""
    task = continuation(ITEMS)
    choose = choose_shots(task, shots=len(task.pool) - 4, seed=1)
    for question in task.examples:
        assert not {s.solution for s in choose(question)} & set(question.choices)
    with pytest.raises(DataError, match="end in none of its choices"):
        choose_shots(task, shots=len(task.pool) - 3, seed=1)(task.examples[0])


def test_too_few_passages_are_rejected():
    with pytest.raises(DataError, match="3 of 3 evaluation items"):
        continuation(ITEMS[:3])
    with pytest.raises(DataError, match="of several documents"):
        continuation([Item(i.id, "one document", i.text) for i in ITEMS])
