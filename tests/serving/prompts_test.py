import pytest

from trivium.errors import ConfigError, DataError, TriviumError
from trivium.serving.config import Drawing
from trivium.serving.prompts import categories, drawing_for, read_prompts


def test_the_categories_of_the_paper_are_shipped_each_with_settings():
    assert categories() == ["code", "logic", "operators", "quiz", "riddles", "writing"]
    for name in categories():
        read = read_prompts(name)
        assert len(read.prompts) == len(set(read.prompts)) >= 4 and read.about
        assert read.sampling is not None and read.sampling.max_tokens <= 160
        assert all(p == p.rstrip(" ") for p in read.prompts)


def test_a_file_of_ones_own_may_be_text_json_lines_or_yaml(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    (tmp_path / "a.jsonl").write_text('{"prompt": "one\\nmore"}\n{"prompt": "two"}\n')
    (tmp_path / "a.yaml").write_text("prompts: [one]\nsampling: {temperature: 0}\n")
    assert read_prompts(str(tmp_path / "a.txt")).prompts == ("one", "two")
    assert read_prompts(str(tmp_path / "a.jsonl")).prompts == ("one\nmore", "two")
    assert read_prompts(str(tmp_path / "a.yaml")).sampling.temperature == 0


def test_what_is_given_at_the_call_goes_before_the_file_and_the_file_before_the_config(tmp_path):
    (tmp_path / "a.yaml").write_text("prompts: [one]\nsampling: {temperature: 0, max_tokens: 7}\n")
    config = Drawing(temperature=0.5, max_tokens=9, top_k=3, seed=5)
    read = read_prompts(str(tmp_path / "a.yaml"))
    assert drawing_for(read, config, {}) == Drawing(temperature=0, max_tokens=7, top_k=3, seed=5)
    given = drawing_for(read, config, {"max_tokens": 2, "stop": ["x"]})
    assert given == Drawing(temperature=0, max_tokens=2, top_k=3, seed=5, stop=("x",))


def test_a_prompt_may_hold_whatever_ends_a_line_elsewhere(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "one\u2028two\x85"}\n', encoding="utf-8")
    assert read_prompts(str(tmp_path / "a.jsonl")).prompts == ("one\u2028two\x85",)


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.txt", "one\n"), ("a.jsonl", '{"prompt": "one"}\n'), ("a.yaml", "prompts: [one]\n")],
)
def test_the_mark_that_editors_begin_a_file_with_is_no_part_of_a_prompt(tmp_path, name, content):
    (tmp_path / name).write_text(content, encoding="utf-8-sig")
    assert read_prompts(str(tmp_path / name)).prompts == ("one",)


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("a.txt", "", "contains no prompt"),
        ("a.jsonl", "\n \n", "contains no prompt"),
        ("a.jsonl", '{"prompt": "x"}\n{"prompt": 3}', "line 2"),
        ("a.jsonl", "[", "line 1"),
        (
            "a.jsonl",
            '{"prompt": "x"}\n{"prompt": "y", "temprature": 0}',
            "line 2: .*'temprature' would be passed over",
        ),
        ("a.yaml", "- x", "holds a list"),
        ("a.yaml", "prompts: [x]\nseed: 1", "seed: there is no such key"),
        ("a.yaml", "a: [", "not YAML"),
        ("a.yaml", "prompts: []\nseed: 1", "prompts is .*1 item"),
        ("a.yaml", "prompts: [x]\nsampling: {temperature: -1}", "sampling.temperature"),
        (
            "a.yaml",
            "prompts: [x]\nsampling: {stop: ['']}",
            r"sampling\.stop\.0 is ''; it must have 1 character",
        ),
        ("a.yaml", "sampling: {temperature: 1}", "prompts: .*none was given; give it in the file$"),
    ],
)
def test_a_file_that_is_damaged_is_named(tmp_path, name, content, what):
    (tmp_path / name).write_text(content)
    with pytest.raises(TriviumError, match=what) as refused:
        read_prompts(str(tmp_path / name))
    assert all(line.startswith(f"--file {tmp_path / name}") for line in str(refused.value).split("\n"))


def test_a_file_that_is_missing_or_a_name_misspelt_is_refused(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_prompts(str(tmp_path / "absent.txt"))
    with pytest.raises(ConfigError, match="did you mean 'riddles'"):
        read_prompts("ridles")
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="not UTF-8"):
        read_prompts(str(tmp_path / "b.txt"))
