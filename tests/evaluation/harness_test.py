"""The oracle is the harness's Hugging Face model on the exported checkpoint."""

import json
from pathlib import Path

import pytest

pytest.importorskip("lm_eval", reason="lm_eval (extra eval) is not installed")

from lm_eval.api.instance import Instance
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from evaluation import hflm
from evaluation.models import FAMILIES, TEXTS, TOKENIZER, plan_of, write_checkpoint
from ranks import on_ranks
from trivium.checkpoint.load import Checkpoint
from trivium.comms.launch import Place
from trivium.errors import ConfigError, DataError
from trivium.evaluation import harness
from trivium.evaluation.answer import NativeScorer
from trivium.evaluation.harness import HarnessModel
from trivium.evaluation.requests import Request
from trivium.evaluation.windows import rolling_windows
from trivium.interchange.export import export_hf
from trivium.interchange.target import opened

PAIRS = [
    *[(t, a) for t in TEXTS[:8] for a in (" yes", " no", " module value buffer", " ½ 文字")],
    *[("Shared beginning. " + t[:50], a) for t in TEXTS[8:12] for a in (" parser", " parser module")],
    *[("", " yes"), ("spaces at the end  ", "word"), (" ".join(TEXTS[:4]), " end"), ("a\n\n", "b")],
]
ROLLED = [" ".join(TEXTS[:6]), TEXTS[0], "x", ""]


@pytest.fixture(scope="module", params=FAMILIES)
def both(request, tmp_path_factory):
    root = tmp_path_factory.mktemp(request.param)
    checkpoint = write_checkpoint(root, plan_of(request.param, sequence=64))
    export_hf(Checkpoint.open(checkpoint), root / "hf", tokenizer=root / "tokenizer.json")
    theirs = hflm.load(root / "hf")
    scorer = NativeScorer.open(checkpoint, root / "tokenizer.json")
    return HarnessModel(scorer=scorer), theirs


@pytest.fixture(scope="module")
def scorer(tmp_path_factory):
    root = tmp_path_factory.mktemp("scorer")
    return HarnessModel(str(write_checkpoint(root, plan_of())), str(root / "tokenizer.json"))


def asked(kind, arguments):
    return [Instance(kind, {}, a, n) for n, a in enumerate(arguments)]


def test_log_likelihoods_equal_those_of_the_harness(both):
    ours, theirs = both
    expected = theirs.loglikelihood(asked("loglikelihood", PAIRS), disable_tqdm=True)
    native = ours.scorer.loglikelihood([Request(*p) for p in PAIRS])
    found = ours.loglikelihood(asked("loglikelihood", PAIRS), disable_tqdm=True)
    for (likelihood, greedy), answer, own in zip(expected, found, native, strict=True):
        assert abs(answer[0] - likelihood) <= 1e-4 + 1e-6 * abs(likelihood)
        assert answer[1] == greedy
        assert (own.loglikelihood, own.greedy) == answer


def test_rolling_log_likelihoods_equal_those_of_the_harness(both):
    ours, theirs = both
    expected = theirs.loglikelihood_rolling(asked("rolling", [(t,) for t in ROLLED]), disable_tqdm=True)
    found = ours.loglikelihood_rolling(asked("rolling", [(t,) for t in ROLLED]))
    assert found == pytest.approx(expected, abs=1e-4, rel=1e-6)


def test_greedy_texts_equal_those_of_the_harness(both):
    ours, theirs = both
    settings = {"until": ["zz"], "max_gen_toks": 12, "do_sample": False}
    arguments = [(t, dict(settings)) for t in (*(t[:60] for t in TEXTS[:6]), " ".join(TEXTS[:4]))]
    expected = theirs.generate_until(asked("generate_until", arguments), disable_tqdm=True)
    assert ours.generate_until(asked("generate_until", arguments)) == expected


def test_repetition_penalty_acts_as_in_the_harness(both):
    ours, theirs = both
    texts = [t[:60] for t in TEXTS[:4]]
    plain = {"until": ["zz"], "max_gen_toks": 12, "do_sample": False}
    given = [(t, plain | {"repetition_penalty": 1.7}) for t in texts]
    found = ours.generate_until(asked("generate_until", given))
    assert found == theirs.generate_until(asked("generate_until", given), disable_tqdm=True)
    assert found != ours.generate_until(asked("generate_until", [(t, plain) for t in texts]))


@pytest.mark.parametrize(
    ("setting", "remedy"),
    [
        ({"num_beams": 4}, "--model hf"),
        ({"min_p": 0.5}, "--model hf"),
        ({"no_repeat_ngram_size": 1}, "--model hf"),
        ({"temprature": 1.0}, "did you mean 'temperature'"),
        ({"typo": None}, "known: do_sample"),
        ({"repetition_penalty": 1e-300}, "a number from 0.01"),
        ({"repetition_penalty": "two"}, "a number from 0.01"),
        ({"top_p": 0}, "above 0 and at most 1"),
        ({"top_p": 1.5}, "above 0 and at most 1"),
        ({"top_k": -3}, "a whole number from 0"),
        ({"top_k": 2.5}, "a whole number from 0"),
        ({"top_k": float("inf")}, "a whole number from 0"),
        ({"temperature": -1}, "a number from 0"),
        ({"temperature": "hot"}, "a number from 0"),
        ({"temperature": 0, "do_sample": True}, "do_sample=True requires a temperature above 0"),
    ],
    ids=str,
)
def test_unsupported_generation_setting_is_rejected(scorer, setting, remedy):
    (name, value), wanted = next(iter(setting.items())), {"until": [], "max_gen_toks": 4}
    with pytest.raises(ConfigError, match=f"gen_kwargs {name}={value!r}.*{remedy}"):
        scorer.generate_until(asked("generate_until", [("a", wanted | setting)]))


def test_neutral_generation_setting_is_accepted(scorer):
    wanted = {"until": [], "max_gen_toks": 4, "do_sample": False}
    idle = {
        "num_beams": 1,
        "temperature": None,
        "min_p": None,
        "typical_p": 1.0,
        "early_stopping": True,
        "length_penalty": 1.0,
    }
    texts = [scorer.generate_until(asked("generate_until", [("a", wanted | more)])) for more in ({}, idle)]
    assert texts[0] == texts[1]


def test_windows_of_long_text_equal_those_of_the_harness():
    for length in (0, 1, 5, 16, 17, 40):
        ids = list(range(100, 100 + length))
        theirs = [
            make_disjoint_window(w)
            for w in get_rolling_token_windows(ids, prefix_token=7, max_seq_len=16, context_len=1)
        ]
        ours = [(w.ids[: len(w.ids) - w.answer], w.ids[len(w.ids) - w.answer :]) for w in rolling_windows(
            ids, before=7, sequence=16)]  # fmt: skip
        assert ours == [(list(a), list(b)) for a, b in theirs]


def test_request_without_room_for_a_prompt_is_rejected(both):
    with pytest.raises(ConfigError, match="max_gen_toks 64 leaves no room"):
        both[0].generate_until(asked("generate_until", [("a", {"until": [], "max_gen_toks": 64})]))


def test_harness_finds_the_model_by_name():
    from lm_eval.api.registry import get_model

    assert get_model("trivium") is HarnessModel
    with pytest.raises(ConfigError, match="the model is missing"):
        HarnessModel()


def test_tokenizer_is_found_as_in_generate(tmp_path):
    """The target may be a run, one of its checkpoints, or a Hugging Face folder."""
    for name in ("training", "tokens"):
        (tmp_path / name).mkdir()
    checkpoint = write_checkpoint(tmp_path / "training", plan_of())
    TOKENIZER.save(tmp_path / "tokens" / "tokenizer.json")
    (tmp_path / "training" / "tokenizer.json").unlink()
    export_hf(Checkpoint.open(checkpoint), tmp_path / "hf", tokenizer=tmp_path / "tokens" / "tokenizer.json")
    for place in (tmp_path, checkpoint, tmp_path / "hf"):
        with opened(place) as target:
            expected = NativeScorer.open(target.newest, target.tokenizer).loglikelihood_rolling([TEXTS[0]])
        model = HarnessModel(checkpoint=str(place))
        assert model.loglikelihood_rolling(asked("rolling", [(TEXTS[0],)])) == expected


@pytest.mark.parametrize(
    ("name", "hint"), [("tensr", "did you mean 'tensor'"), ("add_bos_token", "known: checkpoint, pipeline")]
)
def test_unknown_argument_is_rejected(name, hint):
    added = {"batch_size": 1, "max_batch_size": 64, "device": "cpu"}
    with pytest.raises(ConfigError, match=rf"model_args {name}=2: .*{hint}"):
        HarnessModel.create_from_arg_obj({"checkpoint": "x", "tokenizer": "y", name: 2}, added)
    with pytest.raises(DataError, match="x does not exist"):  # arguments that the harness adds are accepted
        HarnessModel.create_from_arg_obj({"checkpoint": "x", "trust_remote_code": True}, added)


@pytest.mark.parametrize("degrees", [{}, {"tensor": 2}], ids=str)
def test_torchrun_ranks_answer_together(tmp_path, degrees):
    checkpoint = write_checkpoint(tmp_path, plan_of())
    expected = HarnessModel(str(checkpoint), str(tmp_path / "tokenizer.json")).loglikelihood(
        asked("loglikelihood", PAIRS), disable_tqdm=True
    )
    on_ranks(2, _answer, str(tmp_path), str(checkpoint), degrees)
    for rank in range(2):
        found = json.loads((tmp_path / f"found-{rank}").read_text())
        assert found["layout"] == [degrees.get("tensor", 1), 1, 2 // degrees.get("tensor", 1)]
        for one, other in zip(found["answers"], expected, strict=True):
            assert one[0] == pytest.approx(other[0], abs=1e-4) and one[1] == other[1]


def _answer(place, root, checkpoint, degrees):
    harness.torchrun_place = lambda: place
    model = HarnessModel(checkpoint, f"{root}/tokenizer.json", **degrees)
    answers = model.loglikelihood(asked("loglikelihood", PAIRS), disable_tqdm=True)
    mesh = model.scorer.model.mesh
    layout = [mesh.tensor.size, mesh.pipeline.size, mesh.data.size]
    Path(f"{root}/found-{place.rank}").write_text(json.dumps({"answers": answers, "layout": layout}))


def test_unconnected_ranks_are_rejected(tmp_path, monkeypatch):
    for place, degrees in ((Place(0, 2, 0, "env://"), {}), (None, {"tensor": 2})):
        monkeypatch.setattr(harness, "torchrun_place", lambda place=place: place)
        with pytest.raises(ConfigError, match="with torchrun --nproc-per-node"):
            HarnessModel("step-1", "tokenizer.json", **degrees)
