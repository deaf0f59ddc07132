"""Keep some languages, as detected by pycld2 (the detector of Pile-CC and MT-NLG).

Detection is the most expensive filter, so it begins with a few short pieces, spread evenly over the text. If they are
reliably of one language, it is the language of the text. Otherwise the full text decides.
"""

import re

import pycld2

from trivium.corpus.config import LanguageConfig
from trivium.corpus.document import Document
from trivium.corpus.steps import Drop, Keep, Step, Verdict, measured_step, noted

# pycld2 rejects control characters and lone surrogates.
_UNREADABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_SAMPLED_PIECES = 4
_UNKNOWN = "un"


def language_step(config: LanguageConfig) -> Step:
    """Return the step that keeps the languages of `config.keep`; metadata gains `language` and `language_percent`."""

    def verdict(document: Document, found: tuple[str, int]) -> Verdict:
        code, percent = found
        if code not in config.keep:
            reason = "undetermined" if code == _UNKNOWN else f"language {code}"
            return Drop(reason, f"language.keep=[{','.join((*config.keep, code))}]")
        if percent < config.percent:
            return Drop(f"mixed: less than {config.percent} % {code}", "language.percent=0")
        return Keep(noted(document, language=code, language_percent=percent))

    return measured_step(
        "language", lambda texts: [detect(text, sample=config.sample, sure=config.sure) for text in texts], verdict
    )


def detect(text: str, *, sample: int = 0, sure: int = 100) -> tuple[str, int]:
    """Return the code of the main language ('un' if unsure) and the percent of the text in it.

    sample: characters examined first, or 0 for the whole text. Their language counts if it is reliable and has at least
    `sure` percent of them.
    """
    if 0 < sample <= len(text) // 2:
        size = sample // _SAMPLED_PIECES
        step = (len(text) - size) // (_SAMPLED_PIECES - 1)
        pieces = " ".join(text[place * step : place * step + size] for place in range(_SAMPLED_PIECES))
        code, percent, reliable = _detected(pieces)
        if reliable and code != _UNKNOWN and percent >= sure:
            return code, percent
    code, percent, _ = _detected(text)
    return code, percent


def _detected(text: str) -> tuple[str, int, bool]:
    try:
        reliable, _, details = pycld2.detect(_UNREADABLE.sub(" ", text), isPlainText=True, bestEffort=False)
    except (pycld2.error, UnicodeError, ValueError):
        return _UNKNOWN, 0, False
    _, code, percent, _ = details[0]
    return str(code), int(percent), bool(reliable)
