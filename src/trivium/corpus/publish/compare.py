"""Whether two corpora are the same, byte for byte, and where they are not."""

from hashlib import blake2b
from pathlib import Path

from trivium.corpus.read.inputs import DOCUMENTS
from trivium.corpus.store import MANIFEST, read_documents
from trivium.errors import DataError
from trivium.provenance import STAMP, file_sha256


def differences_between(a: Path, b: Path) -> list[str]:
    """A line for each file under `a` or `b` that the other lacks or has with other bytes; stamps aside.

    Where documents differ, further lines say how many and name the first.
    """
    for folder in (a, b):
        if not folder.is_dir():
            raise DataError(f"{folder} is not a folder; give the outputs of two curations")
    files = sorted(_files(a) | _files(b))
    lines = []
    for name in files:
        one, other = a / name, b / name
        if not one.is_file() or not other.is_file():
            lines.append(f"{name} is only in {a if one.is_file() else b}")
        elif file_sha256(one) != file_sha256(other):
            lines.append(f"{name} differs")
    if any(line.startswith(DOCUMENTS) for line in lines):
        lines += _documents_that_differ(a / DOCUMENTS, b / DOCUMENTS)
    return lines


def _documents_that_differ(a: Path, b: Path) -> list[str]:
    if not all((folder / MANIFEST).is_file() for folder in (a, b)):
        return []
    one, other = ({d.id: _digest(d.text) for d in read_documents(folder, verify=False)} for folder in (a, b))
    sets = {
        f"only in {a}": one.keys() - other.keys(),
        f"only in {b}": other.keys() - one.keys(),
        "with different text": {i for i in one.keys() & other.keys() if one[i] != other[i]},
    }
    return [f"{len(ids)} documents {what}, such as {min(ids)}" for what, ids in sets.items() if ids]


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _files(folder: Path) -> set[str]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != STAMP)
    return {path.relative_to(folder).as_posix() for path in found}
