"""A tokenizer that cannot be used is reported before any text is read, with a remedy that works as it is printed."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tokens.curated import prose
from tokens.foreign import folder_of
from tokens.kinds import kind
from trivium.cli import main as entry

Call = Callable[..., tuple[int, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path) -> Call:
    """Runs the command line in an empty directory: its exit code, and what it prints."""

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["trivium", *words])
        with pytest.raises(SystemExit) as ended:
            entry.main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out + printed.err

    monkeypatch.chdir(tmp_path)
    texts = [prose(n, 400) for n in range(30)]
    Path("docs.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    return run


def words_for(name: str) -> tuple[str, ...]:
    place = folder_of(Path("words"), kind(name).description)
    size = 1 + max(json.loads(kind(name).description)["model"]["vocab"].values())
    return "--set", f"tokens.tokenizer={place}", "--set", f"plan.model.vocabulary={size}"


@pytest.mark.parametrize("verb", [("corpus", "run", "demo"), ("demo",), ("demo", "--dry-run")])
@pytest.mark.parametrize(
    ("wrong", "code", "told"),
    [
        ((), 2, r"has no token <\|endoftext\|>.* --set 'tokens.end_of_text=\[SEP\]'"),
        (("--set", "tokens.end_of_text=[SEP]", "--set", "tokens.vocabulary=9999"), 2, "tokens.vocabulary"),
        (("--set", "tokens.end_of_text=[EOT]"), 2, r"has no token \[EOT\]"),
        (("--set", "tokens.tokenizer=nowhere.json", "--set", "plan.model.vocabulary=9999"), 4, "does not exist"),
    ],
)
def test_tokenizer_is_opened_before_the_corpus_is_read(call: Call, verb, wrong, code: int, told: str) -> None:
    given = () if "tokens.tokenizer" in " ".join(wrong) else words_for("WordPiece")
    ended, printed = call(*verb, "--corpus", "docs.jsonl", "--out", "run", *given, *wrong)
    assert ended == code and re.search(told, printed)
    assert not Path("run").exists()


@pytest.mark.parametrize("name", ["WordPiece", "Metaspace first", "Unigram, T5"])
def test_printed_remedy_works_when_it_is_typed(call: Call, name: str, monkeypatch) -> None:
    place = folder_of(Path("words"), kind(name).description)
    monkeypatch.setattr("trivium.cli.corpus.perform", lambda *stage, **more: None)  # checks alone
    monkeypatch.setattr("trivium.cli.corpus._perform_curation", lambda *stage, **more: None)
    command = ["corpus", "run", "demo", "--out", "run", "--set", f"tokens.tokenizer={place}"]
    remedies = []
    for _ in range(3):
        ended, printed = call(*command)
        if ended == 0:
            break
        remedies.append(printed)
        command += shlex.split(printed[printed.index("--set ") :].removeprefix("--set, as ").splitlines()[0])
    assert ended == 0 and len(remedies) == 1  # the end of text; the number of ids follows


def test_tokenizer_named_relatively_is_found_from_elsewhere(call: Call, tmp_path: Path, monkeypatch) -> None:
    words = words_for("byte-level")
    common = ("--set", "curate.filters=[]", "--set", "harvest.heldout_fraction=0.1")
    assert call("corpus", "run", "demo", "--corpus", "docs.jsonl", "--out", "run", *words, *common)[0] == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert "up to date" in call("tokenize", "--out", "../run")[1]
