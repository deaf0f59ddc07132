"""Conversations, templates and a tokenizer for the tests of chat data."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers

from trivium.tokens.chat.conversation import Conversation, Turn
from trivium.tokens.marks import Marks
from trivium.tokens.tokenizer import Tokenizer, train_tokenizer

SPECIAL = [
    *("<|im_start|>", "<|im_end|>", "<s>", "</s>", "[INST]", "[/INST]", "<bos>", "<eos>", "<start_of_turn>"),
    *("<end_of_turn>", "<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
]

# Written for these tests in the form of the published templates.
TEMPLATES = {
    "chatml": (
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
        "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "llama-3": (
        "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
        "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 "
        "%}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
        "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
    ),
    "mistral": (
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] + '\n\n' %}"
        "{% set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}"
        "{% for message in rest %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}{% if message['role'] == 'user' %}"
        "{{ '[INST] ' + (system if loop.first else '') + message['content'] + ' [/INST]' }}{% else %}"
        "{{ ' ' + message['content'] | trim + eos_token }}{% endif %}{% endfor %}"
    ),
    "gemma": (
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
        "{% endif %}{% for message in messages %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}"
        "{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] "
        "| trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
    ),
    "qwen": (
        "{%- if messages[0]['role'] == 'system' %}\n    {{- '<|im_start|>system\n' + messages[0]['content'] + "
        "'<|im_end|>\n' }}\n{%- else %}\n    {{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}\n"
        "{%- endif %}\n{%- for message in messages %}\n    {%- if (message.role == 'user') or (message.role == "
        "'system' and not loop.first) or (message.role == 'assistant') %}\n        {{- '<|im_start|>' + message.role + "
        "'\n' + message.content + '<|im_end|>' + '\n' }}\n    {%- endif %}\n{%- endfor %}\n"
        "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\n' }}\n{%- endif %}\n"
    ),
    "tagged": (
        "{% for message in messages %}\n{% if message.role == 'assistant' %}\n{{ '<|im_start|>assistant\n' }}"
        "{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}\n{% else %}\n"
        "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}\n{% endif %}\n{% endfor %}\n"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
}
MARKS = {"bos_token": "<s>", "eos_token": "</s>"}
CONVERSATIONS = {
    "one": [("user", "What is 2 + 2?"), ("assistant", "It is 4.")],
    "several": [
        ("user", "  Hello, wörld! 日本語 🙂 "),
        ("assistant", "Hi, how are you?\nFine.  "),
        ("user", "a <b>x</b> {{ not a template }} {% raw %}"),
        ("assistant", "42"),
    ],
    "system": [("system", "Be brief."), ("user", "Say \"no\" & 'yes'"), ("assistant", "no\n\nyes")],
}


@cache
def tokenizer() -> Tokenizer:
    """A small byte-level tokenizer with the special tokens of all templates."""
    texts = [said for turns in CONVERSATIONS.values() for _, said in turns] * 3
    library = tokenizers.Tokenizer.from_str(train_tokenizer([*texts, "user assistant system model"], 400).description)
    library.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return Tokenizer(library.to_str(), Marks("</s>", "<s>"))


@cache
def bare() -> Tokenizer:
    """The same without the special tokens of any template."""
    texts = [said for turns in CONVERSATIONS.values() for _, said in turns] * 3
    return train_tokenizer([*texts, "user assistant system model"], 400)


def turns_of(name: str) -> tuple[Turn, ...]:
    return tuple(Turn(role, said) for role, said in CONVERSATIONS[name])


def conversation(*said: str, name: str = "x.jsonl:1") -> Conversation:
    """Turns that alternate between user and assistant."""
    return Conversation(tuple(Turn(("user", "assistant")[n % 2], text) for n, text in enumerate(said)), name)


def messages(*said: str) -> dict[str, Any]:
    """The row of a conversation."""
    return {"messages": [{"role": turn.role, "content": turn.content} for turn in conversation(*said).turns]}


def rows(path: Path, *values: object) -> Path:
    """Write JSON lines."""
    path.write_text("".join(f"{json.dumps(value)}\n" for value in values))
    return path
