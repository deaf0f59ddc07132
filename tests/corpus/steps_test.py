"""Laws of steps and their funnel."""

from corpus.funnels import balances
from trivium.corpus.document import Document
from trivium.corpus.steps import Drop, Keep, Reject, Step, Steps, Tally, figure_of, noted

DOCUMENTS = [Document(str(n), "x" * n, "s") for n in range(10)]
ODD = Step("odd", lambda d: Keep(noted(d, odd=True)) if len(d.text) % 2 else Drop("even"))
SMALL = Step("small", lambda d: Keep(d) if len(d.text) < 6 else Drop("large"))


def test_every_document_comes_out_once_and_the_funnel_balances():
    steps = Steps([ODD, SMALL])
    results = list(steps.run(DOCUMENTS))
    assert len(results) == len(DOCUMENTS)
    assert [r.id for r in results if isinstance(r, Document)] == ["1", "3", "5"]
    rejects = [r for r in results if isinstance(r, Reject)]
    assert {(r.step, r.reason) for r in rejects} == {("odd", "even"), ("small", "large")}
    read = Tally("read", documents=10)
    funnel = [tally.as_json() for tally in (read, *steps.tallies)]
    assert balances(funnel)
    assert funnel[-1]["bytes"] == 9
    funnel[1]["dropped"]["even"] -= 1
    assert not balances(funnel)


def test_a_step_sees_what_the_step_before_wrote():
    check = Step("check", lambda d: Keep(d) if d.metadata.get("odd") else Drop("not noted"))
    results = list(Steps([ODD, check]).run(DOCUMENTS[1:2]))
    assert results[0].metadata == {"odd": True}
    assert DOCUMENTS[1].metadata == {}


def test_a_figure_is_found_by_its_path_and_a_missing_one_is_below_all_others():
    metadata = {"score": 0.5, "quality": {"words": 7, "kind": "prose"}}
    assert (figure_of(metadata, "score"), figure_of(metadata, "quality.words")) == (0.5, 7.0)
    assert [figure_of({"n": sign * 10**400}, "n") for sign in (1, -1)] == [float("inf"), float("-inf")]
    for path in ("", "quality", "quality.kind", "quality.words.more", "nothing"):
        assert figure_of(metadata, path) == float("-inf")
