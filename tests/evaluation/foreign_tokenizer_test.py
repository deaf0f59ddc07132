"""Models from elsewhere whose documents begin with <s> and end with </s>, compared with the harness."""

import json
import shutil

import pytest

pytest.importorskip("lm_eval", reason="lm_eval (extra eval) is not installed")

import tokenizers
from lm_eval.api.instance import Instance

from evaluation import hflm
from evaluation.models import TEXTS, plan_of, write_checkpoint
from tokens.foreign import llama_words
from trivium.checkpoint.load import Checkpoint
from trivium.evaluation.answer import NativeScorer
from trivium.evaluation.harness import HarnessModel
from trivium.evaluation.requests import Request, Sampling
from trivium.interchange.export import export_hf
from trivium.interchange.target import opened
from trivium.seeds import generator_for
from trivium.serving.config import Drawing
from trivium.serving.detokenize import Detokenizer
from trivium.serving.writer import Writer
from trivium.tokens.tokenizer import load_tokenizer

MARKS = {"bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "</s>"}, "unk_token": "<unk>"}
PAIRS = [
    *[(t[:80], a) for t in TEXTS[:5] for a in (" yes", " module value", " ½ 文字")],
    *[("", "yes module"), ("spaces at the end  ", "word"), (" ".join(TEXTS[:4]), " end"), ("a\n\n", "b")],
]


@pytest.fixture(scope="module", params=[True, False], ids=["opens with <s>", "does not open"])
def folder(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("llama")
    words = llama_words(TEXTS, opens=request.param)
    size = tokenizers.Tokenizer.from_str(words).get_vocab_size()
    checkpoint = write_checkpoint(root, plan_of("llama", sequence=64, model={"vocabulary": size, "end_of_text": 2}))
    export_hf(Checkpoint.open(checkpoint), root / "hf", tokenizer=None)
    (root / "hf" / "tokenizer.json").write_text(words)
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    about["add_bos_token"] = not request.param  # transformers ignore this key
    (root / "hf" / "tokenizer_config.json").write_text(json.dumps(about | MARKS))
    return root / "hf"


def asked(kind, arguments):
    return [Instance(kind, {}, a, n) for n, a in enumerate(arguments)]


def test_answers_equal_those_of_the_harness(folder):
    theirs = hflm.load(folder)
    with opened(folder, None) as target:
        scorer = NativeScorer.open(target.newest, target.tokenizer)
    ours = HarnessModel(scorer=scorer)
    assert (ours.eot_token_id, ours.prefix_token_id) == (theirs.eot_token_id, theirs.prefix_token_id) == (2, 1)
    expected = theirs.loglikelihood(asked("loglikelihood", PAIRS), disable_tqdm=True)
    native = scorer.loglikelihood([Request(*p) for p in PAIRS])
    for (likelihood, greedy), answer in zip(expected, native, strict=True):
        assert abs(answer.loglikelihood - likelihood) <= 1e-4 + 1e-6 * abs(likelihood)
        assert answer.greedy == greedy
    assert ours.loglikelihood(asked("loglikelihood", PAIRS)) == [(a.loglikelihood, a.greedy) for a in native]
    texts = [(" ".join(TEXTS[:6]),), ("x",)]
    rolled = theirs.loglikelihood_rolling(asked("rolling", texts), disable_tqdm=True)
    assert scorer.loglikelihood_rolling([t for (t,) in texts]) == pytest.approx(rolled, abs=1e-4, rel=1e-6)
    until = [(t[:60], {"until": ["zz"], "max_gen_toks": 12, "do_sample": False}) for t in TEXTS[:4]]
    copies = [[(t, dict(s)) for t, s in until] for _ in range(2)]
    written = theirs.generate_until(asked("generate_until", copies[0]), disable_tqdm=True)
    assert ours.generate_until(asked("generate_until", copies[1])) == written


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_texts_end_at_every_id_that_the_folder_names(folder, tmp_path, file):
    """generation_config.json takes precedence over config.json, as in transformers."""
    with opened(folder) as target:
        writer = Writer(NativeScorer.open(target.newest, target.tokenizer))
    settings, text = Drawing(max_tokens=12, temperature=0.0), TEXTS[0][:60]
    ids = [token.id for token in writer.write([text], settings)[0].tokens]
    several = shutil.copytree(folder, tmp_path / "several")
    if file == "config.json":
        (several / "generation_config.json").unlink()
    tree = json.loads((several / file).read_text())
    (several / file).write_text(json.dumps(tree | {"eos_token_id": [2, ids[5]]}))
    until = [(text, {"until": ["zz"], "max_gen_toks": 12, "do_sample": False})]
    expected = hflm.load(several).generate_until(asked("generate_until", until), disable_tqdm=True)
    with opened(several) as target:
        scorer = NativeScorer.open(target.newest, target.tokenizer)
        export_hf(Checkpoint.open(target.newest), tmp_path / "again", tokenizer=target.tokenizer)
    assert HarnessModel(scorer=scorer).generate_until(asked("generate_until", until)) == expected
    (found,) = Writer(scorer).write([text], settings)
    assert [token.id for token in found.tokens] == ids[: ids.index(ids[5]) + 1] and found.finish == "stop"
    assert scorer.generate([text], settings=Sampling(max_tokens=12, temperature=0.0)) == [found.text]
    assert json.loads((tmp_path / "again" / "generation_config.json").read_text())["eos_token_id"] == [2, ids[5]]


def test_streamed_text_keeps_spaces(folder):
    with opened(folder, None) as target:
        writer = Writer(NativeScorer.open(target.newest, target.tokenizer))
    settings = Drawing(max_tokens=20, temperature=1.0, top_p=1.0, seed=3)
    pieces = []
    told = writer.write_streamed(TEXTS[0][:40], settings, pieces.append)
    (whole,) = writer.write([TEXTS[0][:40]], settings)
    assert "".join(pieces) == told.text == whole.text
    words = writer.tokenizer
    ids = words.encode_batch(["one é 文字 two three"])[0]
    detokenizer = Detokenizer(words, before=words.prompt_ids(["zero"])[0])
    assert "".join([*map(detokenizer.push, ids), detokenizer.close()]) == " one é 文字 two three"


def test_invalidating_bytes_are_not_streamed_early(folder):
    """A byte may be a letter, a part of one, or invalid. An invalid byte invalidates its neighbours."""
    words = load_tokenizer(folder / "tokenizer.json")
    generator, before = generator_for(1, "bytes"), words.prompt_ids(["zero"])[0]
    some = [*words.prompt_ids(["é?"])[0], *sorted(words.byte_tokens)[60:66], *sorted(words.byte_tokens)[195:199]]
    some += range(300, 308)
    for _ in range(300):
        ids = generator.choice(some, 12).tolist()
        detokenizer = Detokenizer(words, before=before)
        assert "".join([*map(detokenizer.push, ids), detokenizer.close()]) == words.decode_after(before, ids)
