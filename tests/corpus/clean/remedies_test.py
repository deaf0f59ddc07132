"""The law of remedies: the setting that a reason names can be typed, and lifts the rule for every document."""

import numpy as np
import pytest

from trivium.config import build, merge, parse_assignments
from trivium.corpus.clean.extract import extract_step
from trivium.corpus.clean.filters import named_steps
from trivium.corpus.config import CurateConfig
from trivium.corpus.document import RAW, Document
from trivium.corpus.select.classifier import Classifier
from trivium.corpus.steps import Drop

PROSE = "The house that was by the river is of stone, and it has been there for a long time to be seen. "
SENTENCES = [PROSE.replace("house", f"house {n}") for n in range(40)]
TEXT = "\n\n".join(SENTENCES)
GERMAN = "Das Haus am Fluss ist aus Stein, und es steht dort schon seit sehr langer Zeit für alle. " * 20

CASES = [
    ("language", GERMAN, {}),
    ("language", "q8 x7 z6 " * 100, {}),
    ("language", TEXT + GERMAN * 3, {"language": {"percent": 99}}),
    ("quality", PROSE, {}),
    ("quality", TEXT, {"quality": {"words_low": 10_000}}),
    ("quality", TEXT, {"quality": {"words_high": 100}}),
    ("quality", TEXT, {"quality": {"word_letters_low": 9.0}}),
    ("quality", TEXT, {"quality": {"word_letters_high": 1.0}}),
    ("quality", TEXT.replace("house", "#"), {"quality": {"symbols": 0.0}}),
    ("quality", TEXT + " 1" * 9, {"quality": {"alphabetic_words": 1.0}}),
    ("quality", TEXT, {"quality": {"common_words": 9}}),
    ("quality", TEXT + "\n\n- one item", {"quality": {"bullet_lines": 0.0}}),
    ("quality", TEXT + "\n\nand so on…", {"quality": {"ellipsis_lines": 0.0}}),
    ("quality", TEXT + "\n\nno end", {"quality": {"punctuated_lines": 1.0}}),
    ("quality", TEXT + "\n\nshort.", {"quality": {"short_lines": 0.0}}),
    ("quality", TEXT + "\n\nSubscribe", {"quality": {"boilerplate_words": 0.0}}),
    ("gopher", TEXT, {"quality": {"words_high": 100}}),
    ("repetition", TEXT + "\n\n" + TEXT, {}),
    ("repetition", TEXT + "\n" + TEXT.replace("\n\n", "\n"), {"repetition": {"duplicate_lines": 1}}),
    ("repetition", TEXT + "\n\n" + TEXT, {"repetition": {"duplicate_lines": 1, "duplicate_line_characters": 1}}),
    (
        "repetition",
        TEXT + "\n\n" + TEXT,
        {"repetition": {"duplicate_lines": 1, "duplicate_line_characters": 1, "duplicate_paragraphs": 1}},
    ),
    ("repetition", "one two " * 100, {}),
    ("repetition", TEXT, {}),
    ("c4", PROSE, {}),
    ("c4", TEXT, {"c4": {"bad_words": ["stone"]}}),
    ("fineweb", TEXT, {"fineweb": {"punctuated_lines": 1.0}}),
    ("fineweb", TEXT + "\n\nshort.", {"fineweb": {"short_lines": 0.0}}),
    ("fineweb", TEXT + "\n\n" + TEXT, {}),
    ("fineweb", TEXT, {"fineweb": {"newlines_per_word": 0.0}}),
    ("privacy", "Write to somebody@company.com now.", {"privacy": {"email": "drop"}}),
    ("classifier", TEXT, {"classifier": {"threshold": 1.0}}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "settings"), CASES)
def test_the_setting_that_a_reason_names_lifts_its_rule(tmp_path, name, text, settings):
    tree = {**settings, "filters": [name]}
    if name == "classifier":
        Classifier(np.zeros(257, np.float32), 2, 64).save(tmp_path / "c.npz")
        tree = merge(tree, {"classifier": {"model": str(tmp_path / "c.npz")}})

    def verdict(tree):
        (step,) = named_steps(build(CurateConfig, tree), seed=1)
        return step.judge(Document("a", text, "s"))

    dropped = verdict(tree)
    assert isinstance(dropped, Drop) and dropped.remedy, dropped
    lifted = verdict(merge(tree, parse_assignments([dropped.remedy])))
    assert not isinstance(lifted, Drop) or lifted.reason != dropped.reason


def test_a_page_without_text_names_another_extractor():
    page = Document("a", "<html><script>f()</script></html>", "s", {RAW: "html"})
    dropped = extract_step().judge(page)
    assert parse_assignments([dropped.remedy]) == {"extract": {"extractor": "resiliparse"}}
