"""Plain data from YAML: no aliases, no key twice, bounded nesting, and numbers with exponents."""

import re
from typing import Any

import yaml

from trivium.units import shown
from trivium.untrusted import MOST_LEVELS

_EXPONENT = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)[eE][+-]?\d+\Z")
_EXPONENT_TAG = "tag:trivium:exponent"


class Exponent(str):
    """A value like 1e-3 or 2e9 without quotes, which YAML 1.1 takes for a text: a number where one is wanted."""

    __slots__ = ()


class _PlainLoader(yaml.SafeLoader):
    """SafeLoader without aliases: a few lines of them stand for gigabytes, or for what they lie in. Without a key that
    stands twice: the second would take the place of the first, and of all below it. Nesting is bounded."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._levels = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """As of SafeLoader."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias (*name); write out what that stands for")
        self._levels += 1
        if self._levels > MOST_LEVELS:
            line = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call]
            raise yaml.YAMLError(f"line {line} is nested more than {MOST_LEVELS} levels deep")
        node = super().compose_node(parent, index)
        self._levels -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        """As of SafeLoader."""
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
    """What a YAML text of plain data, without aliases, holds. Raises yaml.YAMLError for any other."""
    loader = None
    try:
        loader = _PlainLoader(text)  # refuses characters that are no text
        return loader.get_single_data()
    except yaml.YAMLError:
        raise
    except Exception as error:  # as its conversions raise it: of the 45th of May, of `!!bool maybe`
        raise yaml.YAMLError(f"{type(error).__name__}: {error}") from None
    finally:
        if loader is not None:
            loader.dispose()


def yaml_problem(error: yaml.YAMLError) -> str:
    """Its message in one line, with line and column, without the library's name of a text (`<unicode string>`)."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark, problem = error.problem_mark, " ".join(str(error.problem).split())
        return f"line {mark.line + 1}, column {mark.column + 1}: {shown(problem)}"
    if isinstance(error, yaml.reader.ReaderError):
        return f"character {error.position + 1}: {error.reason}"
    return shown(" ".join(str(error).split()))
