"""Answers of held-out conversations: which they are, and how many a model gives exactly."""

from pathlib import Path

import numpy as np
import pytest

from trivium.errors import DataError
from trivium.evaluation.replies import replies, score_replies
from trivium.evaluation.windows import Encoded
from trivium.provenance import write_json
from trivium.tokens.manifest import FORMAT, MANIFEST
from trivium.tokens.shards import ShardWriter

# Ids of conversations, each with the weights of its ids as targets.
ONE = ([1, 2, 3, 4, 5], [0, 0, 0, 1, 1])
TWO_ANSWERS = ([1, 6, 7, 8, 9], [0, 1, 0, 1, 1])
PADDING = ([0, 0, 0], [0, 0, 0])


def tokens_of(folder: Path, *documents: tuple[list[int], list[int]]) -> Path:
    writer = ShardWriter(folder / "validation-x", dtype="uint16", weights="uint8")
    for ids, weights in documents:
        writer.append(np.array(ids), np.array([len(ids)]), np.array(weights))
    writer.close()
    size = {"documents": len(documents), "tokens": sum(len(ids) for ids, _ in documents)}
    entry = {"weight": 1.0, "validation": {"prefix": "validation-x", "weights": "uint8", **size}}
    write_json(folder / MANIFEST, {"format": FORMAT, "sources": {"x": entry}})
    return folder


def test_an_answer_is_a_run_of_targets_after_all_that_precedes_it(tmp_path: Path) -> None:
    tokens = tokens_of(tmp_path, ONE, PADDING, TWO_ANSWERS)
    assert replies(tokens, limit=9, seed=1) == [
        Encoded([1, 2, 3], [4, 5]),
        Encoded([1], [6]),
        Encoded([1, 6, 7], [8, 9]),
    ]


def test_as_many_answers_are_drawn_as_asked_for_and_the_same_under_a_seed(tmp_path: Path) -> None:
    tokens = tokens_of(tmp_path, *[([n, n, n + 1], [0, 0, 1]) for n in range(1, 40)])
    drawn = replies(tokens, limit=5, seed=3)
    assert len(drawn) == 5 and drawn == replies(tokens, limit=5, seed=3) != replies(tokens, limit=5, seed=4)


def test_tokens_without_answers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no id there counts"):
        replies(tokens_of(tmp_path, PADDING), limit=5, seed=1)


def test_a_score_counts_exact_answers_and_divides_surprise_by_tokens() -> None:
    class Scorer:
        def loglikelihood_of_ids(self, requests: list[Encoded]) -> list[tuple[float, bool]]:
            return [(-len(r.continuation) * 0.5, r.continuation == [4, 5]) for r in requests]

    asked = [Encoded([1], [4, 5]), Encoded([1], [6]), Encoded([1], [7]), Encoded([2], [4, 5])]
    found = score_replies(Scorer(), asked)
    assert (found["n"], found["accuracy"], found["nats_per_token"]) == (4, 0.5, 0.5)
    assert found["interval"][0] < 0.5 < found["interval"][1]
