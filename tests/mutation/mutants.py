"""Mutants of a source file: one operator or constant changed, with the text around it untouched."""

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
}
ARITHMETIC = {
    ast.Add: (r"\+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: (r"\*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.Pow: (r"\*\*", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: (r"\|", "&"),
}
BOOLEAN = {ast.And: ("and", "or"), ast.Or: ("or", "and")}


class Mutant(NamedTuple):
    """`before` at bytes start to end of the file becomes `after`; line counts from 1."""

    path: str
    line: int
    start: int
    end: int
    before: str
    after: str

    def apply(self, text: bytes) -> bytes:
        """Return the file's bytes with the change."""
        return text[: self.start] + self.after.encode() + text[self.end :]

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.before} -> {self.after}"


def mutants_of(path: str, text: bytes) -> list[Mutant]:
    """Return all mutants of a file, in the order of its text."""
    tree = ast.parse(text)
    lines = [0]
    for line in text.split(b"\n"):
        lines.append(lines[-1] + len(line) + 1)

    def at(line: int | None, column: int | None) -> int:
        assert line is not None and column is not None, "every node that is changed has a place"
        return lines[line - 1] + column

    def mutant(start: int, end: int, after: str) -> Mutant:
        line = text.count(b"\n", 0, start) + 1
        return Mutant(path, line, start, end, text[start:end].decode(), after)

    def between(left: ast.expr, right: ast.expr, pattern: str, after: str) -> Iterator[Mutant]:
        start = at(left.end_lineno, left.end_col_offset)
        gap = text[start : at(right.lineno, right.col_offset)]
        found = re.search(pattern.encode(), re.sub(rb"#[^\n]*", lambda m: b" " * len(m[0]), gap))
        if found is not None:
            yield mutant(start + found.start(), start + found.end(), after)

    result: list[Mutant] = []
    for node in _places(tree):
        match node:
            case ast.Compare(left=left, ops=[operator, *_], comparators=[right, *_]):
                result += between(left, right, *COMPARISONS[type(operator)])
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in ARITHMETIC:
                result += between(left, right, *ARITHMETIC[type(operator)])
            case ast.AugAssign(target=left, op=operator, value=right) if type(operator) in ARITHMETIC:
                result += between(left, right, *ARITHMETIC[type(operator)])
            case ast.BoolOp(op=operator, values=[left, right, *_]):
                result += between(left, right, *BOOLEAN[type(operator)])
            case ast.UnaryOp(op=ast.Not() | ast.USub() as operator):
                start = at(node.lineno, node.col_offset)
                result.append(mutant(start, start + len("not" if isinstance(operator, ast.Not) else "-"), ""))
            case ast.Constant(value=bool() | int() | float() as value):
                start, end = (at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset))
                result.append(mutant(start, end, repr(_other(value))))
    return sorted(set(result), key=lambda m: (m.start, m.end))


def _other(value: float) -> float:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else value * 2 or 1.0


def _places(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that compute something: annotations, messages of errors and f-strings are left out."""
    left_out: tuple[str, ...] = ("annotation", "returns", "decorator_list", "type_params")
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.ImportFrom):
        return
    if isinstance(node, ast.Assert):
        left_out += ("msg",)
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "cast", "TypeVar"):
        return
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) in ("Literal", "Annotated", "Callable"):
        return
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in left_out:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _places(child)
