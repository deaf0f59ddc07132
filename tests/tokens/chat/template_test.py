"""Chat templates: equal to transformers byte for byte, and limited whatever a template does."""

import gc
import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from tokens.chat.conversations import CONVERSATIONS, MARKS, TEMPLATES, bare, tokenizer, turns_of
from trivium.errors import DataError
from trivium.tokens.chat.conversation import Conversation, Turn
from trivium.tokens.chat.encode import encode_conversation, encode_prompt, end_of_turn_ids
from trivium.tokens.chat.template import CHATML, ChatTemplate, read_template

TURNS = turns_of("one")


def fast(template: str):  # noqa: ANN201 (transformers is imported only here)
    """The same tokenizer and template in transformers."""
    transformers = pytest.importorskip("transformers", reason="the oracle of chat templates")
    import tokenizers

    library = tokenizers.Tokenizer.from_str(tokenizer().description)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=library, chat_template=template, **MARKS)


@pytest.mark.parametrize("name", TEMPLATES)
def test_text_and_ids_are_those_of_transformers(name: str) -> None:
    ours, theirs = ChatTemplate(TEMPLATES[name], MARKS), fast(TEMPLATES[name])
    compared = 0
    for key, said in CONVERSATIONS.items():
        if name == "gemma" and said[0][0] == "system":
            continue  # it refuses them, as the published template does
        given, turns = [{"role": role, "content": text} for role, text in said], turns_of(key)
        for prompted in (False, True):
            text = theirs.apply_chat_template(given, tokenize=False, add_generation_prompt=prompted)
            assert ours.render(turns, prompted) == text
        ids = theirs.apply_chat_template(given, add_generation_prompt=True, return_dict=True)["input_ids"]
        assert encode_prompt(turns, ours, tokenizer()).tolist() == ids
        compared += len(ids)
    assert compared > 50


def test_mask_is_that_of_transformers() -> None:
    ours, theirs = ChatTemplate(TEMPLATES["tagged"], MARKS), fast(TEMPLATES["tagged"])
    for key, said in CONVERSATIONS.items():
        given = [{"role": role, "content": text} for role, text in said]
        expected = theirs.apply_chat_template(given, return_dict=True, return_assistant_tokens_mask=True)
        found = encode_conversation(Conversation(turns_of(key), key), ours, tokenizer())
        assert found.ids.tolist() == expected["input_ids"]
        assert found.counted.tolist() == expected["assistant_masks"]


def published() -> list[Path]:
    """Templates of published models, which trl has."""
    found = find_spec("trl")
    if found is None or not found.submodule_search_locations:
        pytest.skip("trl is not installed, which has the templates of published models")
    return sorted((Path(found.submodule_search_locations[0]) / "chat_templates").glob("*.jinja"))


@pytest.mark.broad
def test_published_templates_give_the_text_and_the_masks_of_transformers() -> None:
    turns = [
        Turn("user", 'Hi <b> & "q"'),
        Turn("assistant", "Yo.\n\nOk"),
        Turn("user", "More?"),
        Turn("assistant", "No."),
    ]
    given, rendered, masks = [turn._asdict() for turn in turns], 0, 0
    for path in published():
        ours, theirs = ChatTemplate(path.read_text(), MARKS, path.name), fast(path.read_text())
        try:
            text = theirs.apply_chat_template(given, tokenize=False)
        except Exception:  # a template for images; each raises its own kind
            with pytest.raises(DataError):
                ours.render(turns)
            continue
        assert ours.render(turns) == text, path.name
        prompted = theirs.apply_chat_template(given, tokenize=False, add_generation_prompt=True)
        assert ours.render(turns, True) == prompted, path.name
        rendered += 1
        if "Yo." not in text:
            with pytest.raises(DataError, match="leaves out what the assistant says"):
                encode_conversation(Conversation(tuple(turns), path.name), ours, tokenizer())
        elif ours.has_tags:
            expected = theirs.apply_chat_template(given, return_dict=True, return_assistant_tokens_mask=True)
            found = encode_conversation(Conversation(tuple(turns), path.name), ours, tokenizer())
            assert found.ids.tolist() == expected["input_ids"], path.name
            assert found.counted.tolist() == expected["assistant_masks"], path.name
            masks += 1
    assert rendered > 60
    assert masks > 25


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("chatml", "<|im_end|>"),
        ("llama-3", "<|eot_id|>"),
        ("mistral", "</s>"),
        ("gemma", "<end_of_turn>"),
        ("qwen", "<|im_end|>"),
    ],
)
def test_the_end_of_a_turn_is_found_in_the_template(name: str, end: str) -> None:
    template = ChatTemplate(TEMPLATES[name], MARKS)
    assert template.end_of_turn == end
    assert end_of_turn_ids(template, tokenizer()) == [tokenizer().words[end]]


def test_an_answer_ends_with_the_first_special_token_after_it() -> None:
    source = "{% for m in messages %}{{ m.content + '<|im_end|>\n' }}{% endfor %}{{ eos_token }}"
    template = ChatTemplate(source, MARKS)
    assert template.end_of_turn == "<|im_end|>\n</s>"
    assert end_of_turn_ids(template, tokenizer()) == [tokenizer().words["<|im_end|>"]]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "more than 0.3 s of CPU"),
        ("{{ 9 ** (9 ** 9) % 7 }}", "more than 0.3 s of CPU"),
        ("{{ 'a' * 10 ** 10 }}", "MiB of memory"),
        ("{% for a in range(9999) %}{{ 'a' * 999 }}{% endfor %}", "writes more than"),
        ("{{ 'a'.center(3000000) }}", "writes more than"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself without end"),
        ("\n{{ raise_exception('not this one') }}", "line 2: not this one"),
        ("{{ messages[7].content.x }}", "no element 7"),
        ("a\n{% if %}", "line 2"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe"),
        ("{{ messages.append('x') }}", "unsafe"),
        ("{% include '/etc/passwd' %}", "no loader"),
    ],
)
def test_a_template_that_misbehaves_ends_in_an_error(source: str, reason: str) -> None:
    template = ChatTemplate(source, MARKS, "t/chat_template.jinja")
    template.cpu_seconds = 0.3
    with pytest.raises(DataError, match=r"t/chat_template\.jinja cannot render") as raised:
        template.render(TURNS)
    assert reason in str(raised.value)


def test_a_template_renders_again_after_it_was_stopped() -> None:
    source = "{% if messages[0].content == 'x' %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}"
    template = ChatTemplate(source + "{% endfor %}{% endif %}done", {})
    template.cpu_seconds = 0.3
    with pytest.raises(DataError, match="CPU"):
        template.render([Turn("user", "x")])
    assert template.render(TURNS) == "done"


def test_a_template_ends_while_a_forked_process_still_runs() -> None:
    """A rank that was forked meanwhile holds the process's input open."""
    template = ChatTemplate("x", {})
    assert template.render(TURNS) == "x"
    worker = template._worker
    assert worker is not None
    reads, writes = os.pipe()
    if not (child := os.fork()):
        os.read(reads, 1)
        os._exit(0)
    del template
    gc.collect()
    assert worker.returncode is not None
    os.write(writes, b"x")
    os.waitpid(child, 0)
    os.close(reads)
    os.close(writes)


def test_the_file_wins_over_the_config_and_both_over_the_default(tmp_path: Path) -> None:
    known = tokenizer()
    assert read_template(tmp_path, known).source == read_template(None, known).source == CHATML
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": "C{{ bos_token }}", "bos_token": {"content": "<bos>"}}))
    assert read_template(tmp_path, known).render(TURNS) == "C<bos>"
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D{{ eos_token }}"}]
    config.write_text(json.dumps({"chat_template": named}))
    assert read_template(tmp_path, known).render(TURNS) == "D</s>"
    config.write_text(json.dumps({"chat_template": named[:1]}))
    with pytest.raises(DataError, match="a template named 'default'.*'tool_use'|'default'; known: tool_use"):
        read_template(tmp_path, known)
    written = ChatTemplate("F", {}).save(tmp_path)
    assert written.name == "chat_template.jinja"
    assert read_template(tmp_path, known).render(TURNS) == read_template(written, known).render(TURNS) == "F"


def test_the_default_ends_turns_with_the_end_of_text_of_a_tokenizer_without_the_marks() -> None:
    template = read_template(None, bare())
    text = "user\nWhat is 2 + 2?<|endoftext|>\nassistant\nIt is 4.<|endoftext|>\n"
    assert template.render(TURNS) == text
    assert template.end_of_turn == "<|endoftext|>"
    assert end_of_turn_ids(template, bare()) == [bare().end_of_text]
