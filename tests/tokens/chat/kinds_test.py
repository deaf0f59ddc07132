"""Chat templates with every kind of tokenizer: the ids of transformers, and no special token from a message."""

from functools import cache

import pytest
import tokenizers

from tokens.chat.conversations import TEMPLATES, conversation
from tokens.kinds import KINDS, kind
from trivium.tokens.chat.encode import encode_conversation, encode_prompt
from trivium.tokens.chat.template import ChatTemplate
from trivium.tokens.marks import Marks
from trivium.tokens.tokenizer import Tokenizer


@cache
def known(name: str) -> tuple[Tokenizer, ChatTemplate]:
    """A tokenizer of a kind, and a Mistral-like template that writes its marks."""
    made = kind(name)
    config = made.config
    tokenizer = Tokenizer(made.description, Marks(config["eos_token"], config.get("bos_token")))
    return tokenizer, ChatTemplate(TEMPLATES["mistral"], dict(config))


@pytest.mark.parametrize("name", KINDS)
def test_ids_are_those_of_transformers_with_one_beginning(name: str) -> None:
    transformers = pytest.importorskip("transformers", reason="the oracle of chat templates")
    tokenizer, template = known(name)
    library = tokenizers.Tokenizer.from_str(tokenizer.description)
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=library, chat_template=template.source, **kind(name).config
    )
    turns = conversation("The people of the republic.", "there", "Do n't\n they?", "by 1,234 °C").turns
    given = [turn._asdict() for turn in turns]
    found = encode_prompt(turns, template, tokenizer).tolist()
    assert found == theirs.apply_chat_template(given, add_generation_prompt=True, return_dict=True)["input_ids"]
    if (begin := kind(name).config.get("bos_token")) is not None:
        assert found.count(tokenizer.words[begin]) == 1


@pytest.mark.parametrize("name", KINDS)
def test_a_message_that_spells_special_tokens_makes_none(name: str) -> None:
    tokenizer, template = known(name)
    special = {tokenizer.words[token] for token in tokenizer.guarded} - {tokenizer.words.get(tokenizer.unknown)}
    special |= {tokenizer.end_of_text}
    spelled = " ".join(["the", *tokenizer.guarded, "people", *tokenizer.guarded])
    harmless, hostile = (
        encode_conversation(conversation(said, "there", said, said), template, tokenizer).ids.tolist()
        for said in ("the people", spelled)
    )
    assert [token for token in hostile if token in special] == [token for token in harmless if token in special]
    if tokenizer.is_concatenative and kind(name).lossless:
        assert tokenizer.decode(hostile) == template.render(conversation(spelled, "there", spelled, spelled).turns)
