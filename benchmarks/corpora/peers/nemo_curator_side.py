"""NeMo Curator: Gopher's rules with the limits of its English recipe, from Parquet to Parquet, without its executor.

Run with the interpreter of its own environment: python nemo_curator_side.py IN OUT.
"""

import json
import sys

import pyarrow as pa
import pyarrow.parquet as pq
from nemo_curator.stages.text.filters import ScoreFilter
from nemo_curator.stages.text.filters.heuristic import repetition, string
from nemo_curator.tasks import DocumentBatch
from processor_time import cpu_seconds

BATCH = 1024  # documents read at once
FILTERS = [
    string.WordCountFilter(min_words=50, max_words=100_000),
    string.MeanWordLengthFilter(min_mean_word_length=3, max_mean_word_length=10),
    string.SymbolsToWordsFilter(max_symbol_to_word_ratio=0.1),
    string.WordsWithoutAlphabetsFilter(min_words_with_alphabets=0.8),
    string.CommonEnglishWordsFilter(min_num_common_words=2),
    string.BulletsFilter(max_bullet_lines_ratio=0.9),
    string.EllipsisFilter(max_num_lines_ending_with_ellipsis_ratio=0.3),
    repetition.RepeatedLinesFilter(0.7),
    repetition.RepeatedParagraphsFilter(0.7),
    repetition.RepeatedLinesByCharFilter(0.8),
    repetition.RepeatedParagraphsByCharFilter(0.8),
    *(repetition.RepeatingTopNGramsFilter(n, limit) for n, limit in ((2, 0.20), (3, 0.18), (4, 0.16))),
    *(repetition.RepeatingDuplicateNGramsFilter(n, 0.20 - n / 100) for n in range(5, 11)),
]


def main() -> None:
    source, out = sys.argv[1:3]
    before = cpu_seconds()
    stage = ScoreFilter(FILTERS)
    stage.setup()
    kept = []
    for batch in pq.ParquetFile(source).iter_batches(BATCH, columns=["id", "text"]):
        documents = DocumentBatch(dataset_name="corpus", data=batch.to_pandas())
        kept.append(stage.process(documents).to_pyarrow().select(["id", "text"]))
    pq.write_table(pa.concat_tables(kept), out, compression="zstd")
    print(json.dumps({"cpu": cpu_seconds() - before, "import_cpu": before}))


if __name__ == "__main__":
    main()
