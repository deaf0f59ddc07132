"""Encoded pieces, in order → one shard for each source and split, with its lineage."""

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

_KINDS = [(column, "ascending") for column in ("source", "split")]  # documents of one stay in their order


class ShardSet:
    """Shards being written; `counts`: how often each id occurs in a split, [vocabulary]."""

    def __init__(self, out: Path, stems: Mapping[str, str], *, dtype: str, vocabulary: int) -> None:
        self._out, self._stems, self._dtype = out, stems, dtype
        self._writers: dict[tuple[str, str], tuple[ShardWriter, LineageWriter]] = {}
        self._text_bytes: Counter[tuple[str, str]] = Counter()
        self.counts = {split: np.zeros(vocabulary, np.int64) for split in SPLITS}

    def append(self, piece: pa.Table) -> None:
        """Each document of a piece to its shard."""
        # Sorted once, not looked through once a source: a corpus may have thousands.
        order = pc.sort_indices(piece, sort_keys=_KINDS)
        kinds = piece.group_by(["source", "split"]).aggregate([([], "count_all")]).sort_by(_KINDS)
        begin = 0
        for kind in kinds.to_pylist():
            source, split, mine = kind["source"], kind["split"], order.slice(begin, kind["count_all"])
            begin += len(mine)
            rows = piece.take(mine)  # a copy: of a slice, the lineage that is held would hold the whole piece
            ids = np.concatenate([chunk.flatten().to_numpy() for chunk in rows["ids"].chunks])
            lengths = pc.list_value_length(rows["ids"]).to_numpy()
            shard, lineage = self._opened(source, split)
            shard.append(ids, lengths)
            lineage.append(rows["document"], rows["of"], lengths)
            self._text_bytes[source, split] += pc.sum(rows["text_bytes"]).as_py()
            counts = self.counts[split]
            counts += np.bincount(ids, minlength=len(counts))

    def close(self) -> dict[str, dict[str, Any]]:
        """Finish all; source → split → its entry in the manifest."""
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
