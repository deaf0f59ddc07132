"""Small curated directories for tests."""

import json
from pathlib import Path

from trivium.corpus.document import Document
from trivium.corpus.publish.store import write_documents
from trivium.seeds import generator_for
from trivium.tokens.config import TokensConfig
from trivium.tokens.encode import tokenize

SENTENCE = "the a parser reads each token from its stream and returns one value or raises an error when none is"


def prose(seed: int, words: int) -> str:
    """Return random words in sentences of ten, by seed."""
    chosen = generator_for(seed, "prose").choice(SENTENCE.split(), size=words).tolist()
    return " ".join(w if k % 10 else w.capitalize() for k, w in enumerate(chosen))


def documents(count: dict[str, int], *, words: int = 120) -> list[Document]:
    """Return documents of several sources, interleaved as curation writes them."""
    made = [(i, s) for s, n in count.items() for i in range(n)]
    return [Document(f"{s}-{i}", prose(hash_free(s, i), words), s) for i, s in sorted(made)]


def hash_free(source: str, i: int) -> int:
    """Return a seed from a name that is the same in every process."""
    return sum(map(ord, source)) * 1000 + i


def curated(directory: Path, docs: list[Document], weights: dict[str, float]) -> Path:
    """Write a curated directory: a document store and blend.json."""
    write_documents(directory / "documents", docs)
    (directory / "blend.json").write_text(json.dumps({s: {"weight": w} for s, w in weights.items()}))
    return directory


def tokenized(root: Path, count: dict[str, int], *, words: int, validation_fraction: float) -> Path:
    """Tokenize such documents into root/tokens; every source has the given number of documents."""
    shares = {source: n / sum(count.values()) for source, n in count.items()}
    source = curated(root / "curated", documents(count, words=words), shares)
    (root / "tokens").mkdir()
    config = TokensConfig(vocabulary=300, validation_fraction=validation_fraction)
    tokenize(config, source, root / "tokens", seed=3)
    return root / "tokens"
