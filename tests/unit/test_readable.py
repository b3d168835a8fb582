"""HTML and calendars as a reader sees them, and as an attacker writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.mail.readable import (
    CALENDAR_MAX_CHARS,
    MAX_NESTING,
    calendar_to_text,
    html_cids,
    html_to_text,
)


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>Hello <b>you</b>,</p><p>bye</p>", "Hello you,\n\nbye"),
        ("a<br>b<br/><br>c", "a\nb\n\nc"),
        ("<div>a</div><div>b</div><div><br></div><div>c</div>", "a\nb\n\nc"),
        ("<div>a<br></div><div>b</div>", "a\nb"),
        ("H<sub>2</sub>O 1<span>2</span>3", "H2O 123"),
        ("  many \n\t spaces&nbsp;&nbsp;here ", "many spaces here"),
        ("a &amp;lt; b &euro; &#8364; &bogus;", "a &lt; b € € &bogus;"),
        ("<ul><li>one<li>two</ul>after", "- one\n- two\n\nafter"),
        ("<h1>Title</h1>text", "Title\n\ntext"),
        ("<pre>  a   b\n    c</pre>", "  a   b\n    c"),
        ("<script>x</script><style>p{}</style><title>t</title>seen<!-- not -->", "seen"),
        ('<div style="display: none">preview</div>seen', "seen"),
        (
            "<table><tr><th>Item</th><th>Qty</th></tr>"
            "<tr><td><p class=MsoNormal>Nuts</p></td><td><p>10</p></td></tr></table>",
            "Item\tQty\nNuts\t10",
        ),
        ("<table><tr><td>a</td><td></td><td>c</td></tr></table>", "a\t\tc"),
        (
            "<table><tr><td>1<br>2<br>3<br>4</td><td>x</td></tr></table>",
            "1\n2\n3\n4\nx",
        ),
        ("<table><tr><td><table><tr><td>a</td><td>b</td></tr></table></td></tr></table>", "a\tb"),
        ("<td>no table</td>", "no table"),
        ("<b>not <i>closed", "not closed"),
        ("</p></div>only ends", "only ends"),
        ('<?xml version="1.0" encoding="utf-16"?><html><p>ä', "ä"),
        ('<meta charset="koi8-r"><p>日本', "日本"),
        ("nul\0 and \ud800", "nul and ?"),
        ("plain text, 1 < 2", "plain text, 1 < 2"),
        ("", ""),
        ("<!-- only a comment -->", ""),
    ],
)
def test_html_is_readable(html: str, text: str) -> None:
    assert html_to_text(html) == text


def test_long_text_comes_through_whole() -> None:
    text = "日本語テキスト € " * 5000
    assert html_to_text(f"<p>{text}</p>") == text.strip()


@pytest.mark.parametrize("tag", ["div", "b", "table><tr><td", "blockquote", "ul><li"])
def test_senseless_nesting_is_stripped_of_its_tags(tag: str) -> None:
    assert html_to_text(f"<{tag}>" * (MAX_NESTING * 20) + "a &amp; b" + "</p>" * 5000) == "a & b"


@pytest.mark.parametrize("piece", ["<", "<div", "<!--", "<![CDATA[", "&", "</b>", "<td>", "<br>"])
def test_hostile_html_ends(piece: str) -> None:
    html_to_text(piece * 30_000)
    html_cids(piece * 30_000)


TAGS = ["p", "div", "table", "tr", "td", "pre", "br", "li", "ul", "b", "script", "title", "select"]
MARKUP = st.sampled_from(
    [form.format(tag) for tag in TAGS for form in ("<{}>", "</{}>", "<{} style=display:none>")]
    + ["text", " ", "\n", "<!--", "-->", "&amp;", "<", ">", "<?", "<!["]
)


@given(st.lists(MARKUP).map("".join) | st.text())
def test_any_html_is_text(html: str) -> None:
    assert isinstance(html_to_text(html), str)
    assert isinstance(html_cids(html), frozenset)


def test_shown_content_ids_are_found() -> None:
    html = """
        <img src="cid:logo%40example.com"> <img src=cid:bare@example.com>
        <td background='CID:back@example.com'> <p style="background: url(cid:url@example.com)">
        <img src="cid:a&amp;b@example.com"> <img src="cid:%3Cangle@example.com%3E">
        <img src="https://example.com/x.png"> acid:no
    """
    assert html_cids(html) == {
        "logo@example.com",
        "bare@example.com",
        "back@example.com",
        "url@example.com",
        "a&b@example.com",
        "angle@example.com",
    }


def calendar(*lines: str) -> str:
    return "\r\n".join(["BEGIN:VCALENDAR", "VERSION:2.0", *lines, "END:VCALENDAR", ""])


def test_a_calendar_shows_its_events() -> None:
    text = calendar_to_text(
        calendar(
            "METHOD:REQUEST",
            "BEGIN:VEVENT",
            "DTSTART:20260305T090000Z",
            "DTEND:20260305T100000Z",
            "SUMMARY:Budget talk",
            "LOCATION:Room 1\\, second floor",
            "ORGANIZER;CN=Jane Doe:mailto:jane@example.com",
            "DESCRIPTION:Bring the figures\\, please\\nand a pen",
            "END:VEVENT",
            "BEGIN:VTODO",
            "SUMMARY:Pay",
            "DUE;VALUE=DATE:20260401",
            "END:VTODO",
        )
    )
    assert text == (
        "Budget talk\n"
        "Start: 2026-03-05 09:00 UTC\n"
        "End: 2026-03-05 10:00 UTC\n"
        "Location: Room 1, second floor\n"
        "Organizer: Jane Doe <jane@example.com>\n"
        "Bring the figures, please\nand a pen\n"
        "\n"
        "Pay\n"
        "Due: 2026-04-01"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no calendar",
        calendar(),
        calendar("BEGIN:VEVENT"),
        calendar("BEGIN:VEVENT", "DTSTART:never", "END:VTODO"),
        calendar("BEGIN:VEVENT", "SUMMARY:x", "END:VEVENT") + "x" * CALENDAR_MAX_CHARS,
    ],
)
def test_a_broken_or_endless_calendar_is_shown_as_it_is(text: str) -> None:
    assert calendar_to_text(text) == text


@given(st.lists(st.sampled_from(
    ["BEGIN:VCALENDAR", "END:VCALENDAR", "BEGIN:VEVENT", "END:VEVENT", "SUMMARY:a", "DTSTART:1",
     "DTSTART;TZID=Nowhere:20260101T000000", " folded", "ORGANIZER:x", ":", "RRULE:FREQ=DAILY"]
)).map("\n".join))  # fmt: skip
def test_any_calendar_is_text(text: str) -> None:
    assert isinstance(calendar_to_text(text), str)
