"""One text, told while it is written; and tokens as people read them."""

from collections.abc import Callable

from trivium.seeds import seed_for
from trivium.serving.config import Drawing
from trivium.serving.unfold import BROKEN, Unfolding
from trivium.serving.write import Token
from trivium.serving.writer import Writer, Written
from trivium.tokens.tokenizer import Tokenizer


def speak(
    writer: Writer,
    prompt: str,
    settings: Drawing,
    tell: Callable[[str], None],
    alternatives: int | None = None,
) -> Written:
    """Write after a prompt, on one rank; `tell` gets the text piece by piece. The text is that of `writer.write`."""
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
    """A token's text; what is no whole character is named by its number."""

    def spell(token: int) -> str:
        text = tokenizer.decode_after([tokenizer.before_text], [token])  # with the space some begin with
        return f"<token {token}>" if BROKEN in text or not text else text

    return spell
