"""HTML → text: the encoding found out, the main content kept, broken characters repaired."""

import re
from dataclasses import replace

import ftfy
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.encoding import detect_encoding
from resiliparse.parse.html import HTMLTree

from trivium.corpus.document import Document
from trivium.corpus.steps import Drop, Keep, Step, Verdict

RAW = "raw"  # metadata key: the form the text still has, "html" until it is extracted

_BLANKS = re.compile(r"[ \t\u00a0]+")
_GAPS = re.compile(r" ?\n ?(?:\n ?)+")


def extract_step() -> Step:
    """The step that turns what was fetched into plain text; a page without main content is dropped."""
    return Step("extract", _extract)


def decode(body: bytes, charset: str | None) -> str:
    """Bytes as text: the stated charset if it fits, else the detected one, never an error."""
    for name in (charset, "utf-8"):
        if name:
            try:
                return body.decode(name)
            except (UnicodeDecodeError, LookupError):
                continue
    try:
        return body.decode(detect_encoding(body) or "utf-8", "replace")
    except LookupError:
        return body.decode("utf-8", "replace")


def html_text(html: str) -> str:
    """The main content of a page as paragraphs separated by blank lines."""
    text = extract_plain_text(
        HTMLTree.parse(html), preserve_formatting=True, main_content=True, alt_texts=False, list_bullets=True
    )
    return tidy(text)


def tidy(text: str) -> str:
    """Encoding damage repaired (ftfy), blanks collapsed, at most one empty line in a row."""
    if not text.isascii():
        text = ftfy.fix_text(text, normalization="NFC", uncurl_quotes=False)
    text = _BLANKS.sub(" ", text.replace("\r\n", "\n").replace("\r", "\n"))
    return _GAPS.sub("\n\n", text.replace("\x00", "")).strip()


def page_title(html: str) -> str:
    """The page's own title, or nothing."""
    return tidy(HTMLTree.parse(html).title or "")


def _extract(document: Document) -> Verdict:
    is_html = document.metadata.get(RAW) == "html"
    text = html_text(document.text) if is_html else tidy(document.text)
    if not text:
        return Drop("empty")
    metadata = {key: value for key, value in document.metadata.items() if key != RAW}
    return Keep(replace(document, text=text, metadata=metadata))
