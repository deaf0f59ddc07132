"""Write packed conversations as a token folder, whose windows are the bins."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from trivium.errors import DataError
from trivium.progress import Progress, silent
from trivium.tokens.chat.conversation import Conversation
from trivium.tokens.chat.template import ChatTemplate
from trivium.tokens.tokenizer import Tokenizer


def write_conversations(
    conversations: Iterable[Conversation],
    out: Path,
    template: ChatTemplate,
    tokenizer: Tokenizer,
    *,
    sequence: int,
    seed: int,
    validation_fraction: float = 0.03,
    too_long: Literal["truncate", "split", "refuse"] = "truncate",
    progress: Progress = silent,
) -> dict[str, Any]:
    """Encode and pack conversations into the existing folder `out`, and return the manifest.

    The folder is a `trivium-tokens-1` folder with the weights of targets. Its manifest has the section `chat`:
    {conversations, counted (tokens), bins, padding (tokens), truncated, split, sequence}, each by split. Documents are
    kept apart by the index, so the plan needs plan.model.documents = apart and plan.model.sequence = `sequence`.
    too_long: what is done with conversations of more than `sequence` tokens.
    """
    raise DataError(f"{out}: packing conversations into windows of {sequence} tokens is not there yet")
