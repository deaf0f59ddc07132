"""Plain YAML: without aliases and duplicate keys, with bounded nesting, and with exponents in numbers. Octal numbers
and those of base 60 are strings."""

import re
from typing import Any

import yaml

from trivium.units import shown
from trivium.untrusted import MAX_NESTING_LEVELS

_EXPONENT = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)[eE][+-]?\d+\Z")
_OCTAL_OR_BASE_60 = re.compile(r"[+-]?(?:0[0-7_]+|[\d_]+(?::[0-5]?\d)+(?:\.[\d_]*)?)\Z")
_EXPONENT_TAG = "tag:trivium:exponent"


class Exponent(str):
    """An unquoted value such as 1e-3 or 2e9. YAML 1.1 reads it as a string; number fields accept it as a number."""

    __slots__ = ()


class _PlainLoader(yaml.SafeLoader):
    """SafeLoader without aliases, with unique keys and bounded nesting.

    A few lines of aliases can expand to gigabytes or contain themselves. A duplicate key would silently replace the
    first one and everything below it.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._levels = 0

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """Read 010 and 1:30 as strings, as YAML 1.2 does 1:30. In YAML 1.1 they are 8 and 90, which is rarely meant."""
        if kind is yaml.ScalarNode and implicit[0] and _OCTAL_OR_BASE_60.match(value):
            return self.DEFAULT_SCALAR_TAG
        return super().resolve(kind, value, implicit)

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Reject aliases and deep nesting."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not allowed; write out the value")
        self._levels += 1
        if self._levels > MAX_NESTING_LEVELS:
            line = self.peek_event().start_mark.line + 1
            raise yaml.YAMLError(f"line {line} is nested more than {MAX_NESTING_LEVELS} levels deep")
        node = super().compose_node(parent, index)
        self._levels -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        """Reject duplicate keys."""
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                line = key.start_mark.line + 1
                raise yaml.YAMLError(f"line {line} has '{key.value}' a second time; put both under the first")
            seen.add(key.value)
        return node


_PlainLoader.add_implicit_resolver(_EXPONENT_TAG, _EXPONENT, list("-+.0123456789"))
_PlainLoader.add_constructor(_EXPONENT_TAG, lambda _, node: Exponent(node.value))


def read_yaml(text: str) -> Any:
    """Parse YAML without aliases. Raises yaml.YAMLError for anything invalid."""
    loader = None
    try:
        loader = _PlainLoader(text)  # raises for characters that are not text
        return loader.get_single_data()
    except yaml.YAMLError:
        raise
    except Exception as error:  # raised by its conversions, as for invalid dates or `!!bool maybe`
        raise yaml.YAMLError(f"{type(error).__name__}: {error}") from None
    finally:
        if loader is not None:
            loader.dispose()


def yaml_problem(error: yaml.YAMLError) -> str:
    """Format an error in one line with line and column, without the library's name of the text (`<unicode string>`)."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark, problem = error.problem_mark, " ".join(str(error.problem).split())
        return f"line {mark.line + 1}, column {mark.column + 1}: {shown(problem)}"
    if isinstance(error, yaml.reader.ReaderError):
        return f"character {error.position + 1}: {error.reason}"
    return shown(" ".join(str(error).split()))
