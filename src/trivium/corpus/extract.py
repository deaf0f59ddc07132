"""HTML → text: the main content kept, the frame around it dropped, by one of three extractors."""

import importlib
import re
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from trivium.corpus.clean import tidy
from trivium.corpus.config import ExtractConfig
from trivium.corpus.document import Document
from trivium.corpus.steps import Drop, Keep, Step, Verdict
from trivium.errors import MachineError

RAW = "raw"  # metadata key: the form the text still has, "html" until it is extracted

Extractor = Callable[[str], str]

_SENTENCE_END = re.compile(r"[.!?…:][\"”’')\]»]*$")
_FEW_WORDS, _MANY_WORDS = 4, 15  # a sentence has so many words; so many are prose even without an end
_PARAGRAPH, _ARTICLE = (
    40,
    300,
)  # characters: of a paragraph that counts, of all of them on a page with an article
_SHORTEST, _LONGEST = 0.5, 1.3  # of the main content: how long the text of the article's element may be


def extract_step(config: ExtractConfig = ExtractConfig()) -> Step:
    """The step that turns what was fetched into plain text; a page without main content is dropped.

    Metadata of a page gains `extraction`: the extractor and the figures of `extraction_figures`.
    """
    extract = extractor(config)

    def judge(document: Document) -> Verdict:
        is_html = document.metadata.get(RAW) == "html"
        text = tidy(extract(document.text)) if is_html else tidy(document.text)
        if not text:
            return Drop("empty")
        metadata = {key: value for key, value in document.metadata.items() if key != RAW}
        if is_html:
            figures = extraction_figures(document.text, text)
            metadata["extraction"] = {"extractor": config.extractor, **figures}
        return Keep(replace(document, text=text, metadata=metadata))

    return Step("extract", judge)


def extractor(config: ExtractConfig) -> Extractor:
    """The function from a page's HTML to its main text, untidied; MachineError when its package is missing."""
    if config.extractor == "justext":
        return _justext(config.stoplist)
    if config.extractor == "trafilatura":
        return _trafilatura()
    return _article if config.only_article else _resiliparse


def html_text(html: str, config: ExtractConfig = ExtractConfig()) -> str:
    """The main content of a page as paragraphs separated by blank lines."""
    return tidy(extractor(config)(html))


def extraction_figures(html: str, text: str) -> dict[str, Any]:
    """How much of a page its text is, and of what kind: what a bad extraction shows in."""
    paragraphs = [paragraph for paragraph in text.split("\n\n") if paragraph]
    return {
        "html_characters": len(html),
        "density": round(len(text) / max(len(html), 1), 4),
        "paragraphs": len(paragraphs),
        "prose": round(sum(len(p) for p in paragraphs if _is_prose(p)) / max(len(text), 1), 4),
        "damaged": text.count("\ufffd"),
    }


def without_edges(text: str) -> str:
    """`text` from its first to its last paragraph that is prose: titles, bylines and buttons stand outside."""
    paragraphs = text.split("\n\n")
    prose = [n for n, paragraph in enumerate(paragraphs) if _is_prose(paragraph)]
    return "\n\n".join(paragraphs[prose[0] : prose[-1] + 1]) if prose else text


def page_title(html: str) -> str:
    """The page's own title, or nothing."""
    return tidy(HTMLTree.parse(html).title or "")


def _is_prose(paragraph: str) -> bool:
    """Whether any line of it is a sentence, or as long as several."""
    return any(
        words >= _MANY_WORDS or (words >= _FEW_WORDS and _SENTENCE_END.search(line) is not None)
        for line in paragraph.split("\n")
        if (words := line.count(" ") + 1)
    )


def _resiliparse(html: str) -> str:
    return _plain(HTMLTree.parse(html), whole=False)


def _article(html: str) -> str:
    """resiliparse's main content, or the text of the element that holds the article when the two roughly agree."""
    tree = HTMLTree.parse(html)
    main = _plain(tree, whole=False)
    element = _article_element(tree)
    if element is not None:
        inside = _plain(HTMLTree.parse(f"<html><body>{element.html}</body></html>"), whole=True)
        if _SHORTEST * len(main) <= len(inside) <= _LONGEST * len(main):
            main = inside
    return without_edges(tidy(main))


def _article_element(tree: HTMLTree) -> Any:
    """The element that has half of the page's paragraphs (by characters) as children or grandchildren, or None."""
    if tree.body is None:
        return None
    held: dict[Any, int] = {}
    total = 0
    # the slice asks the tree once; iterating over the collection would ask again for each element
    for paragraph in tree.body.query_selector_all("p")[:]:
        size = len((paragraph.text or "").strip())
        if size < _PARAGRAPH:
            continue
        total += size
        element = paragraph.parent
        for _ in range(2):
            if element is None or element.tag in ("body", "html"):
                break
            held[element] = held.get(element, 0) + size
            element = element.parent
    best = max(held, key=lambda element: held[element], default=None)
    return best if best is not None and 2 * held[best] >= total >= _ARTICLE else None


def _plain(tree: HTMLTree, *, whole: bool) -> str:
    return extract_plain_text(
        tree,
        preserve_formatting=True,
        main_content=not whole,
        alt_texts=False,
        list_bullets=True,
        comments=False,
        post_meta=False,
    )


def _justext(stoplist: str) -> Extractor:
    justext = _module("justext")
    if stoplist not in justext.get_stoplists():
        known = ", ".join(sorted(justext.get_stoplists()))
        raise MachineError(
            f"curate.extract.stoplist: jusText has no list called '{stoplist}'; known: {known}"
        )
    words = justext.get_stoplist(stoplist)

    def extract(html: str) -> str:
        try:
            paragraphs = justext.justext(html.encode("utf-8", "replace"), words, encoding="utf-8")
        except (ValueError, justext.core.JustextError):  # lxml finds nothing in it
            return ""
        return "\n\n".join(paragraph.text for paragraph in paragraphs if not paragraph.is_boilerplate)

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
