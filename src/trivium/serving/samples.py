"""Text samples after prompts, for people to read."""

from typing import Any

from trivium.config import to_tree
from trivium.seeds import seed_for
from trivium.serving.config import Drawing, GenerationConfig
from trivium.serving.speak import spelling
from trivium.serving.unfold import Unfolding
from trivium.serving.writer import Written
from trivium.tokens.tokenizer import Tokenizer


def drawing_of(config: GenerationConfig, *, seed: int) -> Drawing:
    """Return the sampling settings of a run with this seed."""
    # Seeds of all generators have 32 bits.
    own = seed_for(seed, "generate", config.sampling.seed) % 2**32
    return config.sampling.model_copy(update={"seed": own})


def sample(prompt: str, written: Written, settings: Drawing) -> dict[str, Any]:
    """Return a sample as it is stored."""
    return {"prompt": prompt, "continuation": written.text, "settings": to_tree(settings)}


def token_rows(written: Written, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Return the tokens of a text with their log-probabilities, if these were requested.

    joined: the characters that a token completes, if it is or follows a part of a character.
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
