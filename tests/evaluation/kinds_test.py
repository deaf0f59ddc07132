"""Models with every kind of tokenizer get the scores that the harness computes on their exports."""

import pytest

pytest.importorskip("lm_eval", reason="lm_eval (extra eval) is not installed")

from lm_eval.api.instance import Instance

from evaluation import hflm
from evaluation.models import TEXTS, plan_of, write_checkpoint
from tokens.foreign import folder_of
from tokens.kinds import KINDS, kind
from tokens.kinds_test import PAIRS
from trivium.checkpoint.load import Checkpoint
from trivium.evaluation.answer import NativeScorer
from trivium.evaluation.harness import HarnessModel
from trivium.evaluation.requests import Request, Sampling
from trivium.interchange.export import export_hf
from trivium.serving.writer import Writer
from trivium.tokens.tokenizer import given_tokenizer

pytestmark = pytest.mark.broad
ASKED = [*PAIRS, *[(t[:80], a) for t in TEXTS[:4] for a in (" yes", " module value", " ½ 文字")]]


def asked(method, arguments):
    return [Instance(method, {}, a, n) for n, a in enumerate(arguments)]


def close(one, other):
    return abs(one - other) <= 1e-4 + 1e-6 * abs(other)


@pytest.mark.parametrize("name", KINDS)
def test_scores_equal_those_of_the_harness_on_the_export(name, tmp_path):
    made = kind(name)
    words = given_tokenizer(str(folder_of(tmp_path / "words", made.description, tokenizer_config=made.config)))
    model = {"vocabulary": words.vocabulary, "end_of_text": words.end_of_text}
    checkpoint = write_checkpoint(tmp_path, plan_of("llama", sequence=64, model=model))
    words.save(tmp_path / "tokenizer.json")
    export_hf(Checkpoint.open(checkpoint), tmp_path / "hf", tokenizer=tmp_path / "tokenizer.json")
    theirs = hflm.load(tmp_path / "hf")
    scorer = NativeScorer.open(checkpoint, tmp_path / "tokenizer.json")
    ours = HarnessModel(scorer=scorer)

    harness = [(p, theirs._encode_pair(*p)) for p in ASKED if p[0] and "</s>" not in "".join(p)]
    # If a token crosses the border, the harness scores the remaining tokens after it, or nothing.
    kept = [p for p, (before, rest) in harness if rest]
    split = [p for p, (before, rest) in harness if rest and theirs.tok_encode("".join(p))[: len(before)] == before]
    assert len(split) > len(ASKED) // 2
    expected = theirs.loglikelihood(asked("loglikelihood", kept), disable_tqdm=True)
    found = dict(zip(kept, expected, strict=True))
    for (likelihood, greedy), (other, same) in zip(
        ours.loglikelihood(asked("loglikelihood", kept)), expected, strict=True
    ):
        assert close(likelihood, other) and greedy == same
    for pair, answer in zip(split, scorer.loglikelihood([Request(*p) for p in split]), strict=True):
        assert close(answer.loglikelihood, found[pair][0]) and answer.greedy == found[pair][1]
    # the harness's own model accepts none of these
    left = [p for p, (before, rest) in harness if not rest]
    native = [(a.loglikelihood, a.greedy) for a in scorer.loglikelihood([Request(*p) for p in left])]
    assert ours.loglikelihood(asked("loglikelihood", left)) == native and all(x < 0 for x, _ in native)
    texts = [(" ".join(TEXTS[:4]),), ("x",)]
    rolled = theirs.loglikelihood_rolling(asked("rolling", texts), disable_tqdm=True)
    assert all(map(close, scorer.loglikelihood_rolling([t for (t,) in texts]), rolled))
    until = [(t[:60], {"until": ["zz"], "max_gen_toks": 8, "do_sample": False}) for t in TEXTS[:3]]
    copies = [[(t, dict(s)) for t, s in until] for _ in range(2)]
    written = theirs.generate_until(asked("generate_until", copies[0]), disable_tqdm=True)
    assert ours.generate_until(asked("generate_until", copies[1])) == written
    greedy = Sampling(temperature=0, max_tokens=8)
    prompts = [t[:60] for t in TEXTS[:3]]
    assert scorer.generate(prompts, settings=greedy) == Writer(scorer).generate(prompts, settings=greedy)
