"""Conversations as prompts, and the marks that end an answer, by a model's chat template."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from trivium.tokens.chat.conversation import Turn
from trivium.tokens.chat.encode import encode_prompt, end_of_turn_ids
from trivium.tokens.chat.template import ChatTemplate, read_template
from trivium.tokens.tokenizer import Tokenizer


class Chat:
    """Converts conversations to prompts. Text of a message never becomes a special token."""

    def __init__(self, folder: Path | None, tokenizer: Tokenizer) -> None:
        """folder: of the template, which is read when it is first needed; None selects the default template."""
        self._folder, self.tokenizer = folder, tokenizer

    @cached_property
    def template(self) -> ChatTemplate:
        """The chat template. Raises DataError if it cannot be read."""
        return read_template(self._folder, self.tokenizer)

    def prompt(self, turns: Sequence[Turn]) -> list[int]:
        """Return the ids of a conversation up to where its answer begins. Raises DataError if the template refuses
        it."""
        return [int(i) for i in encode_prompt(turns, self.template, self.tokenizer)] or [self.tokenizer.before_text]

    @property
    def ends(self) -> frozenset[int]:
        """The ids that end an answer."""
        return self.tokenizer.ends.union(self._mark if len(self._mark) == 1 else ())

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end an answer: the template's end of turn, unless a special token is the only way to write
        it."""
        words = self.tokenizer.words
        guarded = [[words[token]] for token in self.tokenizer.guarded if token in words]
        return () if self._mark in guarded else (self.template.end_of_turn,)

    @cached_property
    def _mark(self) -> list[int]:
        return end_of_turn_ids(self.template, self.tokenizer)
