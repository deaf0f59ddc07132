"""Known junk for the default corpus, so that what curation catches can be counted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from html import escape
from typing import Any

import numpy as np

from trivium.config import shipped
from trivium.corpus.config import PlantConfig
from trivium.corpus.dedup.minhash import jaccard, shingles
from trivium.corpus.document import Document
from trivium.corpus.harvest.heldout import Item
from trivium.seeds import generator_for, seed_for
from trivium.untrusted import read_json

Generator = np.random.Generator
_MENU = ("Home", "Docs", "Guide", "Reference", "Blog", "News", "Community", "About", "Contact", "Pricing", "Support")
_FOOTER = ("Terms of Service", "Privacy Policy", "Cookie Policy", "Imprint", "Sitemap", "Accessibility", "Careers")
_SIDE = ("Recent posts", "Popular this week", "Related pages", "On this page", "Categories", "Archive")
_SYMBOLS = "#@%^&*()_+={}[]|\\:;<>/~`0123456789§¤¬¦"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title>
<style>body{{font:16px/1.5 sans-serif;margin:0}}nav ul{{display:flex;list-style:none}}footer{{font-size:.8em}}</style>
<script>window.dataLayer=window.dataLayer||[];function track(){{dataLayer.push(arguments);}}track('js',new Date());\
</script></head>
<body>
<header class="site-header"><a class="logo" href="/">{site}</a>
<nav><ul>{menu}</ul></nav></header>
<{outer}>
<h1>{title}</h1>
{body}
</{closing}>
{sidebar}
<footer><p>Copyright {year}. All rights reserved. {foot}</p></footer>
<script async src="/static/app.{version:06x}.js"></script>
</body>
</html>
"""


def html_page(paragraphs: Sequence[str], *, title: str, generator: Generator) -> str:
    """Return a whole page around `paragraphs`, different in detail from page to page."""
    menu = "".join(f'<li><a href="/{w.lower()}">{w}</a></li>' for w in _selection(_MENU, generator))
    foot = "".join(f'<a href="/legal/{i}">{w}</a> ' for i, w in enumerate(_selection(_FOOTER, generator)))
    outer = str(generator.choice(["article", "main", "div class='content'", "div id='content'"]))
    heading = escape(title)
    return _PAGE.format(
        title=heading,
        site=heading.split(" ")[0],
        menu=menu,
        outer=outer,
        closing=outer.split(" ")[0],
        body="\n".join(f"<p>{escape(paragraph)}</p>" for paragraph in paragraphs),
        sidebar=_sidebar(generator),
        year=generator.integers(2009, 2021),
        foot=foot,
        version=int(generator.integers(16**6)),
    )


def _sidebar(generator: Generator) -> str:
    if generator.random() < 0.4:
        return ""
    links = "".join(f'<li><a href="/p/{generator.integers(9999)}">{w}</a></li>' for w in _selection(_MENU, generator))
    return f'<aside class="sidebar"><h3>{generator.choice(_SIDE)}</h3><ul>{links}</ul></aside>'


def _selection(words: Sequence[str], generator: Generator) -> list[str]:
    """Return at least three different words in their order."""
    count = int(generator.integers(3, len(words)))
    return [words[i] for i in sorted(generator.choice(len(words), count, replace=False))]


SHINGLE_WORDS = 5  # over these the similarity of planted copies is measured
_MIN_FULL_DOCUMENTS = 3000  # documents from which on the configured numbers are planted; fewer below, in proportion


@dataclass(frozen=True, slots=True)
class Planted:
    """A planted document.

    follows: the id of the document that it copies, and that must come before it in the crawl.
    """

    kind: str
    document: Document
    follows: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the entry of planted.json."""
        return {"id": self.document.id, **self.details}


def plant(honest: Sequence[Document], items: Sequence[Item], config: PlantConfig, *, seed: int) -> list[Planted]:
    """Return junk of every kind. A `leaked_item` has the id of the honest document it replaces.

    Ids, sources and titles are drawn as those of honest documents, so only the text shows what a document is.
    """
    scale = min(1.0, len(honest) / _MIN_FULL_DOCUMENTS)

    def count(configured: int) -> int:
        return min(configured, max(8, round(configured * scale)))

    generator = generator_for(seed, "plant", "choice")
    order = [honest[i] for i in generator.permutation(len(honest))]
    copies = [d for d in order if len(d.text) >= 1200][: count(config.near_duplicate)]
    taken = {d.id for d in copies}
    hosts = [d for d in order if len(d.text) >= 1500 and d.id not in taken][: count(config.leaked_item)]
    leaked = [items[i] for i in generator.permutation(len(items))[: len(hosts)]]
    planted = [_near_duplicate(document, config, seed) for document in copies]
    planted += [_leak(host, item, seed) for host, item in zip(hosts, leaked, strict=False)]
    composed: tuple[tuple[str, int, Callable[[Generator], str]], ...] = (
        ("boilerplate", config.boilerplate, boilerplate_text),
        ("other_language", config.other_language, foreign_text),
        ("low_quality", config.low_quality, low_quality_text),
    )
    for kind, configured, compose in composed:
        for number in range(count(configured)):
            generator = generator_for(seed, "plant", kind, number)
            model = order[int(generator.integers(len(order)))]
            document = replace(model, id=new_id(seed, kind, number), text=compose(generator), metadata=_title(model))
            planted.append(Planted(kind, document))
    return planted


def new_id(seed: int, *names: str | int) -> str:
    """Return a document id that reveals nothing about the document."""
    return f"{seed_for(seed, 'document', *names):016x}"


def edited_copy(text: str, *, similarity: float, low: float, generator: Generator) -> tuple[str, float]:
    """Exchange, drop and add words until the Jaccard similarity to `text` is just below `similarity`."""
    original = shingles(text, size=SHINGLE_WORDS)
    paragraphs = [paragraph.split() for paragraph in text.split("\n\n")]
    vocabulary = sorted({word for words in paragraphs for word in words if word.isalpha()}) or ["the"]
    best, best_similarity = text, 1.0
    while best_similarity > similarity:
        total = sum(map(len, paragraphs))
        words = paragraphs[int(generator.choice(len(paragraphs), p=[len(words) / total for words in paragraphs]))]
        place = int(generator.integers(len(words)))
        word = vocabulary[int(generator.integers(len(vocabulary)))]
        edit = int(generator.integers(4))
        words[place : place + (edit != 0)] = [] if edit == 1 and len(words) > 1 else [word]
        candidate = "\n\n".join(" ".join(words) for words in paragraphs)
        measured = jaccard(original, shingles(candidate, size=SHINGLE_WORDS))
        if measured < low:
            break
        best, best_similarity = candidate, measured
    return best, best_similarity


@cache
def _phrases() -> dict[str, Any]:
    """Return phrases by kind. `languages`: openings, subjects with verbs, and complements of each language."""
    found: dict[str, Any] = read_json(shipped("corpus/harvest/phrases.json"))
    return found


def boilerplate_text(generator: Generator) -> str:
    """Return a page of menus, notices and calls to act."""
    bank: list[str] = _phrases()["boilerplate"]
    lines = _draw(bank, int(generator.integers(24, 60)), generator)
    return "\n".join(lines) + "\n" + "\n".join(s for s in bank if s.endswith(".") and generator.random() < 0.5)


def foreign_text(generator: Generator) -> str:
    """Return a page of sentences in one of the languages of the phrase banks."""
    languages = _phrases()["languages"]
    code = sorted(languages)[int(generator.integers(len(languages)))]
    gap, stop = ("", "。") if code == "zh" else (" ", ".")
    paragraphs: list[str] = []
    for _ in range(int(generator.integers(4, 9))):
        sentences = [
            gap.join(bank[int(generator.integers(len(bank)))] for bank in languages[code]) + stop
            for _ in range(int(generator.integers(4, 9)))
        ]
        paragraphs.append(gap.join(sentences))
    return "\n\n".join(paragraphs)


def low_quality_text(generator: Generator) -> str:
    """Return keyword spam, symbol soup, repeated lines, or random strings of letters."""
    spam = _phrases()["spam"]
    match int(generator.integers(4)):
        case 0:
            lines = [" ".join(_draw(spam, int(generator.integers(8, 20)), generator)) for _ in range(14)]
            return "\n".join(f"{line}." if generator.random() < 0.5 else line for line in lines)
        case 1:
            runs = ["".join(_draw(_SYMBOLS, int(generator.integers(2, 9)), generator)) for _ in range(160)]
            words = _draw(spam, 160, generator)
            return " ".join(r if generator.random() < 0.7 else w for r, w in zip(runs, words, strict=True))
        case 2:
            lines = [
                "The page that you have asked for is one of the pages that we have to offer with our offer of the day."
            ]
            for w in _draw(spam, 3, generator):
                lines.append(
                    f"To see the {w} that we have, go to the list of {w} with the best price and be the first."
                )
            return "\n".join(_draw(lines, int(generator.integers(20, 40)), generator))
        case _:
            words = ["".join(_draw(_LETTERS, int(generator.integers(3, 12)), generator)) for _ in range(180)]
            return " ".join(word + ("." if generator.random() < 0.1 else "") for word in words)


def _near_duplicate(original: Document, config: PlantConfig, seed: int) -> Planted:
    generator = generator_for(seed, "plant", "near_duplicate", original.id)
    low, high = config.similarity_low, config.similarity_high
    wanted = float(generator.uniform(low + 0.02, high))
    text, similarity = edited_copy(original.text, similarity=wanted, low=low, generator=generator)
    document = replace(original, id=new_id(seed, "copy", original.id), text=text, metadata=_title(original))
    details = {"original": original.id, "jaccard": round(similarity, 4)}
    return Planted("near_duplicate", document, follows=original.id, details=details)


def _leak(host: Document, item: Item, seed: int) -> Planted:
    generator = generator_for(seed, "plant", "leaked_item", host.id)
    paragraphs = host.text.split("\n\n")
    paragraphs.insert(int(generator.integers(len(paragraphs) + 1)), item.text)
    return Planted("leaked_item", replace(host, text="\n\n".join(paragraphs)), details={"item": item.id})


def _title(document: Document) -> dict[str, Any]:
    return {"title": document.metadata.get("title", document.source)}


def _draw(bank: Sequence[str], count: int, generator: Generator) -> list[str]:
    """Return words drawn with replacement."""
    return [bank[i] for i in generator.integers(len(bank), size=count)]
