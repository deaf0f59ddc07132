"""Arrow files of the library `datasets` are named, with a command that writes their texts as Parquet."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trivium.corpus.read.files import input_files, list_files
from trivium.corpus.read.read import read_any
from trivium.errors import DataError
from trivium.tokens.chat.conversation import read_conversations

TEXTS = ["First words.", "Other words.", "Last words."]


def test_arrow_files_and_their_settings_beside_other_texts_are_counted_as_not_read(tmp_path: Path) -> None:
    (tmp_path / "set" / "train").mkdir(parents=True)
    for name in ("own.jsonl", "set/dataset_dict.json", "set/state.jsonl", "set/train/state.json", "set/train/a.arrow"):
        (tmp_path / name).write_text('{"messages": [], "text": "Words."}')
    assert input_files(tmp_path) == [tmp_path / "own.jsonl", tmp_path / "set" / "state.jsonl"]
    assert list_files(tmp_path).others == {".json": 2, ".arrow": 1}
    (tmp_path / "set" / "train" / "a.arrow").unlink()
    assert len(input_files(tmp_path)) == 4


@pytest.mark.parametrize("read", [list_files, lambda path: list(read_conversations(path))], ids=["corpus", "tune"])
@pytest.mark.parametrize("given", [".", "train", "train/data-00000-of-00002.arrow", "alone.arrow", "alone"])
def test_arrow_files_alone_are_rejected_with_the_command_that_writes_parquet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, read: Callable[[Path], object]
) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets (extra eval) is not installed")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    mine, saved = tmp_path / "my set", datasets.Dataset.from_dict({"text": TEXTS})
    if given.startswith("alone"):
        saved.save_to_disk(tmp_path / "saved", num_shards=1 if given == "alone.arrow" else 2)
        (mine / "alone").mkdir(parents=True)
        for number, file in enumerate(sorted((tmp_path / "saved").glob("*.arrow"))):
            file.rename(mine / (given if given == "alone.arrow" else f"alone/{number}.arrow"))
    else:
        datasets.DatasetDict({"test": saved.take(1), "train": saved}).save_to_disk(mine, num_shards={"train": 2})
    with pytest.raises(DataError, match=r"\.arrow is an Arrow file.*, which is not read; write its data set") as raised:
        read(mine / given)
    python, option, code, source, target = shlex.split(str(raised.value).split("`")[1])
    assert (python, option) == ("python", "-c")
    monkeypatch.setattr(sys, "argv", [option, source, target])
    exec(code, {})
    files = input_files(Path(target))
    assert [file.name for file in files] == (["test.parquet", "train.parquet"] if given == "." else [files[-1].name])
    assert [document.text for document in read_any(files[-1], source="s")] == TEXTS
