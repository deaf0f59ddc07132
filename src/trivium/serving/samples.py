"""Text samples from prompts, for people to read."""

from typing import Any

from trivium.config import to_tree
from trivium.seeds import seed_for
from trivium.serving.config import Drawing, GenerationConfig
from trivium.serving.speak import spelling
from trivium.serving.unfold import Unfolding
from trivium.serving.writer import Written
from trivium.tokens.tokenizer import Tokenizer


def drawing_of(config: GenerationConfig, *, seed: int) -> Drawing:
    """How texts are drawn in a run of this seed."""
    # 32 bits: every generator takes so many.
    own = seed_for(seed, "generate", config.sampling.seed) % 2**32
    return config.sampling.model_copy(update={"seed": own})


def sample(prompt: str, written: Written, settings: Drawing) -> dict[str, Any]:
    """A text as it is kept."""
    return {"prompt": prompt, "continuation": written.text, "settings": to_tree(settings)}


def token_rows(written: Written, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """The tokens of a text with their log-probabilities, where these were asked for.

    joined: what became whole characters with a token that is, or follows, a part of one.
    """
    spell, unfolding = spelling(tokenizer), Unfolding(tokenizer, before=[tokenizer.before_text])
    rows = []
    for token in written.tokens:
        text = "" if token.id == tokenizer.end_of_text else unfolding.push(token.id)
        row = {
            "token": spell(token.id),
            "id": token.id,
            "logprob": token.logprob,
            "top": [{"token": spell(i), "logprob": p} for i, p in token.top],
        }
        rows.append(row | ({"joined": text} if text not in ("", row["token"]) else {}))
    return rows
