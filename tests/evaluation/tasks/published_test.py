"""Published tasks: rows become the paper's prompts, choices and answers."""

import json
import os
from pathlib import Path

import pytest

from trivium.errors import ConfigError, DataError
from trivium.evaluation.benchmark import benchmark_requests, prepare
from trivium.evaluation.config import BenchmarkConfig
from trivium.evaluation.tasks.definition import GROUP, chosen, definition, names
from trivium.evaluation.tasks.readers import read_examples
from trivium.evaluation.tasks.rows import Rows, local_rows, read_json_lines

ONE = BenchmarkConfig(shots=(0,), limit=1)
ROWS = {
    "boolq": {"passage": "P", "question": "is it", "label": 1},
    "piqa": {"goal": "Open it", "sol1": "with a key", "sol2": "with a leaf", "label": 0},
    "anli_r2": {"premise": "P.", "hypothesis": "H", "label": "c"},
    "hans": {
        "premise": "P .", "hypothesis": "H .", "label": 1, "heuristic": "constituent", "subcase": "s",
        "gold_label": "non-entailment",
    },
    "wic": {"word": "bank", "sentence1": "A.", "sentence2": "B.", "label": True},
    "winogrande": {"sentence": "A beat B as _ was fast.", "option1": "A", "option2": "B", "answer": "1"},
    "lambada": {"text": "he said to the king \n"},
    "hellaswag": {
        "activity_label": "Roof", "ctx_a": "A man [header] sits.", "ctx_b": "he", "endings": ["a.", "b.", "c.", "d."],
        "label": "2",
    },
}  # fmt: skip
RACE = {"article": "Ago.", "question": "Why?", "options": ["w", "x", "y", "z"], "answer": "B"}
EXPECTED = {
    "boolq": ("P\nQuestion: is it?\nAnswer:", [" no", " yes"], 1),
    "piqa": ("Open it", [" with a key", " with a leaf"], 0),
    "anli_r2": (
        "P.\nQuestion: H. True, False or Neither?\nAnswer:", [" True", " Neither", " False"], 2
    ),
    "hans": ("P .\nQuestion: H . True or False?\nAnswer:", [" True", " False"], 1),
    "wic": (
        "Sentence 1: A.\nSentence 2: B.\nQuestion: Is the word bank used in the same way in the two sentences "
        "above?\nAnswer:", [" no", " yes"], 1,
    ),
    "lambada": ("he said to the", [" king"], 0),
    "hellaswag": ("Roof: A man sits. He", [" a.", " b.", " c.", " d."], 2),
}  # fmt: skip


def made(name, rows, shots=None, config=ONE):
    return prepare(definition(name), Rows(rows, shots, "here", "there"), config)


@pytest.mark.parametrize("name", EXPECTED)
def test_rows_become_the_papers_prompts(name):
    benchmark = made(name, [ROWS[name]])
    requests = benchmark_requests(benchmark, 0, ONE)
    prompt, choices, answer = EXPECTED[name]
    assert {r.context for r in requests} == {prompt}
    assert [r.continuation for r in requests] == choices
    assert benchmark.task.examples[0].answer == answer


def test_winogrande_scores_the_same_text_after_both_options():
    first, second = benchmark_requests(made("winogrande", [ROWS["winogrande"]]), 0, ONE)
    assert (first.context, second.context) == ("A beat B as A", "A beat B as B")
    assert first.continuation == second.continuation == " was fast."


def test_race_asks_last_question_after_solved_ones():
    question = lambda n, answer: {  # noqa: E731
        "article": "Long ago.", "question": f"Q{n} _ ?", "options": [f"{n}{x}" for x in "wxyz"], "answer": answer,
    }  # fmt: skip
    benchmark = made("race_h", [question(1, "B"), question(2, "D")])
    requests = benchmark_requests(benchmark, 0, ONE)
    assert len(requests) == 4 and benchmark.task.examples[0].answer == 3
    assert requests[0].context == ("Article: Long ago.\n\nQuestion: Q1 _ ?\nAnswer: 1x\nQuestion: Q2 _ ?\nAnswer:")
    assert benchmark.task.unconditional == "Answer:" and benchmark.task.normalisation == "unconditional"


def test_lambada_uses_cloze_only_with_shots():
    rows = [{"text": f"the word number {n} is w{n}"} for n in range(5)]
    config = ONE.model_copy(update={"shots": (0, 2)})
    benchmark = made("lambada", rows, config=config)
    alone, among = (benchmark_requests(benchmark, k, config)[0].context for k in (0, 2))
    assert "____" not in alone
    assert among.count(" ____. →") == 3 and among.endswith("is ____. →")


def test_harness_wording_uses_its_own_prompt_and_score():
    config = ONE.model_copy(update={"wording": "harness"})
    benchmark = made("piqa", [ROWS["piqa"]], config=config)
    assert benchmark_requests(benchmark, 0, config)[0].context == "Question: Open it\nAnswer:"
    assert benchmark.task.normalisation == "none"
    assert made("hellaswag", [ROWS["hellaswag"]], config=config).task.normalisation == "character"


def test_shots_are_training_rows_and_grow_at_the_front():
    pool = [{**ROWS["boolq"], "question": f"number {n}"} for n in range(9)]
    config = ONE.model_copy(update={"shots": (1, 3)})
    benchmark = made("boolq", [ROWS["boolq"]], pool, config)
    one, three = (benchmark_requests(benchmark, k, config)[0].context for k in (1, 3))
    assert three.endswith(one) and three.count("\n\n") == 3 and "is it?\nAnswer:" in one[-20:]
    assert three.count("Answer: yes") == 3


def test_shots_drawn_once_are_shared():
    pool = [{**ROWS["boolq"], "question": f"number {n}"} for n in range(40)]
    asked = [{**ROWS["boolq"], "question": f"asked {n}"} for n in range(6)]
    for drawn, different in (("once", 1), ("each", 6)):
        config = BenchmarkConfig(shots=(2,), shots_drawn=drawn)
        requests = benchmark_requests(made("boolq", asked, pool, config), 2, config)
        assert len({r.context.split("P\nQuestion: asked")[0] for r in requests}) == different


def test_group_selects_all_tasks_and_keeps_named_ones():
    found = chosen(f"{GROUP},boolq")
    assert set(found) == set(names()) and found["boolq"] and not found["piqa"]
    with pytest.raises(ConfigError, match="did you mean 'hellaswag'"):
        chosen("helaswag")
    with pytest.raises(ConfigError, match="names no task"):
        chosen(" , ")


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("boolq", {"question": "x", "label": 0}, "row 1: there is no field 'passage'"),
        ("boolq", {**ROWS["boolq"], "label": 7}, "the answer 7 is not one of the 2 choices"),
        ("boolq", {**ROWS["boolq"], "label": "maybe"}, "is no row of boolq"),
        ("piqa", {**ROWS["piqa"], "sol2": " "}, "a choice is empty"),
        ("lambada", {"text": "word"}, "no last word"),
        ("winogrande", {**ROWS["winogrande"], "sentence": "no blank"}, "no blank _"),
        # Without the checks these would be asked silently, or counted as correct.
        ("boolq", {**ROWS["boolq"], "label": 0.7}, "the answer 0.7 is not a whole number"),
        ("boolq", {**ROWS["boolq"], "label": float("inf")}, "the answer inf is not a whole number"),
        ("boolq", {**ROWS["boolq"], "passage": None}, "the field 'passage' is null"),
        ("piqa", {**ROWS["piqa"], "sol1": None}, "the field 'sol1' is null"),
        ("wic", {**ROWS["wic"], "sentence2": None}, "the field 'sentence2' is null"),
        ("hellaswag", {**ROWS["hellaswag"], "ctx_a": None}, "the field 'ctx_a' is null"),
        ("hellaswag", {**ROWS["hellaswag"], "ctx_b": None}, "is no row of hellaswag"),
        ("hellaswag", {**ROWS["hellaswag"], "endings": ["a", None]}, "is no row of hellaswag"),
        ("winogrande", {**ROWS["winogrande"], "option2": None}, "is no row of winogrande"),
        ("boolq", {**ROWS["boolq"], "passage": {"a": 1}}, "the field 'passage' is not a text"),
        ("boolq", {**ROWS["boolq"], "passage": ["P"]}, "the field 'passage' is not a text"),
        ("hellaswag", {**ROWS["hellaswag"], "endings": "abcd"}, "the field 'endings' is not a list"),
        ("hellaswag", {"query": "q", "choices": "ab", "gold": 1}, "the field 'choices' is not a list"),
        ("race_h", {**RACE, "options": "wxyz"}, "the field 'options' is not a list"),
        ("race_h", {**RACE, "article": None}, "the field 'article' is null"),
        ("race_h", {**RACE, "options": ["a", None, "c", "d"]}, "is no row of race_h"),
        *(
            ("race_h", {**RACE, "answer": answer}, f"the answer {answer!r} is none of the letters A, B, C, D")
            for answer in ("", "BC", "E", None, 1)
        ),
    ],
)
def test_damaged_rows_are_named(name, row, message):
    with pytest.raises(DataError, match=message):
        made(name, [row])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"question": None}, "the field 'question' is null"),
        ({"options": ["w", None, "y", "z"]}, "the option B is null"),
        ({"article": ["p1", "p2"]}, "the field 'article' is not a text"),
        ({"article": 7}, "the article '7' is not a string"),
        ({"answer": "E"}, "none of the letters"),
        ({"article": "Ago \ud83d."}, "lone surrogate"),
    ],
    ids=str,
)
@pytest.mark.parametrize("number", [3, 4])
def test_damaged_race_question_is_named_by_row(number, damage, message):
    rows = [{**RACE, "article": f"Ago {n // 2}.", "question": f"Why {n}?"} for n in range(6)]
    rows[number - 1] |= damage
    with pytest.raises(DataError, match=f"here, row {number}: .*{message}"):
        made("race_h", rows)


def test_lone_surrogate_is_rejected_in_ids_and_texts():
    for row in ({**ROWS["hans"], "pairID": "ex\ud800"}, {**ROWS["hans"], "hypothesis": "\ud800 ."}):
        with pytest.raises(DataError, match="here, row 2: .* is a lone surrogate"):
            made("hans", [ROWS["hans"], row])


def test_braces_and_letters_in_rows_are_text():
    row = {**ROWS["boolq"], "passage": "{x} {{y}} ½ 文字 \U0001f600", "question": "{"}
    assert benchmark_requests(made("boolq", [row]), 0, ONE)[0].context.startswith("{x} {{y}} ½ 文字 \U0001f600\n")


def test_missing_and_damaged_files_are_named(tmp_path):
    with pytest.raises(DataError, match="is not a directory"):
        local_rows(definition("boolq"), tmp_path / "none")
    with pytest.raises(DataError, match="no rows of task boolq"):
        local_rows(definition("boolq"), tmp_path)
    path = tmp_path / "x.jsonl"
    for text, message in (("", "has no rows"), ("{}\n{", "line 2"), ("[1]", "not a JSON object")):
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            read_json_lines(path)
    path.write_text(json.dumps({"a": "  "}) + "\n\n")
    assert read_json_lines(path) == [{"a": "  "}]


def test_all_shards_are_read_in_order(tmp_path):
    """There may be more than ten shards, and other files next to them."""
    (tmp_path / "boolq").mkdir()
    rows = [{**ROWS["boolq"], "passage": f"Row {n}."} for n in range(24)]
    for name, several in (("validation", 12), ("train", 3)):
        for shard in range(several):
            some = rows[2 * shard : 2 * shard + 2]
            path = tmp_path / "boolq" / f"{name}-{shard:05d}-of-{several:05d}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in some))
    (tmp_path / "boolq" / "validation.jsonl").write_text("{}\n")
    found = local_rows(definition("boolq"), tmp_path)
    assert found.asked == rows and found.shots == rows[:6]
    assert found.asked_from == "boolq/validation-*-of-00012.jsonl"
    assert found.shots_from == "boolq/train-*-of-00003.jsonl"
    (tmp_path / "boolq" / "validation-00007-of-00012.jsonl").unlink()
    with pytest.raises(DataError, match=r"one of 12 shards, and 11 files were found \(number 7 is missing\)"):
        local_rows(definition("boolq"), tmp_path)
    for path in (tmp_path / "boolq").glob("validation-*"):  # numbered from 1, with the minimum of digits
        path.unlink()
    for shard in (2, 10, 1, *range(3, 10)):
        (tmp_path / "boolq" / f"validation_{shard}_of_10.jsonl").write_text(json.dumps(rows[shard]) + "\n")
    (tmp_path / "boolq" / "validation.jsonl").unlink()
    assert local_rows(definition("boolq"), tmp_path).asked == rows[1:11]
    (tmp_path / "boolq" / "validation_11_of_10.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match="one of 10 shards, and 11 files were found"):
        local_rows(definition("boolq"), tmp_path)
    (tmp_path / "boolq" / "validation_1_of_10.jsonl").unlink()
    with pytest.raises(DataError, match="one of 10 shards, and 10 files were found"):
        local_rows(definition("boolq"), tmp_path)


@pytest.mark.skipif("TRIVIUM_DATA" not in os.environ, reason="TRIVIUM_DATA names no folder of real data")
def test_all_rows_of_published_files_are_read():
    folder = Path(os.environ["TRIVIUM_DATA"]) / "tasks"
    counts = {"lambada": 5153, "boolq": 3270, "piqa": 1838, "hellaswag": 1000, "winogrande": 1267, "wic": 500}
    for name, count in counts.items():
        rows = local_rows(definition(name), folder)
        assert len(read_examples(rows.asked, definition(name), "paper", where=name)) == count


HANS = {"premise": "P .", "hypothesis": "H .", "heuristic": "constituent", "subcase": "s"}
PARSES = {"sentence1": "P .", "sentence2": "H .", "heuristic": "constituent", "subcase": "s", "pairID": "ex1"}


@pytest.mark.parametrize(
    "row",
    [
        {**HANS, "label": 1},  # format of the Hub
        {**PARSES, "gold_label": "non-entailment"},  # format of the authors
    ],
)
def test_hans_rows_are_read_from_every_publisher(row):
    task = made("hans", [row]).task
    assert task.examples[0].context == EXPECTED["hans"][0] and task.examples[0].answer == 1
    assert task.examples[0].groups["heuristic × gold_label"] == "constituent × non-entailment"
    with pytest.raises(DataError, match="no field 'sentence1'"):
        made("hans", [{k: v for k, v in row.items() if k not in ("premise", "sentence1")}])


FILES = {
    "hans": (
        ["train.jsonl", "validation.jsonl"],
        ["heuristics_train_set.jsonl", "regenerated_6000.jsonl"],
        ["heuristics_train_set.jsonl", "heuristics_evaluation_set.jsonl", "other.jsonl"],
    ),
    "winogrande": (["dev.jsonl", "train_debiased.jsonl", "train_l.jsonl", "train_xl.jsonl"],),
}


@pytest.mark.parametrize(("name", "files"), [(name, files) for name, kinds in FILES.items() for files in kinds])
def test_questions_are_never_training_rows(name, files, tmp_path):
    folder = tmp_path / name
    folder.mkdir()
    for file in files:
        (folder / file).write_text(json.dumps({"file": file}))
    found = local_rows(definition(name), tmp_path)
    assert "train" not in found.asked[0]["file"] and found.asked[0]["file"] != "other.jsonl"
    assert "train" in found.shots[0]["file"] and found.shots[0]["file"] == files[0 if name == "hans" else -1]


def test_anli_rows_are_read_as_published():
    row = ROWS["anli_r2"]
    theirs = {"context": row["premise"], "hypothesis": row["hypothesis"], "label": row["label"]}
    ours, read = (made("anli_r2", [r]).task.examples[0].context for r in (row, theirs))
    assert read == ours == EXPECTED["anli_r2"][0]


@pytest.mark.parametrize(
    ("hypothesis", "asked"),
    [("It is", "It is."), ("It is.", "It is."), ("Is it? ", "Is it?"), ('He said "no."', 'He said "no."')],
)
@pytest.mark.parametrize("name", ["anli_r1", "anli_r2", "anli_r3"])
def test_anli_hypothesis_ends_with_one_punctuation_mark(name, hypothesis, asked):
    row = {**ROWS["anli_r2"], "hypothesis": hypothesis}
    context = made(name, [row]).task.examples[0].context
    assert context == f"P.\nQuestion: {asked} True, False or Neither?\nAnswer:"
    with pytest.raises(DataError, match="no field 'hypothesis'"):
        made(name, [{"premise": "P.", "label": 0}])
    with pytest.raises(DataError, match="the field 'hypothesis' is null"):
        made(name, [{**row, "hypothesis": None}])


@pytest.mark.parametrize("wording", ["paper", "harness"])
def test_hellaswag_rows_agree_as_published_and_prepared(wording):
    """The harness leaves a space in place of a wikiHow tag and scores it; the paper's wording removes it."""
    published = {**ROWS["hellaswag"], "endings": ["[step] Go. [title] On.", "b  b", "[substeps] c.", "d."]}
    prepared = {"query": "Roof: A man sits. He", "choices": [" Go.. On.", "b b", " c.", "d."], "gold": 2}
    config = ONE.model_copy(update={"wording": wording})
    asked = [benchmark_requests(made("hellaswag", [row], config=config), 0, config) for row in (published, prepared)]
    assert asked[0] == asked[1]
    blank = " " if wording == "harness" else ""
    assert [r.continuation for r in asked[0]] == [f" {blank}Go.. On.", " b b", f" {blank}c.", " d."]


@pytest.mark.timeout(60)
def test_hellaswag_keeps_unclosed_brackets_in_linear_time():
    row = {**ROWS["hellaswag"], "endings": ["[" * 500_000, "a [step] b [c", "[a\n[b] c]", "d"]}
    endings = [c.removeprefix(" ") for c in made("hellaswag", [row]).task.examples[0].choices]
    assert endings == ["[" * 500_000, "a b [c", "[a\n c]", "d"]


def test_harness_shows_wic_word_as_written_and_fills_race_blanks():
    config = ONE.model_copy(update={"wording": "harness"})
    row = {"word": "earn", "sentence1": "They Earned it.", "sentence2": "B.", "start1": 5, "end1": 11, "label": 0}
    asked = benchmark_requests(made("wic", [row], config=config), 0, config)[0].context
    assert "the word 'Earned' used" in asked
    assert "the word earn used" in benchmark_requests(made("wic", [row]), 0, ONE)[0].context
    race = [
        {"article": "Ago.", "question": q, "options": ["w", "x", "y", "z"], "answer": "B"}
        for q in ("He is  _  .", "Why?", "Who?")
    ]
    asked = benchmark_requests(made("race_h", race, config=config), 0, config)[0].context
    assert asked == "Article: Ago.\n\nHe is x\nQuestion: Why?\nAnswer: x\nWho?"


def test_task_without_rows_is_rejected():
    with pytest.raises(DataError, match="no rows for task boolq"):
        read_examples([], definition("boolq"), "paper", where="x")
