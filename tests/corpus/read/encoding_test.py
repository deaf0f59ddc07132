"""Laws of encodings: a byte order mark, the server, the page's own statement, and only then a guess."""

import codecs

import pytest

from trivium.corpus.read.encoding import decode
from trivium.corpus.read.read import read_any
from trivium.corpus.read.warc import Page, write_warc

POLISH = "Źdźbło trawy, łąka i śnieg."
XML = '<?xml version="1.0" {}?>\n<!DOCTYPE html><html xmlns="http://www.w3.org/1999/xhtml"><p>{}</p></html>'


@pytest.mark.parametrize(
    "statement",
    [
        'encoding="iso-8859-2"',
        "encoding='ISO-8859-2'",
        'encoding = " Latin2 "',
        'Encoding="l2" standalone="yes"',
        'encoding\n=\n"iso8859-2"',
    ],
)
@pytest.mark.parametrize("stated", [None, "iso-8859-1", "no-such-charset", "utf-8"])
def test_an_xml_declaration_states_the_encoding(statement, stated):
    page = XML.format(statement, POLISH)
    assert decode(page.encode("iso-8859-2"), stated) == page


def test_a_page_in_a_warc_file_is_read_by_its_xml_declaration(tmp_path):
    page = XML.format('encoding="iso-8859-2"', POLISH)
    pages = [Page("https://a.example/", kind, None, page.encode("iso-8859-2")) for kind in
             ("application/xhtml+xml", "text/html")]  # fmt: skip
    write_warc(tmp_path / "a.warc.gz", pages)
    assert [document.text for document in read_any(tmp_path / "a.warc.gz", source="s")] == [page, page]


@pytest.mark.parametrize(
    "meta",
    [
        '<meta charset="iso-8859-2">',
        "<META CHARSET = 'Latin-2' />".replace("Latin-2", "Latin2"),
        "<meta charset=iso_8859-2>",
        '<meta/charset="ISO-8859-2"/>',
        '<meta http-equiv="Content-Type" content="text/html; charset=iso-8859-2">',
        "<meta content='text/html;charset=\"l2\"' http-equiv=content-type>",
        '<!-- <meta charset="koi8-r"> --><meta charset="iso-8859-2">',
        '<meta name="x" content="charset=koi8-r"><meta charset="iso-8859-2">',
        '<meta name="generator"><meta charset="no-such"><meta charset="iso-8859-2">',
    ],
)
@pytest.mark.parametrize("stated", [None, "iso-8859-1", "bogus"])
def test_a_meta_element_states_the_encoding(meta, stated):
    page = f"<html><head>{meta}</head><p>{POLISH}</p>"
    assert decode(page.encode("iso-8859-2"), stated) == page


@pytest.mark.parametrize("stated", ["iso-8859-2", " ISO-8859-2 ", "Latin2", "L2"])
@pytest.mark.parametrize("own", ['<meta charset="koi8-r">', '<?xml version="1.0" encoding="windows-1251"?>'])
def test_a_server_is_believed_before_the_page(stated, own):
    page = f"{own}<p>{POLISH}</p>"
    assert decode(page.encode("iso-8859-2"), stated) == page


@pytest.mark.parametrize("stated", [None, "iso-8859-2", "koi8-r", "utf-16"])
@pytest.mark.parametrize(
    ("mark", "codec"),
    [(codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")],
)
def test_a_byte_order_mark_is_believed_before_all(stated, mark, codec):
    page = XML.format('encoding="iso-8859-2"', POLISH)
    assert decode(mark + page.encode(codec), stated) == page


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_recognised_by_its_xml_declaration_or_the_server(codec):
    page = XML.format('encoding="UTF-16"', POLISH)
    assert decode(page.encode(codec), None) == page
    assert decode(page[page.index("<!") :].encode(codec), codec) == page[page.index("<!") :]


def test_a_name_of_utf_16_that_can_be_read_is_wrong():
    page = XML.format('encoding="utf-16"', POLISH)
    assert decode(page.encode(), None) == page


@pytest.mark.parametrize("stated", ["windows-1251", "iso-8859-2", "gbk", "iso-8859-1", None])
def test_text_that_is_valid_utf_8_in_many_places_is_nothing_else(stated):
    page = f'<meta charset="koi8-r"><p>{POLISH}</p>'
    assert decode(page.encode(), stated) == page


def test_any_bytes_become_text_under_any_label():
    assert decode("Größe und Überfluß".encode(), "no-such-charset") == "Größe und Überfluß"
    assert isinstance(decode(bytes(range(256)), "ascii"), str)


def test_two_bytes_that_are_valid_utf_8_by_accident_are_what_is_stated():
    page = "<p>LISTA SZKÓŁ</p>"
    assert page.encode("iso-8859-2").decode() != page
    assert decode(page.encode("iso-8859-2"), "iso-8859-2") == page
    assert decode(XML.format('encoding="iso-8859-2"', page).encode("iso-8859-2"), None).count("SZKÓŁ") == 1
    assert decode("<p>one café</p>".encode(), "iso-8859-1") == "<p>one café</p>"


@pytest.mark.parametrize(
    ("label", "codec", "text"),
    [
        ("Shift_JIS", "cp932", "①番目の文章です"),
        ("x-sjis", "cp932", "髙島屋の文章です"),
        ("euc-kr", "cp949", "똠방각하는 한국어 문장입니다"),
        ("GB2312", "gb18030", "朱镕基和㐀是中文文章"),
        ("big5", "big5hkscs", "香港嘅文章喺呢度"),
        ("tis-620", "cp874", "ภาษาไทย – “ข้อความ”"),
        ("x-mac-cyrillic", "mac-cyrillic", "Это русский текст"),
        ("koi8-u", "koi8-u", "Це український текст ґ"),
        ("iso-2022-jp", "iso2022_jp", "これは日本語の文章です。"),
        ("windows-1252", "cp1252", "naïve café — “quoted”"),
    ],
)
def test_a_label_means_what_it_means_on_the_web(label, codec, text):
    for page in (f'<meta charset="{label}">{text}', f'<?xml version="1.0" encoding="{label}"?>{text}'):
        assert decode(page.encode(codec), None) == page
    assert decode(text.encode(codec), f" {label.upper()} ") == text


RUSSIAN = "Съешь ещё этих мягких французских булок, да выпей чаю. " * 5
KOREAN = "대한민국의 수도인 서울은 한강을 끼고 있으며 인구가 많다. " * 5
CZECH = "Příliš žluťoučký kůň úpěl ďábelské ódy – „vše“. " * 5
GREEK = "Το γρήγορο καφέ αλεπού πηδάει πάνω από το τεμπέλικο σκυλί. " * 5
HEBREW = "כל הזכויות שמורות לבעלי האתר הזה בישראל. " * 5
JAPANESE = "これは日本語の文章です。東京は日本の首都である。" * 5


@pytest.mark.parametrize(
    ("label", "codec", "text", "added", "read"),
    [
        ("windows-1251", "cp1251", RUSSIAN, "Иван".encode(), "Р\x98РІР°РЅ"),
        ("windows-1250", "cp1250", CZECH, b"\x81", "\x81"),
        ("windows-1253", "cp1253", GREEK, b"\xd2", "\ufffd"),
        ("windows-1255", "cp1255", HEBREW, b"\xff", "\ufffd"),
        ("iso-8859-7", "iso8859-7", GREEK, b"\xff", "\ufffd"),
        ("euc-kr", "euc-kr", KOREAN, b"\xff", "\ufffd"),
        ("euc-kr", "euc-kr", KOREAN, "강".encode("euc-kr")[:1], "\ufffd"),
        ("iso-2022-jp", "iso2022_jp", JAPANESE, b"\xff", "\ufffd"),
        ("utf-8", "utf-8", CZECH, b"\x98", "\ufffd"),
        ("utf-8", "utf-8", CZECH, b"\x98" * 15, "\ufffd" * 15),
    ],
)
def test_damage_of_one_character_does_not_change_the_encoding(label, codec, text, added, read):
    meta = f'<meta charset="{label}">'
    for server, page in ((label, text), (None, meta + text), ("iso-8859-1", meta + text), (label, meta + text)):
        assert decode(page.encode(codec) + added, server) == page + read


@pytest.mark.parametrize("label", ["windows-1253", "windows-1255", "euc-kr", "gbk", "big5", "utf-8"])
@pytest.mark.parametrize(("codec", "text"), [("cp1251", RUSSIAN), ("koi8-r", RUSSIAN), ("cp1250", CZECH)])
def test_a_wrong_statement_in_which_much_is_damage_is_ignored(label, codec, text):
    assert decode(text.encode(codec), label) == text


def test_korean_is_recognised_without_a_statement():
    assert decode(KOREAN.encode("euc-kr"), None) == KOREAN


def test_a_byte_that_a_windows_encoding_does_not_define_is_a_control_character():
    for number in (*range(1250, 1259), 874):
        codec = f"cp{number}"
        text = bytes(byte for byte in range(0xA0, 0x100) if bytes([byte]).decode(codec, "ignore")).decode(codec) * 50
        for byte in range(0x80, 0xA0):
            one = bytes([byte])
            assert decode(text.encode(codec) + one, f"windows-{number}")[-1] == (
                one.decode(codec, "ignore") or chr(byte)
            )
