import json
import random
from pathlib import Path

import pytest
import torch

from evaluation.models import FAMILIES, TEXTS, TOKENIZER, plan_of, scorer_of, write_checkpoint
from ranks import on_ranks
from tokens.foreign import folder_of, llama_words
from trivium.comms.mesh import Mesh
from trivium.errors import DataError
from trivium.evaluation.answer import NativeScorer
from trivium.evaluation.requests import Sampling
from trivium.evaluation.windows import Encoded
from trivium.model.generate import Choice, penalised, pick
from trivium.model.rows import Rows
from trivium.plan.layout import Layout
from trivium.seeds import generator_for, seed_for
from trivium.serving.answer import Placed, logprobs_of, token_rows
from trivium.serving.config import Drawing, GenerationConfig
from trivium.serving.detokenize import Detokenizer
from trivium.serving.writer import Token, Writer, Written, choose, read_prompt, stopper
from trivium.tokens.tokenizer import load_tokenizer

GREEDY = Drawing(temperature=0, max_tokens=12)
DRAWN = Drawing(temperature=0.9, top_p=0.95, max_tokens=12, seed=5)
PROMPTS = [TEXTS[0], "The", "", "The", " ".join(TEXTS[:4]), "Item 7 opens", "a", "The"]


def plainly(scorer, prompt, settings, seed):
    """Generate without KV cache, one token at a time, from the full text."""
    ids = TOKENIZER.encode(prompt) or [TOKENIZER.end_of_text]
    done, drawn = stopper(TOKENIZER, settings.stop, ids), []
    choice = Choice(settings.temperature, settings.top_k, settings.top_p, seed)
    while len(drawn) < settings.max_tokens and not (drawn and done(drawn)):
        logits = scorer.model.logits([[*ids, *drawn][-scorer.sequence :]])[0, -1:]
        logits = penalised(logits, [[*ids, *drawn]], [settings.repetition_penalty])[0]
        uniform = float(generator_for(seed, "generate", len(drawn)).random())
        drawn.append(pick(logits, choice, uniform=uniform))
    return drawn


SETTINGS = [GREEDY, DRAWN, DRAWN.model_copy(update={"top_k": 5}),
            DRAWN.model_copy(update={"repetition_penalty": 1.5, "top_p": 1.0})]  # fmt: skip


@pytest.mark.broad
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_kv_cache_in_batches_changes_no_token(family, settings):
    scorer = scorer_of(plan_of(family, sequence=40))
    written = Writer(scorer, together=3).write(PROMPTS, settings)
    for number, (prompt, found) in enumerate(zip(PROMPTS, written)):
        assert [t.id for t in found.tokens] == plainly(
            scorer, prompt, settings, seed_for(settings.seed, "prompt", number)
        )


def test_texts_equal_those_of_the_scorer():
    scorer = scorer_of(plan_of())
    for settings in (Sampling(temperature=0, max_tokens=9), Sampling(max_tokens=9, seed=3, top_k=7)):
        assert Writer(scorer).generate(PROMPTS, settings=settings) == scorer.generate(PROMPTS, settings=settings)


def test_batch_size_changes_no_text():
    scorer = scorer_of(plan_of())
    texts = [[w.text for w in Writer(scorer, together=n).write(["The"] * 9 + PROMPTS, DRAWN)] for n in (1, 4, 32)]
    assert texts[0] == texts[1] == texts[2]
    assert len(set(texts[0][:9])) > 1  # equal prompts have independent draws


def test_draws_follow_the_distribution():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    draw = lambda s: [int(choose(logits, [s], [(k + 0.5) / 400])) for k in range(400)]  # noqa: E731
    counts = [draw(Drawing(temperature=1, top_p=1)).count(k) for k in range(4)]
    assert counts == [200, 120, 60, 20]
    assert set(draw(Drawing(temperature=1, top_p=0.75))) == {0, 1}
    assert set(draw(Drawing(temperature=1, top_p=1, top_k=3))) == {0, 1, 2}
    assert draw(Drawing(temperature=1, top_p=0.8)).count(0) == 250


def test_penalty_lowers_scores_of_either_sign():
    logits = torch.tensor([[2.0, -2.0, 1.0, -1.0]])
    found = penalised(logits, [[0, 1, 1]], [2.0])
    assert found.tolist() == [[1.0, -4.0, 1.0, -1.0]]
    assert penalised(logits, [[0]], [1.0]) is logits and logits[0, 0] == 2.0


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"top_p": 0.9}])
def test_diverged_model_generates_nothing(settings):
    scorer = scorer_of(plan_of())
    with torch.no_grad():
        next(scorer.model.stage.parameters()).fill_(torch.nan)
    with pytest.raises(DataError, match="not finite: its weights are damaged"):
        Writer(scorer).write(["The"], Drawing(max_tokens=3, **settings))


def test_reported_probabilities_equal_the_scorers():
    scorer = scorer_of(plan_of())
    (written,) = Writer(scorer).write([TEXTS[1]], DRAWN, alternatives=3)
    ids = TOKENIZER.encode(TEXTS[1])
    drawn = [t.id for t in written.tokens]
    ((total, _),) = scorer.loglikelihood_of_ids([Encoded(ids[-20:], drawn)])
    (short,) = Writer(scorer).write([TOKENIZER.decode(ids[-20:])], DRAWN, alternatives=3)
    assert all(len(t.top) == 3 and t.top[0][1] >= t.logprob for t in [*written.tokens, *short.tokens])
    read = read_prompt(Rows(scorer.model), [*ids[-20:], *drawn], 2)
    assert sum(t.logprob for t in read[20:]) == pytest.approx(total, abs=1e-4)
    assert read[0].logprob is None and [t.id for t in read] == [*ids[-20:], *drawn]


def test_logits_are_held_for_few_positions(monkeypatch):
    scorer, rows = scorer_of(plan_of()), []
    ids = TOKENIZER.encode(TEXTS[1])[:40]
    expected = read_prompt(Rows(scorer.model), ids, 2)
    predict = scorer.model.predict
    monkeypatch.setattr(scorer.model, "predict", lambda hidden: (rows.append(len(hidden)), predict(hidden))[1])
    monkeypatch.setattr("trivium.model.rows.LOGIT_POSITIONS", 16)
    found = read_prompt(Rows(scorer.model), ids, 2)
    assert max(rows) == 16 and sum(rows) == len(ids) - 1
    assert [t.id for t in found] == ids and found[0].logprob is None
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
        assert [i for i, _ in one.top] == [i for i, _ in other.top]


def test_text_ends_before_stop_in_stream_too():
    scorer = scorer_of(plan_of())
    writer = Writer(scorer)
    free = writer.write(["The"], GREEDY)[0].text
    for stop in ((), (free[3:5],), (free[2:9], "zzz"), ("never",)):
        for settings in (GREEDY, DRAWN):
            pieces, asked = [], settings.model_copy(update={"stop": stop})
            written = writer.write_streamed("The", asked, pieces.append)
            assert "".join(pieces) == written.text == writer.write(["The"], asked)[0].text
    stopped = writer.write(["The"], GREEDY.model_copy(update={"stop": (free[3:5],)}))[0]
    assert stopped.text == free[: free.index(free[3:5])] and stopped.finish == "stop"
    assert writer.write(["The"], GREEDY)[0].finish == "length"


@pytest.mark.parametrize("text", ["plain words", "é文字\U0001f600 ½", "a\ufffdb", "stop! stopp stop", ""])
def test_characters_of_several_tokens_are_streamed_complete(text):
    ids = TOKENIZER.encode(text)
    detokenizer = Detokenizer(TOKENIZER)
    pieces = [detokenizer.push(i) for i in ids] + [detokenizer.close()]
    assert "".join(pieces) == text
    assert "\ufffd" in text or all("\ufffd" not in p for p in pieces)
    cut = Detokenizer(TOKENIZER, ("stopp", "!"))
    found = "".join([*(cut.push(i) for i in ids), cut.close()])
    assert found == min((text.split(s)[0] for s in ("stopp", "!")), key=len)


def test_characters_after_invalid_bytes_are_streamed_complete():
    draw = random.Random(3)
    odd = TOKENIZER.encode("文😀é½")  # single bytes in any order
    for _ in range(400):
        ids = [draw.choice(odd) for _ in range(draw.randint(1, 9))]
        ids += TOKENIZER.encode(draw.choice(["文字", "😀", "a"])) + ids[:2]
        detokenizer = Detokenizer(TOKENIZER)
        assert "".join([*map(detokenizer.push, ids), detokenizer.close()]) == TOKENIZER.decode(ids)


def test_listener_cancels_only_its_own_text():
    writer = Writer(scorer_of(plan_of()))
    heard = []
    drafts = [writer.draft([5], GREEDY, seed=1) for _ in range(2)]
    drafts[0].on_token = lambda t: len(heard.append(t) or heard) < 3
    writer.write_drafts(drafts)
    assert [len(d.tokens) for d in drafts] == [3, 12]
    assert [d.finish for d in drafts] == ["cancelled", "length"] and heard == drafts[1].tokens[:3]


@pytest.mark.broad
@pytest.mark.parametrize("layout", [{"tensor": 2}, {"pipeline": 2}, {"data": 2}], ids=str)
def test_seed_gives_equal_texts_in_every_layout(tmp_path, layout):
    checkpoint = write_checkpoint(tmp_path, plan_of())
    alone = Writer(NativeScorer.open(checkpoint, tmp_path / "tokenizer.json"), together=3)
    expected = [[w.text, w.finish, [t.id for t in w.tokens]] for w in alone.write(PROMPTS, DRAWN, alternatives=2)]
    degrees = Layout(**layout)
    on_ranks(degrees.world_size, _write, degrees, str(tmp_path), str(checkpoint), DRAWN, 2)
    for rank in range(degrees.world_size):
        found = json.loads((tmp_path / f"found-{rank}").read_text())
        assert found["texts"] == expected
        assert found["sums"] == pytest.approx(
            [sum(t.logprob for t in w.tokens) for w in alone.write(PROMPTS, DRAWN, alternatives=2)], abs=1e-4
        )


def _write(place, layout, folder, checkpoint, settings, alternatives):
    mesh = Mesh.connect(layout, place.rank, place.world_size)
    scorer = NativeScorer.open(Path(checkpoint), Path(folder) / "tokenizer.json", mesh=mesh)
    written = Writer(scorer, together=3).write(PROMPTS, settings, alternatives=alternatives)
    found = {
        "texts": [[w.text, w.finish, [t.id for t in w.tokens]] for w in written],
        "sums": [sum(t.logprob or 0.0 for t in w.tokens) for w in written],
    }
    (Path(folder) / f"found-{place.rank}").write_text(json.dumps(found))


ENDLESS = DRAWN.model_copy(update={"max_tokens": 10**12, "stop": tuple("abcdefghijklmnopqrstuvwxyz")})


def test_ranks_share_generated_texts_only(tmp_path):
    checkpoint = write_checkpoint(tmp_path, plan_of())
    alone = Writer(NativeScorer.open(checkpoint, tmp_path / "tokenizer.json")).write(PROMPTS, ENDLESS)
    on_ranks(2, _write, Layout(data=2), str(tmp_path), str(checkpoint), ENDLESS, None)
    for rank in range(2):
        found = json.loads((tmp_path / f"found-{rank}").read_text())
        assert [text for text, _, _ in found["texts"]] == [w.text for w in alone]


STOPS = ([" the"], ["字"], ["é文", "item"], [" "], ["m m"])


@pytest.mark.parametrize("stops", STOPS, ids=str)
@pytest.mark.parametrize("kind", ["ours", "llama's"])
def test_text_ends_at_token_that_completes_a_stop(kind, stops, tmp_path):
    """This holds whatever a tokenizer does with the leading space of a text, and with bytes that form a character."""
    words = TOKENIZER
    if kind == "llama's":
        texts = [*TEXTS, "the item the item 文"]
        marks = {"bos_token": "<s>", "eos_token": "</s>"}
        path = folder_of(tmp_path, llama_words(texts, opens=True), tokenizer_config=marks)
        words = load_tokenizer(path / "tokenizer.json")
    generator, seen = generator_for(3, "stops", kind), 0
    some = words.encode_batch(["the item é文字 the 字m m the"])[0]
    for number in range(60):
        prompt = words.prompt_ids([("", "zero", "one 文")[number % 3]])[0]
        drawn = [*generator.choice(some, number % 7).tolist(), *some]
        done = stopper(words, stops, prompt)
        for count in range(1, len(drawn) + 1):
            there = any(s in words.decode_after(prompt, drawn[:count]) for s in stops)
            assert done(drawn[:count]) == there, (prompt, drawn[:count])
            if there:
                seen += 1
                break
    assert seen == 60


def test_more_likely_of_equally_spelled_alternatives_is_kept(tmp_path):
    path = folder_of(tmp_path, llama_words(TEXTS, opens=True), tokenizer_config={"eos_token": "</s>"})
    words = load_tokenizer(path / "tokenizer.json")
    letter, byte = words.words["a"], words.words["<0x61>"]
    token = Token(letter, -0.5, ((letter, -0.5), (byte, -4.0), (byte + 1, -5.0)))
    found = logprobs_of([Placed(token, 0)], words)
    assert found["top_logprobs"] == [{"a": -0.5, "b": -5.0}]


def test_draws_depend_on_run_and_sampling_seed():
    seed = lambda run, own: GenerationConfig(sampling=Drawing(seed=own)).drawing(seed=run).seed  # noqa: E731
    assert seed(1, 0) == seed(1, 0)
    assert len({seed(1, 0), seed(2, 0), seed(1, 1)}) == 3


def test_partial_characters_are_reported_with_the_full_one():
    text = "Item 🎉 語é opens"
    ids = [*TOKENIZER.encode(text), TOKENIZER.end_of_text]
    rows = token_rows(Written(text, [Token(i, -1.0) for i in ids], "stop"), TOKENIZER)
    parts = [row for row in rows[:-1] if row["token"].startswith("<token")]
    assert len(parts) > sum("joined" in row for row in parts) > 0
    # Every character is listed once: with its own token, or with the token that completes it.
    whole = "".join(row.get("joined", "" if row in parts else row["token"]) for row in rows[:-1])
    assert whole == text and "joined" not in rows[-1]
