"""Files of WMT, SummEval and G-Eval in their published form. All rows here are made."""

import json

import pytest

from trivium.errors import DataError
from trivium.evaluation.judges.folder import read_judge
from trivium.evaluation.judges.ratings import read_items, read_ratings

HEADER = "system\tdoc\tdoc_id\tseg_id\trater\tsource\ttarget\tcategory\tseverity\tcomment"
MQM = [
    "Made-A\ttalk.1\t1\t1\trater1\tA made source.\tEine <v>gemachte</v> Quelle.\tStyle/Awkward\tMinor\t",
    "Made-A\ttalk.1\t1\t1\trater1\tA made source.\tEine gemachte <v>Quelle</v>.\tFluency/Punctuation\tMinor\t",
    "Made-A\ttalk.1\t1\t1\trater2\tA made source.\t<v>Eine gemachte </v>Quelle.\tAccuracy/Omission\tMajor\tsaid why",
    "Made-B\ttalk.1\t1\t1\trater2\tA made source.\tQuelle.\tNo-error\tNo-error\t",
    "Made-B\ttalk.1\t2\t2\trater3\tAnother.\t<v>xx</v>\tNon-translation!\tMajor\t",
    "Made-B\ttalk.1\t3\t3\trater3\tA third.\tEin drittes.\tFluency/Punctuation\tMajor\t",
    "Made-B\ttalk.1\t3\t3\trater3\tA third.\tEin drittes.\tStyle/Awkward\tNeutral\t",
]


def write(path, lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def mqm(tmp_path):
    return write(tmp_path / "mqm_made_ende.tsv", [HEADER, *MQM])


def test_scores_of_a_segment_are_averaged_over_raters(mqm):
    assert read_ratings(mqm).scores == {
        ("Made-A", "1"): (-(1.1 + 5) / 2,),
        ("Made-B", "1"): (0,),
        ("Made-B", "2"): (-25,),
        ("Made-B", "3"): (-5,),
    }


def test_items_of_a_table_have_no_marks_around_errors(mqm):
    items = read_items(mqm)
    assert [(i.system, i.segment, i.output) for i in items][:2] == [
        ("Made-A", "1", "Eine gemachte Quelle."),
        ("Made-B", "1", "Quelle."),
    ]
    assert len(items) == 4


def test_published_averages_have_blanks_and_missing_scores(tmp_path):
    lines = ["system mqm_avg_score seg_id", "Made-A\t-1.000000 1", "Made-A\tNone 2", "Made-B -0.066667 1"]
    found = read_ratings(write(tmp_path / "mqm_made.avg_seg_scores.tsv", lines)).scores
    assert found == {("Made-A", "1"): (-1,), ("Made-A", "2"): (None,), ("Made-B", "1"): (-0.066667,)}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Made-A\td\t1\t9\tr\ts\tt\tStyle\tDreadful\t", "severity 'dreadful' has no weight"),
        ("Made-A\td\t1\t9", "has 4 columns"),
    ],
)
def test_rows_that_cannot_be_scored_are_named_by_line(tmp_path, line, message):
    path = write(tmp_path / "mqm_made.tsv", [HEADER, *MQM, line])
    with pytest.raises(DataError, match=message) as caught:
        read_ratings(path)
    assert "line 9" in str(caught.value)


def test_an_item_with_two_texts_is_refused(tmp_path):
    path = write(tmp_path / "mqm_made.tsv", [HEADER, *MQM, MQM[0].replace("gemachte", "andere")])
    with pytest.raises(DataError, match="'Made-A' has another text for segment '1'"):
        read_items(path)


def summary(system, doc, score, **more):
    scores = {"coherence": score, "consistency": 5.0, "fluency": 5.0, "relevance": 4.0, "overall": 4.1}
    row = {"doc_id": doc, "system_id": system, "source": f"Article {doc}.", "reference": "Made.", "system_output": "S."}
    return {**row, "scores": scores, **more}


def test_summaries_of_geval_have_human_scores_and_recorded_answers(tmp_path):
    answers = ["4", " 3.5", "Rating: 2", "9", "1 "]
    rows = [summary("M1", "d1", 2.5, all_responses=answers), summary("M2", "d1", 1.0, all_responses=["5"])]
    path = tmp_path / "gpt4_coh_detailed.json"
    path.write_text(json.dumps(rows))
    assert read_ratings(path, "coherence").scores == {("M1", "d1"): (2.5,), ("M2", "d1"): (1.0,)}
    judge = read_judge(path, "coherence")
    assert judge.scores == {("M1", "d1"): (4, 3.5, None, None, 1), ("M2", "d1"): (5,)} and judge.worst == 1
    items = read_items(path)
    assert items[0].source == "Article d1." and items[0].output == "S." and items[0].reference == "Made."


def test_experts_of_summeval_are_averaged(tmp_path):
    experts = [{"coherence": c, "consistency": 5, "fluency": 5, "relevance": 3} for c in (1, 2, 5)]
    row = {"id": "dm-1", "model_id": "M8", "decoded": "A made summary.", "expert_annotations": experts}
    path = write(tmp_path / "model_annotations.aligned.jsonl", [json.dumps(row)])
    assert read_ratings(path, "coherence").scores == {("M8", "dm-1"): (8 / 3,)}
    paired = {**row, "text": "A made article.", "references": ["A made reference.", "Another."]}
    (item,) = read_items(write(tmp_path / "paired.jsonl", [json.dumps(paired)]))
    assert item[:5] == ("M8", "dm-1", "A made article.", "A made summary.", "A made reference.")
    with pytest.raises(DataError, match="coherence, consistency, fluency, relevance; give one of them as --aspect"):
        read_ratings(path)


def test_rows_need_source_output_and_system(tmp_path):
    good = {"system": "A", "source": "s", "output": "", "segment": 3}
    path = write(tmp_path / "rows.jsonl", [json.dumps(good), json.dumps({**good, "system": "B"})])
    assert [(i.system, i.segment) for i in read_items(path)] == [("A", "3"), ("B", "3")]
    for name in ("system", "source", "output"):
        broken = {k: v for k, v in good.items() if k != name}
        bad = write(tmp_path / "bad.jsonl", [json.dumps(good), json.dumps(broken)])
        with pytest.raises(DataError, match=rf"line 2: {name} is missing"):
            read_items(bad)


def test_scores_that_are_not_finite_or_given_twice_are_refused(tmp_path):
    row = {"system": "A", "segment": "1", "score": 0.5}
    for second, message in (
        (row, "a second time"),
        ({**row, "segment": "2", "score": "x"}, "no finite number"),
        ({**row, "segment": None}, "segment is missing"),
    ):
        with pytest.raises(DataError, match=rf"line 2.*{message}"):
            read_ratings(write(tmp_path / "scores.jsonl", [json.dumps(row), json.dumps(second)]))
    with pytest.raises(DataError, match="contains no score"):
        read_ratings(write(tmp_path / "scores.jsonl", [json.dumps({**row, "score": None})]))
