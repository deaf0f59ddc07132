"""Laws of language detection."""

from trivium.corpus.clean.language import detect, language_step
from trivium.corpus.config import LanguageConfig
from trivium.corpus.document import Document
from trivium.corpus.steps import Drop, Keep

ENGLISH = "This is a sentence that everybody would take for English, and here is another one of the same kind. "
GERMAN = "Das ist ein Satz, den niemand für englisch halten würde, auch nicht bei Nacht und Nebel. "


def test_languages_are_distinguished_even_among_control_characters():
    assert detect(ENGLISH)[0] == "en"
    assert detect(GERMAN)[0] == "de"
    assert detect("\x00\ud800 " + ENGLISH)[0] == "en"
    assert detect("")[0] == "un"


def test_the_wanted_language_is_kept_and_others_and_mixtures_are_dropped_by_name():
    step = language_step(LanguageConfig())
    kept = step.judge(Document("a", ENGLISH * 3, "s"))
    assert isinstance(kept, Keep)
    assert kept.document.metadata["language"] == "en"
    assert step.judge(Document("a", GERMAN * 3, "s")) == Drop("language de")
    assert step.judge(Document("a", ENGLISH * 6 + GERMAN * 5, "s")) == Drop("mixed: less than 65 % en")
    assert isinstance(language_step(LanguageConfig(keep="de")).judge(Document("a", GERMAN, "s")), Keep)


def test_a_few_pieces_decide_where_they_are_sure_and_the_whole_text_where_they_are_not():
    plain, mixed = ENGLISH * 40, ENGLISH * 20 + GERMAN * 20
    assert detect(plain, sample=512, sure=95)[0] == detect(plain)[0] == "en"
    assert detect(mixed, sample=512, sure=95) == detect(mixed)
    assert detect(ENGLISH, sample=512, sure=95) == detect(ENGLISH)
