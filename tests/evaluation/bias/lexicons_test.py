import os
import re
from pathlib import Path

import pytest

from trivium.errors import ConfigError, DataError, MachineError
from trivium.evaluation.bias import lexicons
from trivium.evaluation.bias.config import BiasConfig, CooccurrenceConfig
from trivium.evaluation.bias.lexicons import (
    FEMALE,
    MALE,
    Scores,
    lexicon_tagger,
    occupations,
    open_lexicon,
    open_tagger,
    read_sentiwordnet,
    textblob_tagger,
)

TABLE = """# POS\tID\tPosScore\tNegScore\tSynsetTerms\tGloss
a\t1\t0.75\t0\tgood#1 beneficial#2\t
s\t2\t0.25\t0.5\tgood#2\t
r\t3\t0.5\t0\twell#1\t
n\t4\t0\t1\tbad#1\t
a\t5\t0\t0.625\tbad#1 ill-bred#1 a_priori#1\t
r\t6\t0\t0.25\tgood#3\t
a\t7\t0.5\t0\tIrish#1\t
"""


def swn(tmp_path, text=TABLE):
    path = tmp_path / "swn.txt"
    path.write_text(text)
    return path


def test_occupations_are_as_many_as_in_the_paper_unique_and_gender_neutral():
    names = occupations()
    assert len(set(names)) == len(names) >= 323 and list(names) == sorted(names)
    assert all(re.fullmatch(r"[a-z]+(?:[ -][a-z]+)*", n) for n in names)
    gendered = re.compile(r"(?:\b|[a-z])(?:man|men|woman|women|lady|boy|girl|maid|wife|wives|ess|master|mistress)$")
    assert [n for n in names if gendered.search(n)] == []
    assert len(FEMALE) == len(MALE) and not set(FEMALE) & set(MALE)


def test_word_score_is_mean_over_senses_weighted_by_rank(tmp_path):
    scores = read_sentiwordnet(swn(tmp_path))
    assert scores["good"].adjective == pytest.approx((0.75 / 1 - 0.25 / 2) / (1 + 1 / 2))
    assert scores["well"] == Scores(None, 0.5)
    assert scores["bad"] == Scores(-0.625, None)  # the noun is not counted
    lexicon = open_lexicon(str(swn(tmp_path)))
    assert lexicon.score("bad") == lexicon.score("ill-bred") == lexicon.score("a-priori") == -62.5
    assert lexicon.score("well") is None and lexicon.score("unheard") is None
    assert lexicon.score("irish") == 50.0  # spelled as in texts
    with_adverbs = open_lexicon(str(swn(tmp_path)), adverbs=True)
    assert with_adverbs.score("well") == 50.0 and with_adverbs.score("good") == lexicon.score("good")


@pytest.mark.parametrize(
    "line",
    ["a\t1\t0.5\t0\tgood\t", "a\t1\tx\t0\tgood#1\t", "a\t1\t0.5", "a 1 0.5 0 good#1", "a\t1\t9\t0\tgood#1\t",
     "a\t1\tnan\t0\tgood#1\t", "a\t1\t0.5\t0\tgood#0\t"],
)  # fmt: skip
def test_invalid_sentiwordnet_line_is_named(tmp_path, line):
    with pytest.raises(DataError, match=r"swn.txt, line 2"):
        read_sentiwordnet(swn(tmp_path, f"# comment\n{line}\n"))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, r"bias\.cooccurrence\.lexicon: .*cannot be read"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"n\t4\t0\t1\tbad#1\t\n", "lists no adjective"),
        (b"r\t4\t0\t1\tbadly#1\t\n", "lists no adjective"),
    ],
)
def test_missing_binary_or_empty_lexicons_are_rejected(tmp_path, content, what):
    if content is not None:
        (tmp_path / "swn.txt").write_bytes(content)
    with pytest.raises(DataError, match=what):
        read_sentiwordnet(tmp_path / "swn.txt")


def test_published_file_contains_common_adjectives():
    root = os.environ.get("TRIVIUM_DATA")
    path = Path(root or "") / "bias" / "sentiwordnet" / "SentiWordNet_3.0_subset.txt"
    if not root or not path.is_file():
        pytest.skip("needs TRIVIUM_DATA with bias/sentiwordnet")
    lexicon = open_lexicon(str(path))
    assert (lexicon.score("beneficial") or 0) > 0 > (lexicon.score("acute") or 0)
    assert len(read_sentiwordnet(path)) > 1000


def test_lexicon_tagger_finds_listed_words_anywhere(tmp_path):
    scores = read_sentiwordnet(swn(tmp_path))
    assert lexicon_tagger(scores)(["A good, BAD man (well)!"]) == [["good", "bad"]]
    assert lexicon_tagger(scores, adverbs=True)(["A good man (well)!"]) == [["good", "well"]]
    config = CooccurrenceConfig(tagger="lexicon", lexicon=str(swn(tmp_path)))
    assert open_tagger(config)(["ill-bred"]) == [["ill-bred"]]
    with pytest.raises(ConfigError, match=r"bias\.cooccurrence\.lexicon is 'textblob'"):
        open_tagger(CooccurrenceConfig(tagger="lexicon"))


def test_textblob_needs_no_download():
    pytest.importorskip("textblob")
    tagger = textblob_tagger()
    assert tagger(["She was a beautiful, well-read woman.", "", "\x00 😀 1/2"]) == [["beautiful", "well-read"], [], []]
    assert "very" in textblob_tagger(adverbs=True)(["He was very tall."])[0]
    assert "very" not in tagger(["He was very tall."])[0]
    lexicon = open_lexicon("textblob")
    assert lexicon.score("kind") == pytest.approx(60) and lexicon.score("cruel") == -100
    assert lexicon.score("qwerty") is None


def test_missing_textblob_error_says_what_to_install(monkeypatch):
    def absent(name):
        raise ImportError(f"No module named '{name}'")

    monkeypatch.setattr(lexicons.importlib, "import_module", absent)
    for call in (textblob_tagger, lambda: open_lexicon("textblob"), lambda: open_tagger(BiasConfig().cooccurrence)):
        with pytest.raises(MachineError, match="pip install textblob"):
            call()
