"""Configs: overrides are typed and order-independent, and every problem is named with its remedy."""

import itertools
import json
import os
import re
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from trivium import config
from trivium.cli.run_config import RunConfig
from trivium.config import (
    Config,
    as_value,
    build,
    differences,
    first_lines,
    leaves,
    mapping_of_yaml,
    merge,
    parse_assignments,
    preset_names,
    read_preset,
    to_tree,
    written,
)
from trivium.errors import ConfigError, DataError
from trivium.training.config import TrainingConfig


class Ramp(Config):
    start: int = Field(default=1, ge=1)


class Batch(Config):
    sequences: int = 8
    ramp: Ramp | None = None


class Whole(Config):
    seed: int = 0
    name: str = "x"
    batch: Batch = Batch()


def fails(tree: dict) -> str:
    with pytest.raises(ConfigError) as caught:
        build(Whole, tree)
    return str(caught.value)


def test_order_of_overrides_does_not_matter():
    texts = ["seed=3", "batch.sequences=16", "batch.ramp.start=2"]
    trees = [parse_assignments(order) for order in itertools.permutations(texts)]
    assert all(tree == trees[0] for tree in trees)
    assert build(Whole, trees[0]) == Whole(seed=3, batch=Batch(sequences=16, ramp=Ramp(start=2)))


def test_values_are_typed_by_the_field():
    assert build(Whole, parse_assignments(["name=x7", "batch.ramp=null"])).batch.ramp is None
    assert build(Whole, parse_assignments(["seed=0x10"])).seed == 16


@pytest.mark.parametrize("value", ["010", "-010", "1:30", "1:30:00", "1:30.5"])
def test_octal_numbers_and_those_of_base_60_are_no_numbers(value: str):
    """YAML 1.1 would read 010 as 8 and 1:30 as 90."""
    with pytest.raises(ConfigError, match=f"seed is '{value}'; it must be a valid integer"):
        build(Whole, parse_assignments([f"seed={value}"], Whole))
    assert build(Whole, mapping_of_yaml(f"name: {value}", "x.yaml", "law")).name == value
    assert parse_assignments(["a=[0, 10, 0.5]"]) == {"a": [0, 10, 0.5]}


def test_an_override_that_is_no_yaml_is_rejected_with_the_cause():
    with pytest.raises(ConfigError, match="is not YAML: line 1 has 'a' a second time; put both under the first$"):
        parse_assignments(["batch={a: 8, a: 16}"])
    with pytest.raises(ConfigError, match="is not YAML: line 1, column 3: .*; quote it$"):
        parse_assignments(["batch=[1"])


def test_a_path_that_is_a_key_is_written_nested():
    (told,) = fails({"batch.ramp.start": 1}).splitlines()
    assert told == "batch.ramp.start: there is no such key; write it nested: batch: {ramp: {start: VALUE}}"
    assert "write it nested: ramp: {start: VALUE}" in fails({"batch": {"ramp.start": 1}})


@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan"])
def test_non_finite_numbers_are_rejected(value: str):
    with pytest.raises(ConfigError, match="lr is .*; it must be a finite number"):
        build(TrainingConfig, parse_assignments([f"lr={value}"]))


@pytest.mark.parametrize("name", ["beta1", "beta2"])
def test_beta_of_one_is_rejected(name: str):
    with pytest.raises(ConfigError, match=rf"{name} is 1.*; it must be less than 1"):
        build(TrainingConfig, parse_assignments([f"{name}=1"]))
    assert build(TrainingConfig, parse_assignments([f"{name}=0"]))


def test_merge_replaces_every_leaf():
    merged = merge({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"c": 4}, "d": {"e": 5}})
    assert dict(leaves(merged)) == {"a.b": 1, "a.c": 4, "d.e": 5}


@pytest.mark.parametrize(
    "texts", [["seed"], ["=3"], ["seed=1", "seed=2"], ["a=1", "a.b=2"], ["a.b=2", "a=1"], ["a=[1"]]
)
def test_unreadable_override_is_rejected_with_its_text(texts: list[str]):
    with pytest.raises(ConfigError, match=texts[-1].split("=")[0].split(".")[-1] or "=3"):
        parse_assignments(texts)


BOMB = "\n".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in itertools.pairwise("abcdefghijkl"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"a: &a [lol]\n{BOMB}\nlr: *l", "alias"),  # would expand to 250 GB
        ("lr: &x [*x]", "alias"),
        ("[" * 2_000 + "]" * 2_000, "line 1 is nested more than 200 levels deep"),
        ("lr: 2024-13-45", "month must be in 1..12"),
        ("lr: !!bool maybe", "KeyError"),
        ("lr: !!timestamp soon", "AttributeError"),
        ("lr: !!python/object/apply:os.getpid []", "could not determine a constructor"),
        ("training: {lr: 1}\nplan: {}\ntraining: {steps: 3}", "line 3 has 'training' a second time"),
        ('{"training": {"lr": 1, "lr": 2}}', "line 1 has 'lr' a second time"),
    ],
)
def test_yaml_that_is_not_plain_data_is_rejected(text: str, says: str):
    with pytest.raises(DataError, match=says):
        mapping_of_yaml(text, "x.yaml", "law", DataError)


@pytest.mark.parametrize(
    "text", ["my #run/x", "#1", "a: b", "1e3", "null", "it's", 'say "x" #2', "runs/demo", "ü\n", ""]
)
def test_as_value_round_trips(text: str):
    assert parse_assignments([f"start_from={as_value(text)}"], TrainingConfig) == {"start_from": text}
    assert as_value("runs/demo") == "runs/demo"


class Texts(Config):
    text: str = "x"
    some: Annotated[str, Field(min_length=1)] | None = None
    mode: Literal["on", "off"] = "on"
    many: tuple[str, ...] = ()
    either: str | int = 0


class Inside(Config):
    texts: Texts = Texts()


@pytest.mark.parametrize(
    "typed",
    ["[SEP]", "[SEP", "{a", "no", "1e3", "010", "2024-13-45", "*end", "<|end|>", "a #b", "#", "a: b", "@x", '"a" b'],
)
def test_string_fields_accept_text_as_typed(typed: str):
    for field in ("text", "some"):
        tree = parse_assignments([f"texts.{field}={typed}"], Inside)
        assert getattr(build(Inside, tree).texts, field) == typed
        as_printed = parse_assignments([f"texts.{field}={as_value(typed)}"], Inside)
        assert as_printed == tree


def test_quotes_are_removed_and_null_is_none():
    def typed(text: str) -> Texts:
        return build(Inside, parse_assignments([f"texts.{text}"], Inside)).texts

    assert typed('some="[SEP]"').some == typed("some='[SEP]'").some == "[SEP]"
    assert typed("some=null").some is None and typed('some="null"').some == "null"
    assert typed("text=null").text == "null"  # this field cannot be None
    assert typed("mode=off").mode == "off"
    assert typed("many=[no, 1e3, 010, null]").many == ("no", "1e3", "010", "null")
    assert typed("either=3").either == 3
    with pytest.raises(ConfigError, match=r"texts.many is '3'; it must be a list: write \[3\]"):
        typed("many=3")
    for text in ("null", " a", "a\nb", "\x1b[1m"):
        assert typed(f"some={as_value(text)}").some == text != as_value(text)
    with pytest.raises(ConfigError, match=r'texts.text is \["SEP"\]; it must be text: put it in quotes$'):
        build(Inside, {"texts": {"text": ["SEP"]}})


def test_values_are_not_cut_at_yaml_comments():
    with pytest.raises(ConfigError, match=r'a comment begins at its .#.; quote the value: a.b="my #run/x"$'):
        parse_assignments(["a.b=my #run/x"])


@pytest.mark.parametrize(
    "text", ["it's my #run", 'say "x" #2', "'it''s' # why", "[a, 'b'] #c", "[a, # b\n c]", "3 # of 'them'", "a\n# b"]
)
def test_values_with_quotes_are_not_cut(text: str):
    with pytest.raises(ConfigError, match="a comment begins at its '#'; quote the value: a.b="):
        parse_assignments([f"a.b={text}"])


@pytest.mark.parametrize(
    ("text", "value"),
    [("'it''s my #run'", "it's my #run"), ('"a #b"', "a #b"), ("[a#b, 'c #d']", ["a#b", "c #d"]), ("it's#1", "it's#1")],
)
def test_hash_inside_a_value_is_kept(text: str, value: object):
    assert parse_assignments([f"a.b={text}"]) == {"a": {"b": value}}


def test_impossible_date_in_override_is_rejected():
    with pytest.raises(ConfigError, match="lr=2024-13-45' is not YAML: ValueError: month"):
        parse_assignments(["training.lr=2024-13-45"])


def test_unknown_key_suggests_similar_one():
    assert fails({"sed": 1}) == "sed: there is no such key; did you mean 'seed'?"
    assert "did you mean 'sequences'?" in fails({"batch": {"sequence": 1}})


def test_misplaced_key_suggests_its_sections():
    assert fails({"start": 1}).endswith("no such key; did you mean 'batch.ramp.start'?")
    assert fails({"batch": {"seed": 1}}).endswith("did you mean 'seed'?")


def test_unknown_key_of_optional_section_suggests_similar_one():
    assert "did you mean 'start'?" in fails({"batch": {"ramp": {"strt": 1}}})


def test_wrong_type_shows_path_value_and_rule():
    text = fails({"batch": {"sequences": "many"}})
    assert text.startswith("batch.sequences is 'many'; it must be a valid integer")


def test_alternatives_of_a_field_are_one_problem_at_its_path():
    with pytest.raises(ConfigError) as caught:
        build(TrainingConfig, {"milestones": "x", "steps": 0})
    assert str(caught.value).splitlines() == [
        "steps is 0; it must be greater than or equal to 1",
        "milestones is 'x'; it must be 'none' or 'pythia', or a valid integer",
    ]


def test_all_problems_are_reported_together():
    lines = fails({"sed": 1, "batch": {"sequences": "many", "ramp": {"start": 0}}}).splitlines()
    assert [line.split()[0].rstrip(":") for line in sorted(lines)] == ["batch.ramp.start", "batch.sequences", "sed"]


def test_config_is_immutable():
    with pytest.raises(Exception, match="frozen"):
        Whole().seed = 1


def test_config_round_trips_through_plain_data():
    config = Whole(seed=3, batch=Batch(ramp=Ramp(start=4)))
    assert build(Whole, to_tree(config)) == config


def test_long_list_of_differences_is_shortened():
    assert first_lines([]) == ""
    assert first_lines(["a: 1 -> 2", "b: 1 -> 2"], 2) == "  a: 1 -> 2\n  b: 1 -> 2"
    told = first_lines(differences({}, {f"f{n:02d}": n for n in range(20)})).splitlines()
    assert len(told) == 13 and told[0] == "  f00: (absent) -> 0" and told[-1] == "  and 8 more"


def test_differences_name_path_and_both_values():
    assert differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}, "d": 4}) == ["a.c: 2 -> 3", "d: (absent) -> 4"]


def test_preset_inherits_from_file_next_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "base.yaml").write_text("seed: 1\nbatch: {sequences: 4}\n")
    (tmp_path / "mine.yaml").write_text("base: base.yaml\nbatch: {ramp: {start: 2}}\n")
    monkeypatch.chdir("/")
    assert read_preset(str(tmp_path / "mine.yaml")) == {"seed": 1, "batch": {"sequences": 4, "ramp": {"start": 2}}}


@pytest.mark.parametrize(("a", "b"), [("a.yaml", "b.yaml"), ("x/a.yaml", "y/b.yaml")])
def test_circular_inheritance_is_rejected(tmp_path: Path, a: str, b: str):
    for mine, other in ((a, b), (b, a)):
        (tmp_path / mine).parent.mkdir(exist_ok=True)
        (tmp_path / mine).write_text(f"base: {Path('..') / other if '/' in other else other}")
    with pytest.raises(ConfigError, match="inherits from itself: .*a.yaml -> .*b.yaml -> .*a.yaml$"):
        read_preset(str(tmp_path / a))


def test_run_directory_is_found_relative_to_heir(tmp_path: Path):
    for folder in ("run", "elsewhere"):
        (tmp_path / folder).mkdir()
    (tmp_path / "run" / "config.json").write_text('{"seed": 7}')
    (tmp_path / "elsewhere" / "mine.yaml").write_text("base: ../run\nname: mine")
    assert read_preset(str(tmp_path / "elsewhere" / "mine.yaml")) == {"seed": 7, "name": "mine"}


@pytest.mark.parametrize(("text", "says"), [("a: [", "is not YAML"), ("- 1", "holds a list"), ("\x80", "UTF-8")])
def test_invalid_preset_file_is_rejected(tmp_path: Path, text: str, says: str):
    path = tmp_path / "x.yaml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=says):
        read_preset(str(path))


def test_empty_mapping_is_rejected_but_empty_preset_is_valid(tmp_path: Path):
    with pytest.raises(DataError, match="notes.yaml holds nothing; write some"):
        mapping_of_yaml("# soon", "notes.yaml", "write some", DataError)
    (tmp_path / "x.yaml").write_text("# soon")
    assert read_preset(str(tmp_path / "x.yaml")) == {}


def test_unknown_preset_lists_known_ones(tmp_path: Path):
    with pytest.raises(ConfigError, match="did you mean 'demo'"):
        read_preset("demmo")
    with pytest.raises(ConfigError, match="there is no preset 'zzzz'; `trivium models` lists"):
        read_preset("zzzz")
    with pytest.raises(ConfigError, match="does not exist; `trivium models`"):
        read_preset(str(tmp_path / "none.yaml"))


def test_included_presets_are_trees():
    assert {"demo", "mt-nlg-530b", "gpt-125m", "gpt-1.3b"} <= set(preset_names())
    assert all("plan" in read_preset(name) for name in preset_names())


def test_too_short_values_are_explained_once():
    class Some(Config):
        some: Annotated[tuple[Literal["a", "b"], ...], Field(min_length=1)] = ("a",)
        text: Annotated[str, Field(min_length=2)] = "ab"
        either: Annotated[tuple[Annotated[int, Field(le=5)] | Literal["few"], ...], Field(min_length=1)] = (1,)

    def told(value: list | str, name: str = "some") -> str:
        with pytest.raises(ConfigError) as caught:
            build(Some, {name: value})
        return str(caught.value)

    assert told([]) == "some is []; it must have 1 item or more"
    assert told(["c"]) == "some.0 is 'c'; it must be 'a' or 'b'"
    assert told([9], "either") == "either.0 is 9; it must be less than or equal to 5, or 'few'"
    assert told("a", "text") == "text is 'a'; it must have 2 characters or more"


class Counts(Config):
    one: Annotated[int, Field(ge=1)] = 1
    several: tuple[int | Literal["few"], ...] = ()
    named: dict[str, int] = {}
    name: str | None = None
    share: float = 0.0


def test_integers_accept_exponents(tmp_path: Path):
    texts = ["one=2e3", "several=[1.5E3, few, +20e-1, 7]", "named.a=1e+9", "share=2e3", "name=2e3"]
    expected = Counts(one=2000, several=(1500, "few", 2, 7), named={"a": 10**9}, share=2000.0, name="2e3")
    assert build(Counts, parse_assignments(texts)) == expected
    (tmp_path / "some.yaml").write_text(
        "one: 2e3\nseveral: [15e2, few, 2e0, 7]\nnamed: {a: .1e10}\nname: 2e3\nshare: 2e3\n"
    )
    read = build(Counts, read_preset(str(tmp_path / "some.yaml")))
    assert read == expected and type(read.one) is type(read.several[0]) is int


@pytest.mark.parametrize(
    "text", ["many", "1e", "e3", "2e-3", "1.5e0", "2_0e1", "9007199254740993e0", "1e999", "nan", "2e3 "]
)
def test_inexact_exponents_are_rejected_as_integers(text: str):
    for tree, path in (({"one": text}, "one"), ({"several": ["few", text]}, "several.1.*")):
        with pytest.raises(ConfigError, match=f"{path} is '{text}'; it must be a valid integer"):
            build(Counts, tree)


def test_values_are_shown_as_written() -> None:
    """Users may copy the shown value into --set or a file."""
    was = {"a": None, "b": True, "c": "1f1b", "d": {"start": 1}, "e": [1, None]}
    now = {"a": 1, "b": False, "c": "gpipe", "d": None, "e": []}
    assert differences(was, now) == [
        "a: null -> 1",
        "b: true -> false",
        "c: 1f1b -> gpipe",
        'd: {"start": 1} -> null',
        "e: [1, null] -> []",
    ]
    for value in (*was.values(), *now.values()):
        assert parse_assignments([f"a={written(value)}"]) == {"a": value}


def test_fields_of_a_run_reject_values_of_other_types():
    tree = to_tree(build(RunConfig, read_preset("demo")))
    wrong = {bool: (1, 0.0, "true"), int: (True, "2", "2e3"), float: (False, "0.5", "1e-3")}
    told = 0
    for path, value in leaves(tree):
        for other in wrong.get(type(value), ()):
            changed = merge(tree, parse_assignments([f"{path}={json.dumps(other)}"]))
            with pytest.raises(ConfigError, match=rf"{re.escape(path)}\S* is '?{re.escape(written(other))}'?; it must"):
                build(RunConfig, changed)
            told += 1
    assert told > 300


def test_exponents_are_numbers_only_without_quotes(tmp_path: Path):
    path = tmp_path / "a.yaml"
    path.write_text("share: 1e-3")
    assert build(Counts, read_preset(str(path))).share == 0.001
    path.write_text("share: '1e-3'")
    with pytest.raises(ConfigError, match="share is '1e-3'; it must be a valid number"):
        build(Counts, read_preset(str(path)))
    path.with_suffix(".json").write_text('{"share": 1e-3, "one": 2e3, "name": "2e3"}')
    assert build(Counts, read_preset(str(path.with_suffix(".json")))) == Counts(share=0.001, one=2000, name="2e3")


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("x" * 5_000, r"'x{120}… \(5,000 characters\)' is not the name of a preset or file: File name too long"),
        ("x" * 5_000 + ".yaml", "is not the name of a preset or file: File name too long"),
        ('"a\\0b.yaml"', r"preset file a\\u0000b.yaml does not exist"),
        ("[demo]", r'base is \["demo"\]; it must be one text'),
        ('"\\e[2J"', r"there is no preset '\\u001b\[2J'"),
        ("gone.yaml", r"preset file gone.yaml does not exist"),
    ],
)
def test_invalid_base_is_rejected_in_one_short_line(tmp_path: Path, base: str, message: str):
    path = tmp_path / "a.yaml"
    path.write_text(f"base: {base}")
    with pytest.raises(ConfigError, match=message) as caught:
        read_preset(str(path))
    assert len(str(caught.value)) < 600 and "\n" not in str(caught.value)


def test_chain_of_bases_is_bounded(tmp_path: Path):
    for n in range(40):
        (tmp_path / f"{n}.yaml").write_text(f"base: {n + 1}.yaml\nseed: {n}")
    (tmp_path / "40.yaml").write_text("machine: x")
    assert read_preset(str(tmp_path / "9.yaml")) == {"machine": "x", "seed": 9}
    with pytest.raises(ConfigError, match="preset '32.yaml' is the 33th of a chain of `base:`; at most 32 files"):
        read_preset(str(tmp_path / "0.yaml"))
    (tmp_path / "40.yaml").write_text("base: 9.yaml")
    with pytest.raises(ConfigError, match="inherits from itself"):
        read_preset(str(tmp_path / "9.yaml"))


def test_override_with_many_sections_is_rejected_quickly():
    with pytest.raises(ConfigError, match="has more than 200 sections"):
        parse_assignments(["a." * 5_000 + "b=1"])


def test_thousands_of_problems_are_shortened(monkeypatch):
    asked = []
    monkeypatch.setattr(config, "nearest", lambda name, *_, **__: asked.append(name) or "")
    with pytest.raises(ConfigError) as caught:
        build(Counts, {f"key{n}": n for n in range(20_000)} | {"\x1b[2J": 1})
    lines = str(caught.value).split("\n")
    assert len(lines) == 21 and lines[-1] == "and 19,981 more problems" and len(asked) == 20
    with pytest.raises(ConfigError, match=r"^\\u001b\[2J: there is no such key; $"):
        build(Counts, {"\x1b[2J": 1})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", '{\n "plan": {,}\n}', r"a.json, line 2, column 11: not JSON: Expecting property name"),
        ("a.json", '{"a": {"b": 1, "b": 2}}', r"a.json is not JSON: it has 'b' a second time"),
        ("a.json", "[1]", "a.json holds a list"),
        ("a.json", "[" * 5_000, "column 201: not JSON: nested more than 200 levels"),
        ("a.yaml", "plan:\n  a: [", r"a.yaml is not YAML: line 2, column 7: expected the node content"),
        ("a.yaml", "plan: \x1b[2J", r"not YAML: character 7: special characters are not allowed"),
        ("a.yaml", "a: !!python/x\x07 1", "not YAML: .*special characters are not allowed"),
    ],
)
def test_damaged_preset_error_names_format_line_and_column(tmp_path: Path, name: str, text: str, message: str):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_preset(str(tmp_path / name))
    assert "unicode string" not in str(caught.value) and "\x1b" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.yaml", "a.json"])
def test_preset_must_be_a_bounded_regular_file(tmp_path: Path, name: str):
    path = tmp_path / name
    os.mkfifo(path)
    with pytest.raises(ConfigError, match=f"preset file .*{name} cannot be read: it is a FIFO, not a regular file"):
        read_preset(str(path))
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="it is a character device, not a regular file"):
        read_preset(str(path))
    path.unlink()
    with open(path, "wb") as file:
        file.truncate(257 << 20)
    with pytest.raises(ConfigError, match="it has more than (256 M|512 K)iB, the limit for such a file"):
        read_preset(str(path))
