"""Assemble encoded pieces, in order, into one shard with lineage per source and split."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trivium.tokens.lineage import LineageWriter
from trivium.tokens.manifest import SPLITS
from trivium.tokens.shards import ShardWriter

# a stable sort keeps the order of documents within a source and split
_KINDS = [(column, "ascending") for column in ("source", "split")]


class ShardSet:
    """Writers of all shards. `counts`: occurrences of each id by split [vocabulary]."""

    def __init__(self, out: Path, stems: Mapping[str, str], *, dtype: str, vocabulary: int) -> None:
        self._out, self._stems, self._dtype = out, stems, dtype
        self._writers: dict[tuple[str, str], tuple[ShardWriter, LineageWriter]] = {}
        self._text_bytes: Counter[tuple[str, str]] = Counter()
        self.counts = {split: np.zeros(vocabulary, np.int64) for split in SPLITS}

    def append(self, piece: pa.Table) -> None:
        """Append each document of a piece to its shard."""
        # Sort once instead of filtering once per source, because a corpus may have thousands of sources.
        order = pc.sort_indices(piece, sort_keys=_KINDS)
        kinds = piece.group_by(["source", "split"]).aggregate([([], "count_all")]).sort_by(_KINDS)
        begin = 0
        for kind in kinds.to_pylist():
            source, split, mine = kind["source"], kind["split"], order.slice(begin, kind["count_all"])
            begin += len(mine)
            # copied, because a slice kept by the lineage writer would keep the full piece in memory
            rows = piece.take(mine)
            ids = np.concatenate([chunk.flatten().to_numpy() for chunk in rows["ids"].chunks])
            lengths = pc.list_value_length(rows["ids"]).to_numpy()
            shard, lineage = self._opened(source, split)
            shard.append(ids, lengths)
            lineage.append(rows["document"], rows["of"], lengths)
            self._text_bytes[source, split] += pc.sum(rows["text_bytes"]).as_py()
            counts = self.counts[split]
            counts += np.bincount(ids, minlength=len(counts))

    def close(self) -> dict[str, dict[str, Any]]:
        """Close all shards and return {source: {split: manifest entry}}."""
        entries: dict[str, dict[str, Any]] = {}
        for (source, split), (shard, lineage) in self._writers.items():
            lengths = shard.close()
            lineage.close()
            entries.setdefault(source, {})[split] = {
                "prefix": shard.prefix.name,
                "documents": len(lengths),
                "tokens": int(lengths.sum()),
                "text_bytes": self._text_bytes[source, split],
            }
        return entries

    def _opened(self, source: str, split: str) -> tuple[ShardWriter, LineageWriter]:
        if (source, split) not in self._writers:
            name = f"{split}-{self._stems[source]}"
            writers = (
                ShardWriter(self._out / name, dtype=self._dtype),
                LineageWriter(self._out / f"documents-{name}.parquet"),
            )
            self._writers[source, split] = writers
        return self._writers[source, split]
