"""`trivium data adopt`: what it writes is a run's tokens, and nobody's files are replaced."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from tokens.adopt_test import megatron_pair, texts
from trivium.cli import main as entry
from trivium.provenance import read_stamp
from trivium.tokens.manifest import read_tokens_manifest
from trivium.tokens.tokenizer import train_tokenizer

SMALL = (
    "tokens.tokenizer=tokenizer.json",
    "plan.model.sequence=8",
    "plan.batch.ramp=null",
    "plan.batch.sequences=4",
    "plan.batch.micro=1",
)
SHARE = "tokens.validation_fraction=0.3"


@pytest.fixture
def trivium(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """The command line in a folder with two pairs and their tokenizer; returns exit code and what was printed."""
    monkeypatch.chdir(tmp_path)
    train_tokenizer(["a parser reads each token and returns it " * 20], 270).save(Path("tokenizer.json"))
    for n, name in enumerate(("web", "code")):
        megatron_pair(Path(name), texts(100 * n, 40))

    def run(*line: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["trivium", *line])
        try:
            entry.main()
            code = 0
        except SystemExit as error:
            code = int(error.code or 0)
        return code, "".join(capsys.readouterr())

    return run


def adopt(trivium, *words: str) -> tuple[int, str]:
    fields = SMALL if "--validation" in words else (*SMALL, SHARE)
    sets = [word for field in fields for word in ("--set", field)]
    return trivium("data", "adopt", *words, "--out", "run", *sets)


def test_adopted_pairs_are_the_tokens_that_train_takes(trivium) -> None:
    code, said = adopt(trivium, "0.75", "web", "0.25", "code")
    assert code == 0 and "trivium train --out run" in said
    sources = read_tokens_manifest(Path("run/tokens"))["sources"]
    assert {source: entry["weight"] for source, entry in sources.items()} == {"web": 0.75, "code": 0.25}
    told = next(line for line in said.splitlines() if "never trained on" in line)
    code, said = trivium("train", "--out", "run", "--dry-run")
    assert told in said.splitlines()  # before a step is paid for
    assert code == 0  # however few validate
    sets = ("training.steps=2", "plan.batch.sequences=4", "plan.batch.micro=2", "training.validation_samples=2")
    line = [word for field in sets for word in ("--set", field)]
    assert trivium("train", "--out", "run", "--ranks", "1", "--dry-run", *line)[0] == 0
    assert trivium("train", "--out", "run", "--ranks", "1", *line)[0] == 0
    code, said = trivium("data", "show", "--check", "run")
    assert code == 0 and "2 steps, 0 with another hash" in said
    assert trivium("data", "show", "run", "--document", "web/3")[0] == 0
    code, said = trivium("data", "show", "run", "--step", "1", "--row", "0", "--position", "0")
    assert code == 0 and "its curation is neither beside" in said


def test_a_share_that_validates_beside_pairs_that_do_is_refused(trivium) -> None:
    code, said = adopt(trivium, "web", "--validation", "code", "--set", SHARE)
    assert (
        code == 2 and "--set tokens.validation_fraction: `trivium data adopt` does not read this; --validation" in said
    )
    assert not Path("run").exists()


def test_what_the_tokenizer_says_may_be_said_as_well_and_nothing_else(trivium) -> None:
    adopt(trivium, "web")
    vocabulary = json.loads(Path("run/config.json").read_text())["plan"]["model"]["vocabulary"]
    assert adopt(trivium, "web", "--set", f"plan.model.vocabulary={vocabulary}")[0] == 0
    code, said = adopt(trivium, "web", "--set", f"plan.model.vocabulary={vocabulary + 2}")
    assert code == 2 and "plan.model.vocabulary" in said


def test_pairs_that_moved_are_linked_anew_and_are_the_same_tokens(trivium) -> None:
    adopt(trivium, "web")
    key = read_stamp(Path("run/tokens"))["key"]
    assert "skipped" in adopt(trivium, "web")[1]
    Path("there").mkdir()
    for name in ("web.bin", "web.idx"):
        Path(name).rename(Path("there") / name)
    code, said = trivium("train", "--out", "run")
    assert code == 4 and f"a link to {Path.cwd()}/web.idx" in said
    code, said = adopt(trivium, "there/web")
    assert code == 0 and "skipped" not in said
    assert read_stamp(Path("run/tokens"))["key"] == key
    assert Path("run/tokens/web.bin").resolve() == Path("there/web.bin").resolve()
    # A copy that is named instead: the one it was copied from may be deleted then.
    shutil.copytree("there", "copy", copy_function=shutil.copy2)
    assert "skipped" not in adopt(trivium, "copy/web")[1]
    assert Path("run/tokens/web.bin").resolve() == Path("copy/web.bin").resolve()
    assert read_stamp(Path("run/tokens"))["key"] == key


def test_what_others_put_there_is_not_replaced(trivium) -> None:
    Path("run/tokens").mkdir(parents=True)
    megatron_pair(Path("run/tokens/mine"), texts(0, 9))
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    for words in (["run/tokens/mine"], ["web"], ["web", "--redo"], ["run/tokens/mine", "--redo"]):
        code, said = adopt(trivium, *words)
        assert code == 2 and "give another --out" in said
    Path("run/tokens/provenance.json").write_text('{"verb": "tokenize"}')
    code, said = adopt(trivium, "web")
    assert code == 2 and "holds tokens of `trivium tokenize`" in said
    Path("run/tokens/provenance.json").unlink()
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


def test_adopted_tokens_are_not_replaced_by_those_of_documents(trivium) -> None:
    assert adopt(trivium, "web")[0] == 0
    before = read_stamp(Path("run/tokens"))
    for words in (("corpus", "run", "demo"), ("demo",), ("demo", "--from", "tokenize")):
        code, said = trivium(*words, "--out", "run")
        assert code == 2 and "run/tokens holds tokens that `trivium data adopt` took" in said, words
    assert read_stamp(Path("run/tokens")) == before and not Path("run/harvest").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("0.3", "web", "code"), "WEIGHT 0.3: a weight stands before every PREFIX or before none"),
        (("web", "0.3", "code"), "WEIGHT 0.3"),
        (("web.bin", "code.bin"), "PREFIX web.bin is one file of a pair; name both as web"),
        ((".",), "PREFIX . is a folder; name a pair in it"),
        (("web", "--validation", "/"), "PREFIX / is a folder; name a pair in it"),
        (("web", "--validation", "code.idx"), "PREFIX code.idx is one file of a pair; name both as code"),
    ],
)
def test_slips_in_the_words_of_pairs_are_told(trivium, words: tuple[str, ...], says: str) -> None:
    code, said = adopt(trivium, *words)
    assert code == 2 and says in said and not Path("run").exists()


def test_a_bare_pair_given_to_train_names_the_verb_that_takes_it(trivium) -> None:
    code, said = trivium("train", "--tokens", ".", "--out", "run")
    assert code == 4 and "`trivium data adopt`" in said


def test_pairs_without_their_tokenizer_are_refused(trivium) -> None:
    code, said = trivium("data", "adopt", "web", "--out", "run")
    assert code == 2 and "tokens.tokenizer" in said
    assert not Path("run").exists()
