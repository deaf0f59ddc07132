"""Accuracy on HANS by heuristic and gold label, from the predictions of any model (McCoy et al. 2019)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trivium.errors import DataError
from trivium.evaluation.statistics import by_group
from trivium.evaluation.tasks.task import Example
from trivium.untrusted import read_bytes, read_json

PREDICTED = {"1": "entailment", "0": "non-entailment"}
HEURISTICS = ("lexical_overlap", "subsequence", "constituent")


class Block(NamedTuple):
    """The pairs ex{first} to ex{last} of the official set, which share their heuristic, subcase and gold label."""

    first: int
    last: int
    heuristic: str
    subcase: str
    gold_label: str


def read_blocks(path: Path) -> list[Block]:
    """Read which pairs of the official set have which heuristic, subcase and label. Raises DataError."""
    try:
        return [Block(**block) for block in read_json(path)]
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path} cannot be read as blocks of pair numbers ({error}); download it again") from None


def read_predictions(path: Path) -> list[str]:
    """Read one character per pair of the official set: 1 for entailment, 0 for anything else. Raises DataError."""
    try:
        found = list(read_bytes(path).decode("ascii").strip())
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}); give one character 0 or 1 a pair") from None
    strange = next((f"character {n} is {c!r}" for n, c in enumerate(found) if c not in PREDICTED), None)
    if strange or not found:
        raise DataError(f"{path}: {strange or 'it is empty'}; give one character 0 or 1 a pair")
    return [PREDICTED[c] for c in found]


def score_predictions(
    predictions: Sequence[str], blocks: Sequence[Block], *, confidence: float = 0.95
) -> Mapping[str, Any]:
    """Return {n, accuracy, by_group} as task hans does. Raises DataError unless there is one prediction per pair."""
    wanted = max(b.last for b in blocks) + 1
    if len(predictions) != wanted:
        raise DataError(f"{len(predictions)} predictions for {wanted} pairs; give one for each, in order")
    examples, correct = [], []
    for block in blocks:
        groups = {
            "heuristic": block.heuristic,
            "heuristic × gold_label": f"{block.heuristic} × {block.gold_label}",
            "subcase": block.subcase,
        }
        for number in range(block.first, block.last + 1):
            examples.append(Example(f"ex{number}", f"ex{number}", "", ("",), 0, groups=groups))
            correct.append(predictions[number] == block.gold_label)
    return {
        "n": wanted,
        "accuracy": sum(correct) / wanted,
        "by_group": by_group(examples, correct, confidence=confidence),
    }


def table_of(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return one row per gold label, with the accuracy by heuristic in percent, as McCoy et al. print them."""
    cells = result["by_group"]["heuristic × gold_label"]
    return [
        (label, *(f"{100 * cells[f'{h} × {label}']['accuracy']:.1f}" for h in HEURISTICS))
        for label in ("entailment", "non-entailment")
    ]
