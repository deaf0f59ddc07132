"""Laws of the article of a page: found by what the page says and where, not by the names of its template."""

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from trivium.corpus.clean.main_text import main_text
from trivium.corpus.clean.page_blocks import page_of
from trivium.corpus.kernels.html_blocks import START, STOP

ARTICLE = [
    f"The {n} paragraph of the article tells, in a sentence of some length, what happened on the day before."
    for n in ("first", "second", "third", "fourth", "fifth", "sixth")
]
TEASERS = "".join(
    f'<div><h3><a href="/{n}">Another story, number {n}</a></h3><p>Its first sentence is shown here so that '
    f"somebody wants to read story {n}.</p></div>"
    for n in range(12)
)
COMMENTS = "".join(
    f"<li><div>user{n}</div><div><p>What I think of this is that it is not at all what the author says.</p></div>"
    f'<a href="#">Reply</a></li>'
    for n in range(12)
)
WRAPPINGS = {
    "paragraphs": "".join(f"<p>{text}</p>" for text in ARTICLE),
    "unclosed paragraphs": "".join(f"<p>{text}" for text in ARTICLE),
    "divisions": "".join(f"<div>{text}</div>" for text in ARTICLE),
    "line breaks": "<br><br>".join(ARTICLE),
    "wrapped deep": "".join(f"<div><div><div><p>{text}</p></div></div></div>" for text in ARTICLE),
    "with empty ones between": "<p>&nbsp;</p>".join(f"<p>{text}</p>" for text in ARTICLE),
    "named like an advert": "".join(f'<div class="ad sponsor share"><p>{t}</p></div>' for t in ARTICLE),
    "with links between": '<p><a href="/x">Read another story</a></p>'.join(f"<p>{t}</p>" for t in ARTICLE),
    "table": f"<table><tr><td>{'<br><br>'.join(ARTICLE)}</td></tr></table>",
}


def page(article, *, after=""):
    return (
        "<html><head><title>The title of this page | A paper</title></head><body><nav><a href=/>Home</a></nav>"
        f"<div><h1>The title of this page</h1><div>{article}</div></div>{after}"
        "<footer><p>All rights are reserved by the paper that you are reading, and by nobody else.</p></footer>"
    )


@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize("after", ["", f"<div>{TEASERS}</div>", f"<div><ul>{COMMENTS}</ul></div>"])
def test_an_article_is_found_however_it_is_wrapped_and_whatever_follows_it(wrapping, after):
    found = [part for part in main_text(page(WRAPPINGS[wrapping], after=after)).split("\n") if part]
    assert found == ARTICLE


def test_a_longer_article_below_another_title_is_another_article():
    other = f"<article><h1>Another title</h1>{''.join(f'<p>{text.upper()}</p>' for text in ARTICLE * 2)}</article>"
    first = f"<article><h1>The title of this page</h1>{WRAPPINGS['paragraphs']}</article>"
    assert main_text(page(first, after=other)).split("\n\n") == ARTICLE


CHAPTERS = {
    "under one element": "<div>{}</div>",
    "under the body": "{}",
    "of an article by name": '<div class="markdown-body">{}</div>',
    "of an article": "<article>{}</article>",
    "in sections": "<main>{}</main>",
}


@pytest.mark.parametrize("around", CHAPTERS)
def test_chapters_under_first_level_headings_are_one_text_where_they_stand_side_by_side(around):
    """Markdown and manuals are like this: no chapter is another article. A text begins below its first heading."""
    section = ("<section>", "</section>") if around == "in sections" else ("", "")
    chapters = [f"{section[0]}<h1>Option {n}</h1><p>{text}</p>{section[1]}" for n, text in enumerate(ARTICLE)]
    html = f"<title>Manual of the tool</title>{CHAPTERS[around].format(''.join(chapters))}"
    found = main_text(html).split("\n\n")
    assert found == [part for n, text in enumerate(ARTICLE) for part in (f"Option {n}", text)][1:]


def test_captions_and_headings_without_text_are_left_out():
    article = [f"<p>{text}</p>" for text in ARTICLE]
    article.insert(3, "<h2>What came next</h2><figure><img><figcaption>A caption of it.</figcaption></figure>")
    article.insert(5, '<h2>More</h2><ul><li><a href="/a">One story</a></li></ul>')
    assert main_text(page("".join(article))).split("\n\n") == [*ARTICLE[:3], "What came next", *ARTICLE[3:]]


def test_quotations_stay_whatever_they_stand_in():
    quoted = f'{WRAPPINGS["paragraphs"]}<div class="social"><blockquote><p>{ARTICLE[0].upper()}</p></blockquote></div>'
    assert ARTICLE[0].upper() in main_text(page(quoted + WRAPPINGS["paragraphs"]))


# As the sites give them for embedding: the words of a post are linked to it, in part or altogether.
POSTS = {
    "a tweet": (
        '<blockquote class="twitter-tweet"><p lang="en">We won the cup <a href="/t">pic.twitter.com/x</a></p>'
        '&mdash; Ann Lee (@annlee) <a href="/s">November 18, 2019</a></blockquote>',
        ["We won the cup pic.twitter.com/x", "— Ann Lee (@annlee) November 18, 2019"],
    ),
    "a tweet of links": (
        '<blockquote class="twitter-tweet"><p lang="en"><a href="/b">@bob</a> <a href="/c">#TheCupIsOurs</a></p>'
        '&mdash; Ann Lee (@annlee) <a href="/s">November 18, 2019</a></blockquote>',
        ["@bob #TheCupIsOurs", "— Ann Lee (@annlee) November 18, 2019"],
    ),
    "a photograph": (
        '<blockquote class="instagram-media"><div><p><a href="/p">So proud of everybody who was there</a></p>'
        '<p>A post shared by <a href="/a">Ann Lee</a> (@annlee)</p></div></blockquote>',
        ["So proud of everybody who was there", "A post shared by Ann Lee (@annlee)"],
    ),
    "a video": (
        '<blockquote class="tiktok-embed"><section><a href="/a">@annlee</a><p>The dance of the year</p>'
        '<a href="/m">Original sound</a></section></blockquote>',
        ["@annlee", "The dance of the year", "Original sound"],
    ),
}


@pytest.mark.parametrize("around", ["{}", '<div class="social">{}</div>', "<figure>{}</figure>"])
@pytest.mark.parametrize("wrapping", ["paragraphs", "divisions", "line breaks"])
@pytest.mark.parametrize("post", POSTS)
def test_embedded_posts_are_kept_whole_between_paragraphs_and_after_the_last(post, wrapping, around):
    html, lines = POSTS[post]
    embedded = around.format(html)
    for rest, expected in ((WRAPPINGS[wrapping], ARTICLE), ("", [])):
        found = main_text(page(WRAPPINGS[wrapping] + embedded + rest, after=f"<div>{TEASERS}</div>"))
        assert found.split("\n\n") == [*ARTICLE, *lines, *expected]


@pytest.mark.parametrize(
    "after",
    [
        '<blockquote><p><a href="/x">Another story that is linked to</a></p></blockquote>',
        "<footer><blockquote>All of it is news</blockquote></footer>",
        "</div></div><div><blockquote>A reader writes</blockquote>",
    ],
    ids=["nothing but a link", "in a frame", "outside the article's element"],
)
def test_a_quotation_behind_the_article_that_is_no_part_of_it_is_left_out(after):
    assert main_text(page(WRAPPINGS["paragraphs"] + after)).split("\n\n") == ARTICLE


def test_text_of_three_bytes_a_character_needs_no_blanks_and_no_latin_stops():
    sentence = "昨日の出来事について、新聞は長い記事を書いた。"
    assert main_text(page(f"<p>{sentence}</p>" * 4)).split("\n\n") == [sentence] * 4


def test_a_page_that_shows_nothing_gives_what_its_publisher_states():
    html = '<div id=app></div><script>{"articleBody" : "One \\u00e9 \\"two\\" &amp; three"}</script>'
    assert main_text(html) == 'One é "two" & three'


def test_rows_and_items_are_lines():
    html = "<table><tr><td>a</td><td>b</td></tr><tr><td>c</td></tr></table><ul><li>x<li>y</ul>"
    assert main_text(html) == "a\tb\nc\n• x\n• y"


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<svg><title/><path/></svg>Seen.", "Seen."),
        ("a<!-- x --!>b<!-- y -- > z -->c", "abc"),
        ("<iframe src=a>Seen.", "Seen."),
        ("<script>f('<p>')</script>Seen.<style>x", "Seen."),
        ('<p title="a > b" class=x/>Seen.', "Seen."),
        ("1 < 2 and 3 > 2", "1 < 2 and 3 > 2"),
        ("<a href=x>link<p>text</a> Seen.", "link\n\ntext Seen."),
        ("<button>Press</button>Seen.", "Seen."),
        ("x&nbsp;&lt;b&gt;\xa0y", "x <b> y"),
    ],
)
def test_tags_are_read_as_browsers_read_them(html, text):
    page = page_of(html)
    assert "\n\n".join(page.of(number) for number in range(len(page.blocks))) == text


BOTH = ("p", "div", "b", "li", "ul", "table", "a", "h2")
PIECES = ["<td>", "<tr>", "<br>", "<!--c-->", "one", "two", "three", "&amp;", "é"]
PIECES += [f"{bracket}{name}>" for name in BOTH for bracket in ("<", "</")]
FRAGMENTS = st.lists(st.sampled_from(PIECES), max_size=60)


@settings(max_examples=300, deadline=None)
@given(FRAGMENTS)
def test_the_words_of_a_page_are_those_that_a_parser_of_the_standard_finds(fragments):
    html = "<body>" + " ".join(fragments)
    mine = page_of(html)
    theirs = extract_plain_text(HTMLTree.parse(html), preserve_formatting=True, list_bullets=False)
    words = [word for number in range(len(mine.blocks)) for word in mine.of(number).split()]
    assert Counter(words) == Counter(theirs.split())


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="<>/!-='\"abpi &;\n\x00é\ud800", max_size=80))
def test_no_page_is_too_broken(html):
    blocks = page_of(html).blocks
    assert np.all(blocks[:, START] < blocks[:, STOP])
    assert isinstance(main_text(html), str)


def test_the_order_of_attributes_and_their_quotes_change_nothing():
    names = ['class="related"', "id='related'", "role=complementary", 'data-x="a>b"', "hidden"]
    shuffler = random.Random(0)
    texts = set()
    for _ in range(20):
        shuffler.shuffle(names)
        insert = f"<div {' '.join(names)}><p>{ARTICLE[0].upper()}</p></div>"
        texts.add(main_text(page(WRAPPINGS["paragraphs"] + insert + WRAPPINGS["paragraphs"])))
    assert texts == {"\n\n".join(ARTICLE * 2)}
