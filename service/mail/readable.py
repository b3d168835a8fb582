"""Readable text from HTML and calendars.

HTML takes one linear pass over libxml2's parser events: rows of a table become lines, their cells
stand between tabs, what a reader does not see is dropped. Nothing here raises: markup nested
beyond sense is only stripped of its tags, a broken calendar is shown as it is.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from html import unescape
from typing import Any
from urllib.parse import unquote

from lxml import etree

# Beyond it libxml2's search for the open element to close becomes slow; reply chains reach 300.
MAX_NESTING = 1000
# libxml2 finishes the piece it is at before an exception of ours stops it.
FEED_BYTES = 8192
# A cell with more lines is layout, not data: its lines stay lines.
CELL_MAX_LINES = 3
# icalendar takes about 8 s a MiB; a longer calendar is no invitation and is shown as it is.
CALENDAR_MAX_CHARS = 64 * 1024

_DROPPED = frozenset({"script", "style", "svg", "template", "title"})
_SPACED = frozenset({
    "blockquote", "dl", "figure", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "ol", "p", "pre",
    "table", "ul",
})  # fmt: skip
_BLOCKS = _SPACED | {
    "address", "article", "aside", "body", "caption", "center", "dd", "details", "div", "dt",
    "fieldset", "figcaption", "footer", "form", "header", "legend", "li", "main", "nav", "section",
    "summary", "tbody", "tfoot", "thead", "tr",
}  # fmt: skip
_CELLS = frozenset({"td", "th"})
_SPACES = re.compile(r"[ \t\r\n\f\v\xa0]+")
_TAG = re.compile(r"<[^<>]*>")
_CID = re.compile(r"""\bcid:([^\s"'<>)]+)""", re.IGNORECASE)
_DETAILS = (
    ("Start", "DTSTART"),
    ("End", "DTEND"),
    ("Due", "DUE"),
    ("Location", "LOCATION"),
    ("Organizer", "ORGANIZER"),
)


class TooDeep(Exception):
    """The markup is nested deeper than `MAX_NESTING`."""


UNREADABLE = (TooDeep, etree.LxmlError)


def html_to_text(html: str) -> str:
    """What a reader sees of the HTML, as lines of text."""
    try:
        return str(feed_html(html, _Text()))
    except UNREADABLE:
        return _SPACES.sub(" ", unescape(_TAG.sub(" ", html))).strip()


def feed_html(html: str, target: object) -> object:
    """Let lxml's parser call the target; what its `close` gives. One of UNREADABLE."""
    parser = etree.HTMLParser(target=target, encoding="utf-8", recover=True)
    source = html.replace("\0", "").encode("utf-8", "replace")
    for start in range(0, len(source), FEED_BYTES):
        parser.feed(source[start : start + FEED_BYTES])
    return parser.close()


def html_cids(html: str) -> frozenset[str]:
    """The Content-IDs that the HTML shows by `cid:` (RFC 2392), percent-decoded, without <>."""
    return frozenset(unquote(unescape(cid)).strip("<>") for cid in _CID.findall(html))


def calendar_to_text(text: str) -> str:
    """The events and tasks of an iCalendar object (RFC 5545) as lines; if it fails, `text`."""
    if len(text) > CALENDAR_MAX_CHARS:
        return text
    from icalendar import Calendar  # slow to import, and few mails hold a calendar

    try:
        calendars = Calendar.from_ical(text, multiple=True)
        found = [item for name in ("VEVENT", "VTODO") for c in calendars for item in c.walk(name)]
        return "\n\n".join(filter(None, map(_describe, found))) or text
    except Exception:  # the parser meets whatever strangers send: the raw text is better than none
        return text


class _Lines:
    """Finished lines, and the pieces of the line at work."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self._pieces: list[str] = []
        self._gap = False

    def write(self, text: str) -> None:
        if not self._pieces or self._pieces[-1].endswith((" ", "\t")):
            text = text.lstrip(" ")
        if text:
            self._pieces.append(text)

    def write_preformatted(self, text: str) -> None:
        *whole, last = text.split("\n")
        for line in whole:
            self._pieces.append(line)
            self.break_line()
        self._pieces.append(last)

    def write_cell(self, cell: "_Lines") -> None:
        cell.end_line()
        if len(cell.done) <= CELL_MAX_LINES:
            self.write(" ".join(filter(None, cell.done)))
            self._pieces.append("\t")
        else:
            self.end_line()
            self._add(cell.done)

    def break_line(self) -> None:
        """A <br>: unlike the end of a block it can make an empty line."""
        if not self.end_line():
            self._gap = True

    def end_line(self, *, gap: bool = False) -> bool:
        """Finish the line if it shows anything; `gap` asks for an empty line before the next."""
        text = "".join(self._pieces).rstrip()
        self._pieces.clear()
        if text:
            self._add([text])
        self._gap = self._gap or gap
        return bool(text)

    def _add(self, lines: list[str]) -> None:
        if self._gap and self.done:
            self.done.append("")
        self.done += lines
        self._gap = False


class _Text:
    """The parser's target. Each open table cell has lines of its own."""

    def __init__(self) -> None:
        self._open = [_Lines()]
        self._depth = self._dropped = self._preformatted = 0

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise TooDeep
        if self._dropped or tag in _DROPPED or _is_hidden(attributes):
            self._dropped += 1
        elif tag == "br":
            self._open[-1].break_line()
        elif tag in _CELLS:
            self._open.append(_Lines())
        elif tag in _BLOCKS:
            self._start_block(tag)

    def end(self, tag: str) -> None:
        self._depth -= 1
        if self._dropped:
            self._dropped -= 1
        elif tag in _CELLS:
            cell = self._open.pop()
            self._open[-1].write_cell(cell)
        elif tag in _BLOCKS:
            self._open[-1].end_line(gap=tag in _SPACED)
            self._preformatted -= tag == "pre"

    def data(self, data: str) -> None:
        if self._dropped:
            return
        if self._preformatted:
            self._open[-1].write_preformatted(data)
        else:
            self._open[-1].write(_SPACES.sub(" ", data))

    def close(self) -> str:
        self._open[0].end_line()
        return "\n".join(self._open[0].done)

    def _start_block(self, tag: str) -> None:
        self._open[-1].end_line(gap=tag in _SPACED)
        self._preformatted += tag == "pre"
        if tag == "li":
            self._open[-1].write("- ")


def _is_hidden(attributes: Mapping[str, str]) -> bool:
    style = attributes.get("style")
    return style is not None and "display:none" in style.replace(" ", "").lower()


def _describe(component: Any) -> str:
    details = ((label, component.get(name)) for label, name in _DETAILS)
    lines = [
        str(component.get("SUMMARY", "")),
        *(f"{label}: {_shown(value)}" for label, value in details if value),
        str(component.get("DESCRIPTION", "")),
    ]
    return "\n".join(line.strip() for line in lines if line.strip())


def _shown(value: Any) -> str:
    when = getattr(value, "dt", None)
    if isinstance(when, datetime):
        return when.strftime("%Y-%m-%d %H:%M %Z").strip()
    text = str(when or value).removeprefix("mailto:")
    name = getattr(value, "params", {}).get("CN")
    return f"{name} <{text}>" if name else text
