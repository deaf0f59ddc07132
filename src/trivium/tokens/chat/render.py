"""Render a chat template, which is somebody else's program, in a process of its own with limits.

The parent starts `python -m trivium.tokens.chat.render SECONDS` and sends one line of JSON for the template and one for
each request. Every line is answered by one line. Jinja's sandbox keeps a template from Python's internals. The limits
on CPU time and memory hold whatever it computes.
"""

import json
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, TextIO

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

CPU_SECONDS = 10.0  # of a request; thousands of conversations take less than one
MEMORY_BYTES = 1 << 30
OUTPUT_CHARACTERS = 1 << 20  # more than this and OUTPUT_GROWTH times the request is refused
OUTPUT_GROWTH = 8
# Unicode's noncharacters, which no text may use. Those that a request contains are not taken as marks.
NONCHARACTERS = tuple(map(chr, range(0xFDD0, 0xFDF0)))


class Generation(Extension):
    """The tag {% generation %}, whose content is written between two marks."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's type)
    marks: Sequence[str] = NONCHARACTERS[:2]
    seen = False

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        self.seen = True
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Callable[[], str]) -> str:
        return f"{self.marks[0]}{caller()}{self.marks[1]}"


class Renderer:
    """A compiled template."""

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_raise, strftime_now=_now)  # pyrefly: ignore[bad-argument-type]
        self._template = environment.from_string(source)
        extension = environment.extensions[Generation.identifier]
        assert isinstance(extension, Generation), f"the environment was made with it; found {extension!r}"
        self._generation = extension
        self.has_tags = extension.seen

    def render(self, request: Mapping[str, Any], size: int) -> list[dict[str, Any]]:
        """Return text, and the spans of the generation tags in it, for each of the request's (turns, prompted) pairs.

        size: characters of the request.
        """
        messages, limit = request["messages"], OUTPUT_CHARACTERS + OUTPUT_GROWTH * size
        self._generation.marks = request["marks"]
        return [
            self._one(messages[:turns], prompted, request["variables"], limit) for turns, prompted in request["renders"]
        ]

    def _one(
        self, messages: Sequence[Mapping[str, str]], prompted: bool, variables: Mapping[str, str], limit: int
    ) -> dict[str, Any]:
        given = {**variables, "messages": messages, "tools": None, "documents": None, "add_generation_prompt": prompted}
        parts, size = [], 0
        for part in self._template.generate(given):
            parts.append(part)
            size += len(part)
            if size > limit:
                raise ValueError(f"it writes more than {limit:,} characters, the limit for these messages")
        return spans_of("".join(parts), self._generation.marks)


def spans_of(text: str, marks: Sequence[str]) -> dict[str, Any]:
    """Return the text without the marks of generation tags, and the places between them."""
    if marks[0] not in text:
        return {"text": text, "spans": []}
    pieces, spans, size = [], [], 0
    for piece in text.split(marks[0]):
        inside, mark, after = piece.rpartition(marks[1])
        if mark:
            inside = inside.replace(marks[1], "")  # of a tag inside this one
            spans.append([size, size + len(inside)])
        pieces.append(inside + after)
        size += len(pieces[-1])
    return {"text": "".join(pieces), "spans": spans}


def _raise(message: object) -> None:
    raise jinja2.TemplateError(str(message))


def _line_of(error: Exception) -> str:
    """Return the line of the template that raised an error. Jinja puts the template's own lines into tracebacks."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
    return f"line {lines[-1]}: " if lines else ""


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON without the escapes for HTML that Jinja's own filter makes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def limit_process() -> None:
    """Limit the memory of this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    with suppress(ValueError, OSError):  # a lower limit holds already, or the system has none
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def answers(lines: TextIO, cpu_seconds: float) -> Iterator[Any]:
    """Yield the answer to each line: the template, and then requests. cpu_seconds: for a line."""
    renderer: Renderer | None = None
    for line in lines:
        # The default action of this signal ends the process, even inside of a long operation of C code.
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        try:
            if renderer is None:
                renderer = Renderer(json.loads(line))
                yield {"has_tags": renderer.has_tags}
            else:
                yield [renderer.render(request, len(line)) for request in json.loads(line)]
        except MemoryError:
            yield {"error": f"it takes more than {MEMORY_BYTES >> 20} MiB of memory"}
        except jinja2.TemplateSyntaxError as error:
            yield {"error": f"line {error.lineno}: {error.message}"}
        except RecursionError:
            yield {"error": "it calls itself without end"}
        except Exception as error:  # a template can raise what any operation of Python raises
            yield {"error": _line_of(error) + (str(error) or type(error).__name__)}
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)


def main() -> None:
    """Answer the lines of standard input."""
    limit_process()
    for answer in answers(sys.stdin, float(sys.argv[1])):
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
