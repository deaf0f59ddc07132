"""GPT-2's ids of the same texts by what can compute them: Trivium's encoder, tokenizers, tiktoken and gigatoken.

Every encoder is called by turns on this thread with the same batches, and its processor seconds are counted. Ids are
compared with those of the tokenizers library.
"""

import gzip
import json
import lzma
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gigatoken
import numpy as np
import tiktoken

from trivium.tokens.bulk import BYTE_OF, PATTERN, pair_of
from trivium.tokens.tokenizer import Tokenizer, given_tokenizer

BATCH_BYTES = 4 << 20
OURS, OF_THE_LIBRARY = "Trivium", "tokenizers"
Encoder = Callable[[str], Any]


def encoders() -> dict[str, Encoder]:
    """Return the encoders by name."""
    ours = given_tokenizer("gpt2")
    tree = json.loads(ours.description) | {"added_tokens": [], "post_processor": None}
    giga = gigatoken.Tokenizer.from_json(json.dumps(tree))
    by_ranks = _tiktoken(ours)
    return {
        OURS: lambda text: ours.encode_arrays([text])[0],
        OF_THE_LIBRARY: ours.encode,
        "tiktoken": lambda text: by_ranks.encode_to_numpy(text, disallowed_special=()),
        "gigatoken": giga.encode,
    }


def measured(data: Path, megabytes: float) -> dict[str, Any]:
    """Return megabytes per processor second of each encoder, and in how many texts its ids differ."""
    found = encoders()
    seconds, differ = dict.fromkeys(found, 0.0), dict.fromkeys(found, 0)
    for encode in found.values():
        encode("a")  # builds what is built once
    size = texts = 0
    for turn, batch in enumerate(_batches(_texts(data), int(1e6 * megabytes))):
        ids: dict[str, list[Any]] = {}
        for name in list(found) if turn % 2 else reversed(found):
            before = time.thread_time()
            ids[name] = [found[name](text) for text in batch]
            seconds[name] += time.thread_time() - before
        for name, every in ids.items():
            pairs = zip(every, ids[OF_THE_LIBRARY], strict=True)
            differ[name] += sum(not np.array_equal(one, expected) for one, expected in pairs)
        size, texts = size + sum(len(text.encode()) for text in batch), texts + len(batch)
    rows: dict[str, dict[str, Any]] = {
        name: {"cpu_seconds": spent, "every_cpu_seconds": [spent], "megabytes_per_cpu_second": size / 1e6 / spent}
        for name, spent in seconds.items()
    }
    for name, row in rows.items():
        if name != OURS:
            row["times_as_fast"] = seconds[name] / seconds[OURS]
    return {"ours": OURS, "rows": rows, "megabytes": size / 1e6, "documents": texts, "texts_that_differ": differ}


def _texts(data: Path) -> Iterator[str]:
    """Yield pages of HTML, then the text of books."""
    for path in sorted((data / "html" / "pages").iterdir()):
        yield gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
    with lzma.open(data / "corpora" / "books_large.jsonl.xz", "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["text"]


def _batches(texts: Iterator[str], most: int) -> Iterator[list[str]]:
    held: list[str] = []
    size = total = 0
    for text in texts:
        held.append(text)
        size, total = size + len(text.encode()), total + len(text.encode())
        if size >= BATCH_BYTES:
            yield held
            held, size = [], 0
        if total >= most:
            break
    if held:
        yield held


def _tiktoken(tokenizer: Tokenizer) -> tiktoken.Encoding:
    model = json.loads(tokenizer.description)["model"]
    tokens = [*BYTE_OF, *("".join(pair_of(merge)) for merge in model["merges"])]
    ranks = {bytes(BYTE_OF[letter] for letter in token): model["vocab"][token] for token in tokens}
    return tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
