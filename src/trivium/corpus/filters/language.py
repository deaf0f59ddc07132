"""Keep some languages, as detected by pycld2 (the detector of Pile-CC and MT-NLG)."""

import re

import pycld2

from trivium.corpus.config import LanguageConfig
from trivium.corpus.document import Document
from trivium.corpus.steps import Drop, Keep, Step, Verdict, noted

# pycld2 refuses control characters and lone surrogates
_UNREADABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


def language_step(config: LanguageConfig) -> Step:
    """The step that keeps the languages of `config.keep`; metadata gains `language` and `language_percent`."""

    def judge(document: Document) -> Verdict:
        code, percent = detect(document.text)
        if code not in config.keep:
            return Drop("undetermined" if code == "un" else f"language {code}")
        if percent < config.percent:
            return Drop(f"mixed: less than {config.percent} % {code}")
        return Keep(noted(document, language=code, language_percent=percent))

    return Step("language", judge)


def detect(text: str) -> tuple[str, int]:
    """The main language's code ('un' when unsure) and the percent of the text in it."""
    try:
        _, _, details = pycld2.detect(_UNREADABLE.sub(" ", text), isPlainText=True, bestEffort=False)
    except (pycld2.error, UnicodeError, ValueError):
        return "un", 0
    _, code, percent, _ = details[0]
    return str(code), int(percent)
