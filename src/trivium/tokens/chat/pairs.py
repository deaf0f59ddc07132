"""Write preference pairs as a token folder, with both answers of a pair in one window."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trivium.errors import DataError
from trivium.progress import Progress, silent
from trivium.seeds import seed_for
from trivium.tokens.chat.conversation import Pair
from trivium.tokens.chat.encode import encode_answer
from trivium.tokens.chat.shard import Document, Group, PackSettings, validating, write_packed
from trivium.tokens.chat.template import ChatTemplate
from trivium.tokens.completions import CHOSEN, REJECTED
from trivium.tokens.manifest import SPLITS
from trivium.tokens.split import TRAIN, VALIDATION
from trivium.tokens.tokenizer import Tokenizer

_REPORTED = 1000  # pairs between two reports of progress


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
    groups: dict[str, list[Group]] = {split: [] for split in SPLITS}
    counts: dict[str, Counter[str]] = {split: Counter(pairs=0, too_long=0) for split in SPLITS}
    found, draws = [], []
    for done, pair in enumerate(pairs):
        if done % _REPORTED == 0:
            progress(done, None, "encoding pairs")
        found.append(encode_pair(pair, template, tokenizer))
        texts = (turn.content for turns in pair[:3] for turn in turns)
        draws.append(seed_for(settings.seed, "validation", *texts) / 2**63)
    for group, validates in zip(found, validating(draws, settings.validation_fraction), strict=True):
        split = VALIDATION if validates else TRAIN
        fits = sum(len(document.ids) for document in group) <= settings.sequence
        counts[split]["pairs" if fits else "too_long"] += 1
        groups[split] += [group] if fits else []
    for split in SPLITS:
        if not groups[split]:
            raise DataError(
                f"there are {len(found)} pairs, and none for {split} has both answers within {settings.sequence} "
                "tokens; give at least two, or a larger plan.model.sequence"
            )
    template.save(out)
    return write_packed(
        groups, out, tokenizer, sequence=settings.sequence, seed=settings.seed, counts=counts, progress=progress
    )
