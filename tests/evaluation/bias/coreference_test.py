import json
import os
from pathlib import Path

import pytest

from evaluation.scorers import noise, scored
from trivium.errors import DataError
from trivium.evaluation.bias.config import BiasConfig
from trivium.evaluation.bias.coreference import Question, compare, coreference, prompt_of, winobias, winogender

JOBS = (("guard", "nurse"), ("driver", "clerk"), ("cook", "baker"), ("chief", "editor"), ("mover", "tailor"))
FEMALE = {second for _, second in JOBS}


def write_winobias(root, number=40):
    place = root / "winobias"
    place.mkdir(parents=True)
    (place / "male_occupations.txt").write_text("\n".join(a for a, _ in JOBS))
    (place / "female_occupations.txt").write_text("\n".join(b for _, b in JOBS))
    for kind in ("type1", "type2"):
        lines = {"pro": [], "anti": []}
        for n in range(1, number + 1):
            man, woman = JOBS[n % 5]
            who = (man, woman)[n // 5 % 2]
            for side in lines:
                she = (who == woman) == (side == "pro")
                names = [f"[The {w}]" if w == who else f"the {w}" for w in (man, woman)]
                lines[side].append(
                    f"{n} {names[0]} met {names[1]} on day {n} because [{'she' if she else 'he'}] asked."
                )
        for side, text in lines.items():
            (place / f"{side}_stereotyped_{kind}.txt.test").write_text("\n".join(text) + "\n")
    return root


def write_winogender(root, number=40):
    place = root / "winogender"
    place.mkdir(parents=True)
    for side, pronoun in (("female", "she"), ("male", "he")):
        rows = [
            {
                "query": f'Sentence: "The {JOBS[n % 5][0]} told the visitor {n} that {pronoun} won."\nQ: Who? A:',
                "choices": [f"the {JOBS[n % 5][0]}", "the visitor"],
                "gold": n % 2,
            }
            for n in range(number)
        ]
        (place / f"winogender_mc_{side}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return root


class Prejudiced:
    """Takes "she" for the person with a female-dominated job, by `skew` nats."""

    def __init__(self, skew):
        self.skew, self.asked = skew, []

    def loglikelihood(self, requests):
        self.asked += requests
        return [self._score(r) for r in requests]

    def _score(self, request):
        question = request.context.rsplit("\n\n", 1)[-1]
        she = "because she" in question or "that she" in question
        fits = (request.continuation.split()[-1] in FEMALE) == she
        value = -5 + self.skew * fits + noise(question, request.continuation)
        return scored(2 * value, request.continuation, tokens=2)


def config(root, **more):
    return BiasConfig(data=str(root), permutations=500, resamples=200, **{"analyses": ["winobias"], **more})


def test_measured_prejudice_grows_with_planted_prejudice(tmp_path):
    write_winobias(tmp_path)
    for shots in ("0", "1", "4"):
        found = [coreference(config(tmp_path), Prejudiced(s), seed=1)["winobias type1"] for s in (0, 0.3, 0.8, 3.0)]
        margins = [f[shots]["margin"] for f in found]
        assert margins == sorted(margins)
        assert [f[shots]["gap"] for f in found] == sorted(f[shots]["gap"] for f in found)
        assert found[0][shots]["permutation_p"] > 0.05 > found[1][shots]["permutation_p"]
        assert found[3][shots]["sides"]["pro"]["accuracy"] == 1.0
        assert found[3][shots]["sides"]["anti"]["accuracy"] == 0.0


def test_winogender_compares_pronouns_without_pairs(tmp_path):
    write_winogender(tmp_path)
    found = coreference(config(tmp_path, analyses=["winogender"]), Prejudiced(1.0), seed=1)["winogender"]["1"]
    assert set(found["sides"]) == {"female", "male"} and found["sides"]["female"]["n"] == 40
    assert 0 <= found["permutation_p"] <= 1 and found["compared"] == ["female", "male"]


@pytest.mark.parametrize(("job", "visitor", "share"), [(-2.0, -3.0, 21 / 41), (-3.0, -2.0, 20 / 41), (-2, -2, 0)])
def test_higher_score_per_token_is_right_and_a_tie_is_wrong(tmp_path, job, visitor, share):
    """In 21 of 41 sentences the person with the job (three tokens) is meant, in the others the visitor (one token)."""

    class Plain:
        def loglikelihood(self, requests):
            return [
                scored(visitor, r.continuation, tokens=1)
                if "visitor" in r.continuation
                else scored(3 * job, r.continuation, tokens=3)
                for r in requests
            ]

    write_winogender(tmp_path, number=41)
    sides = coreference(config(tmp_path, analyses=["winogender"]), Plain(), seed=1)["winogender"]["0"]["sides"]
    for side in sides.values():
        assert side["accuracy"] == pytest.approx(share)
        assert side["margin"] == pytest.approx((job - visitor) / 41)


def test_versions_of_one_sentence_are_paired(tmp_path):
    """Sentences differ much more than their versions, which differ by 1.1, 0.9 and 1: standard deviation 0.1."""
    pairs = [(1.1, 0.0), (5.9, 5.0), (-4.0, -5.0)]
    questions = [Question(f"{n}", side, "", ("", "")) for n in range(3) for side in ("pro", "anti")]
    found = compare(config(tmp_path), questions, [m for pair in pairs for m in pair], "x", seed=1)
    assert found["effect_size"] == pytest.approx(10) and found["margin"] == pytest.approx(1)
    assert found["margin_interval"][0] >= 0.9 - 1e-9
    assert found["gap"] == pytest.approx(2 / 3 - 1 / 3)  # only margins above 0 are correct


def test_shots_are_balanced_other_sentences_shared_by_both_versions(tmp_path):
    questions = winobias(write_winobias(tmp_path), "type1")
    pro, anti = questions[6:8]
    assert pro.pair == anti.pair
    prompts = [prompt_of(q, questions, shots=4, seed=1) for q in (pro, anti)]
    before = [p.split("\n\n")[:-1] for p in prompts]
    assert before[0] == before[1] and len(before[0]) == 4
    asked = [next(q for q in questions if b.startswith(q.query)) for b in before[0]]
    assert all(b == q.query + q.choices[0] for b, q in zip(before[0], asked))
    assert [q.side for q in asked].count("pro") == 2 and len({q.pair for q in asked} | {pro.pair}) == 5
    assert prompt_of(pro, questions, shots=0, seed=1) == pro.query
    pair_of = {q.query + q.choices[0]: q.pair for q in questions}
    for question in questions:
        shown = prompt_of(question, questions, shots=9, seed=1).split("\n\n")[:-1]
        assert len({pair_of[s] for s in shown} | {question.pair}) == 10


@pytest.mark.parametrize("shots", [1, 2, 3])
def test_first_and_last_shot_are_of_either_side(tmp_path, shots):
    for questions in (winobias(write_winobias(tmp_path), "type1"), winogender(write_winogender(tmp_path))):
        side_of = {q.query + q.choices[0]: q.side for q in questions}
        prompts = [prompt_of(q, questions, shots=shots, seed=1) for q in questions]
        shown = [[side_of[text] for text in prompt.split("\n\n")[:-1]] for prompt in prompts]
        assert all(a != b for sides in shown for a, b in zip(sides, sides[1:]))
        last = [sides[-1] for sides in shown]
        assert all(0.3 < last.count(side) / len(last) < 0.7 for side in set(side_of.values()))


def test_too_many_shots_are_rejected(tmp_path):
    write_winobias(tmp_path, number=4)
    with pytest.raises(DataError, match=r"bias\.shots is 9, but only"):
        coreference(config(tmp_path, shots=[9]), Prejudiced(0), seed=1)


def test_sentences_are_read_with_correct_answer_first(tmp_path):
    question = winobias(write_winobias(tmp_path), "type1")[0]
    assert question.choices == (" the driver", " the clerk") and question.side == "pro"
    assert 'Sentence: "The driver met the clerk on day 1 because he asked."' in question.query
    assert 'pronoun "he"' in question.query
    gender = winogender(write_winogender(tmp_path))
    assert gender[1].choices == (" the visitor", " the driver") and gender[1].side == "female"


@pytest.mark.parametrize(
    "line",
    ["1 No brackets at all.", "1 [The guard] met the nurse.", "1 [The guard] met the king because [he] asked.",
     "1 The guard, the nurse and the cook saw [him] [the guard].",
     "1 [The guard] and [the cook] met the nurse because [he] asked.",
     "1 [The guard] and [the nurse] met because [he] asked.", "1"],
)  # fmt: skip
def test_sentence_without_brackets_is_named(tmp_path, line):
    place = write_winobias(tmp_path) / "winobias"
    (place / "pro_stereotyped_type1.txt.test").write_text(line)
    with pytest.raises(DataError, match=r"pro_stereotyped_type1.txt.test, line 1"):
        winobias(tmp_path, "type1")


def test_versions_of_unequal_number_are_rejected(tmp_path):
    place = write_winobias(tmp_path) / "winobias"
    path = place / "pro_stereotyped_type1.txt.test"
    path.write_text("\n".join(path.read_text().splitlines()[:-1]))
    with pytest.raises(DataError, match="39 sentences with the stereotype and 40"):
        winobias(tmp_path, "type1")


@pytest.mark.parametrize("row", ["{", "[]", '{"query": "x", "choices": ["a"], "gold": 0}',
                                 '{"query": "x", "choices": ["a", "b"], "gold": 2}',
                                 '{"query": "x", "choices": ["a", "b"], "gold": true}'])  # fmt: skip
def test_invalid_row_is_named(tmp_path, row):
    write_winogender(tmp_path)
    (tmp_path / "winogender" / "winogender_mc_male.jsonl").write_text(f"\n{row}\n")
    with pytest.raises(DataError, match=r"winogender_mc_male.jsonl, line 2"):
        winogender(tmp_path)


def test_missing_data_setting_is_named(tmp_path):
    with pytest.raises(DataError, match=r"bias\.data is not given"):
        coreference(BiasConfig(analyses=["winobias"]), Prejudiced(0), seed=1)
    with pytest.raises(DataError, match=r"bias\.data: .*cannot be read"):
        coreference(config(tmp_path), Prejudiced(0), seed=1)
    write_winogender(tmp_path)
    (tmp_path / "winogender" / "winogender_mc_male.jsonl").write_text("")
    with pytest.raises(DataError, match="is empty"):
        winogender(tmp_path)


def test_all_published_sentences_are_read():
    root = os.environ.get("TRIVIUM_DATA")
    if not root or not (Path(root) / "bias" / "winobias").is_dir():
        pytest.skip("needs TRIVIUM_DATA with bias/winobias and bias/winogender")
    for kind, pairs in (("type1", 396), ("type2", 394)):
        questions = winobias(Path(root) / "bias", kind)
        assert len(questions) == 2 * pairs
        assert all(a.pair == b.pair and a.choices == b.choices for a, b in zip(questions[::2], questions[1::2]))
    assert len(winogender(Path(root) / "bias")) == 120


def test_occupation_is_matched_as_a_full_word(tmp_path):
    for path in (write_winobias(tmp_path) / "winobias").glob("*.test"):
        path.write_text(path.read_text().replace(" on day", " over a cookbook on day"))
    assert winobias(tmp_path, "type1")[0].choices == (" the driver", " the clerk")
