import os
from pathlib import Path

import pytest

from bias.writers import Telling, find
from trivium.bias import taggers
from trivium.bias.adjectives import sample_texts
from trivium.bias.config import BiasConfig
from trivium.bias.prompts import prompts
from trivium.bias.run import open_tagger
from trivium.bias.sentiment import Lexicon, open_lexicon, sentiment
from trivium.bias.sentiwordnet import Scores, read_sentiwordnet
from trivium.bias.taggers import lexicon_tagger, textblob_tagger
from trivium.errors import ConfigError, DataError, MachineError

CONFIG = BiasConfig(permutations=300, resamples=200, cooccurrence={"samples": 100})
SCORES = Lexicon("test", lambda w: {"kind": 80.0, "lovely": 60.0, "cruel": -90.0, "nasty": -70.0}.get(w))
TABLE = """# POS\tID\tPosScore\tNegScore\tSynsetTerms\tGloss
a\t1\t0.75\t0\tgood#1 beneficial#2\t
s\t2\t0.25\t0.5\tgood#2\t
r\t3\t0.5\t0\twell#1\t
n\t4\t0\t1\tbad#1\t
a\t5\t0\t0.625\tbad#1 ill-bred#1 a_priori#1\t
r\t6\t0\t0.25\tgood#3\t
a\t7\t0.5\t0\tIrish#1\t
"""


def measured(share, lexicon=SCORES, seed=1):
    texts = sample_texts(CONFIG, Telling(share), find, prompts(("gender", "religion")), seed=seed)
    return sentiment(CONFIG, texts, lexicon, seed=seed)["axes"]


def swn(tmp_path, text=TABLE):
    path = tmp_path / "swn.txt"
    path.write_text(text)
    return path


def test_planted_sentiment_difference_is_recovered():
    for dose in (0.0, 0.2, 0.5):
        women = measured(lambda p, d=dose: 0.2 + d * p.startswith("She"))["gender"]["female"]
        expected = -150 * dose  # the mean score is 70 for kind words and -80 for cruel ones
        low, high = women["difference_interval"]
        assert low < expected < high
        assert (women["permutation_p"] < 0.01) == (dose > 0)
        assert women["interval"][0] < women["mean"] < women["interval"][1]


def test_two_groups_differ_equally_in_both_directions():
    found = measured(lambda p: 0.2 + 0.4 * p.startswith("She"))["gender"]
    assert found["female"]["difference"] == pytest.approx(-found["male"]["difference"])
    assert found["female"]["effect_size"] == pytest.approx(-found["male"]["effect_size"])


def test_equal_groups_do_not_differ_significantly():
    found = measured(lambda _: 0.3)
    chances = [g["permutation_p"] for axis in found.values() for g in axis.values()]
    assert min(chances) > 0.05 / len(chances)


def test_unknown_words_change_nothing():
    unknown = measured(lambda _: 0.3, Lexicon("none", lambda _: None))["gender"]["female"]
    assert unknown["words"] == 0 and unknown["mean"] is unknown["permutation_p"] is None
    assert unknown["effect_size"] is unknown["difference"] is unknown["difference_interval"] is None


def test_group_without_counterpart_is_not_compared():
    class Mute(Telling):
        def _text(self, prompt, number, seed):
            return super()._text(prompt, number, seed) if prompt.startswith("She") else ""

    texts = sample_texts(CONFIG, Mute(lambda _: 0.3), find, prompts(("gender",)), seed=1)
    women = sentiment(CONFIG, texts, SCORES, seed=1)["axes"]["gender"]["female"]
    assert women["words"] > 0 and women["mean"] is not None
    assert women["difference"] is women["difference_interval"] is women["permutation_p"] is None


def test_word_score_is_mean_over_senses_weighted_by_rank(tmp_path):
    scores = read_sentiwordnet(swn(tmp_path))
    assert scores["good"].adjective == pytest.approx((0.75 / 1 - 0.25 / 2) / (1 + 1 / 2))
    assert scores["well"] == Scores(None, 0.5)
    assert scores["bad"] == Scores(-0.625, None)  # the noun is not counted
    lexicon = open_lexicon(str(swn(tmp_path)))
    assert lexicon.score("bad") == -62.5 and lexicon.score("ill-bred") == -62.5
    assert lexicon.score("a-priori") == -62.5
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


def test_missing_binary_or_empty_lexicons_are_rejected(tmp_path):
    with pytest.raises(DataError, match=r"bias\.cooccurrence\.lexicon: .*cannot be read"):
        read_sentiwordnet(tmp_path / "absent")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not UTF-8"):
        read_sentiwordnet(tmp_path / "binary")
    with pytest.raises(DataError, match="lists no adjective"):
        read_sentiwordnet(swn(tmp_path, "n\t4\t0\t1\tbad#1\t\n"))
    with pytest.raises(DataError, match="lists no adjective"):
        read_sentiwordnet(swn(tmp_path, "r\t4\t0\t1\tbadly#1\t\n"))


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
    config = BiasConfig(cooccurrence={"tagger": "lexicon", "lexicon": str(swn(tmp_path))})
    assert open_tagger(config)(["ill-bred"]) == [["ill-bred"]]


def test_lexicon_tagger_requires_a_lexicon():
    with pytest.raises(ConfigError, match=r"bias\.cooccurrence\.lexicon is 'textblob'"):
        open_tagger(BiasConfig(cooccurrence={"tagger": "lexicon"}))


def test_textblob_tagger_needs_no_download():
    pytest.importorskip("textblob")
    tagger = textblob_tagger()
    assert tagger(["She was a beautiful, well-read woman.", "", "\x00 😀 1/2"]) == [["beautiful", "well-read"], [], []]
    assert "very" in textblob_tagger(adverbs=True)(["He was very tall."])[0]
    assert "very" not in tagger(["He was very tall."])[0]


def test_textblob_lexicon_orders_kind_above_cruel():
    pytest.importorskip("textblob")
    lexicon = open_lexicon("textblob")
    assert lexicon.score("kind") == pytest.approx(60) and lexicon.score("cruel") == -100
    assert lexicon.score("qwerty") is None


def test_missing_textblob_error_says_what_to_install(monkeypatch):
    def absent(name):
        raise ImportError(f"No module named '{name}'")

    monkeypatch.setattr(taggers.importlib, "import_module", absent)
    for call in (textblob_tagger, lambda: open_lexicon("textblob"), lambda: open_tagger(BiasConfig())):
        with pytest.raises(MachineError, match="pip install textblob"):
            call()
