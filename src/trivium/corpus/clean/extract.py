"""Extraction: the main text of HTML pages, by one of four extractors."""

import importlib
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

from resiliparse.extract.html2text import extract_plain_text

from trivium.corpus.clean.main_text import main_text
from trivium.corpus.clean.tidy import NotTidied, tidy
from trivium.corpus.config import ExtractConfig
from trivium.corpus.document import RAW, Document
from trivium.corpus.steps import Drop, Keep, Step, Verdict
from trivium.errors import MachineError

Extractor = Callable[[str], str]


class TooComplex(ValueError):
    """A page for which a parser would need more than linear time. The message is the reason to drop it."""


_SENTENCE_END = re.compile(r"[.!?…:][\"”’')\]»]*$")
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]{0,20})")
_MAX_NESTED_ELEMENTS = 512  # browsers ignore what is deeper
# jusText classifies a paragraph by its neighbours, which takes quadratic time: 22 s for 18,000 headings.
_MAX_PARAGRAPHS_OF_JUSTEXT = 5_000
# Elements that are empty or whose end tag may be left out.
_NOT_NESTED = frozenset(
    "p li dt dd tr td th tbody thead tfoot colgroup caption option optgroup rt rp html head body area base br col "
    "embed hr img input link meta param source track wbr".split()
)
_SENTENCE_WORDS, _PROSE_WORDS = 4, 15  # words of a line that is prose, with the end of a sentence and without


def extract_step(config: ExtractConfig = ExtractConfig()) -> Step:
    """Return the step that extracts plain text from pages and tidies it, and drops pages without main content.

    Metadata of a page gains `extraction`: the extractor, and figures that reveal a bad extraction.
    """
    extract = extractor(config)

    def judge(document: Document) -> Verdict:
        is_html = document.metadata.get(RAW) == "html"
        try:
            text = tidy(extract(document.text) if is_html else document.text, longest_run=config.longest_run)
        except TooComplex as error:
            return Drop(str(error), "extract.extractor=blocks")
        except NotTidied as error:
            return Drop(str(error), error.remedy)
        if not text:
            other = "blocks" if config.extractor == "resiliparse" else "resiliparse"
            return Drop("empty", f"extract.extractor={other}" if is_html else "")
        metadata = {key: value for key, value in document.metadata.items() if key != RAW}
        if is_html:
            metadata["extraction"] = {"extractor": config.extractor, **_figures(document.text, text)}
        return Keep(replace(document, text=text, metadata=metadata))

    return Step("extract", judge)


def extract_pages_step(config: ExtractConfig) -> Step:
    """Return the step that extracts the text of pages of HTML, and keeps other documents unchanged."""
    extract = extract_step(config)

    def judge(document: Document) -> Verdict:
        return extract.judge(document) if document.metadata.get(RAW) == "html" else Keep(document)

    return Step(extract.name, judge)


def extractor(config: ExtractConfig) -> Extractor:
    """Return the function from a page's HTML to its main text, untidied. MachineError if its package is missing."""
    match config.extractor:
        case "blocks":
            return main_text
        case "justext":
            extract = _justext(config.stoplist)
        case "trafilatura":
            extract = _trafilatura()
        case _:
            extract = partial(
                extract_plain_text,
                preserve_formatting=True,
                main_content=True,
                alt_texts=False,
                list_bullets=True,
                comments=False,
                post_meta=False,
            )
    return lambda html: extract(_require_shallow(html))


def _require_shallow(html: str) -> str:
    """Return the page itself. Raises TooComplex if its elements nest deeper than parsers handle in linear time.

    Elements that may be left open, such as `p` and `li`, are not counted, because each ends the one before.
    """
    depth = 0
    for closing, name in _TAG.findall(html):
        if name.lower() not in _NOT_NESTED:
            depth = max(depth - 1, 0) if closing else depth + 1
            if depth > _MAX_NESTED_ELEMENTS:
                raise TooComplex(f"over {_MAX_NESTED_ELEMENTS} nested elements")
    return html


def _figures(html: str, text: str) -> dict[str, Any]:
    """Return how much of a page its text is, and of what kind."""
    paragraphs = [paragraph for paragraph in text.split("\n\n") if paragraph]
    return {
        "html_characters": len(html),
        "density": round(len(text) / max(len(html), 1), 4),
        "paragraphs": len(paragraphs),
        "prose": round(sum(len(p) for p in paragraphs if _is_prose(p)) / max(len(text), 1), 4),
        "damaged": text.count("\ufffd"),
    }


def _is_prose(paragraph: str) -> bool:
    """Return whether any line of a paragraph is a sentence or as long as several sentences."""
    return any(
        words >= _PROSE_WORDS or (words >= _SENTENCE_WORDS and _SENTENCE_END.search(line) is not None)
        for line in paragraph.split("\n")
        if (words := line.count(" ") + 1)
    )


def _justext(stoplist: str) -> Extractor:
    justext = _module("justext")
    if stoplist not in justext.get_stoplists():
        known = ", ".join(sorted(justext.get_stoplists()))
        raise MachineError(f"curate.extract.stoplist: jusText has no list called '{stoplist}'; known: {known}")
    words = justext.get_stoplist(stoplist)

    def extract(html: str) -> str:
        blocks = sum(
            not closing and name.lower() in justext.core.PARAGRAPH_TAGS for closing, name in _TAG.findall(html)
        )
        if blocks > _MAX_PARAGRAPHS_OF_JUSTEXT:
            raise TooComplex(f"over {_MAX_PARAGRAPHS_OF_JUSTEXT} paragraphs")
        try:
            paragraphs = justext.justext(html.encode("utf-8", "replace"), words, encoding="utf-8")
        except (ValueError, justext.core.JustextError):  # lxml finds no element
            return ""
        texts: list[str] = [paragraph.text for paragraph in paragraphs if not paragraph.is_boilerplate]
        return "\n\n".join(texts)

    return extract


def _trafilatura() -> Extractor:
    trafilatura = _module("trafilatura")
    return lambda html: (trafilatura.extract(html, include_comments=False) or "").replace("\n", "\n\n")


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MachineError(
            f"curate.extract.extractor = {name}: its package is not installed ({error}); install trivium[extract]"
        ) from None
