import pytest

from evaluation.scorers import Knowing
from trivium.evaluation.config import GenerationConfig, Sampling
from trivium.evaluation.samples import generate_samples


def test_each_prompt_comes_back_with_its_continuation_and_the_settings_used():
    config = GenerationConfig(prompts=("One", "Two"), sampling=Sampling(max_tokens=5, stop=(".",)))
    samples = generate_samples(config, Knowing([]), seed=1)
    assert [s["prompt"] for s in samples] == ["One", "Two"]
    assert all(s["continuation"].startswith(s["prompt"]) for s in samples)
    assert samples[0]["settings"] | {"seed": 0} == {
        "max_tokens": 5, "temperature": 0.8, "top_k": 0, "top_p": 0.9, "stop": ["."], "seed": 0,
    }  # fmt: skip


def test_the_draws_depend_on_the_seed_of_the_run_and_on_that_of_the_sampling():
    seed = lambda run, own: generate_samples(  # noqa: E731
        GenerationConfig(sampling=Sampling(seed=own)), Knowing([]), seed=run
    )[0]["settings"]["seed"]
    assert seed(1, 0) == seed(1, 0)
    assert len({seed(1, 0), seed(2, 0), seed(1, 1)}) == 3


def test_three_prompts_are_the_default():
    assert len(generate_samples(GenerationConfig(), Knowing([]), seed=1)) == 3


def test_a_scorer_that_loses_a_text_is_refused():
    class Forgetful(Knowing):
        def generate(self, prompts, *, settings):
            return ["only one"]

    with pytest.raises(ValueError, match="1 texts for 3 prompts"):
        generate_samples(GenerationConfig(), Forgetful([]), seed=1)
