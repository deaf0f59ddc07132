"""Text samples from prompts, for people to read."""

from typing import Any

from trivium.config import to_tree
from trivium.evaluation.config import GenerationConfig
from trivium.evaluation.requests import Scorer
from trivium.seeds import seed_for


def generate_samples(config: GenerationConfig, scorer: Scorer, *, seed: int) -> list[dict[str, Any]]:
    """One {prompt, continuation, settings} per prompt of the config."""
    # 32 bits: every generator takes so many.
    settings = config.sampling.model_copy(
        update={"seed": seed_for(seed, "generate", config.sampling.seed) % 2**32}
    )
    texts = scorer.generate(config.prompts, settings=settings)
    if len(texts) != len(config.prompts):
        raise ValueError(f"the scorer gave {len(texts)} texts for {len(config.prompts)} prompts")
    return [
        {"prompt": prompt, "continuation": text, "settings": to_tree(settings)}
        for prompt, text in zip(config.prompts, texts, strict=True)
    ]
