import json

import pytest
import torch

from evaluation.models import FAMILIES, TEXTS, TOKENIZER, plan_of, scorer_of, write_checkpoint
from ranks import on_ranks
from trivium.comms.mesh import Mesh
from trivium.errors import CheckpointError, ConfigError, DataError
from trivium.evaluation.answer import NativeScorer, cut_at
from trivium.evaluation.config import Sampling
from trivium.evaluation.requests import Request
from trivium.evaluation.windows import Encoded, encode_all, rolling_windows, windows_of
from trivium.model.generate import Choice
from trivium.plan.layout import Layout
from trivium.seeds import seed_for

SHARED = "Some text that every question begins with. "
REQUESTS = [
    *[Request(t, a) for t in TEXTS[:6] for a in (" yes", " no", " module value buffer", " ½ 文字")],
    *[Request(SHARED + t[:40], a) for t in TEXTS[6:12] for a in (" a parser", " a parser module", " b")],
    *[Request("", " yes"), Request("", ""), Request("only spaces after   ", "word"), Request("x", " y" * 70)],
    *[Request(" ".join(TEXTS[:5]), " long context"), Request("a\n\n", "b"), Request("é", "\U0001f600")],
]
GREEDY = Sampling(max_tokens=20, temperature=0)
DRAWN = Sampling(max_tokens=24, temperature=0.9, top_p=0.8, seed=3)
PROMPTS = [TEXTS[0], "The", "", " ".join(TEXTS[:4]), "Item 7 opens", TEXTS[3][:30]]


def plainly(scorer, request):
    """Compute a request's log-likelihood from the logits of each full window, without sharing prefixes."""
    (encoded,) = encode_all([request], scorer.tokenizer)
    total, greedy = 0.0, True
    for window in (w for w in windows_of(encoded, scorer.sequence) if w.answer):
        logits = scorer.model.logits([window.read])[0].double()
        for k in range(window.answer):
            predicted = logits[len(window.read) - window.answer + k].log_softmax(-1)
            target = window.ids[len(window.ids) - window.answer + k]
            total += float(predicted[target])
            greedy &= int(predicted.argmax()) == target
    return total, greedy


@pytest.mark.broad
@pytest.mark.parametrize("family", FAMILIES)
def test_sharing_prefixes_changes_no_answer(family):
    scorer = scorer_of(plan_of(family))
    for request, answer in zip(REQUESTS, scorer.loglikelihood(REQUESTS), strict=True):
        likelihood, greedy = plainly(scorer, request)
        assert answer.loglikelihood == pytest.approx(likelihood, abs=1e-4)
        assert answer.greedy == greedy


def test_tokenizing_in_parts_changes_no_answer(monkeypatch):
    scorer, sizes = scorer_of(plan_of()), []

    def spied(requests, tokenizer):
        sizes.append(sum(len(r.context) + len(r.continuation) for r in requests))
        return encode_all(requests, tokenizer)

    expected = scorer.loglikelihood(REQUESTS)
    longest = max(len(r.context) + len(r.continuation) for r in REQUESTS)
    monkeypatch.setattr("trivium.evaluation.answer.encode_all", spied)
    monkeypatch.setattr("trivium.evaluation.answer.MAX_TOKENIZED_CHARACTERS", 2 * longest)
    found = scorer.loglikelihood(REQUESTS)
    assert len(sizes) > 1 and max(sizes) <= 2 * longest
    for one, other in zip(found, expected, strict=True):
        assert one.loglikelihood == pytest.approx(other.loglikelihood, abs=1e-4)
        assert (one.tokens, one.greedy) == (other.tokens, other.greedy)
    monkeypatch.setattr("trivium.evaluation.answer.MAX_TOKENIZED_CHARACTERS", 1)
    assert len(scorer.loglikelihood(REQUESTS[:3])) == 3 and scorer.loglikelihood([]) == []


def test_only_the_argmax_continuation_is_greedy():
    scorer = scorer_of(plan_of())
    prompt = TOKENIZER.encode(TEXTS[0])[:20]
    (drawn,) = scorer.continue_drafts([scorer.draft(prompt, Choice(0, 0, 1, 0), stop=(), max_tokens=5)])
    other = [*drawn[:-1], (drawn[-1] + 1) % TOKENIZER.vocabulary]
    right, wrong = scorer.loglikelihood_of_ids([Encoded(prompt, drawn), Encoded(prompt, other)])
    assert right[1] and not wrong[1] and right[0] > wrong[0]


def test_long_text_is_greedy_only_if_all_windows_are():
    scorer = scorer_of(plan_of())
    prompt = TOKENIZER.encode("The")[:1]
    (drawn,) = scorer.continue_drafts([scorer.draft(prompt, Choice(0, 0, 1, 0), stop=(), max_tokens=scorer.sequence)])
    assert len(drawn) == scorer.sequence
    whole, longer = scorer.loglikelihood_of_ids([Encoded(prompt, drawn), Encoded(prompt, [*drawn, *range(9)])])
    assert whole[1] and not longer[1]


def test_prompts_have_independent_draws_unless_greedy():
    scorer = scorer_of(plan_of())
    wild = DRAWN.model_copy(update={"temperature": 3.0, "top_p": 1.0, "max_tokens": 12})
    assert len(set(scorer.generate(["The"] * 4, settings=wild))) == 4
    greedy = scorer.generate(["The"], settings=wild.model_copy(update={"temperature": 0.0}))
    assert scorer.generate(["The"] * 4, settings=wild.model_copy(update={"top_k": 1})) == greedy * 4


def test_long_context_is_truncated_and_flagged():
    scorer = scorer_of(plan_of())
    long, cut = " ".join(TEXTS[:5]), " ".join(TEXTS[:5])[-60:]
    answers = scorer.loglikelihood([Request(long, " yes"), Request(cut, " yes")])
    assert [a.truncated for a in answers] == [True, False]
    assert scorer.loglikelihood([Request("ignored " + long, " yes")])[0].loglikelihood == pytest.approx(
        answers[0].loglikelihood, abs=1e-5
    )


def test_rolling_text_predicts_each_token_once():
    ids = list(range(100))
    for sequence in (7, 10, 99, 100, 101, 300):
        windows = rolling_windows(ids, before=-1, sequence=sequence)
        predicted = [i for w in windows for i in w.ids[len(w.ids) - w.answer :]]
        assert predicted == ids
        assert all(len(w.read) <= sequence for w in windows)
        assert windows[0].ids[0] == -1
    assert rolling_windows([], before=-1, sequence=7) == []
    assert [w.ids for w in windows_of(Encoded([-3, -2, -1], ids[:6]), 4)] == [[-1, 0, 1, 2, 3], [1, 2, 3, 4, 5]]


@pytest.mark.broad
@pytest.mark.parametrize("settings", [GREEDY, DRAWN])
@pytest.mark.parametrize("family", FAMILIES)
def test_kv_cache_changes_no_text(family, settings):
    layers = 3 if "pattern" in FAMILIES[family] else 2  # one layer of each kind and a further one
    scorer = scorer_of(plan_of(family, sequence=32, model={"layers": layers}))
    together = scorer.generate(PROMPTS, settings=settings)
    for number, prompt in enumerate(PROMPTS):
        ids = TOKENIZER.encode(prompt) or [TOKENIZER.end_of_text]
        seed = seed_for(settings.seed, "prompt", number)
        choice = Choice(settings.temperature, settings.top_k, settings.top_p, seed)
        draft = scorer.draft(ids, choice, stop=settings.stop, max_tokens=settings.max_tokens)
        uncached(scorer, draft)
        text = TOKENIZER.decode([t for t in draft.drawn if t != TOKENIZER.end_of_text])
        assert together[number] == text


def uncached(scorer, draft):
    from trivium.model.generate import _uniform, pick

    while draft.goes_on:
        logits = scorer.model.logits([draft.text[-scorer.sequence :]])[0, -1]
        draft.drawn.append(pick(logits, draft.choice, uniform=_uniform(draft)))


@pytest.mark.parametrize("settings", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_diverged_model_generates_nothing(settings):
    """Bias analyses and the harness reject non-finite scores too."""
    scorer = scorer_of(plan_of(), scale=float("nan"))
    with pytest.raises(DataError, match="not finite: its weights are damaged"):
        scorer.generate(["The"], settings=settings)


def test_text_ends_at_stop_or_end_of_document():
    scorer = scorer_of(plan_of())
    (free,) = scorer.generate(["The"], settings=GREEDY)
    stop = free[3:5]
    (stopped,) = scorer.generate(["The"], settings=GREEDY.model_copy(update={"stop": (stop,)}))
    assert stopped == free[: free.index(stop)]
    assert cut_at(["b", "c"], "xxcb") == "xx" and cut_at([], "x") == "x"
    draft = scorer.draft([1], Choice(0, 0, 1, 0), stop=(), max_tokens=9)
    assert draft.done([TOKENIZER.end_of_text]) and not draft.done([1])


@pytest.fixture
def checkpoint(tmp_path):
    return write_checkpoint(tmp_path, plan_of())


LAYOUTS = [{"tensor": 2}, {"pipeline": 2}, {"data": 2}, {"tensor": 2, "pipeline": 2}]


@pytest.mark.broad
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_answers_and_texts_do_not_depend_on_layout(checkpoint, layout):
    words = checkpoint.parent.parent / "tokenizer.json"
    alone = NativeScorer.open(checkpoint, words)
    expected = [[a.loglikelihood, a.greedy] for a in alone.loglikelihood(REQUESTS)]
    texts = alone.generate(PROMPTS, settings=DRAWN.model_copy(update={"max_tokens": 12}))
    rolled = alone.loglikelihood_rolling([" ".join(TEXTS[:3]), ""])
    degrees = Layout(**layout)
    out = checkpoint.parent / "found"
    on_ranks(degrees.world_size, _answer, degrees, checkpoint, str(out))
    for rank in range(degrees.world_size):
        found = json.loads((out.parent / f"found-{rank}").read_text())
        assert [g for _, g in found["answers"]] == [g for _, g in expected]
        assert [x for x, _ in found["answers"]] == pytest.approx([x for x, _ in expected], abs=1e-4)
        assert found["texts"] == texts
        assert found["rolled"] == pytest.approx(rolled, abs=1e-4)


def _answer(place, layout, checkpoint, out):
    mesh = Mesh.connect(layout, place.rank, place.world_size)
    scorer = NativeScorer.open(checkpoint, checkpoint.parent.parent / "tokenizer.json", mesh=mesh)
    answers = [[a.loglikelihood, a.greedy] for a in scorer.loglikelihood(REQUESTS)]
    texts = scorer.generate(PROMPTS, settings=DRAWN.model_copy(update={"max_tokens": 12}))
    rolled = scorer.loglikelihood_rolling([" ".join(TEXTS[:3]), ""])
    with open(f"{out}-{place.rank}", "w") as file:
        json.dump({"answers": answers, "texts": texts, "rolled": rolled}, file)


def test_unsuitable_layout_is_rejected(checkpoint):
    words = checkpoint.parent.parent / "tokenizer.json"
    mesh = Mesh.connect(Layout(), 0, 1)
    object.__setattr__(mesh, "layout", Layout(tensor=3))
    with pytest.raises((ConfigError, CheckpointError), match="heads"):
        NativeScorer.open(checkpoint, words, mesh=mesh)


def test_foreign_tokenizer_is_rejected(tmp_path):
    other = write_checkpoint(tmp_path, plan_of(), data={"tokenizer_sha256": "0" * 64})
    with pytest.raises(CheckpointError, match="ids have other meanings"):
        NativeScorer.open(other, tmp_path / "tokenizer.json")
    small = plan_of(model={"vocabulary": 200})
    narrow = write_checkpoint(tmp_path / "narrow" if (tmp_path / "narrow").mkdir() is None else tmp_path, small)
    with pytest.raises(CheckpointError, match=r"300 ids|ids, but the model"):
        NativeScorer.open(narrow, tmp_path / "tokenizer.json")


def test_folder_without_checkpoints_is_rejected(tmp_path):
    TOKENIZER.save(tmp_path / "tokenizer.json")
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        NativeScorer.open(tmp_path, tmp_path / "tokenizer.json")


@pytest.mark.parametrize("block", [1, 700, 1 << 20])
def test_blocks_of_the_vocabulary_change_no_answer(monkeypatch, block):
    scorer = scorer_of(plan_of())
    expected = [plainly(scorer, r) for r in REQUESTS]
    monkeypatch.setattr("trivium.model.likelihood.BLOCK", block)
    found = scorer.loglikelihood(REQUESTS)
    assert [a.loglikelihood for a in found] == pytest.approx([x for x, _ in expected], abs=1e-4)
    assert [a.greedy for a in found] == [g for _, g in expected]
    assert torch.is_grad_enabled()


def test_text_of_exactly_the_sequence_is_not_truncated():
    scorer = scorer_of(plan_of())
    requests = [Request("x" + " x" * n, " y") for n in range(scorer.sequence // 2 - 4, scorer.sequence + 4)]
    lengths = [sum(map(len, e)) for e in encode_all(requests, scorer.tokenizer)]
    assert scorer.sequence + 1 in lengths  # the last id is only predicted
    cut = [a.truncated for a in scorer.loglikelihood(requests)]
    assert cut == [length > scorer.sequence + 1 for length in lengths]
