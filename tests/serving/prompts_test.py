from pathlib import Path

import pytest

from tokens.curated import prose
from tokens.encode_test import run as tokenize_documents
from tokens.foreign import folder_of
from tokens.kinds import TEXTS, kind
from trivium.corpus.document import Document
from trivium.errors import ConfigError, DataError, TriviumError
from trivium.serving.config import Drawing
from trivium.serving.prompts import NEUTRAL, categories, default_prompts, drawing_for, read_prompts
from trivium.tokens.config import TokensConfig
from trivium.tokens.manifest import open_shards
from trivium.tokens.tokenizer import given_tokenizer, load_tokenizer


def test_categories_of_the_paper_have_settings():
    assert categories() == ["code", "logic", "operators", "quiz", "riddles", "writing"]
    for name in categories():
        read = read_prompts(name)
        assert len(read.prompts) == len(set(read.prompts)) >= 4 and read.about
        assert read.sampling is not None and read.sampling.max_tokens <= 160
        assert all(p == p.rstrip(" ") for p in read.prompts)


def test_prompt_file_may_be_text_json_lines_or_yaml(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    (tmp_path / "a.jsonl").write_text('{"prompt": "one\\nmore"}\n{"prompt": "two"}\n')
    (tmp_path / "a.yaml").write_text("prompts: [one]\nsampling: {temperature: 0}\n")
    assert read_prompts(str(tmp_path / "a.txt")).prompts == ("one", "two")
    assert read_prompts(str(tmp_path / "a.jsonl")).prompts == ("one\nmore", "two")
    assert read_prompts(str(tmp_path / "a.yaml")).sampling.temperature == 0


def test_call_overrides_file_and_file_overrides_config(tmp_path):
    (tmp_path / "a.yaml").write_text("prompts: [one]\nsampling: {temperature: 0, max_tokens: 7}\n")
    config = Drawing(temperature=0.5, max_tokens=9, top_k=3, seed=5)
    read = read_prompts(str(tmp_path / "a.yaml"))
    assert drawing_for(read, config, {}) == Drawing(temperature=0, max_tokens=7, top_k=3, seed=5)
    given = drawing_for(read, config, {"max_tokens": 2, "stop": ["x"]})
    assert given == Drawing(temperature=0, max_tokens=2, top_k=3, seed=5, stop=("x",))


def test_prompts_may_contain_unicode_line_ends(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "one\u2028two\x85"}\n', encoding="utf-8")
    assert read_prompts(str(tmp_path / "a.jsonl")).prompts == ("one\u2028two\x85",)


@pytest.mark.parametrize(
    ("name", "content"), [("a.txt", "one\n"), ("a.jsonl", '{"prompt": "one"}\n'), ("a.yaml", "prompts: [one]\n")]
)
def test_byte_order_mark_is_removed(tmp_path, name, content):
    (tmp_path / name).write_text(content, encoding="utf-8-sig")
    assert read_prompts(str(tmp_path / name)).prompts == ("one",)


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("a.txt", "", "contains no prompt"),
        ("a.jsonl", "\n \n", "contains no prompt"),
        ("a.jsonl", '{"prompt": "x"}\n{"prompt": 3}', "line 2"),
        ("a.jsonl", "[", "line 1"),
        ("a.jsonl", '{"prompt": "x"}\n{"prompt": "y", "temprature": 0}', "line 2: .*'temprature' would be passed over"),
        ("a.yaml", "- x", "holds a list"),
        ("a.yaml", "prompts: [x]\nseed: 1", "seed: there is no such key"),
        ("a.yaml", "a: [", "not YAML"),
        ("a.yaml", "prompts: []\nseed: 1", "prompts is .*1 item"),
        ("a.yaml", "prompts: [x]\nsampling: {temperature: -1}", "sampling.temperature"),
        ("a.yaml", "prompts: [x]\nsampling: {stop: ['']}", r"sampling\.stop\.0 is ''; it must have 1 character"),
        ("a.yaml", "sampling: {temperature: 1}", "prompts: .*none was given; give it in the file$"),
    ],
)
def test_damaged_file_is_named(tmp_path, name, content, what):
    (tmp_path / name).write_text(content)
    with pytest.raises(TriviumError, match=what) as refused:
        read_prompts(str(tmp_path / name))
    assert all(line.startswith(f"--file {tmp_path / name}") for line in str(refused.value).split("\n"))


def test_missing_file_and_misspelt_name_are_rejected(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_prompts(str(tmp_path / "absent.txt"))
    with pytest.raises(ConfigError, match="did you mean 'riddles'"):
        read_prompts("ridles")
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="not UTF-8"):
        read_prompts(str(tmp_path / "b.txt"))


def tokens_of(tmp_path: Path, docs: list[Document], **more) -> Path:
    """Create a run's token folder, with a third of the documents held out."""
    sources = {doc.source: 1.0 for doc in docs}
    config = TokensConfig(**{"vocabulary": 300, "validation_fraction": 0.3, **more})
    return tokenize_documents(tmp_path, docs, sources, config)[1]


def test_default_prompts_begin_held_out_documents_of_every_source(tmp_path):
    docs = [Document(f"{s}{n}", f"\n{s} {prose(n, 60)}", s) for s in ("news", "law") for n in range(20)]
    folder = tokens_of(tmp_path, docs)
    prompts = default_prompts(folder / "tokenizer.json")
    words = load_tokenizer(folder / "tokenizer.json")
    shards = open_shards(folder, "validation").values()
    held_out = [words.decode_text(shard[n]) for shard in shards for n in range(len(shard))]
    assert len(set(prompts)) == 3 and {p.split()[0] for p in prompts} == {"news", "law"}
    for prompt in prompts:
        (text,) = (t for t in held_out if t.lstrip().startswith(prompt))
        assert len(prompt.split()) == 8 and text.lstrip()[len(prompt)].isspace()


@pytest.mark.parametrize("name", ["SentencePiece BPE", "Unigram, T5", "WordPiece"])
def test_default_prompts_have_no_special_tokens(tmp_path, name):
    place = folder_of(tmp_path / "words", kind(name).description, tokenizer_config=kind(name).config)
    docs = [Document(str(n), TEXTS[0], "web") for n in range(20)]
    size = given_tokenizer(str(place)).vocabulary
    prompts = default_prompts(tokens_of(tmp_path, docs, tokenizer=str(place), vocabulary=size) / "tokenizer.json")
    assert len(prompts) == 1 and TEXTS[0].lower().startswith(prompts[0].lower())


def test_default_prompts_without_spaces_or_texts(tmp_path):
    docs = [Document(str(n), f"{n}{'文字の文章を書く' * 9}", "web") for n in range(20)]
    prompts = default_prompts(tokens_of(tmp_path, docs) / "tokenizer.json")
    assert len(prompts) == 3 and all(len(p) == 16 and "文字" in p for p in prompts)
    (tmp_path / "bare").mkdir()
    bare = tokens_of(tmp_path / "bare", [Document(str(n), "x", "web") for n in range(20)])
    assert default_prompts(bare / "tokenizer.json") == NEUTRAL
    assert default_prompts(tmp_path / "tokenizer.json") == NEUTRAL  # a model without a run
