"""Known junk for the default corpus, so that what curation catches can be counted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

import numpy as np

from trivium.corpus.config import PlantConfig
from trivium.corpus.dedup.minhash import jaccard, shingles
from trivium.corpus.document import Document
from trivium.corpus.harvest.heldout import Item
from trivium.corpus.harvest.phrase_banks import BOILERPLATE, LANGUAGES, SOUP, SPAM
from trivium.seeds import generator_for, seed_for

Generator = np.random.Generator
_MENU = ("Home", "Docs", "Guide", "Reference", "Blog", "News", "Community", "About", "Contact", "Pricing", "Support")
_FOOTER = ("Terms of Service", "Privacy Policy", "Cookie Policy", "Imprint", "Sitemap", "Accessibility", "Careers")
_SIDE = ("Recent posts", "Popular this week", "Related pages", "On this page", "Categories", "Archive")
_SCRIPT = "window.dataLayer=window.dataLayer||[];function track(){dataLayer.push(arguments);}track('js',new Date());"
_STYLE = "body{font:16px/1.5 sans-serif;margin:0}nav ul{display:flex;list-style:none}footer{font-size:.8em}"


def html_page(paragraphs: list[str], *, title: str, generator: Generator) -> str:
    """Return a whole page around `paragraphs`, different in detail from page to page."""
    menu = "".join(f'<li><a href="/{w.lower()}">{w}</a></li>' for w in _some_words(_MENU, generator))
    foot = "".join(f'<a href="/legal/{i}">{w}</a> ' for i, w in enumerate(_some_words(_FOOTER, generator)))
    body = "\n".join(f"<p>{escape(paragraph)}</p>" for paragraph in paragraphs)
    outer = str(generator.choice(["article", "main", "div class='content'", "div id='content'"]))
    heading = escape(title)
    return f"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{heading}</title>
<style>{_STYLE}</style>
<script>{_SCRIPT}</script></head>
<body>
<header class="site-header"><a class="logo" href="/">{heading.split(" ")[0]}</a>
<nav><ul>{menu}</ul></nav></header>
<{outer}>
<h1>{heading}</h1>
{body}
</{outer.split(" ")[0]}>
{_sidebar(generator)}
<footer><p>Copyright {generator.integers(2009, 2021)}. All rights reserved. {foot}</p></footer>
<script async src="/static/app.{generator.integers(16**6):06x}.js"></script>
</body>
</html>
"""


def _sidebar(generator: Generator) -> str:
    if generator.random() < 0.4:
        return ""
    links = "".join(f'<li><a href="/p/{generator.integers(9999)}">{w}</a></li>' for w in _some_words(_MENU, generator))
    return f'<aside class="sidebar"><h3>{generator.choice(_SIDE)}</h3><ul>{links}</ul></aside>'


def _some_words(words: tuple[str, ...], generator: Generator) -> list[str]:
    count = int(generator.integers(3, len(words)))
    return [words[i] for i in sorted(generator.choice(len(words), count, replace=False))]


SHINGLE = 5  # words; the similarity of planted copies is measured over these
_FULL_SIZE = 3000  # documents from which on the configured numbers are planted; fewer below, in proportion


@dataclass(frozen=True, slots=True)
class Planted:
    """A planted document. `follows`: the id of the document it copies, which a crawl meets first."""

    kind: str
    document: Document
    follows: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the entry of planted.json."""
        return {"id": self.document.id, **self.details}


def plant(honest: Sequence[Document], items: Sequence[Item], config: PlantConfig, *, seed: int) -> list[Planted]:
    """Return junk of every kind. A `leaked_item` bears the id of the honest document it replaces.

    Ids, sources and titles are drawn as those of honest documents, so that only its text shows what a document is.
    """
    scale = min(1.0, len(honest) / _FULL_SIZE)
    generator = generator_for(seed, "plant", "choice")
    order = [honest[i] for i in generator.permutation(len(honest))]
    copies = [d for d in order if len(d.text) >= 1200][: _count(config.near_duplicate, scale)]
    taken = {d.id for d in copies}
    hosts = [d for d in order if len(d.text) >= 1500 and d.id not in taken][: _count(config.leaked_item, scale)]
    planted = [_near_duplicate(d, config, seed) for d in copies]
    planted += [_leak(host, item, seed) for host, item in zip(hosts, _some(items, len(hosts), generator), strict=False)]
    composed: tuple[tuple[str, int, Callable[[Generator], str]], ...] = (
        ("boilerplate", config.boilerplate, boilerplate_text),
        ("other_language", config.other_language, foreign_text),
        ("low_quality", config.low_quality, low_quality_text),
    )
    for kind, count, compose in composed:
        for number in range(_count(count, scale)):
            generator = generator_for(seed, "plant", kind, number)
            model = order[int(generator.integers(len(order)))]
            document = replace(model, id=new_id(seed, kind, number), text=compose(generator), metadata=_title(model))
            planted.append(Planted(kind, document))
    return planted


def new_id(seed: int, *names: str | int) -> str:
    """Return a document id that says nothing about the document."""
    return f"{seed_for(seed, 'document', *names):016x}"


def edited_copy(text: str, *, similarity: float, low: float, generator: Generator) -> tuple[str, float]:
    """Exchange, drop and add words until the Jaccard similarity to `text` is just below `similarity`."""
    original = shingles(text, size=SHINGLE)
    paragraphs = [paragraph.split() for paragraph in text.split("\n\n")]
    vocabulary = sorted({word for words in paragraphs for word in words if word.isalpha()}) or ["the"]
    best, best_similarity = text, 1.0
    while best_similarity > similarity:
        words = paragraphs[int(generator.choice(len(paragraphs), p=_shares(paragraphs)))]
        place = int(generator.integers(len(words)))
        word = vocabulary[int(generator.integers(len(vocabulary)))]
        edit = int(generator.integers(4))
        words[place : place + (edit != 0)] = [] if edit == 1 and len(words) > 1 else [word]
        candidate = "\n\n".join(" ".join(words) for words in paragraphs)
        measured = jaccard(original, shingles(candidate, size=SHINGLE))
        if measured < low:
            break
        best, best_similarity = candidate, measured
    return best, best_similarity


def boilerplate_text(generator: Generator) -> str:
    """Return a page of menus, notices and calls to act."""
    count = int(generator.integers(24, 60))
    return (
        "\n".join(BOILERPLATE[i] for i in generator.integers(len(BOILERPLATE), size=count))
        + "\n"
        + "\n".join(line for line in BOILERPLATE if line.endswith(".") and generator.random() < 0.5)
    )


def foreign_text(generator: Generator) -> str:
    """Return a page of sentences in one of the languages of the phrase banks."""
    code = sorted(LANGUAGES)[int(generator.integers(len(LANGUAGES)))]
    parts = LANGUAGES[code]
    gap, stop = ("", "。") if code == "zh" else (" ", ".")
    paragraphs: list[str] = []
    for _ in range(int(generator.integers(4, 9))):
        sentences = [
            gap.join(bank[int(generator.integers(len(bank)))] for bank in parts) + stop
            for _ in range(int(generator.integers(4, 9)))
        ]
        paragraphs.append(gap.join(sentences))
    return "\n\n".join(paragraphs)


def low_quality_text(generator: Generator) -> str:
    """Keyword spam, symbol soup, repeated lines, or random strings of letters."""
    forms = (_spam, _soup, _repeated, _gibberish)
    return forms[int(generator.integers(len(forms)))](generator)


def _spam(generator: Generator) -> str:
    lines = [" ".join(_words(SPAM, int(generator.integers(8, 20)), generator)) for _ in range(14)]
    return "\n".join(f"{line}." if generator.random() < 0.5 else line for line in lines)


def _soup(generator: Generator) -> str:
    signs = list(SOUP)
    runs = ["".join(_words(signs, int(generator.integers(2, 9)), generator)) for _ in range(160)]
    return " ".join(
        r if generator.random() < 0.7 else w for r, w in zip(runs, _words(SPAM, 160, generator), strict=True)
    )


def _repeated(generator: Generator) -> str:
    lines = ["The page that you have asked for is one of the pages that we have to offer with our offer of the day."]
    lines += [
        f"To see the {w} that we have, go to the list of {w} with the best price and be the first."
        for w in _words(SPAM, 3, generator)
    ]
    return "\n".join(lines[i] for i in generator.integers(len(lines), size=int(generator.integers(20, 40))))


def _gibberish(generator: Generator) -> str:
    letters = list("abcdefghijklmnopqrstuvwxyz")
    words = ["".join(_words(letters, int(generator.integers(3, 12)), generator)) for _ in range(180)]
    return " ".join(word + ("." if generator.random() < 0.1 else "") for word in words)


def _near_duplicate(original: Document, config: PlantConfig, seed: int) -> Planted:
    generator = generator_for(seed, "plant", "near_duplicate", original.id)
    low, high = config.similarity_low, config.similarity_high
    text, similarity = edited_copy(
        original.text, similarity=float(generator.uniform(low + 0.02, high)), low=low, generator=generator
    )
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


def _count(configured: int, scale: float) -> int:
    return min(configured, max(8, round(configured * scale)))


def _shares(paragraphs: list[list[str]]) -> list[float]:
    total = sum(map(len, paragraphs))
    return [len(words) / total for words in paragraphs]


def _words(bank: Sequence[str], count: int, generator: Generator) -> list[str]:
    return [bank[i] for i in generator.integers(len(bank), size=count)]


def _some(items: Sequence[Item], count: int, generator: Generator) -> list[Item]:
    return [items[i] for i in generator.permutation(len(items))[:count]]
