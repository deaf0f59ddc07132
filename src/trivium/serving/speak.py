"""Generate one text and report it while it is generated; and spell tokens for people."""

from collections.abc import Callable

from trivium.seeds import seed_for
from trivium.serving.config import Drawing
from trivium.serving.unfold import BROKEN, Unfolding
from trivium.serving.write import Token
from trivium.serving.writer import Writer, Written
from trivium.tokens.tokenizer import Tokenizer


def speak(
    writer: Writer, prompt: str, settings: Drawing, tell: Callable[[str], None], alternatives: int | None = None
) -> Written:
    """Generate after a prompt on a single rank. `tell` receives the text in pieces, which together are
    `writer.write`'s."""
    tokenizer = writer.tokenizer
    (ids,) = tokenizer.prompt_ids([prompt])
    unfolding = Unfolding(tokenizer, settings.stop, before=ids)

    def heard(token: Token) -> bool:
        if token.id != tokenizer.end_of_text:
            tell(unfolding.push(token.id))
        return True

    draft = writer.draft(
        ids, settings, seed=seed_for(settings.seed, "prompt", 0), alternatives=alternatives, heard=heard
    )
    writer.write_drafts([draft])
    tell(unfolding.close())
    return writer.written(draft)


def spelling(tokenizer: Tokenizer) -> Callable[[int], str]:
    """Return the function that spells a token; one that is not a full character is shown by its id."""

    def spell(token: int) -> str:
        # keeps the leading space of tokens that have one
        text = tokenizer.decode_after([tokenizer.before_text], [token])
        return f"<token {token}>" if BROKEN in text or not text else text

    return spell
