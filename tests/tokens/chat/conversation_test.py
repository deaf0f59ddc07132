"""Readers of conversations and preference pairs: every format gives the same turns, and bad rows are reported."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokens.chat.conversations import conversation, messages, rows
from trivium.errors import DataError
from trivium.tokens.chat.conversation import (
    Conversation,
    Pair,
    Turn,
    conversation_of,
    pair_of,
    read_conversations,
    read_pairs,
)

ONE = (Turn("user", "Hi"), Turn("assistant", "Yo"))
LONG = (Turn("system", "Be kind."), *ONE, Turn("user", "More?"), Turn("assistant", "No."))
PROMPT, GOOD, BAD = ONE[:1], (Turn("assistant", "Yo"),), (Turn("assistant", "No"),)


def said(turns: tuple[Turn, ...], role: str = "role", content: str = "content", names: str = "{}") -> list[dict]:
    """Messages under other names of fields. names: JSON that maps roles."""
    known = json.loads(names)
    return [{role: known.get(turn.role, turn.role), content: turn.content} for turn in turns]


SHAREGPT = '{"user": "human", "assistant": "gpt"}'


@pytest.mark.parametrize(
    ("row", "turns"),
    [
        ({"messages": said(LONG)}, LONG),
        ({"messages": said(ONE), "id": 7, "tools": None, "functions": []}, ONE),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}, said(ONE)[1]]}, ONE),
        ({"conversations": said(LONG, "from", "value", SHAREGPT)}, LONG),
        ({"conversations": said(ONE, "from", "value", SHAREGPT), "system": "Be kind."}, LONG[:3]),
        ({"conversation": said(ONE)}, ONE),
        ({"instruction": "Hi", "input": "", "output": "Yo"}, ONE),
        ({"instruction": "Hi", "output": "Yo", "system": "Be kind."}, LONG[:3]),
        ({"instruction": "Add.", "input": "1 2", "output": "3"}, (Turn("user", "Add.\n\n1 2"), Turn("assistant", "3"))),
        ({"instruction": "More?", "output": "No.", "history": [["Hi", "Yo"]], "system": "Be kind."}, LONG),
        ({"instruction": "Hi", "output": "Yo", "history": []}, ONE),
        ({"prompt": "Hi", "completion": "Yo"}, ONE),
        ({"prompt": "Hi", "completion": "Yo", "label": True}, ONE),
        ({"prompt": "More?", "completion": "No.", "history": [["Hi", "Yo"]], "system": "Be kind."}, LONG),
        ({"prompt": said(LONG[:4]), "completion": said(LONG[4:])}, LONG),
    ],
)
def test_every_format_gives_the_turns_that_it_says(row: dict, turns: tuple[Turn, ...]) -> None:
    assert conversation_of(row) == turns


@pytest.mark.parametrize(
    ("said_of_it", "counted"),
    [
        ({"weight": 0}, False),
        ({"weight": 1.0}, True),
        ({"train": False}, False),
        ({"loss": False}, False),
        ({"weight": 1, "train": None}, True),
    ],
)
def test_an_answer_that_its_data_excludes_is_read_and_does_not_count(said_of_it: dict, counted: bool) -> None:
    row = said(LONG)
    row[2] |= said_of_it
    assert conversation_of({"messages": row}) == (*LONG[:2], LONG[2]._replace(counted=counted), *LONG[3:])


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Hi", "chosen": "Yo", "rejected": "No"},
        {"prompt": said(PROMPT), "chosen": said(GOOD), "rejected": said(BAD)},
        {"prompt": "Hi", "chosen": said(PROMPT + GOOD), "rejected": said(PROMPT + BAD)},
        {"chosen": said(PROMPT + GOOD), "rejected": said(PROMPT + BAD)},
        {"question": "Hi", "chosen": said(PROMPT + GOOD), "rejected": said(PROMPT + BAD)},
        {"chosen": "Hi Yo", "rejected": "Hi No"},
        {"chosen": "\n\nHuman: Hi\n\nAssistant: Yo", "rejected": "\n\nHuman: Hi\n\nAssistant: No"},
    ],
)
def test_every_format_of_pairs_gives_prompt_and_answers(row: dict) -> None:
    assert pair_of(row) == (PROMPT, GOOD, BAD)


def test_the_history_of_a_pair_precedes_its_prompt() -> None:
    row = {"history": [["Hi", "Yo"]], "prompt": "More?", "chosen": "No.", "rejected": "Yes.", "system": "Be kind."}
    expected = (LONG[:-1], LONG[-1:], (Turn("assistant", "Yes."),))
    assert pair_of(row) == expected
    repeated = {name: said((LONG[3], Turn("assistant", row[name]))) for name in ("chosen", "rejected")}
    assert pair_of({**row, "prompt": said(LONG[3:4]), **repeated}) == expected
    del row["system"]
    assert pair_of({**row, "prompt": said((LONG[0], LONG[3]))}) == expected


def test_the_common_beginning_of_a_pair_ends_where_an_answer_begins() -> None:
    chosen, rejected = LONG, (*LONG[:-1], Turn("assistant", "Yes."))
    assert pair_of({"chosen": said(chosen), "rejected": said(rejected)}) == (LONG[:-1], LONG[-1:], rejected[-1:])
    words = {"chosen": "The sea is blue", "rejected": "The sea is black"}
    assert pair_of(words) == (
        (Turn("user", "The sea is"),),
        (Turn("assistant", "blue"),),
        (Turn("assistant", "black"),),
    )
    assert pair_of({"input": "The sea", **words}) == pair_of(words)  # both answers repeat the question


BAD_ROWS = [
    (messages("Hi"), "ends with turn 1 (user), which nobody answers"),
    ({"messages": said(ONE[:1] * 2)}, "turns 1 and 2 are both the user's"),
    ({"messages": said((*ONE, ONE[1]))}, "turns 2 and 3 are both the assistant's"),
    ({"messages": said((ONE[0], Turn("assistant", " \n")))}, "turn 2 (assistant) is empty"),
    ({"messages": said((Turn("user", ""), ONE[1]))}, "turn 1 (user) is empty"),
    ({"messages": said(ONE[1:])}, "turn 1 (assistant) begins the conversation; it may follow the user's or the tool's"),
    ({"messages": said((*ONE, LONG[0], *ONE))}, "turn 3 (system) follows the assistant's"),
    ({"messages": [{"role": "usr", "content": "Hi"}]}, "has the role 'usr'; did you mean 'user'?"),
    ({"messages": [{"content": "Hi"}]}, "has the role None; known: system, user, assistant, tool"),
    ({"messages": [{"role": "user"}]}, "messages, turn 1, content has to be a text; found nothing"),
    ({"messages": [{"role": "user", "content": 3}]}, "content has to be a text; found 3"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "has a part that is no text"),
    ({"messages": [ONE[0]._asdict(), {"role": "assistant", "content": "x", "tool_calls": [1]}]}, "has tool_calls"),
    ({"messages": [], "id": 1}, "it has no turns"),
    ({"messages": [said(ONE)[0], said(ONE)[1] | {"weight": 0.5}]}, "turn 2 has the weight 0.5; give 1 if it counts"),
    ({"messages": [said(ONE)[0], said(ONE)[1] | {"weight": 0}]}, "no answer of it counts as a target"),
    ({"prompt": "Hi", "completion": "No", "label": False}, "its label is false"),
    ({"messages": said(ONE), "label": False}, "its label is false, which marks an answer to avoid"),
    ({"instruction": "Hi", "output": "No", "kto_tag": False}, "its kto_tag is false"),
    ({"messages": said(ONE), "images": ["a.png"]}, "images is ['a.png'], and only text without tools is supported"),
    ({"messages": [said(ONE)[0], said(ONE)[1] | {"reasoning": "Hm."}]}, "turn 2 has reasoning, which is not supported"),
    ({"instruction": "a", "output": "b", "history": 3}, "history has to be a list of [instruction, output]; found 3"),
    ({"instruction": "a", "output": "b", "history": [["c"]]}, "item 1 has to be [instruction, output]; found ['c']"),
    ({"messages": "Hi"}, "messages has to be a list of messages; found a text"),
    ({"messages": ["Hi"]}, "turn 1 has to be a message with role and content; found a text"),
    (
        {"messages": said(ONE), "tools": [{"name": "f"}]},
        "only text without tools is supported; remove the row, or only tools if",
    ),
    ({"text": "Hi"}, "its columns are 'text'; they have to be one of: messages; conversations; instruction and output"),
    ({"chosen": "a", "rejected": "b"}, "it is a preference pair"),
    ({"prompt": "a", "completion": "\ud800"}, "has a lone surrogate ('\\ud800' at position 0)"),
    ([1], "a row is an object with named columns; found a list"),
]
BAD_PAIRS = [
    ({"prompt": "a", "chosen": "b", "rejected": "b"}, "chosen and rejected are equal"),
    ({"prompt": "a", "chosen": said(GOOD), "rejected": "Yo"}, "chosen and rejected are equal"),
    ({"prompt": "a", "chosen": "b", "rejected": " "}, "rejected: turn 2 (assistant) is empty"),
    ({"prompt": said(ONE), "chosen": "b", "rejected": "c"}, "chosen: turns 2 and 3 are both the assistant's"),
    ({"prompt": "a", "chosen": [said(GOOD)[0] | {"weight": 0}], "rejected": "c"}, "chosen: no answer of it counts"),
    ({"chosen": "b", "rejected": "c"}, "have no common beginning; give the row a prompt"),
    ({"question": "a", "chosen": "It is b", "rejected": "It is c"}, "it has no prompt but question"),
    ({"instruction": "a", "input": "", "chosen": "It is b", "rejected": "It is c"}, "it has no prompt but instruction"),
    ({"prompt": "a", "chosen": said(LONG[1:4]), "rejected": "c"}, "chosen: turns 1 and 2 are both the user's"),
    ({"prompt": "a", "completion": "b"}, "they have to be one of: chosen and rejected"),
]


@pytest.mark.parametrize(("row", "reason"), BAD_ROWS)
def test_a_bad_row_is_refused_with_file_line_and_reason(tmp_path: Path, row: object, reason: str) -> None:
    path = rows(tmp_path / "x.jsonl", messages("Hi", "Yo"), row)
    with pytest.raises(DataError) as raised:
        list(read_conversations(path))
    head, line = str(raised.value).split("\n")
    assert head == f"{path}: 1 of 2 rows cannot be used; correct or remove them"
    assert line.startswith("  line 2: ")
    assert reason in line


@pytest.mark.parametrize(("row", "reason"), BAD_PAIRS)
def test_a_bad_pair_is_refused_with_file_line_and_reason(tmp_path: Path, row: object, reason: str) -> None:
    path = rows(tmp_path / "x.jsonl", {"prompt": "Hi", "chosen": "Yo", "rejected": "No"}, row)
    with pytest.raises(DataError) as raised:
        list(read_pairs(path))
    assert "1 of 2 rows" in str(raised.value)
    assert reason in str(raised.value).split("  line 2: ")[1]


def test_all_bad_rows_of_a_file_are_reported_together(tmp_path: Path) -> None:
    good, bad = messages("Hi", "Yo"), [row for row, _ in BAD_ROWS[:8]]
    path = rows(tmp_path / "x.jsonl", good, *bad, *[BAD_ROWS[0][0], good, {"text": 1}] * 20)
    with path.open("a") as file:
        file.write('{"messages": [\n')
    with pytest.raises(DataError) as raised:
        list(read_conversations(path))
    head, *lines = str(raised.value).split("\n")
    assert "49 of 70 rows" in head
    assert len([line for line in lines if line.startswith("  line ")]) == 10
    said = " ".join(lines)
    assert "and 19 rows (lines 13, 16, 19, …): it ends with turn 1 (user)" in said
    assert "and 19 rows (lines 15, 18, 21, …): its columns are 'text'" in said
    assert "and 1 row (line 70): column " in said
    assert "cannot be read as JSON" in said


def test_files_and_folders_of_every_kind_give_the_same_conversations(tmp_path: Path) -> None:
    values = [messages("Hi", f"Yo {n}") for n in range(5)]
    expected = [conversation("Hi", f"Yo {n}").turns for n in range(5)]
    for name in ("a.jsonl", "b.ndjson", "c.json"):
        rows(tmp_path / name, *values)
    (tmp_path / "d.json").write_text(json.dumps(values, indent=1))
    (tmp_path / "sub").mkdir()
    pq.write_table(pa.Table.from_pylist(values), tmp_path / "sub" / "e.parquet", row_group_size=2)
    (tmp_path / "README.md").write_text("not data")
    found = list(read_conversations(tmp_path))
    files = ("a.jsonl", "b.ndjson", "c.json", "d.json", "sub/e.parquet")
    assert found == [Conversation(turns, f"{file}:{n}") for file in files for n, turns in enumerate(expected, 1)]
    assert list(read_conversations(tmp_path / "sub" / "e.parquet"))[4].name == "e.parquet:5"


def test_pairs_are_read_from_parquet(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"prompt": ["Hi"], "chosen": [said(GOOD)], "rejected": [said(BAD)], "score": [0.5]}),
        tmp_path / "x.parquet",
    )
    assert list(read_pairs(tmp_path)) == [Pair(PROMPT, GOOD, BAD, "x.parquet:1")]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("x.parquet", b"PAR1 no", "cannot be read"),
        ("x.json", b"[1, 2", "cannot be read"),
        ("x.jsonl", b"", "has no rows"),
        ("x.jsonl", b"[" * 500 + b"]" * 500, "nested more than 200 levels deep"),
        ("x.jsonl", b'{"a": "\xff"}', "is not UTF-8"),
        ("x.txt", b"hello", "cannot be read as JSON"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_reason(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=name) as raised:
        list(read_conversations(tmp_path / name))
    assert reason in str(raised.value)


def test_a_folder_or_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file that ends in \.jsonl"):
        list(read_conversations(tmp_path))
    with pytest.raises(DataError, match=r"y\.jsonl cannot be read \(No such file"):
        list(read_conversations(tmp_path / "y.jsonl"))


def test_a_parquet_file_that_unpacks_to_more_than_the_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text of 8 MiB that is repeated takes few bytes on disk."""
    path = tmp_path / "x.parquet"
    values = [messages("Hi", "Yo " * (1 << 20))] * 8
    pq.write_table(pa.Table.from_pylist(values), path, compression="zstd")
    assert path.stat().st_size < 1 << 20
    assert len(list(read_conversations(path))) == 8
    monkeypatch.setattr("trivium.tokens.chat.rows._GROUP_BYTES", 8 << 20)
    with pytest.raises(DataError, match=r"x\.parquet cannot be read \(row group 0 unpacks to"):
        list(read_conversations(path))


def test_a_fifo_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.jsonl")
    with pytest.raises(DataError, match="it is a FIFO"):
        list(read_conversations(tmp_path / "x.jsonl"))
