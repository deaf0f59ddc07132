"""A mutant differs from its file in one place, and is a program."""

import ast
from pathlib import Path

import pytest

import trivium
from mutation.mutants import mutants_of

SOURCE = b"""
def f(x: int = 1, *, y: tuple[int, ...] | None = None) -> int | None:
    if x < 2 and not (x is None):  # a comment with < and 7
        raise ValueError(f"{x + 1} is < 2")
    return x * (
        -x
    ) // 3.5
"""


def test_operators_and_constants_are_changed_one_at_a_time() -> None:
    changes = [(m.line, m.before, m.after) for m in mutants_of("f.py", SOURCE)]
    assert changes == [
        (2, "1", "2"),
        (3, "<", "<="),
        (3, "2", "3"),
        (3, "and", "or"),
        (3, "not", ""),
        (3, "is", "is not"),
        (5, "*", "/"),
        (6, "-", ""),
        (7, "//", "*"),
        (7, "3.5", "7.0"),
    ]


@pytest.mark.parametrize(
    "name", ["parallel/sharding/zero.py", "model/layers/attention_softmax.py", "checkpoint/keep.py"]
)
def test_every_mutant_is_another_program(name: str) -> None:
    text = (Path(trivium.__file__).parent / name).read_bytes()
    original = ast.dump(ast.parse(text))
    for mutant in mutants_of(name, text):
        assert ast.dump(ast.parse(mutant.apply(text))) != original, f"{mutant} changes nothing"
