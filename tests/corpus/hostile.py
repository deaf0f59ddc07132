"""Texts of any size that are made to be slow: each kind repeats what some algorithm may handle badly."""

from collections.abc import Callable, Mapping

WORDS = "The quick brown fox that is in the house was seen and heard by the dog, and to be of use. "


def repeated(unit: str) -> Callable[[int], str]:
    """A text of `size` characters that repeats `unit`."""
    return lambda size: (unit * (size // len(unit) + 1))[:size]


def inside(unit: str) -> Callable[[int], str]:
    """The same between ordinary sentences, which filters let pass."""
    return lambda size: WORDS * 20 + repeated(unit)(size) + "\n\n" + WORDS * 20


def nested(opening: str, closing: str) -> Callable[[int], str]:
    """Return a function of `size`: as many nested pairs of marks as fit into `size` characters."""

    def text(size: int) -> str:
        depth = size // (len(opening) + len(closing))
        return opening * depth + closing * depth

    return text


def different_words(size: int) -> str:
    """Words of which no two are equal."""
    return " ".join(f"w{number}x" for number in range(size // 7))


KINDS: Mapping[str, Callable[[int], str]] = {
    "ordinary sentences": repeated(WORDS),
    "combining marks": inside("\u0301\u0323"),
    "one letter": inside("a"),
    "two letters": inside("ab"),
    "one letter beyond ASCII": inside("é"),
    "digits": inside("7"),
    "dashes": inside("-"),
    "spaces": inside(" "),
    "spaces before lines": inside("   \n"),
    "newlines": inside("\n"),
    "no-break spaces": inside("\u00a0"),
    "begin of a web token": inside("eyJ-"),
    "web tokens": inside("eyJaaaaaaaaaaa."),
    "private keys": inside("-----BEGIN PRIVATE KEY-----"),
    "other keys": inside("xoxb-"),
    "addresses": inside("a@a."),
    "points": inside("a.b-"),
    "numbers with dots": inside("1.2."),
    "colons": inside("ab:"),
    "telephones": inside("+1 (2) "),
    "URLs": inside("http://a.b/c?d=e&f "),
    "citations": inside("[1"),
    "ends of sentences": inside(".!?"),
    "quotes": inside("\"'”"),
    "abbreviations": inside("No. "),
    "brackets": nested("[", "]"),
    "braces of JSON": nested('{"a":', "}"),
    "digits of a number in JSON": lambda size: '{"text": "a", "n": ' + "7" * size + "}",
    "names in JSON": lambda size: '{"text": "a"' + repeated(', "a": 1')(size) + "}",
    "escapes in JSON": lambda size: '{"text": "' + repeated("\\ud83d\\ude00")(size // 12 * 12) + '"}',
    "rows of JSON": repeated('{"text": "a"}\n'),
    "records of WARC": repeated("WARC/1.0\r\nContent-Length: 0\r\n\r\n\r\n\r\n"),
    "begin of WARC records": repeated("WARC/1.0\r\n"),
    "heads of WARC records": lambda size: "WARC/1.0\r\n" + repeated("a: b\r\n")(size),
    "members of gzip": repeated("\x1f\x8b\x08"),
    "names of folders": repeated("a/"),
    "elements": nested("<div>", "</div>"),
    "articles": nested("<article><p>Some words of prose here, and more of them.</p>", "</article>"),
    "quoted elements": nested("<blockquote><p>a", "</p></blockquote>"),
    "tables": nested("<table><tr><td>", "</td></tr></table>"),
    "open elements": inside("<div><p><b>"),
    "closed elements": inside("</div></b>"),
    "open tags": inside("<a href='"),
    "attributes": lambda size: "<p " + repeated("a=b ")(size) + ">" + WORDS,
    "titles": inside("<title"),
    "headings": inside("<h1>The title of a page</h1>"),
    "bodies of articles": inside('"articleBody": "a\\'),
    "scripts": inside("<script>"),
    "comments": inside("<!--"),
    "entities": inside("&amp;"),
    "ends of entities": inside("&a"),
    "entities of marks": inside("&#769;"),
    "mojibake": inside("Ã©"),
    "mojibake of mojibake": inside("ÃƒÂ©"),
    "controls": inside("\x80a"),
    "colours": inside("\x1b[31"),
    "ligatures": inside("ﬁ"),
    "families": inside("👨\u200d👩\u200d"),
    "Hangul jamo": inside("\u1112\u1161\u11ab"),
    "directions": inside("\u202e\u2066"),
    "Chinese": inside("天地玄黃，"),
    "Thai": inside("กำกี่"),
    "one long word": lambda size: different_words(size).replace(" ", ""),
    "different words": different_words,
    "many lines": inside("a\n"),
    "equal lines": inside("This line is read again and again.\n"),
    "equal paragraphs": inside("This paragraph is read again.\n\n"),
    "equal words": inside("word "),
    "bullets": inside("• a\n"),
    "calls": inside("subscribe!"),
    "policies": inside("terms of "),
}
