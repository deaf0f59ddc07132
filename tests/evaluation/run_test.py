import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evaluation.scorers import Ignorant, Knowing, passages, scored
from trivium.errors import DataError
from trivium.evaluation.config import EvaluationConfig
from trivium.evaluation.requests import Request, ask
from trivium.evaluation.run import evaluate, prompt_hash, requests_of, result_of, right, unigram_scorer
from trivium.evaluation.tasks.items import Item
from trivium.evaluation.tasks.passages import build_task
from trivium.evaluation.tasks.task import Example, Task, Template
from trivium.tokens.tokenizer import train_tokenizer

OF_SHOTS = ("last_word", "continuation")
CONFIG = EvaluationConfig(
    tasks=OF_SHOTS, shots=(0, 2), last_word_examples=150, continuation_examples=150, resamples=100
)
PASSAGES = passages(160)
ITEMS = [Item(**i) for i in PASSAGES]


@pytest.fixture
def items(tmp_path):
    path = tmp_path / "evaluation_items.jsonl"
    path.write_text("".join(json.dumps(i) + "\n" for i in PASSAGES))
    return path


def solutions(config=CONFIG, seed=1):
    tasks = [build_task(name, ITEMS, config, seed=seed) for name in config.tasks]
    ends = {(t.template.alone.format(context=e.context), e.solution) for t in tasks for e in t.examples}
    return ends | {(t.template.among.format(context=e.context), e.solution) for t in tasks for e in t.examples}


def test_ignorant_scorer_is_near_chance(items):
    results = evaluate(CONFIG, Ignorant(), items, seed=1)["tasks"]
    for result in results["continuation"].values():
        assert result["interval"][0] < 0.25 < result["interval"][1]
        assert result["chance"] == 0.25
    assert results["last_word"]["0"]["accuracy"] == 0.0
    assert 0 < results["last_word"]["0"]["chance"] < 0.1


def test_more_knowledge_scores_higher_within_interval(items):
    config = CONFIG.model_copy(update={"confidence": 0.999})
    found = [evaluate(config, Knowing(solutions(), share), items, seed=1)["tasks"] for share in (0.2, 0.5, 0.9)]
    for task, guess in (("last_word", 0.0), ("continuation", 0.25)):
        accuracies = [f[task]["0"]["accuracy"] for f in found]
        assert accuracies == sorted(accuracies) and accuracies[0] < accuracies[-1]
        for share, f in zip((0.2, 0.5, 0.9), found, strict=True):
            low, high = f[task]["0"]["interval"]
            assert low < share + (1 - share) * guess < high


CLOZE = Task("t", 1, "greedy", Template("{context}", "{context}"), (), (), 0.0)


def harness_says(nats, choices):
    """Return the choices by acc, acc_norm and acc_bytes as in lm-evaluation-harness 0.4.13 (api/task.py,
    process_results). `choices` exclude the delimiting space of the requests."""
    characters, sizes = [len(c) for c in choices], [len(c.encode("utf-8")) for c in choices]
    per = {"none": 1.0, "character": np.array(characters), "byte": np.array(sizes)}
    return {name: int(np.argmax(np.array(nats) / size)) for name, size in per.items()}


@given(
    st.lists(
        st.tuples(st.floats(-60, -0.5), st.sampled_from(["a", "it", " so", "naïve", "a long ending", "文字", "Über"])),
        min_size=2,
        max_size=4,
        unique=True,
    )
)
@example([(-6.0, "a"), (-15.0, "ab, c"), (-30.0, "ab, cd, ef")])
def test_normalisations_equal_those_of_the_harness(scores):
    nats, choices = zip(*scores, strict=True)
    asked = tuple(f" {c}" for c in choices)
    task = replace(CLOZE, scoring="likelihood")
    for name, answer in harness_says(nats, choices).items():
        only = replace(task, examples=(Example("e", "d", "c", asked, answer),))
        assert right(only, [scored(n, c) for n, c in zip(nats, asked, strict=True)])[name] == [True]


def test_surprise_per_byte_is_of_the_correct_answer(items):
    class Flat:
        def loglikelihood(self, requests):
            return [scored(-0.5 * len(r.continuation.encode()), r.continuation) for r in requests]

    for by_shots in evaluate(CONFIG, Flat(), items, seed=1)["tasks"].values():
        assert by_shots["0"]["nats_per_byte"] == pytest.approx(0.5)
        assert by_shots["0"]["nats_per_byte_interval"] == pytest.approx([0.5, 0.5])
    accented = replace(CLOZE, examples=(Example("e", "d", "c", (" naïve",), 0),))  # 6 characters, 7 bytes
    found = result_of(accented, [scored(-3.5, " naïve")], config=CONFIG, seed=1)
    assert found["nats_per_byte"] == pytest.approx(0.5)


def test_baseline_test_is_paired_and_intervals_widen_with_confidence():
    """Both know four, only the model five, only the baseline one: a sign test of 5 in 6, p = 2 (1 + 6) / 2^6."""
    task = replace(CLOZE, examples=tuple(Example(f"e{n}", f"d{n}", "c", (" it",), 0) for n in range(12)))
    model, baseline = (
        [scored(-1.0 - n % 5, " it", greedy=known == "1") for n, known in enumerate(flags)]
        for flags in ("111111111000", "111100000100")
    )
    narrow, wide = (
        result_of(task, model, config=CONFIG.model_copy(update={"confidence": c}), seed=1, baseline=baseline)
        for c in (0.5, 0.99)
    )
    assert (narrow["accuracy"], narrow["unigram"]) == (9 / 12, 5 / 12)
    assert narrow["unigram_p"] == pytest.approx(14 / 64)
    for name in ("interval", "nats_per_byte_interval"):
        assert wide[name][0] < narrow[name][0] < narrow[name][1] < wide[name][1]


def test_equal_hashes_mean_equal_questions(items):
    hashes = lambda seed, config=CONFIG: [  # noqa: E731
        r["prompt_hash"] for t in evaluate(config, Ignorant(), items, seed=seed)["tasks"].values() for r in t.values()
    ]
    assert hashes(1) == hashes(1)
    assert len(set(hashes(1))) == 4
    assert not set(hashes(1)) & set(hashes(2))
    task = build_task("last_word", ITEMS, CONFIG, seed=1)
    asked = requests_of(task, shots=1, seed=1)
    assert prompt_hash(asked) != prompt_hash(asked[::-1])


def test_truncated_contexts_are_counted(items):
    class Short:
        def loglikelihood(self, requests):
            return [scored(-1.0, r.continuation, truncated=len(r.context) > 200) for r in requests]

    results = evaluate(CONFIG, Short(), items, seed=1)["tasks"]["last_word"]
    assert results["0"]["truncated_fraction"] == 0.0
    assert results["2"]["truncated_fraction"] == 1.0


def test_a_task_that_the_passages_do_not_suffice_for_is_skipped_with_the_reason(items, tmp_path):
    found = evaluate(CONFIG.model_copy(update={"tasks": ("names", "word_order")}), Ignorant(), items, seed=1)
    assert list(found["tasks"]) == ["word_order"] and list(found["tasks"]["word_order"]) == ["0"]
    assert "none of 160 evaluation items makes a question of the task names" in found["skipped"]["names"]
    with pytest.raises(DataError, match="task names"):
        evaluate(CONFIG.model_copy(update={"tasks": ("names",)}), Ignorant(), items, seed=1)


def test_default_work_is_bounded():
    config = EvaluationConfig(tasks=OF_SHOTS)
    items = [Item(i["id"], i["document"], i["text"] * 5) for i in passages(400)]
    requests = [
        r
        for n in config.tasks
        for s in config.shots
        for r in requests_of(build_task(n, items, config, seed=1), shots=s, seed=1)
    ]
    assert len(requests) <= 2000
    assert sum(len(r.context) + len(r.continuation) for r in requests) / 3 < 150_000  # about 3 bytes per token


def test_errors_are_raised_before_the_first_question(items):
    scorer = Knowing([])
    with pytest.raises(DataError, match="400 shots"):
        evaluate(CONFIG.model_copy(update={"shots": (0, 400)}), scorer, items, seed=1)
    assert scorer.asked == []


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_non_finite_answers_are_rejected_with_cause(items, value):
    class Diverged:
        def loglikelihood(self, requests):
            return [scored(value, r.continuation) for r in requests]

    with pytest.raises(DataError, match="log-likelihood of (nan|-inf)"):
        evaluate(CONFIG, Diverged(), items, seed=1)


def test_scorer_with_missing_answers_is_rejected():
    class Forgetful:
        def loglikelihood(self, requests):
            return [scored(-1.0, r.continuation) for r in requests[1:]]

    requests = requests_of(build_task("last_word", ITEMS, CONFIG, seed=1), shots=0, seed=1)
    with pytest.raises(ValueError, match="149 answers to 150 requests"):
        ask(Forgetful(), requests)


@pytest.fixture(scope="module")
def frequencies():
    texts = [p["text"] for p in PASSAGES[:60]]
    tokenizer = train_tokenizer(texts, 320)
    return tokenizer, np.bincount(sum(tokenizer.encode_batch(texts), []), minlength=tokenizer.vocabulary)


def test_unigram_likelihood_is_that_of_token_frequencies(frequencies):
    tokenizer, counts = frequencies
    scorer = unigram_scorer(tokenizer, counts)
    answer, other = scorer.loglikelihood([Request("whatever", " parser module"), Request("", " parser module")])
    ids = tokenizer.encode(" parser module")
    expected = sum(np.log((counts[i] + 1) / (counts.sum() + tokenizer.vocabulary)) for i in ids)
    assert answer == other and answer.loglikelihood == pytest.approx(expected)
    assert (answer.tokens, answer.truncated) == (len(ids), False)
    with pytest.raises(DataError, match="319 token counts"):
        unigram_scorer(tokenizer, counts[:-1])


def test_unigram_is_greedy_for_the_most_frequent_token_only(frequencies):
    tokenizer, counts = frequencies
    top = tokenizer.decode([int(counts.argmax())])
    asked = [Request("", text) for text in (top, " locale", f"{top} locale")]
    assert [a.greedy for a in unigram_scorer(tokenizer, counts).loglikelihood(asked)] == [True, False, False]
