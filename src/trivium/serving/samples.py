"""Text samples from prompts, for people to read."""

from collections.abc import Callable
from typing import Any

from trivium.config import to_tree
from trivium.seeds import seed_for
from trivium.serving.config import Drawing, GenerationConfig
from trivium.serving.writer import Written


def drawing_of(config: GenerationConfig, *, seed: int) -> Drawing:
    """How texts are drawn in a run of this seed."""
    # 32 bits: every generator takes so many.
    own = seed_for(seed, "generate", config.sampling.seed) % 2**32
    return config.sampling.model_copy(update={"seed": own})


def sample(prompt: str, written: Written, settings: Drawing) -> dict[str, Any]:
    """A text as it is kept."""
    return {"prompt": prompt, "continuation": written.text, "settings": to_tree(settings)}


def token_rows(written: Written, spell: Callable[[int], str]) -> list[dict[str, Any]]:
    """The tokens of a text with their log-probabilities, where these were asked for."""
    return [
        {
            "token": spell(t.id),
            "id": t.id,
            "logprob": t.logprob,
            "top": [{"token": spell(i), "logprob": p} for i, p in t.top],
        }
        for t in written.tokens
    ]
