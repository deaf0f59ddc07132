from evaluation.models import TOKENIZER, plan_of, scorer_of
from trivium.serving.config import Drawing, GenerationConfig
from trivium.serving.samples import drawing_of, sample, token_rows
from trivium.serving.write import Token
from trivium.serving.writer import Writer, Written

WRITER = Writer(scorer_of(plan_of()))


def test_samples_have_continuation_and_settings():
    config = GenerationConfig(prompts=("One", "Two"), sampling=Drawing(max_tokens=5, stop=(".",)))
    settings = drawing_of(config, seed=1)
    texts = WRITER.write(config.prompts, settings)
    samples = [sample(p, text, settings) for p, text in zip(config.prompts, texts, strict=True)]
    assert [s["prompt"] for s in samples] == ["One", "Two"]
    assert all(s["continuation"] for s in samples)
    assert samples[0]["settings"] | {"seed": 0} == {
        "max_tokens": 5, "temperature": 0.8, "top_k": 0, "top_p": 0.9, "stop": ["."], "seed": 0,
        "repetition_penalty": 1.0,
    }  # fmt: skip


def test_draws_depend_on_run_and_sampling_seed():
    seed = lambda run, own: drawing_of(GenerationConfig(sampling=Drawing(seed=own)), seed=run).seed  # noqa: E731
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
