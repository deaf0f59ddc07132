"""Tokenization as Trivium does it and as Megatron-LM's preprocessing does: GPT-2's ids to .bin and .idx.

IN is a folder with curated/ (a document store, blend.json), raw/jsonl (the same documents as JSON lines) and gpt2/
(tokenizer.json); each reads the form that it is made for.
"""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import tokenizers

from trivium.corpus.document import Document
from trivium.corpus.publish.store import write_documents
from trivium.tokens.config import TokensConfig
from trivium.tokens.encode import tokenize
from trivium.tokens.lineage import Lineage
from trivium.tokens.manifest import open_shards
from trivium.tokens.shards import ShardWriter, TokenShard

SOURCE = "text"


def lay_out(corpus: Path, into: Path, *, data: Path, times: int = 1) -> None:
    """The document store, the blend and the tokenizer that both read; the corpus so many times over."""
    if (into / "curated" / "blend.json").is_file():
        return
    rows = pq.ParquetFile(corpus)

    def documents():  # noqa: ANN202
        for turn in range(times):
            for batch in rows.iter_batches(256, columns=["id", "text"]):
                for row in batch.to_pylist():
                    name = f"{row['id']}-{turn}" if turn else f"{row['id']}"
                    yield Document(name, row["text"], SOURCE)

    write_documents(into / "curated" / "documents", documents())
    (into / "gpt2").mkdir(exist_ok=True)
    shutil.copyfile(data / "tokenizer" / "gpt2" / "tokenizer.json", into / "gpt2" / "tokenizer.json")
    (into / "curated" / "blend.json").write_text(json.dumps({SOURCE: {"weight": 1.0}}))


def tokenize_ours(source: Path, out: Path) -> None:
    """The whole station: verify, choose what validates, encode, write, hash."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    config = TokensConfig(vocabulary=50257, tokenizer=str(source / "gpt2"))
    tokenize(config, source / "curated", out, seed=1)


def tokenize_as_megatron(source: Path, out: Path) -> None:
    """Line by line: parse, encode with the tokenizers library, append the end mark, write one item."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    library = tokenizers.Tokenizer.from_file(str(source / "gpt2" / "tokenizer.json"))
    library.encode_special_tokens = True
    end = library.token_to_id("<|endoftext|>")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    writer = ShardWriter(out / "text", dtype="uint16")
    for path in sorted((source / "raw" / "jsonl").iterdir()):
        with open(path, encoding="utf-8") as file:
            for line in file:
                ids = library.encode(json.loads(line)["text"]).ids
                ids.append(end)
                writer.append(np.array(ids, dtype=np.uint16), np.array([len(ids)]))
    writer.close()


def same_ids(ours: Path, reference: Path) -> bool:
    """Whether every document has the same ids in both outputs; the reference holds them in the order of their ids."""
    expected = TokenShard.open(reference / "text")
    found = 0
    for split in ("train", "validation"):
        for source, shard in open_shards(ours, split).items():
            for place, name in enumerate(Lineage(ours / f"documents-{split}-{source}.parquet", shard)):
                if not np.array_equal(shard[place], expected[int(name)]):
                    return False
                found += 1
    return found == len(expected)
