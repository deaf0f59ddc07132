"""Write preference pairs as a token folder, with both answers of a pair in one window."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trivium.progress import Progress, silent
from trivium.tokens.chat.conversation import Pair
from trivium.tokens.chat.encode import encode_answer
from trivium.tokens.chat.shard import Document, Group, PackSettings, write_split
from trivium.tokens.chat.template import ChatTemplate
from trivium.tokens.completions import CHOSEN, REJECTED
from trivium.tokens.tokenizer import Tokenizer


def encode_pair(pair: Pair, template: ChatTemplate, tokenizer: Tokenizer) -> Group:
    """Return the documents of a pair: the prompt with the chosen answer, and with the rejected one."""
    documents = []
    for kind, code, answer in (("chosen", CHOSEN, pair.chosen), ("rejected", REJECTED, pair.rejected)):
        name = f"{pair.name} {kind}"
        ids, counted = encode_answer(pair.prompt, answer, template, tokenizer, name)
        documents.append(Document(name, ids, counted * code))
    return documents


def write_pairs(
    pairs: Iterable[Pair],
    out: Path,
    template: ChatTemplate,
    tokenizer: Tokenizer,
    settings: PackSettings,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Encode and pack preference pairs into the existing folder `out`, and return the manifest.

    The weights of targets are those of `tokens/completions.py`. A pair of more than `sequence` tokens is left out, as
    an answer without its end would be judged by its beginning. The manifest says in `packed` for each split how many
    `pairs` there are, and how many were `too_long`. Raises DataError if either split has none.
    """
    found = (
        (encode_pair(pair, template, tokenizer), [turn.content for turns in pair[:3] for turn in turns])
        for pair in pairs
    )
    return write_split(found, out, template, tokenizer, settings, progress, fit=_fit, told=("pairs", "both answers"))


def _fit(group: Group, settings: PackSettings, counts: Counter[str]) -> list[Group]:
    """Return the pair if a bin has room for it, and count it."""
    fits = sum(len(document.ids) for document in group) <= settings.sequence
    counts.update(pairs=int(fits), too_long=int(not fits))
    return [group] if fits else []
