"""A text dressed as the web page it might have been: navigation, header, article, sidebar, footer, scripts."""

from html import escape

import numpy as np

_MENU = (
    "Home",
    "Docs",
    "Guide",
    "Reference",
    "Blog",
    "News",
    "Community",
    "About",
    "Contact",
    "Pricing",
    "Support",
)
_FOOTER = (
    "Terms of Service",
    "Privacy Policy",
    "Cookie Policy",
    "Imprint",
    "Sitemap",
    "Accessibility",
    "Careers",
)
_SIDE = ("Recent posts", "Popular this week", "Related pages", "On this page", "Categories", "Archive")
_SCRIPT = "window.dataLayer=window.dataLayer||[];function track(){dataLayer.push(arguments);}track('js',new Date());"
_STYLE = "body{font:16px/1.5 sans-serif;margin:0}nav ul{display:flex;list-style:none}footer{font-size:.8em}"


def html_page(paragraphs: list[str], *, title: str, generator: np.random.Generator) -> str:
    """A whole page around `paragraphs`, different in detail from page to page."""
    menu = "".join(f'<li><a href="/{w.lower()}">{w}</a></li>' for w in _some(_MENU, generator))
    foot = "".join(f'<a href="/legal/{i}">{w}</a> ' for i, w in enumerate(_some(_FOOTER, generator)))
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


def _sidebar(generator: np.random.Generator) -> str:
    if generator.random() < 0.4:
        return ""
    links = "".join(
        f'<li><a href="/p/{generator.integers(9999)}">{w}</a></li>' for w in _some(_MENU, generator)
    )
    return f'<aside class="sidebar"><h3>{generator.choice(_SIDE)}</h3><ul>{links}</ul></aside>'


def _some(words: tuple[str, ...], generator: np.random.Generator) -> list[str]:
    count = int(generator.integers(3, len(words)))
    return [words[i] for i in sorted(generator.choice(len(words), count, replace=False))]
