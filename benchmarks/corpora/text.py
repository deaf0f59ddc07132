"""Real text for the corpus benchmarks: books and the Python source of this interpreter, with copies injected.

    books     public-domain books (github.com/mlschmitt/classic-books-markdown), corpora/books_train.jsonl.gz
    source    the .py files of the standard library and of the installed packages, in the order of their names

Both are cut at lines into documents of about 5,000 characters. Copies have words exchanged so that their Jaccard
similarity over 5-word shingles is spread between 0.6 and 1; what it really is, brute force says.
"""

import gzip
import json
import re
import sysconfig
from collections.abc import Iterable, Iterator
from itertools import count, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trivium.seeds import generator_for

DOCUMENT_CHARACTERS = 5000
DOCUMENTS_IN_FILE = 2048
LARGEST_FILE_BYTES = 200_000  # a larger source file is a table of data
_WORD = re.compile(r"\w+")


def build_text(path: Path, *, data: Path, bytes_wanted: int, copies_fraction: float, seed: int) -> None:
    """Write id, text and the id each copy was made from (-1: none), in a random order, as Parquet."""
    originals: list[str] = []
    held = 0
    for text in _documents(data):
        originals.append(text)
        held += len(text.encode())
        if held >= bytes_wanted * (1 - copies_fraction):
            break
    generator = generator_for(seed, "copies")
    chosen = generator.integers(len(originals), size=int(len(originals) * copies_fraction / (1 - copies_fraction)))
    copies = [_edited(originals[i], float(generator.uniform(0.6, 1.0)), generator) for i in chosen.tolist()]
    texts = originals + copies
    base = np.concatenate([np.full(len(originals), -1), chosen])
    order = generator.permutation(len(texts))
    place = np.argsort(order)
    columns = {
        "id": np.arange(len(texts)),
        "text": pa.array([texts[i] for i in order], pa.large_string()),
        "base": np.where(base[order] >= 0, place[base[order]], -1),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, compression="zstd")


def as_json_lines(texts: Iterable[tuple[str, str]], folder: Path) -> None:
    """Ids and texts as a harvest lays them down, in files of some 2,000 documents; not when they are there."""
    if folder.is_dir():
        return
    partial = folder.with_name(f".{folder.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    rows = (json.dumps({"id": name, "text": text}) for name, text in texts)
    for number in count():
        if not (some := list(islice(rows, DOCUMENTS_IN_FILE))):
            break
        (partial / f"part-{number:05d}.jsonl").write_text("\n".join(some), encoding="utf-8")
    partial.rename(folder)


def books(data: Path) -> Iterator[str]:
    """The documents of the books, in order."""
    with gzip.open(data / "corpora" / "books_train.jsonl.gz", "rt", encoding="utf-8") as file:
        for line in file:
            yield from _pieces(json.loads(line)["text"])


def _documents(data: Path) -> Iterator[str]:
    yield from books(data)
    paths = sysconfig.get_paths()
    for root in (Path(paths["stdlib"]), Path(paths["purelib"])):
        for path in sorted(root.rglob("*.py")):
            if 0 < path.stat().st_size <= LARGEST_FILE_BYTES:
                yield from _pieces(path.read_text(encoding="utf-8", errors="replace"))


def _pieces(text: str) -> Iterator[str]:
    held, size = [], 0
    for line in text.splitlines(keepends=True):
        held.append(line)
        size += len(line)
        if size >= DOCUMENT_CHARACTERS:
            yield "".join(held)
            held, size = [], 0
    if size >= DOCUMENT_CHARACTERS // 10:
        yield "".join(held)


def _edited(text: str, similarity: float, generator: np.random.Generator) -> str:
    """Words exchanged for others of the text, each of which takes five shingles with it."""
    places = list(_WORD.finditer(text))
    count = round(len(places) * (1 - similarity) / (5 * (1 + similarity)))
    if not places or count == 0:
        return text + " "
    edits = np.sort(generator.choice(len(places), size=min(count, len(places)), replace=False))
    donors = generator.integers(len(places), size=len(edits))
    pieces, end = [], 0
    for edit, donor in zip(edits.tolist(), donors.tolist(), strict=True):
        pieces += [text[end : places[edit].start()], places[donor].group() + "x"]
        end = places[edit].end()
    return "".join([*pieces, text[end:]])
