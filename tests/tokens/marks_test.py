"""Special tokens of third-party tokenizers are found, configured or asked for, but never guessed."""

import json
from pathlib import Path

import pytest

from tokens.adopt_test import adopted, megatron_pair
from tokens.curated import documents, prose
from tokens.encode_test import run
from tokens.foreign import folder_of, llama_words
from trivium.errors import ConfigError, DataError
from trivium.tokens.config import TokensConfig
from trivium.tokens.manifest import open_shards, read_tokens_manifest, verify_tokens
from trivium.tokens.marks import Marks
from trivium.tokens.tokenizer import given_tokenizer, load_tokenizer

LLAMA = llama_words([prose(n, 300) for n in range(3)], opens=True, size=320)
BARE = llama_words([prose(n, 300) for n in range(3)], opens=False, size=320)
OLD = {"eos_token": {"__type": "AddedToken", "content": "</s>"}, "bos_token": "<s>", "add_bos_token": True}


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config": OLD},
        {"special_tokens_map": {"eos_token": {"content": "</s>", "lstrip": False}}},
        {"generation_config": {"eos_token_id": 2}},
        {"generation_config": {"eos_token_id": [2]}, "tokenizer_config": {}},
        {"tokenizer_config": OLD, "special_tokens_map": OLD, "generation_config": {"eos_token_id": 2}},
    ],
)
def test_end_is_the_token_that_all_files_name(tmp_path: Path, files) -> None:
    place = folder_of(tmp_path / "words", LLAMA, **files)
    for found in (given_tokenizer(str(place)), load_tokenizer(place / "tokenizer.json")):
        assert (found.marks.end, found.end_of_text, found.opening) == ("</s>", 2, [1])


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (
            {},
            r"end_of_text is null, but .* has no token <\|endoftext\|>.*; name one of </s>, <unk>, <s> with --set, as "
            "--set 'tokens.end_of_text=</s>'",
        ),
        ({"tokenizer_config": {"eos_token": "<end>"}}, r"has no token <end>.*tokenizer_config\.json: <end>"),
        ({"generation_config": {"eos_token_id": 900}}, r"has no token id 900"),
        (
            {"tokenizer_config": OLD, "generation_config": {"eos_token_id": [0, 2]}},
            r"name several \(tokenizer_config\.json: </s>; generation_config\.json: <unk>, </s>\), but one",
        ),
        ({"tokenizer_config": OLD, "special_tokens_map": {"eos_token": "<s>"}}, r"special_tokens_map.json: <s>"),
    ],
)
def test_uncertain_end_must_be_named(tmp_path: Path, files, told) -> None:
    place = folder_of(tmp_path / "words", LLAMA, **files)
    with pytest.raises(ConfigError, match=told):
        given_tokenizer(str(place))
    assert given_tokenizer(str(place), "</s>").end_of_text == 2
    with pytest.raises(ConfigError, match=r"tokens\.end_of_text is <eot>, but .* has no token <eot>"):
        given_tokenizer(str(place), "<eot>")


@pytest.mark.parametrize(("words", "opening"), [(LLAMA, [1]), (BARE, [])])
@pytest.mark.parametrize("said", [True, False])
def test_opening_follows_the_post_processor(tmp_path: Path, words: str, opening: list[int], said: bool) -> None:
    """This is the behaviour of transformers 5. A config written here also describes documents made differently."""
    given = OLD | {"add_bos_token": said}
    theirs = folder_of(tmp_path / "theirs", words, tokenizer_config=given | {"tokenizer_class": "LlamaTokenizer"})
    for found in (given_tokenizer(str(theirs)), load_tokenizer(theirs / "tokenizer.json")):
        assert found.opening == opening
    ours = folder_of(tmp_path / "ours", words, tokenizer_config=given)
    kept = load_tokenizer(ours / "tokenizer.json")
    assert kept.opening == ([1] if said else [])
    for_others = folder_of(tmp_path / "others", kept.for_others, tokenizer_config={"eos_token": "</s>"})
    assert load_tokenizer(for_others / "tokenizer.json").opening == kept.opening
    assert (kept.for_others == words) == (kept.opening == opening)


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    place = folder_of(tmp_path / "words", LLAMA, tokenizer_config=[], special_tokens_map=OLD)
    with pytest.raises(DataError, match=r"tokenizer_config\.json cannot be read as a tokenizer's config"):
        given_tokenizer(str(place))


def test_undeclared_end_is_not_matched_in_text(tmp_path: Path) -> None:
    tree = json.loads(LLAMA)
    tree["added_tokens"][2]["special"] = False
    place = folder_of(tmp_path / "words", json.dumps(tree), tokenizer_config=OLD)
    words = given_tokenizer(str(place))
    ids = words.encode("one </s> two")
    assert words.end_of_text == 2 and 2 not in ids and words.decode(ids) == "one </s> two"


def test_end_of_one_ordinary_letter_is_rejected(tmp_path: Path) -> None:
    place = folder_of(tmp_path / "words", LLAMA, tokenizer_config={"eos_token": "e"})
    with pytest.raises(ConfigError, match=r"'e', an ordinary piece of .*; name one of </s>, <unk>, <s> with"):
        given_tokenizer(str(place))


def test_other_end_gives_other_pieces(tmp_path) -> None:
    place = folder_of(tmp_path / "words", BARE, tokenizer_config={"eos_token": "</s>"})
    config = TokensConfig(vocabulary=given_tokenizer(str(place)).vocabulary, tokenizer=str(place))
    work = tmp_path / "work"
    run(tmp_path, documents({"prose": 9}), {"prose": 1.0}, config, "one", work=work)
    (place / "tokenizer_config.json").write_text('{"eos_token": "<s>"}')
    other, out = run(tmp_path, documents({"prose": 9}), {"prose": 1.0}, config, "other", work=work)
    assert other["end_of_text"] == open_shards(out, "train")["prose"][0][-1] == 1


def test_trained_tokenizer_uses_configured_end(tmp_path: Path) -> None:
    config = TokensConfig(vocabulary=300, end_of_text="</s>", validation_fraction=0.1)
    manifest, out = run(tmp_path, documents({"prose": 30}), {"prose": 1.0}, config)
    kept = load_tokenizer(out / "tokenizer.json")
    assert kept.marks == Marks("</s>") and kept.decode([manifest["end_of_text"]]) == "</s>"
    assert given_tokenizer(str(out)).identity == kept.identity  # its folder may be used for another run


def test_adopted_documents_may_lack_the_opening(tmp_path: Path) -> None:
    place = folder_of(tmp_path / "words", LLAMA, tokenizer_config=OLD)
    words = given_tokenizer(str(place))
    texts = [[7 + n, 8, 9, 2] for n in range(20)]
    for name, ids, opening in (("with", [[1, *t] for t in texts], [1]), ("without", texts, [])):
        (tmp_path / name).mkdir()
        tokens = adopted(tmp_path / name, words, megatron_pair(tmp_path / name / "web", ids))
        assert read_tokens_manifest(tokens)["opening"] == opening
        assert load_tokenizer(tokens / "tokenizer.json").prompt_ids([""]) == [opening or [2]]
        verify_tokens(tokens)
