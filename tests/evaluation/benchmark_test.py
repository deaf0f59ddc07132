import json
import os
from pathlib import Path

import pytest

from evaluation.scorers import Knowing, scored
from trivium.corpus.config import DecontaminationConfig
from trivium.corpus.document import Document
from trivium.corpus.publish.store import write_documents
from trivium.corpus.select.decontaminate import keys_of
from trivium.errors import DataError
from trivium.evaluation.benchmark import benchmark_requests, evaluate_benchmarks, prepare, series_of
from trivium.evaluation.config import BenchmarkConfig
from trivium.evaluation.contamination import Overlap, scan_corpus, text_looked_for
from trivium.evaluation.hans import read_blocks, read_predictions, score_predictions, table_of
from trivium.evaluation.statistics import wilson
from trivium.evaluation.tasks.definition import definition
from trivium.evaluation.tasks.rows import Rows

pytestmark = pytest.mark.usefixtures("kernels")
CONFIG = BenchmarkConfig(shots=(0, 1, "few"), resamples=50)
HANS = [
    {
        "premise": f"The {a} near the {b} number {n} waited for the first long train from the north today .",
        "hypothesis": f"The {b} waited .", "label": n % 2, "heuristic": ("constituent", "subsequence")[n % 3 == 0],
        "subcase": f"s{n % 5}", "gold_label": ("entailment", "non-entailment")[n % 2], "pairID": f"ex{n}",
    }
    for n, (a, b) in enumerate([("doctor", "actor"), ("judge", "banker")] * 40)
]  # fmt: skip


def hans(config=CONFIG):
    return prepare(definition("hans"), Rows(HANS, None, "here", "here"), config)


def knowing(benchmark):
    return Knowing((e.context, e.solution) for e in benchmark.task.examples)


def test_perfect_scorer_is_right_in_every_group():
    benchmark = hans()
    found = evaluate_benchmarks([benchmark], knowing(benchmark), CONFIG)["hans"]
    assert list(found) == ["0", "1", "few"]
    for shots, result in found.items():
        assert result["accuracy"] == 1.0 and result["n"] == 80
        assert set(result["by_group"]) == {"heuristic", "heuristic × gold_label", "subcase"}
        assert all(g["accuracy"] == 1 for groups in result["by_group"].values() for g in groups.values())
        assert sum(g["n"] for g in result["by_group"]["subcase"].values()) == 80
        assert result["published"] == {"0": 0.5161, "1": 0.6001, "few": 0.7316}[shots]
        assert result["normalisation"] == "token" and result["version"] == 1 and result["seed"] == CONFIG.seed
    assert found["few"]["shots"] == 32
    series = series_of({"hans": found})["hans"]
    assert {shots: score["accuracy"] for shots, score in series.items()} == {"0": 1.0, "1": 1.0, "few": 1.0}
    assert all(score.items() <= found[shots].items() and score["prompt_hash"] for shots, score in series.items())
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_limit_selects_a_subset_of_questions():
    small = BenchmarkConfig(limit=10)
    wide = BenchmarkConfig(limit=30)
    ids = [{e.id for e in hans(c).task.examples} for c in (small, wide)]
    assert len(ids[0]) == 10 and ids[0] < ids[1]
    turned = prepare(definition("hans"), Rows(HANS[::-1], None, "here", "here"), small).task
    assert turned.examples == hans(small).task.examples


def test_shots_drawn_once_exclude_questions():
    config = BenchmarkConfig(limit=30, shots_drawn="once")
    benchmark = hans(config)
    questions = {e.context for e in benchmark.task.examples}
    for request in benchmark_requests(benchmark, 12, config):
        *shots, question = request.context.split("\n\n")
        assert question in questions and not any(
            s.removesuffix(" True").removesuffix(" False") in questions for s in shots
        )


def test_guessing_is_right_by_number_of_choices():
    row = {"article": "A", "question": "Q", "answer": "B"}
    rows = [{**row, "article": f"A{n}", "options": ["a", "b", "c", "d"][: 2 + 2 * (n % 2)]} for n in range(6)]
    task = prepare(definition("race_h"), Rows(rows, None, "x", "x"), CONFIG).task
    assert task.chance == pytest.approx((1 / 2 + 1 / 4) / 2)


def test_constant_answer_is_polarised_by_label():
    class Yes:
        def loglikelihood(self, requests):
            return [scored(-1.0 if r.continuation == " True" else -2.0, r.continuation) for r in requests]

    config = BenchmarkConfig(shots=(0,), resamples=50, confidence=0.7)
    result = evaluate_benchmarks([hans()], Yes(), config)["hans"]["0"]
    for group in result["by_group"]["subcase"].values():
        right = round(group["accuracy"] * group["n"])
        assert group["interval"] == list(wilson(right, group["n"], confidence=0.7))
    groups = result["by_group"]["heuristic × gold_label"]
    assert {g.split(" × ")[1]: v["accuracy"] for g, v in groups.items()} == {"entailment": 1.0, "non-entailment": 0.0}
    assert result["accuracy"] == 0.5


def test_race_uses_the_unconditional_score():
    rows = [
        {"article": f"A{n}", "question": "Q", "options": ["one", "two", "three", "four"], "answer": "B"}
        for n in range(4)
    ]
    benchmark = prepare(definition("race_h"), Rows(rows, None, "x", "x"), CONFIG)

    class Leaning:  # " one" is likely everywhere; " two" gains most from its context
        """ " one" is likely in any context; " two" gains most from its context"""

        def loglikelihood(self, requests):
            plain = {" one": -1.0, " two": -8.0, " three": -5.0, " four": -5.0}
            gain = {" two": 4.0}
            return [
                scored(
                    plain[r.continuation] + (gain.get(r.continuation, 0) if r.context != "Answer:" else 0),
                    r.continuation,
                )
                for r in requests
            ]

    result = evaluate_benchmarks([benchmark], Leaning(), BenchmarkConfig(shots=(0,), resamples=50))["race_h"]["0"]
    assert result["normalisation"] == "unconditional" and result["accuracy"] == 1.0
    assert result["accuracy_by_normalisation"]["none"] == 0.0


def test_overlap_uses_the_text_that_the_task_names():
    words = " ".join(f"word{n}" for n in range(20))
    rows = [
        {"passage": passage, "question": question, "label": 0}
        for passage, question in ((words, "is it"), ("Another one.", words), ("Another one.", "is it"))
    ]
    questions = prepare(definition("boolq"), Rows(rows, None, "x", "x"), CONFIG).task.examples
    overlap = Overlap(keys_of(words, DecontaminationConfig()), DecontaminationConfig())
    assert overlap.flags(questions) == [True, False, False]


def test_overlap_of_winogrande_uses_the_solved_sentence():
    row = {"sentence": "The cup was put into the box as _ was small.", "option1": "the cup", "option2": "it"}
    rows = [{**row, "answer": n} for n in ("1", "2")]
    task = prepare(definition("winogrande"), Rows(rows, None, "x", "x"), CONFIG).task
    texts = [text_looked_for(example) for example in task.examples]
    assert texts == [f"The cup was put into the box as {who} was small." for who in ("the cup", "it")]


def test_questions_in_the_corpus_are_flagged(tmp_path):
    planted = HANS[4]["premise"]
    texts = ["Nothing of it. " * 20, f"Before. {planted} After it more follows.", "Else " * 50]
    write_documents(tmp_path / "documents", (Document(f"d{n}", t, "web") for n, t in enumerate(texts)))
    benchmark = hans()
    overlap = scan_corpus(tmp_path / "documents", benchmark.task.examples, DecontaminationConfig())
    flags = overlap.flags(benchmark.task.examples)
    assert [e.id for e, f in zip(benchmark.task.examples, flags, strict=True) if f] == ["ex4"]
    config = BenchmarkConfig(shots=(0,), resamples=50)
    found = evaluate_benchmarks([benchmark], knowing(benchmark), config, overlap=overlap)["hans"]["0"]
    assert found["contamination"]["n"] == 1
    assert found["contamination"]["clean"]["n"] == 79 and found["contamination"]["in_corpus"]["accuracy"] == 1


def test_invalid_predictions_are_rejected(tmp_path):
    path = tmp_path / "p.txt"
    for text in ("", "01x", "é"):
        path.write_text(text)
        with pytest.raises(DataError, match=r"0 or 1|character"):
            read_predictions(path)
    path.write_text("0110\n")
    assert read_predictions(path) == ["non-entailment", "entailment", "entailment", "non-entailment"]
    blocks = tmp_path / "blocks.json"
    blocks.write_text('[{"first": 0, "last": 1, "heuristic": "h", "subcase": "s", "gold_label": "entailment"}]')
    assert score_predictions(["entailment", "non-entailment"], read_blocks(blocks))["accuracy"] == 0.5
    with pytest.raises(DataError, match="4 predictions for 2 pairs"):
        score_predictions(read_predictions(path), read_blocks(blocks))
    blocks.write_text("{}[")
    with pytest.raises(DataError, match="blocks of pair numbers"):
        read_blocks(blocks)


@pytest.mark.skipif("TRIVIUM_DATA" not in os.environ, reason="TRIVIUM_DATA names no folder of real data")
def test_published_table_of_bert_is_reproduced():
    folder = Path(os.environ["TRIVIUM_DATA"]) / "tasks" / "hans"
    blocks = read_blocks(folder / "official_pairid_map.json")
    found = table_of(score_predictions(read_predictions(folder / "preds_bert.txt"), blocks))
    # McCoy et al. 2019: lexical overlap, subsequence, constituent
    published = {"entailment": (0.95, 0.99, 0.98), "non-entailment": (0.16, 0.04, 0.16)}
    for label, *cells in found:
        assert [round(float(c) / 100, 2) for c in cells] == list(published[label])
