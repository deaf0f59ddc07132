"""Prompts of judges, and how answers are parsed."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import Field

from trivium.config import Config, build_named, mapping_of_yaml, shipped, shipped_names
from trivium.errors import ConfigError, nearest
from trivium.evaluation.judges.config import JudgeConfig
from trivium.evaluation.judges.parse import LOWEST_MQM, Parsed, errors_in, number_in
from trivium.evaluation.judges.ratings import Item
from trivium.untrusted import read_text

CUT = "cut off at max_tokens"  # reason of an answer without a score
FOLDER = "evaluation/judges/prompts"  # inside the package


class Message(NamedTuple):
    """A message of a conversation."""

    role: str
    content: str


class MessageTemplate(Config):
    """A message whose content is a Jinja template over the fields of an item."""

    role: Literal["system", "user", "assistant"]
    content: Annotated[str, Field(min_length=1)]


class Prompt(Config):
    """A question to a judge.

    reads: "number" reads a number from lowest to highest; "errors" a list of errors by severity; "likelihood" asks
    nothing, and scores the output as the continuation of the last message.
    """

    about: str
    version: Annotated[int, Field(ge=1)]
    reads: Literal["number", "errors", "likelihood"]
    lowest: float = LOWEST_MQM
    highest: float = 0.0
    label: str = "score"  # the name that an answer may give its number
    messages: Annotated[tuple[MessageTemplate, ...], Field(min_length=1)]

    def conversations(self, items: Sequence[Item]) -> list[tuple[Message, ...]]:
        """Return the messages about each item. Raises ConfigError for a template that fails."""
        environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
        try:
            templates = [(m.role, environment.from_string(m.content)) for m in self.messages]
            return [
                tuple(Message(role, template.render(item._asdict()).strip()) for role, template in templates)
                for item in items
            ]
        except TemplateError as error:
            raise ConfigError(f"the prompt {self.about!r} cannot be rendered: {error}; correct its template") from None

    def parse(self, answer: str, config: JudgeConfig, *, cut: bool = False) -> Parsed:
        """Read an answer. cut: whether it reached the limit of tokens; a list of errors may then lack its end."""
        if self.reads == "number":
            found = number_in(answer, self.lowest, self.highest, label=self.label)
            return Parsed(None, CUT) if cut and found.score is None else found
        if cut:
            return Parsed(None, CUT)
        return errors_in(answer, max_errors=config.max_errors, non_translation=config.non_translation)


def prompt_names() -> list[str]:
    """Return the names of the prompts that are shipped."""
    return shipped_names(FOLDER)


def prompt_named(name: str) -> Prompt:
    """Return a shipped prompt. Raises ConfigError if there is none."""
    if name not in prompt_names():
        raise ConfigError(f"--prompt {name}: there is no such prompt; {nearest(name, prompt_names())}")
    where = f"prompt {name}"
    tree: Mapping[str, Any] = mapping_of_yaml(
        read_text(shipped(f"{FOLDER}/{name}.yaml")), where, "a prompt is a mapping"
    )
    return build_named(Prompt, tree, where)
